// The numbers of a report, unpacked: the other side of data.py.

import { useWords } from "./text.js";

export const VERDICTS = ["undecided", "argmaxable", "unargmaxable", "tied"];

function bytesOf(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let k = 0; k < binary.length; k++) bytes[k] = binary.charCodeAt(k);
  return bytes;
}

/** An array from its bytes in base64. */
export function unpack(text, Kind) {
  return new Kind(bytesOf(text).buffer);
}

/** Others beside some classes: a function from a class to [[other, value], …]. */
function beside(packed) {
  if (!packed) return () => [];
  const of = unpack(packed.of, Int32Array), others = unpack(packed.classes, Int32Array);
  const values = unpack(packed.values, Float32Array), places = new Map();
  of.forEach((id, k) => places.set(id, k));
  return id => {
    const k = places.get(id);
    if (k === undefined) return [];
    const found = [];
    for (let j = k * packed.each; j < (k + 1) * packed.each; j++) if (others[j] >= 0) found.push([others[j], values[j]]);
    return found;
  };
}

/** Everything by row, a row being a place in the order of the classes asked about. */
export class Classes {
  constructor(data) {
    useWords(data.words);
    this.name = data.name;
    this.about = data.about; // of items under another metric: what each verdict says of them
    this.counts = data.counts;
    this.unknown = data.unknown;
    this.size = data.size;
    this.ids = data.ids === null ? Int32Array.from({ length: data.size }, (_, k) => k) : unpack(data.ids, Int32Array);
    this.verdicts = unpack(data.verdicts, Uint8Array);
    this.margins = unpack(data.margins, Float64Array);
    this.norms = data.norms === null ? null : unpack(data.norms, Float32Array);
    this.labels = data.labels;
    this.others = data.others;
    this.reasons = data.reasons;
    this.nearest = beside(data.nearest);
    this.runnersUp = beside(data.runners_up);
    this.places = data.ids === null ? null : new Map(Array.from(this.ids, (id, k) => [id, k]));
    this.groups = new Map();
    for (const group of data.groups) for (const id of group) this.groups.set(id, group);
    this.odd = data.odd && data.odd.map(kind => ({ ...kind, ids: unpack(kind.ids, Int32Array) }));
    this.readMixtures(data.mixtures);
    this.readOutlook(data.outlook);
    this.takers = (data.takers || []).map(([id, share, count]) => ({ id, share, count }));
    this.folded = null;
  }

  readMixtures(packed) {
    const of = unpack(packed.of, Int32Array), counts = unpack(packed.counts, Uint8Array);
    const sizes = unpack(packed.sizes, Int32Array);
    this.partClasses = unpack(packed.classes, Int32Array);
    this.partShares = unpack(packed.shares, Float32Array);
    this.mixtures = new Map();
    let start = 0;
    of.forEach((id, k) => {
      this.mixtures.set(id, [start, start + counts[k], sizes[k]]);
      start += counts[k];
    });
  }

  readOutlook(packed) {
    this.outlook = null;
    if (!packed) return;
    const columns = {};
    for (const name of ["probability_lower", "probability_upper", "best_rank_lower", "best_rank_upper", "bias_needed"]) {
      if (!packed[name]) continue;
      const values = unpack(packed[name], Float64Array);
      columns[name] = new Float64Array(this.size).fill(NaN);
      unpack(packed.of, Int32Array).forEach((id, k) => {
        const row = this.rowOf(id);
        if (row >= 0) columns[name][row] = values[k];
      });
    }
    this.outlook = columns;
  }

  rowOf(id) {
    if (this.places) return this.places.get(id) ?? -1;
    return id >= 0 && id < this.size ? id : -1;
  }

  verdict(row) {
    return VERDICTS[this.verdicts[row]];
  }

  label(id) {
    if (!this.labels) return null;
    const row = this.rowOf(id);
    return row >= 0 ? this.labels[row] : this.others[id] ?? null;
  }

  /** The mixture that beats a class: its largest parts [[class, share], …], and how many there are (0: unknown). */
  mixture(id) {
    const found = this.mixtures.get(id);
    if (!found) return { parts: [], size: 0 };
    const parts = [];
    for (let k = found[0]; k < found[1]; k++) parts.push([this.partClasses[k], this.partShares[k]]);
    return { parts, size: found[2] };
  }

  /** Rows whose label holds the text, or whose number or code point it is. */
  search(text, rows) {
    const sought = text.trim().toLowerCase();
    if (!sought) return rows;
    const number = /^\d+$/.test(sought) ? Number(sought) : -1;
    const code = /^u\+([0-9a-f]{2,6})$/.exec(sought);
    const character = code && parseInt(code[1], 16) <= 0x10ffff ? String.fromCodePoint(parseInt(code[1], 16)).toLowerCase() : null;
    if (this.labels && !this.folded) this.folded = this.labels.map(label => label.toLowerCase());
    return rows.filter(row => {
      if (this.ids[row] === number) return true;
      if (!this.folded) return false;
      return this.folded[row].includes(sought) || (character !== null && this.folded[row].includes(character));
    });
  }

  /** Rows in order of a column; those without a value come last, whichever way. */
  sort(rows, column, sign) {
    const values = this.column(column);
    const isText = typeof values[0] === "string";
    return rows.sort((a, b) => {
      const x = values[a], y = values[b];
      if (!isText && (Number.isNaN(x) || Number.isNaN(y))) return Number.isNaN(x) - Number.isNaN(y) || a - b;
      return x < y ? -sign : x > y ? sign : a - b;
    });
  }

  column(name) {
    if (name === "label" && this.labels) return this.labels;
    if (name === "margin") return this.margins;
    if (name === "norm" && this.norms) return this.norms;
    if (name === "verdict") return this.verdicts;
    if (name === "probability" && this.outlook && this.outlook.probability_upper) return this.outlook.probability_upper;
    if (name === "rank" && this.outlook && this.outlook.best_rank_lower) return this.outlook.best_rank_lower;
    return this.ids;
  }
}
