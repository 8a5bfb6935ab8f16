// Two audits side by side: what one loses and the other does not.
import { fillFromAddress, inAddress, putInAddress, putQuery } from "/assets/address.js";
import { ORDER } from "/assets/parts.js";
import { element, labelNode, percent, short, whole } from "/assets/text.js";
import { cell, className, domainNode, failed, get, link, start, verdictNode, when } from "./api.js";
import { ask } from "./ask.js";
import { places } from "./places.js";

// What a kind of difference is called between checkpoints of one model, and between two models.
const KINDS = {
  lost: ["lost since", "only the second loses"],
  regained: ["regained", "only the first loses"],
  both: ["lost in both", "both lose"],
  other: ["changed otherwise", "differ otherwise"],
  added: ["new classes", "only in the second"],
  removed: ["no longer there", "only in the first"],
};
const TITLES = [["before", "after"], ["first", "second"]];
const PAGE = 200;
let offset = 0, asked = 0, shown = "", another = 0;

/** What an audit said of a class, in one line; its number where the other audit has another. */
function side(title, verdict, value, id, other) {
  const place = cell([verdictNode(verdict)], "side");
  place.dataset.title = title;
  if (verdict && value !== null) place.append(element("span", "aside", short(value)));
  if (id !== null && other !== null && id !== other) place.append(element("span", "aside", "class " + whole(id)));
  return place;
}

function table(result) {
  const made = element("table", "compared"), head = element("tr"), [one, two] = TITLES[another];
  for (const title of ["class", "difference", `${one} (audit ${result.before.id})`, `${two} (audit ${result.after.id})`]) {
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
  const body = get("changes").querySelector("tbody"), [one, two] = TITLES[another];
  for (const change of result.changes) {
    const line = element("tr"), { class_before: was, class_after: is } = change;
    const to = is === null ? places.classOf(result.before.id, was) : places.classOf(result.after.id, is);
    line.append(
      cell(link(to, className(change.label, is ?? was)), "text"), cell(KINDS[change.change][another], "change"),
      side(one, change.verdict_before, change.margin_before, was, is),
      side(two, change.verdict_after, change.margin_after, is, was),
    );
    body.append(line);
  }
}

/** One audit in a few lines: what it is of, and how many classes have which verdict. */
function card(title, audit) {
  const made = element("section", "card"), name = element("h2"), bar = element("div", "proportion"), list = element("dl", "facts");
  name.append(element("span", "sub", title), link(places.audit(audit.id), labelNode(audit.name, 60)));
  bar.setAttribute("aria-hidden", "true");
  const fact = (term, ...content) => {
    const told = element("dd");
    told.append(...content);
    list.append(element("dt", "", term), told);
  };
  for (const verdict of ORDER) {
    if (!audit[verdict]) continue;
    const part = element("i", verdict);
    part.style.flex = `${audit[verdict]} 0 0`;
    bar.append(part);
    fact(verdict, element("i", "dot " + verdict), whole(audit[verdict]), element("span", "aside", percent(audit[verdict] / Math.max(1, audit.asked))));
  }
  fact("head", `${whole(audit.classes)} × ${whole(audit.features)}, ${audit.has_bias ? "with bias" : "no bias"}`);
  fact("inputs", domainNode(audit.domain));
  fact("audited", when(audit.created) + " UTC");
  made.append(name, bar, list);
  return made;
}

function tiles(counts) {
  const made = Object.entries(KINDS).map(([kind, words]) => {
    const tile = element("button"), n = counts[kind];
    tile.type = "button";
    tile.dataset.kind = kind;
    tile.disabled = !n;
    tile.setAttribute("aria-pressed", String(kind === shown));
    tile.append(element("b", kind === "lost" && n ? "lost" : "", whole(n)), element("span", "", words[another]));
    tile.addEventListener("click", () => {
      shown = kind === shown ? "" : kind; // pressed again: everything that differs
      load();
    });
    return tile;
  });
  get("counts").replaceChildren(...made);
}

function summary(result) {
  const { before, after } = result, names = ({ name, also }) => [name, ...also];
  another = names(before).some(name => names(after).includes(name)) ? 0 : 1;
  get("before-title").textContent = TITLES[another][0];
  get("after-title").textContent = TITLES[another][1];
  get("sides").replaceChildren(card(TITLES[another][0], before), card(TITLES[another][1], after));
  tiles(result.counts);
  const careful = [[TITLES[another][0], before], [TITLES[another][1], after]].flatMap(([title, audit]) => audit.doubts.map(
    text => `Careful, ${title}: ${text}`));
  if (before.domain !== after.domain) careful.push("Careful: the two were audited with different inputs, so verdicts may differ for that reason alone.");
  if (before.metric !== after.metric) careful.push("Careful: the two compare by different metrics.");
  get("doubts").replaceChildren(...careful.map(text => element("p", "careful", text)));
  get("found").textContent = `classes matched by ${result.matched_by === "label" ? "label" : "number"}`;
  const same = before.fingerprint === after.fingerprint;
  const [first, second] = another ? ["in the first", "in the second"] : TITLES[0];
  get("lead").textContent = `${whole(before.unargmaxable)} unargmaxable classes ${first}, ${whole(after.unargmaxable)} ${second}. ` +
    (same ? "Both audits are of the same weights." : another ? "These are two models." : "The weights differ.");
}

/** What is said where no class fits. */
function none(sought) {
  if (sought) return "No such class among them.";
  return shown ? "There is none." : another ? "No class differs." : "No class changed.";
}

async function load(more = false) {
  const mine = ++asked, before = get("before").value, after = get("after").value, search = get("search").value.trim();
  if (!before || !after) return;
  if (!more) offset = 0;
  try {
    const result = await ask("/api/compare", { before, after, kind: shown, search, limit: PAGE, offset });
    if (mine !== asked) return; // an answer that was overtaken
    if (!more) {
      putQuery(`?before=${before}&after=${after}`);
      putInAddress({ show: shown, search });
      summary(result);
      if (result.total) table(result);
      else get("changes").replaceChildren(element("p", "", none(search)));
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
  shown = Object.hasOwn(KINDS, inAddress("show")) ? inAddress("show") : "";
  fillFromAddress(get("search"), "search");
  await load();
}

start();
for (const id of ["before", "after"]) get(id).addEventListener("change", () => load());
let typing = 0;
get("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(load, 120);
});
get("more").addEventListener("click", () => load(true));
get("choose").addEventListener("submit", event => event.preventDefault());
choices().catch(error => failed(get("changes"), error));
