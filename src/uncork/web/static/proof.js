// What a class page and the panel of a report say of one class: its label, its verdict, its proof.
import { codePoints, element, labelNode, percent, say, short, whole } from "/assets/text.js";
import { className, link } from "./api.js";
import { ask } from "./ask.js";
import { places } from "./places.js";

const LONG = 256; // the API cuts labels after so many characters

const STATEMENTS = {
  argmaxable: margin => `Some input puts it first, ahead of every other class by at least ${short(margin)}.`,
  unargmaxable: margin => margin === 0
    ? "No input puts it strictly first: a mixture of other classes is at or above it everywhere."
    : `No input puts it first: a mixture of other classes stays at least ${short(Math.abs(margin))} above it everywhere.`,
  tied: () => "Equal to another class, weight for weight: it can share first place, never hold it alone.",
  undecided: () => "Nothing was proven about it.",
};

/** The label of a class, and all of a long one on request. */
function title(detail, className) {
  const place = element("p", className + (detail.label_length > 40 ? " long" : ""));
  place.append(labelNode(detail.label, Infinity));
  if (detail.label_length > LONG && detail.audit !== undefined) {
    const more = element("button", "quiet", `Show all ${whole(detail.label_length)} characters`);
    more.type = "button";
    more.addEventListener("click", async () => {
      const found = await ask(`/api/audits/${detail.audit}/classes/${detail.class}`, { whole_labels: true });
      place.replaceChildren(labelNode(found.label, Infinity));
    });
    place.append(" ", more);
  }
  return place;
}

/** Label and verdict: what the weights prove where they were asked, else what is stored. `about` says what a verdict means of items under another metric. */
export function heading(detail, className, about = null) {
  const nodes = [], { check } = detail;
  if (detail.label !== null) {
    nodes.push(title(detail, className));
    if (detail.label) nodes.push(element("div", "code-points", codePoints(detail.label)));
  }
  if (check?.holds === false) nodes.push(element("p", "careful", check.text));
  const verdict = check?.verdict && check.verdict !== "undecided" ? check.verdict : detail.verdict;
  const line = element("p", "statement");
  line.append(element("i", "dot " + verdict), about?.[verdict] ?? say(STATEMENTS[verdict](check?.margin ?? detail.margin ?? NaN)));
  nodes.push(line);
  if (check && check.holds !== false) nodes.push(element("p", "soft", check.text));
  if (detail.reason) nodes.push(element("p", "soft", detail.reason));
  return nodes;
}

/** A range in words, or one value where both ends read the same. */
export const between = (low, high, write) => (write(low) === write(high) ? write(low) : `${write(low)} to ${write(high)}`);

/** The best rank of a class, from its proven bounds. */
export function rankText(low, high) {
  return `The best rank it can hold is ${between(low, high, whole)}` + (low > 1 ? `: it is never among the first ${whole(low - 1)}.` : ".");
}

/** The same as the audit stored it, where it was asked for. */
export function rankNodes(detail) {
  return detail.best_rank_upper === null ? [] : [element("p", "", rankText(detail.best_rank_lower, detail.best_rank_upper))];
}

/** [{class, label, verdict, …}] as a list with links; `value` picks the number, `write` words it. */
export function classList(audit, entries, value, write, kind) {
  const list = element("ul", "rows"), most = Math.max(...entries.map(value), 0);
  for (const entry of entries) {
    const item = element("li"), name = element("span", "one-line");
    if (entry.verdict) {
      const to = link(places.classOf(audit, entry.class), className(entry.label, entry.class));
      name.append(element("i", "dot " + entry.verdict), to);
    } else name.append(className(entry.label, entry.class));
    if (entry.label !== null) name.append(element("small", "", say("class ") + whole(entry.class)));
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
    const { parts, size, certified } = detail.mixture;
    const rest = 1 - parts.reduce((sum, part) => sum + part.share, 0);
    const others = size === null ? "further classes" : `${whole(Math.max(0, size - parts.length))} further classes`;
    const nodes = [element(heading, "", "Who takes its place: the mixture that beats it"), classList(detail.audit, parts, part => part.share, percent, "unargmaxable")];
    if (rest > 0.0005) nodes.push(element("p", "soft", say(`The rest, ${percent(rest)}, is spread over ${others}.`)));
    if (!certified) nodes.push(element("p", "soft", "The largest parts of the mixture, as stored: not checked here."));
    else if (isAnother(detail)) nodes.push(otherMixture(detail));
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

/** Whether the audit stored another mixture than the one shown. */
function isAnother({ mixture, stored_parts: kept, check }) {
  return check.holds && kept.some((part, k) => part.class !== mixture.parts[k]?.class || Math.abs(part.share - mixture.parts[k].share) > 1e-4);
}

/** What the audit itself, and so the command line, named: many mixtures can beat one class. */
function otherMixture(detail) {
  const line = element("p", "soft", say("Many mixtures beat this class. This one was found just now; the audit found another, with "));
  detail.stored_parts.slice(0, 3).forEach((part, k) => line.append(k ? ", " : "", className(part.label, part.class, 20), ` ${percent(part.share)}`));
  line.append(" as its largest parts. The audit's certificates, where they are at hand, make it the one shown.");
  return line;
}

export function nearestNodes(detail, heading = "h3") {
  if (!detail.nearest) return [];
  return [element(heading, "", say("Nearest rows, and how far their weights are")), classList(detail.audit, detail.nearest, entry => entry.distance, short, "")];
}
