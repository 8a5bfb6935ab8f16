// What the API would answer, from the files of a folder. They are scripts that hand over one text each: a page opened from a disk
// may load scripts, and nothing else.
import { Classes, VERDICTS } from "/assets/data.js";

const LONG = 256; // labels are cut after so many characters, as the API does it
const PARTS = 5; // of a mixture, in a list of classes
const CHECKPOINTS = 24; // audits of one model that a class is looked up in
const VERSION = document.querySelector("meta[name=uncork-export]").content;
const texts = new Map(), loading = new Map();
globalThis.uncorkData = (name, text) => texts.set(name, text);

/** The data of that name, parsed once. */
function data(name, make = found => found) {
  if (!loading.has(name)) {
    loading.set(name, new Promise((done, fail) => {
      const script = document.createElement("script");
      script.src = `data/${name}.js?${VERSION}`; // a browser's copy of an earlier export is another file
      script.addEventListener("error", () => fail(new Error(`data/${name}.js is missing`)));
      script.addEventListener("load", () => {
        script.remove();
        try {
          done(make(JSON.parse(texts.get(name))));
        } catch {
          fail(new Error(`data/${name}.js is damaged`));
        }
        texts.delete(name);
      });
      document.head.append(script);
    }));
  }
  return loading.get(name);
}

const audits = () => data("audits");

async function audit(id) {
  const found = (await audits()).find(one => one.id === id);
  if (!found) throw new Error(`there is no audit ${id} here`);
  return found;
}

async function classesOf(id) {
  await audit(id);
  return data("audit-" + id, found => Object.assign(new Classes(found), { extra: found.extra }));
}

function length(text) {
  return Array.from(text).length;
}

/** As `report.data.cut` in Python: by code points. */
function cut(text) {
  if (text === null || text.length <= LONG) return text;
  const characters = Array.from(text);
  return characters.length <= LONG ? text : `${characters.slice(0, LONG).join("")}… (${characters.length.toLocaleString("en")} characters)`;
}

function page(items, { limit = 100, offset = 0 }) {
  const some = items.slice(offset, offset + limit), next = offset + some.length;
  return { total: items.length, items: some, next_offset: some.length && next < items.length ? next : null };
}

function numbered(value) {
  return Number.isNaN(value) ? null : value;
}

/** A class as a list of classes has it. */
function item(classes, row) {
  const id = classes.ids[row], label = classes.labels ? classes.labels[row] : null, verdict = classes.verdict(row);
  return {
    class: id, label: cut(label), label_length: label === null ? null : length(label), verdict, margin: numbered(classes.margins[row]),
    iterations: null, stolen_by: verdict === "unargmaxable" ? classes.mixture(id).parts.slice(0, PARTS) : null, reason: classes.reasons[id] ?? null,
  };
}

function othersOf(classes, items) {
  const named = {};
  for (const one of items) {
    for (const [other] of one.stolen_by || []) {
      const label = classes.label(other);
      if (label !== null) named[other] = cut(label);
    }
  }
  return named;
}

async function listAudits({ name = "", group = "", sort = "id", descending = false, limit, offset }) {
  const sought = name.toLowerCase(), value = one => (sort === "share" ? one.unargmaxable / one.asked : sort === "classes" ? one.asked : one[sort]);
  const found = (await audits()).filter(one => (one.name.toLowerCase().includes(sought) || one.source.toLowerCase().includes(sought)) && (!group || one.group === group));
  found.sort((a, b) => {
    const x = value(a), y = value(b), sign = descending ? -1 : 1;
    return x < y ? -sign : x > y ? sign : a.id - b.id || a.run - b.run;
  });
  return page(found, { limit, offset });
}

async function listClasses(id, { verdict, odd, search = "", after = -1, sort = "class", descending = false, limit = 100, offset = 0 }) {
  const classes = await classesOf(id), rows = [];
  const kind = odd && (classes.odd || []).find(one => one.name === (classes.extra.odd || []).find(known => known.kind === odd)?.name);
  const ids = odd && new Set(kind ? kind.ids : []);
  for (let row = 0; row < classes.size; row++) {
    if (classes.ids[row] <= after || (verdict && classes.verdict(row) !== verdict) || (ids && !ids.has(classes.ids[row]))) continue;
    rows.push(row);
  }
  const found = classes.sort(classes.search(search, rows), sort, descending ? -1 : 1);
  const items = found.slice(offset, offset + limit).map(row => item(classes, row));
  return { total: found.length, items, others: othersOf(classes, items), next_after: items.length === limit ? items.at(-1).class : null };
}

