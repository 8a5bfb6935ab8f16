// The report of a stored audit: its classes come in pages when they are seen, its figures and odd rows after them.
import { fillFromAddress, inAddress, orderInAddress, orderText, putInAddress } from "/assets/address.js";
import { Histogram, Scatter } from "/assets/charts.js";
import { unpack } from "/assets/data.js";
import { ABOUT, FEW, ORDER, copying, figures, selects, tiles } from "/assets/parts.js";
import { Table } from "/assets/table.js";
import { element, labelNode, percent, say, short, useWords, whole } from "/assets/text.js";
import { themeButton } from "/assets/theme.js";
import { className, get, link } from "./api.js";
import { ask } from "./ask.js";
import { LIVE, places } from "./places.js";
import { heading, nearestNodes, proofNodes, rankNodes } from "./proof.js";

const PAGE = 100; // classes asked for at once
const KEPT = 40; // pages remembered
const audit = JSON.parse(get("data").textContent);
const api = `/api/audits/${audit.audit}`;
useWords(audit.words);
const NAMES = { argmaxable: say("argmaxable"), unargmaxable: say("unargmaxable"), tied: "tied", undecided: say(audit.unknown) };
const COLUMNS = [
  { key: "class", title: say("class"), track: "4.5rem", number: true, sortable: true },
  { key: "label", title: "label", track: "minmax(6rem, 1.1fr)", sortable: true },
  { key: "verdict", title: "verdict", track: "9.5rem", sortable: true },
  // Of items that are first by a theorem there is no margin, and no mixture.
  ...(audit.about ? [] : [{ key: "margin", title: "margin", track: "7rem", number: true, sortable: true }]),
  { key: "by", title: audit.about ? "why" : "mixture", track: "minmax(8rem, 2fr)" },
];

/** Whether that is something to show: a verdict, a kind of odd row, all. */
function known(name) {
  return name === "all" || (Object.hasOwn(audit.counts, name) && audit.counts[name] > 0) || audit.odd.includes(name);
}

/** The classes that fit, asked for page by page: what a table takes for an array. */
class Pages {
  constructor(query, first) {
    Object.assign(this, { query, length: first.total, pages: new Map([[0, first]]), asked: new Set() });
  }

  at(place) {
    const number = Math.floor(place / PAGE), page = this.pages.get(number);
    if (!page) this.load(number);
    const item = page?.items[place % PAGE];
    return item && { ...item, others: page.others };
  }

  async load(number) {
    if (this.asked.has(number)) return;
    this.asked.add(number);
    try {
      this.pages.set(number, await ask(`${api}/classes`, { ...this.query, limit: PAGE, offset: number * PAGE }));
      if (this.pages.size > KEPT) this.pages.delete(this.pages.keys().next().value);
      if (rows === this) table.arrived();
    } catch (error) {
      get("found").textContent = `This could not be read: ${error.message}.`;
    } finally {
      this.asked.delete(number);
    }
  }
}

const FIRST = ["unargmaxable", "undecided", "tied"].find(name => audit.counts[name]) || "all";
const ORDERED = FIRST === "unargmaxable" ? ["margin", 1] : ["class", 1];
let filter = known(inAddress("show")) ? inAddress("show") : FIRST;
let order = orderInAddress(COLUMNS.filter(column => column.sortable).map(column => column.key), ORDERED);
let rows = [], latest = 0, opened = -1, steepest = 0;

function fill(cell, key, item) {
  if (key === "class") cell.textContent = whole(item.class);
  else if (key === "label") cell.append(className(item.label, item.class, 80));
  else if (key === "verdict") cell.append(element("i", "dot " + item.verdict), NAMES[item.verdict]);
  else if (key === "margin" && item.margin !== null) {
    cell.textContent = short(item.margin);
    steepest = Math.max(steepest, -item.margin);
    if (item.verdict === "unargmaxable" && steepest > 0) {
      const bar = element("i", "bar");
      bar.style.width = Math.max(2, (-100 * item.margin) / steepest) + "%";
      cell.append(bar);
    }
  } else if (key === "by") fillBy(cell, item);
}

