// One class: its proof, its nearest rows, its history.
import { inAddress } from "/assets/address.js";
import { element, labelNode, percent, say, short, useWords, whole } from "/assets/text.js";
import { cell, domainNode, failed, get, link, start, verdictNode, when } from "./api.js";
import { ask } from "./ask.js";
import { moving } from "./move.js";
import { LIVE, places } from "./places.js";
import { between, heading, nearestNodes, proofNodes, rankNodes, rankText } from "./proof.js";

const page = JSON.parse(document.body.dataset.page);
useWords(page.words);
const notHere = rank => `Its highest probability${rank} and what would come of moving its row are not here: these pages are files, and each of these is ` +
  "computed from the weights. uncork serve shows them where the weights are.";

function history(detail) {
  const section = element("section"), table = element("table"), head = element("tr");
  section.append(element("h2", "", "Over the checkpoints of this model"));
  section.append(element("p", "soft", say("Every audit of the same model name, oldest first; the class is found by its label where there is one.")));
  for (const title of ["audited", "audit", say("class"), "verdict", "margin", say("inputs"), "weights"]) {
    const place = element("th", "", title);
    place.scope = "col";
    head.append(place);
  }
  table.append(element("thead"), element("tbody"));
  table.tHead.append(head);
  for (const past of detail.history) {
    const line = element("tr");
    line.append(
      cell(when(past.created), "when"),
      cell([link(places.audit(past.audit), "audit " + past.audit), " ", labelNode(past.name, 40)], "when"),
      cell(past.class === null ? "not there" : link(places.classOf(past.audit, past.class), whole(past.class))),
      cell(verdictNode(past.verdict)), cell(past.margin === null ? "" : short(past.margin)), cell(domainNode(past.domain)),
      cell(element("code", "", past.fingerprint.slice(0, 15)), "when"),
    );
    table.tBodies[0].append(line);
  }
  const box = element("div", "wide");
  box.append(table);
  section.append(box);
  return section;
}

/** How near a lost class comes: computed when the page is open, which takes a moment. */
async function showOutlook(section) {
  section.append(element("h2", "", "How near it comes"));
  const line = element("p", "soft", "Computing its highest probability and best rank…");
  line.setAttribute("role", "status");
  section.append(line);
  const found = await ask(`/api/audits/${page.audit}/classes/${page.class}/outlook`);
  if (found.probability_upper === null) {
    line.textContent = `This needs the weights: ${found.weights || "nothing could be proven"}.`;
    return;
  }
  const words = [`The highest probability any ${say("input")} can give it is ${between(found.probability_lower, found.probability_upper, percent)}.`];
  if (found.best_rank_upper !== null) words.push(rankText(found.best_rank_lower, found.best_rank_upper));
  line.textContent = words.join(" ");
}

async function load() {
  // What is stored is there at once; the proof is made anew and takes a moment.
  const { items } = await ask(`/api/audits/${page.audit}/classes`, { after: page.class - 1, limit: 1 });
  get("class").prepend(...heading({ ...items[0], audit: page.audit }, "big-label", page.about));
  const detail = await ask(`/api/audits/${page.audit}/classes/${page.class}`);
  if (detail.label) document.title = detail.label.slice(0, 40) + " · uncork";
  const proof = element("section"), near = element("section"), halves = element("div", "halves");
  proof.append(...proofNodes(detail, "h2"));
  near.append(...nearestNodes(detail, "h2"));
  if (detail.row_length !== null) near.append(element("p", "soft", say("The length of its own row is ") + short(detail.row_length) + "."));
  if (detail.weights) near.append(element("p", "soft", `${say("Nearest rows")} need the weights: ${detail.weights}.`));
  halves.append(proof, near);
  const steps = element("p", "print-hidden");
  if (page.class > 0) steps.append(link(places.classOf(page.audit, page.class - 1), say("Previous class")), " · ");
  steps.append(link(places.inReport(page.audit, page.class), "In the report"), " · ", link(places.classOf(page.audit, page.class + 1), say("Next class")));
  const nearness = element("section"), moved = element("section", "print-hidden");
  get("class").replaceChildren(...heading(detail, "big-label", page.about), halves, nearness, moved, history(detail), steps);
  if (page.about) moved.remove(); // items that are first by a theorem: no row of theirs has a bias
  else if (!LIVE) nearness.append(...rankNodes(detail), element("p", "soft", notHere(detail.best_rank_upper === null ? ", its best rank" : "")));
  else if (!page.local) moved.append(element("p", "soft", "Its row cannot be moved here: other machines can reach this server, and an answer costs seconds of its processor."));
  else moving(moved, page).catch(error => failed(moved, error));
  if (LIVE && (detail.check.verdict ?? detail.verdict) === "unargmaxable") await showOutlook(nearness);
  else if (LIVE) nearness.remove();
}

/** The class of the address, on a page that is for all classes of an audit. */
async function loadWanted() {
  page.class = /^\d{1,9}$/.test(inAddress("class")) ? Number(inAddress("class")) : 0;
  document.querySelector("h1").textContent = say("Class ") + whole(page.class);
  document.title = say("Class ") + page.class + " · uncork";
  get("class").replaceChildren();
  await load();
}

start();
const forAll = page.class === null, again = () => (forAll ? loadWanted : load)().catch(error => failed(get("class"), error));
again();
if (forAll) addEventListener("hashchange", again);
