// Asking the API. In a folder of files, export-ask.js stands in its place.

/** JSON of a path of the API, or an error that says what the server said. */
export async function ask(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value !== null && value !== undefined && value !== "") query.set(name, value);
  const answer = await fetch(path + (query.size ? "?" + query : ""), { headers: { Accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) throw new Error(typeof body.detail === "string" ? body.detail : `the server answers ${answer.status}`);
  return body;
}