function fillBy(cell, item) {
  if (item.verdict === "undecided") cell.append(element("span", "soft", item.reason || ""));
  if (item.verdict !== "unargmaxable") return;
  const parts = (item.stolen_by || []).slice(0, FEW);
  for (const [other, share] of parts) {
    const span = element("span", "share");
    span.append(className(item.others[other], other, 20), " ", element("small", "", percent(share)));
    cell.append(span);
  }
  if (!parts.length) cell.append(element("span", "soft", say("all classes together")));
}

async function refresh(keepPlace = false) {
  const mine = ++latest, sought = get("search").value.trim();
  const query = { search: sought, sort: order[0], descending: order[1] < 0 };
  const sort = orderText(order);
  putInAddress({ show: filter === FIRST ? "" : filter, sort: sort === orderText(ORDERED) ? "" : sort, search: sought });
  if (filter in audit.counts) query.verdict = filter;
  else if (filter !== "all") query.odd = filter;
  const first = await ask(`${api}/classes`, { ...query, limit: PAGE });
  if (mine !== latest) return; // an answer that was overtaken
  rows = new Pages(query, first);
  table.show(rows, order, keepPlace);
  const every = filter === "all" ? audit.size : audit.counts[filter];
  get("found").textContent = sought && every !== undefined ? `${whole(rows.length)} of ${whole(every)}` : say(`${whole(rows.length)} ${rows.length === 1 ? "class" : "classes"}`);
  get("about").textContent = audit.about ? audit.about[filter] || audit.about.all : say(ABOUT[filter] || ABOUT.all);
  get("filter").value = filter;
  get("sort").value = order.join(" ");
  for (const tile of get("tiles").children) tile.setAttribute("aria-pressed", String(tile.dataset.name === filter));
}

function again() {
  refresh().catch(error => { get("found").textContent = `This could not be read: ${error.message}.`; });
}

function choose(name) {
  filter = name;
  again();
}

function sortBy(key) {
  order = [key, order[0] === key ? -order[1] : 1];
  again();
}

function button(text, act) {
  const made = element("button", "quiet", text);
  made.type = "button";
  made.disabled = !act;
  if (act) made.addEventListener("click", act);
  return made;
}

function step(place) {
  return place >= 0 && place < rows.length && rows.at(place) ? () => open(rows.at(place).class, place) : null;
}

/** The panel of a class: what the table has of it at once, its proof when that was made. */
async function open(id, place = -1) {
  const dialog = get("detail"), bar = element("div", "detail-bar"), close = button("Close", () => dialog.close());
  const content = element("div"), everything = element("p"), known = place >= 0 ? rows.at(place) : undefined;
  opened = id;
  bar.append(element("span", "", say("class ") + whole(id)), button("Previous", place < 0 ? null : step(place - 1)), button("Next", place < 0 ? null : step(place + 1)), close);
  everything.append(link(places.classOf(audit.audit, id), say("Everything about this class")));
  const title = element("h2", "sr-only", say("Class ") + whole(id));
  title.id = "detail-title";
  if (known) content.append(...heading(known, "detail-label", audit.about));
  dialog.replaceChildren(bar, title, content, everything);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  close.focus();
  if (place >= 0) table.activate(place, false);
  putInAddress({ class: id });
  try {
    const detail = await ask(`${api}/classes/${id}`);
    if (opened !== id) return; // another class was opened meanwhile
    content.replaceChildren(...heading(detail, "detail-label", audit.about), ...rankNodes(detail), ...proofNodes(detail), ...nearestNodes(detail));
  } catch (error) {
    content.replaceChildren(element("p", "", `This could not be read: ${error.message}.`));
  }
}

/** Dots that stand for all classes, as the charts read them. */
async function dots(across, up = "margin") {
  const found = await ask(`${api}/figures`, { across, up });
  if (found.size === null) return null;
  const ids = unpack(found.ids, Int32Array);
  return {
    total: found.size, size: ids.length, counts: audit.counts, ids, verdicts: unpack(found.verdicts, Uint8Array),
    margins: unpack(found.margins, Float32Array), ranks: found.ranks && unpack(found.ranks, Float32Array), across: unpack(found.across, Float32Array), each: unpack(found.counts, Int32Array),
    label: () => null,
  };
}

