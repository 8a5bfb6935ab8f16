// The report, put together: verdicts, table, figures, odd rows, and the panel of one class.
import { fillFromAddress, inAddress, orderInAddress, orderText, putInAddress } from "./address.js";
import { Classes, VERDICTS } from "./data.js";
import { Histogram, Scatter } from "./charts.js";
import { Detail } from "./detail.js";
import { ABOUT, FEW, ORDER, copying, figures, selects, tiles } from "./parts.js";
import { Table } from "./table.js";
import { themeButton } from "./theme.js";
import { element, labelNode, percent, say, short, whole } from "./text.js";

const get = id => document.getElementById(id);
const classes = new Classes(JSON.parse(get("data").textContent));
const NAMES = { argmaxable: say("argmaxable"), unargmaxable: say("unargmaxable"), tied: "tied", undecided: say(classes.unknown) };
const measured = !classes.about || classes.margins.some(Number.isFinite); // of a theorem there is no margin
const FAST = 3e4; // classes up to which typing filters at once
const FIRST = ["unargmaxable", "undecided", "tied"].find(name => classes.counts[name]) || "all";
const ORDERED = FIRST === "unargmaxable" ? ["margin", 1] : ["class", 1];
let filter = FIRST, order = ORDERED, rows = [];
const filters = { all: () => true };
for (const name of VERDICTS) filters[name] = row => classes.verdict(row) === name;
(classes.odd || []).forEach((kind, k) => {
  const ids = new Set(kind.ids);
  filters["odd" + k] = row => ids.has(classes.ids[row]);
});

function columns() {
  const outlook = classes.outlook;
  return [
    { key: "class", title: say("class"), track: "4.5rem", number: true, sortable: true },
    { key: "label", title: "label", track: "minmax(6rem, 1.1fr)", sortable: Boolean(classes.labels) },
    { key: "verdict", title: "verdict", track: "9.5rem", sortable: true },
    ...(measured ? [{ key: "margin", title: "margin", track: "7rem", number: true, sortable: true }] : []),
    ...(classes.norms ? [{ key: "norm", title: say("row length"), track: "6rem", number: true, sortable: true }] : []),
    ...(outlook && outlook.probability_upper ? [{ key: "probability", title: "highest probability", track: "8.5rem", number: true, sortable: true }] : []),
    ...(outlook && outlook.best_rank_lower ? [{ key: "rank", title: "best rank", track: "6rem", number: true, sortable: true }] : []),
    { key: "by", title: classes.about ? "next in line" : "mixture, or next in line", track: "minmax(8rem, 2fr)" },
  ];
}

let steepest = 0; // the largest slack, for the bars
for (let row = 0; row < classes.size; row++) {
  if (classes.verdicts[row] === 2 && -classes.margins[row] > steepest) steepest = -classes.margins[row];
}

function named(id, most) {
  const label = classes.label(id);
  return label === null ? element("span", "", say("class ") + whole(id)) : labelNode(label, most);
}

function fill(cell, key, row) {
  const id = classes.ids[row], verdict = classes.verdict(row), outlook = classes.outlook;
  if (key === "class") cell.textContent = whole(id);
  else if (key === "label") cell.append(named(id, 80));
  else if (key === "verdict") cell.append(element("i", "dot " + verdict), NAMES[verdict]);
  else if (key === "norm") cell.textContent = short(classes.norms[row]);
  else if (key === "margin") {
    cell.textContent = short(classes.margins[row]);
    if (verdict === "unargmaxable" && steepest > 0) {
      const bar = element("i", "bar");
      bar.style.width = Math.max(2, (-100 * classes.margins[row]) / steepest) + "%";
      cell.append(bar);
    }
  } else if (key === "probability" && !Number.isNaN(outlook.probability_upper[row])) cell.textContent = percent(outlook.probability_upper[row]);
  else if (key === "rank" && !Number.isNaN(outlook.best_rank_lower[row])) {
    const low = outlook.best_rank_lower[row], high = outlook.best_rank_upper[row];
    cell.textContent = low === high ? whole(low) : `${whole(low)}–${whole(high)}`;
  } else if (key === "by") fillBy(cell, id, verdict);
}

