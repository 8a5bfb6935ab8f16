// The API's own description, drawn: nothing is fetched but openapi.json.
import { element } from "/assets/text.js";
import { failed, get, link, start } from "./api.js";
import { ask } from "./ask.js";

function words(schema) {
  if (!schema) return "";
  if (schema.anyOf) return schema.anyOf.map(words).filter(text => text !== "null").join(" or ");
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.enum) return schema.enum.join(", ");
  if (schema.type === "array") return `list of ${words(schema.items)}`;
  const parts = [schema.type];
  if (schema.minimum !== undefined || schema.maximum !== undefined) parts.push(`${schema.minimum ?? "…"} to ${schema.maximum ?? "…"}`);
  return parts.join(", ");
}

function draw(description) {
  const box = get("paths");
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const section = element("section", "path"), list = element("dl");
      section.append(element("h2", "", `${method.toUpperCase()} ${path}`), element("p", "", operation.summary || ""));
      for (const parameter of operation.parameters || []) {
        const schema = parameter.schema || {};
        const enumeration = schema.$ref ? words(description.components.schemas[schema.$ref.split("/").at(-1)]) : words(schema);
        const fallback = schema.default !== undefined && schema.default !== null ? `; default ${schema.default}` : "";
        list.append(element("dt", "", parameter.name + (parameter.required ? " *" : "")));
        list.append(element("dd", "", [parameter.description || schema.description, enumeration].filter(Boolean).join(": ") + fallback));
      }
      if (list.children.length) section.append(list);
      const answer = operation.responses["200"]?.content?.["application/json"]?.schema;
      if (answer) section.append(element("p", "soft", "Answer: " + (words(answer) || "JSON") + "."));
      const needs = (operation.parameters || []).some(parameter => parameter.required);
      if (method === "get" && !needs) section.append(link(path, "Ask"));
      box.append(section);
    }
  }
}

start();
ask("/openapi.json").then(draw, error => failed(get("paths"), error));