async function charts() {
  const hint = get("hint"), made = [];
  const [norms, numbers, ranked] = await Promise.all([dots("norm"), dots("class"), dots("norm", "rank")]);
  const scatter = (title, note, from, acrossTitle, up = {}) => new Scatter(title, note, from,
    { across: from.across, acrossTitle, hint, opened: row => open(from.ids[row]), ...up });
  if (norms && !audit.about) made.push(scatter("Length of the row against margin", "lost classes below the line", norms, "length of the class's row"));
  if (ranked) {
    made.push(scatter("Length of the row against best rank", "the highest place that some input gives it", ranked, "length of the class's row",
      { up: ranked.ranks, upTitle: "best rank" }));
  }
  if (!audit.about) made.push(scatter("Where in the vocabulary", "class number against margin", numbers, "class"));
  if (!audit.about && numbers.margins.some(Number.isFinite)) {
    made.push(new Histogram("Margins", "how many classes have which", numbers, { values: numbers.margins, signed: true, acrossTitle: "margin" }));
  }
  if (norms) made.push(new Histogram("Lengths of rows", "how many classes have which", norms, { values: norms.across, signed: false, acrossTitle: "length" }));
  redraw = figures(made, audit.counts, NAMES);
}

async function oddRows() {
  const { kinds, weights } = await ask(`${api}/odd`), box = get("odd");
  if (!kinds) box.append(element("p", "", `This needs the weights: ${weights}.`));
  else if (!kinds.length) box.append(element("p", "", "None: no row is zero, equal to another or within rounding of it."));
  else box.className = "odd";
  for (const kind of kinds || []) {
    const option = element("option", "", say("odd rows: ") + kind.name);
    option.value = kind.kind;
    get("filter").append(option);
    const made = element("button"), first = element("div"), few = element("span", "one-line");
    made.type = "button";
    first.append(element("b", "", whole(kind.count)), kind.name);
    const groups = kind.groups > 1 ? ` in ${whole(kind.groups)} groups` : "";
    for (const [id, label] of kind.first) few.append(className(label, id, 12), "  ");
    made.append(first, element("span", "", kind.lost ? say(`${whole(kind.lost)} of them never the argmax${groups}`) : `none of them lost${groups}`), few);
    made.addEventListener("click", () => {
      choose(kind.kind);
      get("classes").scrollIntoView({ block: "start" });
    });
    box.append(made);
  }
  get("filter").value = filter; // perhaps one of these, from the address
}

let redraw = () => {};
const table = new Table(get("table"), { columns: COLUMNS, caption: say("Classes"), fill, opened: (item, place) => open(item.class, place), sorted: sortBy });
tiles(audit.counts, audit.size, NAMES, choose);
selects(
  [["all", say("every class")], ...ORDER.filter(name => audit.counts[name]).map(name => [name, NAMES[name]])],
  COLUMNS.filter(column => column.sortable).flatMap(({ key, title }) => [[key + " 1", title + " ↑"], [key + " -1", title + " ↓"]]),
  choose,
  chosen => {
    order = chosen;
    again();
  },
);
get("classes").hidden = false;
themeButton(get("theme"), () => redraw());
copying();

let typing = 0;
get("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(again, 150);
});
get("search").addEventListener("keydown", event => {
  if (event.key === "Enter" && rows.length) table.open(0);
  else if (event.key === "ArrowDown" && rows.length) table.activate(0, true);
  else return;
  event.preventDefault();
});
get("detail").addEventListener("click", event => { if (event.target === get("detail")) get("detail").close(); });
get("detail").addEventListener("close", () => {
  opened = -1;
  putInAddress({ class: "" });
  if (rows.length) table.activate(table.active, true);
});
fillFromAddress(get("search"), "search");
const openWanted = () => { if (/^\d+$/.test(inAddress("class"))) open(Number(inAddress("class"))); };
openWanted();
addEventListener("hashchange", () => { // somebody followed a link, or typed
  filter = known(inAddress("show")) ? inAddress("show") : FIRST;
  order = orderInAddress(COLUMNS.filter(column => column.sortable).map(column => column.key), ORDERED);
  get("search").value = inAddress("search");
  again();
  openWanted();
});
refresh().then(() => Promise.all([charts(), oddRows()])).catch(error => { get("found").textContent = `This could not be read: ${error.message}.`; });