function fillBy(cell, id, verdict) {
  const share = (other, text) => {
    const span = element("span", "share");
    span.append(named(other, 20));
    if (text) span.append(" ", element("small", "", text));
    cell.append(span);
  };
  if (verdict === "unargmaxable") {
    const parts = classes.mixture(id).parts.slice(0, FEW);
    for (const [other, weight] of parts) share(other, percent(weight));
    if (!parts.length) cell.append(element("span", "soft", say("all classes together")));
  } else if (verdict === "tied") {
    for (const other of (classes.groups.get(id) || []).filter(other => other !== id).slice(0, FEW)) share(other);
  } else if (verdict === "undecided") cell.append(element("span", "soft", classes.reasons[id] || ""));
  else for (const [other, lead] of classes.runnersUp(id).slice(0, 2)) share(other, "by " + short(lead));
}

function refresh(keepPlace = false) {
  const every = [];
  for (let row = 0; row < classes.size; row++) if (filters[filter](row)) every.push(row);
  const sought = get("search").value;
  rows = classes.sort(classes.search(sought, every), ...order);
  table.show(rows, order, keepPlace);
  const sort = orderText(order);
  putInAddress({ show: filter === FIRST ? "" : filter, sort: sort === orderText(ORDERED) ? "" : sort, search: sought.trim() });
  get("found").textContent = sought.trim() ? `${whole(rows.length)} of ${whole(every.length)}` : say(`${whole(every.length)} ${every.length === 1 ? "class" : "classes"}`);
  get("about").textContent = classes.about ? classes.about[filter] || classes.about.all : say(ABOUT[filter] || ABOUT.all);
  get("filter").value = filter;
  get("sort").value = order.join(" ");
  for (const tile of get("tiles").children) tile.setAttribute("aria-pressed", String(tile.dataset.name === filter));
}

/** What the address says: which classes, in which order. */
function readAddress() {
  const show = inAddress("show"), there = show === "all" || show.startsWith("odd") || classes.counts[show] > 0;
  filter = there && Object.hasOwn(filters, show) ? show : FIRST;
  order = orderInAddress(shown.filter(column => column.sortable).map(column => column.key), ORDERED);
  refresh();
  if (/^\d+$/.test(inAddress("class"))) open(Number(inAddress("class")));
}

function choose(name) {
  filter = name;
  refresh();
}

function sortBy(key) {
  const first = key === "norm" || key === "probability" ? -1 : 1;
  order = [key, order[0] === key ? -order[1] : first];
  refresh();
}

function open(id) {
  const row = classes.rowOf(id);
  if (row < 0) return;
  const place = rows.indexOf(row);
  detail.show(row, place > 0 ? rows[place - 1] : -1, place >= 0 && place + 1 < rows.length ? rows[place + 1] : -1);
  if (place >= 0) table.activate(place, false);
  putInAddress({ class: id });
}

function oddRows() {
  const box = get("odd");
  if (!classes.odd) {
    box.append(element("p", "", "The weights were not at hand when this page was made."));
    return;
  }
  if (!classes.odd.length) {
    box.append(element("p", "", "None is zero, equal to another or within rounding of it."));
    return;
  }
  box.className = "odd";
  classes.odd.forEach((kind, k) => {
    let lost = 0;
    for (const id of kind.ids) if (classes.verdict(classes.rowOf(id)) === "unargmaxable") lost++;
    const button = element("button");
    button.type = "button";
    const first = element("div");
    first.append(element("b", "", whole(kind.ids.length)), kind.name);
    button.append(first);
    const groups = kind.groups > 1 ? ` in ${whole(kind.groups)} groups` : "";
    button.append(element("span", "", lost ? say(`${whole(lost)} of them never the argmax${groups}`) : `none of them lost${groups}`));
    const few = element("span", "one-line");
    for (const id of kind.ids.slice(0, 8)) few.append(named(id, 12), "  ");
    button.append(few);
    button.addEventListener("click", () => {
      choose("odd" + k);
      get("classes").scrollIntoView({ block: "start" });
    });
    box.append(button);
  });
}