/** The row of a class in another audit: by its label where both have labels, else by its number. */
function same(classes, id, label) {
  const row = classes.rowOf(id);
  if (label === null || !classes.labels) return row;
  return row >= 0 && classes.labels[row] === label ? row : classes.labels.indexOf(label);
}

async function historyOf(one, id, label) {
  const names = [one.name, ...one.also];
  const every = (await audits()).filter(other => names.includes(other.name)).sort((a, b) => (a.created < b.created ? -1 : a.created > b.created ? 1 : a.run - b.run));
  return Promise.all(every.slice(-CHECKPOINTS).map(async other => {
    const classes = await classesOf(other.id), row = same(classes, id, label);
    return {
      audit: other.id, name: other.name, created: other.created, domain: other.domain, fingerprint: other.fingerprint,
      class: row < 0 ? null : classes.ids[row], verdict: row < 0 ? null : classes.verdict(row), margin: row < 0 ? null : numbered(classes.margins[row]),
    };
  }));
}

async function oneClass(audit_id, id, { whole_labels = false }) {
  const one = await audit(audit_id), classes = await classesOf(audit_id), row = classes.rowOf(id);
  if (row < 0) throw new Error(`audit ${audit_id} has no class ${id}`);
  const found = item(classes, row), { certified } = classes.extra, label = classes.labels ? classes.labels[row] : null;
  const entry = ([other, value], name) => {
    const place = classes.rowOf(other), known = classes.label(other);
    return { class: other, label: cut(known), verdict: place < 0 ? null : classes.verdict(place), [name]: value };
  };
  const { parts, size } = classes.mixture(id), nearest = classes.nearest(id), next = classes.runnersUp(id);
  const mixture = parts.length ? { parts: parts.map(part => entry(part, "share")), size: size || null, certified } : null;
  const proven = certified && found.verdict !== "undecided";
  return {
    ...found, label: whole_labels ? label : found.label, audit: audit_id, name: one.name,
    slack: found.verdict === "unargmaxable" && found.margin !== null ? Math.abs(found.margin) : null,
    row_length: classes.norms ? classes.norms[row] : null, weights: "",
    best_rank_lower: numbered(classes.outlook?.best_rank_lower[row] ?? NaN), best_rank_upper: numbered(classes.outlook?.best_rank_upper[row] ?? NaN),
    check: { holds: proven ? true : null, verdict: proven ? found.verdict : null, margin: proven ? found.margin : null, text: classes.extra.checked },
    mixture, stored_parts: mixture ? mixture.parts : [], history: await historyOf(one, id, label),
    runners_up: next.length ? next.map(pair => entry(pair, "lead")) : null, nearest: nearest.length ? nearest.map(pair => entry(pair, "distance")) : null,
  };
}

/** Classes by number, or by label and how often that label came before. */
function keyed(classes, labelled) {
  const found = new Map(), seen = new Map();
  for (let row = 0; row < classes.size; row++) {
    if (!labelled) found.set(classes.ids[row], row);
    else {
      const label = classes.labels[row], times = seen.get(label) || 0;
      seen.set(label, times + 1);
      found.set(`${times} ${label}`, row);
    }
  }
  return found;
}

/** As `web.stored.compared` in Python. */
async function differences(before, after) {
  const labelled = Boolean(before.labels && after.labels), earlier = keyed(before, labelled), later = keyed(after, labelled);
  const counts = { lost: 0, regained: 0, other: 0, added: 0, removed: 0, both: 0 }, changes = [];
  const add = (change, was, is) => {
    const told = { change, label: is === undefined ? before.label(before.ids[was]) : after.label(after.ids[is]) };
    for (const [name, classes, row] of [["before", before, was], ["after", after, is]]) {
      const there = row !== undefined;
      told["class_" + name] = there ? classes.ids[row] : null;
      told["verdict_" + name] = there ? classes.verdict(row) : null;
      told["margin_" + name] = there ? numbered(classes.margins[row]) : null;
    }
    counts[change]++;
    changes.push(told);
  };
  const LOST = VERDICTS.indexOf("unargmaxable");
  for (const [key, row] of later) {
    const was = earlier.get(key), verdict = after.verdicts[row];
    if (was === undefined) add("added", undefined, row);
    else if (before.verdicts[was] !== verdict) add(verdict === LOST ? "lost" : before.verdicts[was] === LOST ? "regained" : "other", was, row);
    else if (verdict === LOST) add("both", was, row);
  }
  for (const [key, row] of earlier) if (!later.has(key)) add("removed", row, undefined);
  const order = Object.keys(counts);
  changes.sort((a, b) => order.indexOf(a.change) - order.indexOf(b.change));
  return { matched_by: labelled ? "label" : "class", counts, changes };
}

