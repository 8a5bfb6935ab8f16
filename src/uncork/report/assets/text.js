// Text on screen. Labels are hostile: they only ever become text nodes, and what would not show, or
// would show elsewhere, stands there as a mark.

const NAMES = {
  0x00a0: "NBSP", 0x00ad: "SHY", 0x061c: "ALM", 0x180e: "MVS", 0x200b: "ZWSP", 0x200c: "ZWNJ", 0x200d: "ZWJ", 0x200e: "LRM",
  0x200f: "RLM", 0x2028: "LS", 0x2029: "PS", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO", 0x202e: "RLO",
  0x2060: "WJ", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0xfeff: "BOM",
};
// Controls, other spaces than the space, and letters that are drawn as nothing.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u00a0\u00ad\u1680\u2000-\u200a\u202f\u205f\u3000\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\uffa0\u{16fe4}\u{1d159}]/u;
const SELECTOR = /[\ufe00-\ufe0f\u{e0100}-\u{e01ef}]/u;
const JOINER = /[\u200c\u200d]/;
const LETTER = /[\p{L}\p{M}\p{Extended_Pictographic}\u{1f3fb}-\u{1f3ff}\ufe0f]/u;

/** An element with a class and a text. */
export function element(name, className = "", text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

let pattern = null, names = new Map();

/** From now on, other names for classes and inputs: the table of core/words.py, [[phrase, other], …]; null for none. */
export function useWords(table) {
  names = new Map(table || []);
  if (names.has("class")) document.documentElement.style.setProperty("--one", JSON.stringify(names.get("class")));
  const escape = text => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  pattern = table ? new RegExp(`(?<![\\w-])(?:${table.map(([phrase]) => escape(phrase)).join("|")})(?![\\w-])`, "gi") : null;
}

/** A text of this page in its words. Never for labels or anything else that comes from a model. */
export function say(text) {
  if (!pattern) return text;
  return text.replace(pattern, found => {
    const other = names.get(found.toLowerCase());
    return found[0] === found[0].toLowerCase() ? other : other[0].toUpperCase() + other.slice(1);
  });
}

/** U+XXXX of a code point. */
export function codePoint(code) {
  return "U+" + code.toString(16).toUpperCase().padStart(4, "0");
}

function mark(code) {
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "␡";
  return NAMES[code] || codePoint(code);
}

/** A label as an element: isolated from its surroundings, cut after `most` characters. */
export function labelNode(text, most = 80) {
  const node = element("bdi", "label");
  node.dir = "auto";
  if (text === "") {
    node.append(element("span", "nothing", "empty"));
    return node;
  }
  const characters = [];
  for (const character of text) {
    if (characters.length === most) break;
    characters.push(character);
  }
  const cut = characters.join("").length < text.length;
  let plain = "";
  const flush = () => {
    if (plain) node.append(plain);
    plain = "";
  };
  const add = (what, title) => {
    flush();
    const made = element("span", /^[\u2400-\u2426]$/.test(what) ? "mark picture" : "mark", what);
    if (title) made.title = title;
    node.append(made);
  };
  const first = characters.findIndex(character => character !== " ");
  let last = cut ? characters.length : characters.length - 1;
  while (!cut && last >= 0 && characters[last] === " ") last--;
  characters.forEach((character, k) => {
    const joins = JOINER.test(character) && LETTER.test(characters[k - 1] || "") && LETTER.test(characters[k + 1] || "");
    if (character === " " && (first < 0 || k < first || k > last)) add("␣", "space");
    else if ((HIDDEN.test(character) && !joins) || (k === 0 && SELECTOR.test(character))) add(mark(character.codePointAt(0)), codePoint(character.codePointAt(0)));
    else if (k === 0 && /\p{M}/u.test(character)) plain += "◌" + character;
    else plain += character;
  });
  flush();
  if (cut) node.append("…");
  return node;
}

/** The code points of a short label, for those who want to be sure. */
export function codePoints(text, most = 24) {
  const codes = Array.from(text).slice(0, most + 1).map(character => codePoint(character.codePointAt(0)));
  return codes.length > most ? codes.slice(0, most).join(" ") + " …" : codes.join(" ");
}

export function whole(n) {
  return n.toLocaleString("en");
}

/** A number to three digits, all of them: numbers in a column are equally exact. */
export function short(x) {
  if (Number.isNaN(x)) return "–";
  if (x === 0) return "0";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const size = Math.abs(x);
  const sign = x < 0 ? "−" : "";
  const [digits, power] = size.toExponential(2).split("e"), rounded = Number(digits + "e" + power);
  if (rounded < 1e6 && rounded >= 1e-4) return sign + (rounded >= 100 ? whole(rounded) : rounded.toPrecision(3));
  return `${sign}${digits}·10${superscript(Number(power))}`;
}

export function superscript(n) {
  return (n < 0 ? "⁻" : "") + String(Math.abs(n)).replace(/\d/g, digit => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
}

/** A share to two digits. */
export function percent(share) {
  const size = Number((100 * share).toPrecision(2));
  return (size >= 10 ? (100 * share).toFixed(0) : size >= 1 ? size.toFixed(1) : String(size)) + "\u00a0%";
}
