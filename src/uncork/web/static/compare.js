// Two audits side by side: which classes changed.
import { element, short, whole } from "/assets/text.js";
import { ask, cell, className, failed, get, link, start, verdictNode, when } from "./api.js";

const KINDS = {
  lost: "lost since", regained: "regained", other: "changed otherwise", added: "new classes", removed: "no longer there",
};
const PAGE = 200;
let offset = 0;

/** What an audit said of a class, in one line; its number where the other audit has another. */
function side(title, verdict, value, id, other) {
  const place = cell([verdictNode(verdict)], "side");
  place.dataset.title = title;
  if (verdict && value !== null) place.append(element("span", "aside", short(value)));
  if (id !== null && other !== null && id !== other) place.append(element("span", "aside", "class " + whole(id)));
  return place;
}

function table(result) {
  const made = element("table", "compared"), head = element("tr");
  for (const title of ["class", "change", `before (audit ${result.before.id})`, `after (audit ${result.after.id})`]) {
    const place = element("th", "", title);
    place.scope = "col";
    head.append(place);
  }
  made.append(element("thead"), element("tbody"));
  made.tHead.append(head);
  const box = element("div", "wide");
  box.append(made);
  get("changes").replaceChildren(box);
}

function rows(result) {
  const body = get("changes").querySelector("tbody");
  for (const change of result.changes) {
    const line = element("tr"), { class_before: was, class_after: is } = change;
    const to = is === null ? `/audits/${result.before.id}/classes/${was}` : `/audits/${result.after.id}/classes/${is}`;
    line.append(
      cell(link(to, className(change.label, is ?? was)), "text"), cell(KINDS[change.change], "change"),
      side("before", change.verdict_before, change.margin_before, was, is),
      side("after", change.verdict_after, change.margin_after, is, was),
    );
    body.append(line);
  }
}

async function load(more = false) {
  const before = get("before").value, after = get("after").value;
  if (!before || !after) return;
  if (!more) offset = 0;
  try {
    const result = await ask("/api/compare", { before, after, limit: PAGE, offset });
    if (!more) {
      history.replaceState(null, "", `?before=${before}&after=${after}`);
      const tiles = Object.entries(KINDS).map(([kind, words]) => {
        const tile = element("div", "tile");
        tile.append(element("b", kind === "lost" && result.counts.lost ? "lost" : "", whole(result.counts[kind])), element("span", "", words));
        return tile;
      });
      get("counts").replaceChildren(...tiles);
      get("doubts").replaceChildren(...["before", "after"].flatMap(place => result[place].doubts.map(
        text => element("p", "careful", `Careful, ${place}: ${text}`))));
      get("found").textContent = `classes matched by ${result.matched_by === "label" ? "label" : "number"}`;
      const same = result.before.fingerprint === result.after.fingerprint;
      get("lead").textContent = `${whole(result.before.unargmaxable)} unargmaxable classes before, ${whole(result.after.unargmaxable)} after. ` +
        (same ? "Both audits are of the same weights." : "The weights differ.");
      if (result.total) table(result);
      else get("changes").replaceChildren(element("p", "", "No class changed."));
    }
    if (result.total) rows(result);
    offset = result.next_offset;
    get("more").hidden = offset === null;
  } catch (error) {
    failed(get("changes"), error);
  }
}

async function choices() {
  const { items } = await ask("/api/audits", { sort: "created", descending: true, limit: 1000 });
  for (const id of ["before", "after"]) {
    for (const audit of items) {
      const option = element("option", "", `${audit.id}: ${audit.name.slice(0, 60)}, ${when(audit.created)}`);
      option.value = audit.id;
      get(id).append(option);
    }
  }
  const query = new URLSearchParams(location.search);
  const [newest] = items;
  const earlier = newest && items.find(audit => audit.name === newest.name && audit.id !== newest.id);
  get("before").value = query.get("before") || (earlier || items[1] || newest || {}).id || "";
  get("after").value = query.get("after") || (newest || {}).id || "";
  await load();
}

start();
for (const id of ["before", "after"]) get(id).addEventListener("change", () => load());
get("more").addEventListener("click", () => load(true));
get("choose").addEventListener("submit", event => event.preventDefault());
choices().catch(error => failed(get("changes"), error));