async function compare({ before, after, kind, search = "", limit = 100, offset = 0 }) {
  const [one, other] = await Promise.all([audit(Number(before)), audit(Number(after))]);
  const found = await differences(await classesOf(one.id), await classesOf(other.id));
  const sought = search.trim().toLowerCase(), number = /^\d{1,9}$/.test(sought) ? Number(sought) : -1;
  const fit = found.changes.filter(change => (kind ? change.change === kind : change.change !== "both")
    && (!sought || change.class_before === number || change.class_after === number || (change.label || "").toLowerCase().includes(sought)));
  const some = page(fit, { limit, offset });
  return {
    before: one, after: other, ...found, total: some.total, changes: some.items.map(change => ({ ...change, label: cut(change.label) })),
    next_offset: some.next_offset,
  };
}

async function labelAudit(id) {
  const found = (await data("label-audits")).find(one => one.id === id);
  if (!found) throw new Error(`there is no label audit ${id} here`);
  return found;
}

const setsOf = async id => (await labelAudit(id), data("label-audit-" + id));

async function listLabelAudits({ name = "", limit, offset }) {
  const sought = name.toLowerCase();
  return page((await data("label-audits")).filter(one => one.name.toLowerCase().includes(sought) || one.source.toLowerCase().includes(sought)), { limit, offset });
}

async function listSets(id, { search = "", verdict, limit, offset }) {
  const sought = search.trim().toLowerCase(), number = /^\d+$/.test(sought) ? Number(sought) : -1;
  const fits = set => !sought || set.labels.includes(number) || [...(set.names || []), ...(set.off_names || [])].some(name => name.toLowerCase().includes(sought));
  return page((await setsOf(id)).filter(set => (!verdict || set.verdict === verdict) && fits(set)), { limit, offset });
}

async function oneSet(id, number) {
  const found = (await setsOf(id)).find(set => set.set === number);
  if (!found) throw new Error(`label audit ${id} has no set ${number}`);
  return {
    ...found, label_audit: id, weights: "", mixture: null, nearest: null,
    check: { holds: null, verdict: null, margin: null, text: "As stored when these pages were made, and not proven again: they are files." },
  };
}

const ANSWERS = [
  [/^\/api\/label-audits$/, listLabelAudits],
  [/^\/api\/label-audits\/(\d+)$/, labelAudit],
  [/^\/api\/label-audits\/(\d+)\/sets$/, listSets],
  [/^\/api\/label-audits\/(\d+)\/sets\/(\d+)$/, oneSet],
  [/^\/api\/audits$/, listAudits],
  [/^\/api\/groups$/, async () => ({ items: [...new Set((await audits()).map(one => one.group).filter(Boolean))].sort() })],
  [/^\/api\/failures$/, async () => ({ items: [] })],
  [/^\/api\/compare$/, compare],
  [/^\/api\/audits\/(\d+)\/classes$/, listClasses],
  [/^\/api\/audits\/(\d+)\/classes\/(\d+)$/, oneClass],
  [/^\/api\/audits\/(\d+)\/odd$/, async id => ({ kinds: (await classesOf(id)).extra.odd, weights: (await classesOf(id)).extra.weights })],
  [/^\/api\/audits\/(\d+)\/figures$/, async (id, { across, up }) => (await classesOf(id)).extra.figures[up === "rank" ? up : across]],
];

/** What the API would answer to that path. */
export async function ask(path, parameters = {}) {
  for (const [pattern, answer] of ANSWERS) {
    const found = pattern.exec(path);
    if (found) return answer(...found.slice(1).map(Number), parameters);
  }
  throw new Error("these pages are files, and this needs a server");
}
