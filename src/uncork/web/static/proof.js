// Lists of classes that a proof names, for the page of a class and the panel of a live report.
import { element, percent, short, whole } from "/assets/text.js";
import { className, link } from "./api.js";

/** [{class, label, verdict, …}] as a list with links; `value` picks the number, `write` words it. */
export function classList(audit, entries, value, write, kind) {
  const list = element("ul", "rows"), most = Math.max(...entries.map(value), 0);
  for (const entry of entries) {
    const item = element("li"), name = element("span", "one-line");
    if (entry.verdict) {
      const to = link(`/audits/${audit}/classes/${entry.class}`, className(entry.label, entry.class));
      name.append(element("i", "dot " + entry.verdict), to);
    } else name.append(className(entry.label, entry.class));
    if (entry.label !== null) name.append(element("small", "", "class " + whole(entry.class)));
    item.append(name, element("span", "value", write(value(entry))));
    if (kind && most > 0) {
      const measure = element("i", "measure " + kind);
      measure.style.width = Math.max(1, (100 * value(entry)) / most) + "%";
      item.append(measure);
    }
    list.append(item);
  }
  return list;
}

/** The proof of a class as nodes: the mixture that beats it, or who comes next at its witness. */
export function proofNodes(detail, heading = "h3") {
  if (detail.mixture) {
    const { parts, size, origin } = detail.mixture;
    const rest = 1 - parts.reduce((sum, part) => sum + part.share, 0);
    const others = size === null ? "further classes" : `${whole(Math.max(0, size - parts.length))} further classes`;
    const nodes = [element(heading, "", "Who takes its place: the mixture that beats it"), classList(detail.audit, parts, part => part.share, percent, "unargmaxable")];
    nodes.push(element("p", "soft", (rest > 0.0005 ? `The rest, ${percent(rest)}, is spread over ${others}. ` : "") + `The mixture: ${origin}.`));
    return nodes;
  }
  if (detail.runners_up && detail.runners_up.length) {
    return [
      element(heading, "", "Next in line where it wins: its lead over them"),
      classList(detail.audit, detail.runners_up, entry => entry.lead, short, "argmaxable"),
    ];
  }
  return [];
}

export function nearestNodes(detail, heading = "h3") {
  if (!detail.nearest) return [];
  return [element(heading, "", "Nearest rows, and how far their weights are"), classList(detail.audit, detail.nearest, entry => entry.distance, short, "")];
}
