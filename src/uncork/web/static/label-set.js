// One label set: its verdict, and its proof, made anew.
import { inAddress } from "/assets/address.js";
import { element, percent, short, whole } from "/assets/text.js";
import { cell, failed, get, header, link, start } from "./api.js";
import { ask } from "./ask.js";
import { oneLabel, setNodes } from "./label-names.js";
import { places } from "./places.js";

const page = JSON.parse(document.body.dataset.page), forAll = page.set === null;

const STATEMENTS = {
  feasible: margin => `Some input gives exactly this answer, every label on its right side by at least ${short(margin)}.`,
  infeasible: margin => margin === 0
    ? "No input gives this answer: with the right weights, the signed logits of some labels never sum to more than zero."
    : `No input gives this answer: with the right weights, the signed logits of some labels sum to at most −${short(Math.abs(margin))} at every input.`,
  undecided: () => "Nothing was proven about it.",
};

function heading(detail) {
  const title = element("p", "big-label long"), line = element("p", "statement"), nodes = [title], { check } = detail;
  title.append(...setNodes(detail, 64));
  if (check?.holds === false) nodes.push(element("p", "careful", check.text));
  const verdict = check?.verdict && check.verdict !== "undecided" ? check.verdict : detail.verdict;
  line.append(element("i", "dot " + verdict), STATEMENTS[verdict](check?.margin ?? detail.margin ?? NaN));
  nodes.push(line);
  if (check && check.holds !== false) nodes.push(element("p", "soft", check.text));
  if (detail.weights) nodes.push(element("p", "soft", `The weights are not at hand: ${detail.weights}.`));
  if (detail.reason && verdict === "undecided") nodes.push(element("p", "soft", detail.reason));
  return nodes;
}

function table(title, words, columns, rows) {
  const section = element("section"), made = element("table"), box = element("div", "wide");
  made.append(element("thead"), element("tbody"));
  made.tHead.append(header(columns));
  made.tBodies[0].append(...rows);
  box.append(made);
  section.append(element("h2", "", title), element("p", "soft", words), box);
  return section;
}

function line(part, value) {
  const made = element("tr");
  made.append(cell(oneLabel(part.name, part.label, 80), "text"), cell(part.on ? "on" : "off"), cell(value, "number"));
  return made;
}

function proof(detail) {
  if (detail.mixture) {
    return [table("In conflict", "The heaviest labels of the mixture: they cannot all be on the side that the set asks for.",
      [["label"], ["asked to be"], ["weight", "number"]], detail.mixture.map(part => line(part, percent(part.weight))))];
  }
  if (detail.nearest) {
    return [table("Nearest to the other side", "At the input that proves it, the labels whose logits are nearest to their thresholds.",
      [["label"], ["is"], ["away by", "number"]], detail.nearest.map(part => line(part, short(part.lead))))];
  }
  return [];
}

async function load() {
  if (forAll) { // a page for all sets of an audit: the address says which
    page.set = /^\d{1,9}$/.test(inAddress("set")) ? Number(inAddress("set")) : 0;
    document.querySelector("h1").textContent = `Label set ${whole(page.set)}`;
    document.title = `Label set ${page.set} · uncork`;
  }
  const detail = await ask(`/api/label-audits/${page.audit}/sets/${page.set}`);
  const steps = element("p", "print-hidden");
  if (page.set > 0) steps.append(link(places.labelSet(page.audit, page.set - 1), "Previous set"), " · ");
  steps.append(link(places.labelAudit(page.audit), "All sets"));
  if (page.set + 1 < page.sets) steps.append(" · ", link(places.labelSet(page.audit, page.set + 1), "Next set"));
  get("set").replaceChildren(...heading(detail), ...proof(detail), steps);
}

start();
const again = () => load().catch(error => failed(get("set"), error));
again();
if (forAll) addEventListener("hashchange", again);