/** Best ranks where they were asked for, and one where a class is first. */
function bestRanks(ranks) {
  return ranks.map((rank, row) => (Number.isNaN(rank) && ["argmaxable", "tied"].includes(classes.verdict(row)) ? 1 : rank));
}

/** The classes with the largest shares in the mixtures of all lost ones. */
function takers() {
  if (!classes.takers.length) return;
  const most = classes.takers[0].share;
  for (const { id, share, count } of classes.takers) {
    const item = element("li"), row = classes.rowOf(id), name = element(row >= 0 ? "button" : "span");
    if (row >= 0) {
      name.type = "button";
      name.addEventListener("click", () => open(id));
      name.append(element("i", "dot " + classes.verdict(row)));
    }
    name.append(named(id, 40));
    if (classes.norms && row >= 0) name.append(element("small", "", `length ${short(classes.norms[row])}`));
    const bar = element("i", "measure");
    bar.style.width = Math.max(1, (100 * share) / most) + "%";
    const from = say(`${whole(count)} ${count === 1 ? "class" : "classes"}`);
    item.append(name, element("span", "value", share.toFixed(1)), element("span", "value", from), bar);
    get("taker-list").append(item);
  }
  get("takers").hidden = false;
}

function charts() {
  const opened = row => open(classes.ids[row]), hint = get("hint");
  const made = [];
  if (classes.norms && measured) {
    made.push(new Scatter("Length of the row against margin", "lost classes below the line", classes,
      { across: classes.norms, acrossTitle: "length of the class's row", hint, opened }));
  }
  const ranks = classes.outlook && classes.outlook.best_rank_upper;
  if (classes.norms && ranks) {
    made.push(new Scatter("Length of the row against best rank", "the highest place that some input gives it", classes,
      { across: classes.norms, acrossTitle: "length of the class's row", hint, opened, up: bestRanks(ranks), upTitle: "best rank" }));
  }
  if (measured) {
    made.push(new Scatter("Where in the vocabulary", "class number against margin", classes,
      { across: classes.ids, acrossTitle: "class", hint, opened }));
  }
  if (classes.margins.some(Number.isFinite)) {
    made.push(new Histogram("Margins", "how many classes have which", classes, { values: classes.margins, signed: true, acrossTitle: "margin" }));
  }
  if (classes.norms) made.push(new Histogram("Lengths of rows", "how many classes have which", classes, { values: classes.norms, signed: false, acrossTitle: "length" }));
  return made;
}

const shown = columns();
const table = new Table(get("table"), { columns: shown, caption: say("Classes"), fill, opened: row => open(classes.ids[row]), sorted: sortBy });
const detail = new Detail(get("detail"), classes, open);
tiles(classes.counts, classes.size, NAMES, choose);
selects(
  [
    ["all", say("every class")], ...ORDER.filter(name => classes.counts[name]).map(name => [name, NAMES[name]]),
    ...(classes.odd || []).map((kind, k) => ["odd" + k, say("odd rows: ") + kind.name]),
  ],
  shown.filter(column => column.sortable).flatMap(({ key, title }) => [[key + " 1", title + " ↑"], [key + " -1", title + " ↓"]]),
  choose,
  chosen => {
    order = chosen;
    refresh();
  },
);
get("classes").hidden = false;
oddRows();
takers();
themeButton(get("theme"), figures(charts(), classes.counts, NAMES));
copying();

let typing = 0;
get("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(refresh, classes.size > FAST ? 120 : 0);
});
get("search").addEventListener("keydown", event => {
  if (event.key === "Enter" && rows.length) open(classes.ids[rows[0]]);
  else if (event.key === "ArrowDown" && rows.length) table.activate(0, true);
  else return;
  event.preventDefault();
});
get("detail").addEventListener("close", () => {
  putInAddress({ class: "" });
  if (rows.length) table.activate(table.active, true);
});
fillFromAddress(get("search"), "search");
readAddress();
addEventListener("hashchange", () => {
  get("search").value = inAddress("search");
  readAddress();
});
