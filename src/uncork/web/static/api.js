// What every page shares.
import { themeButton } from "/assets/theme.js";
import { element, labelNode, say, whole } from "/assets/text.js";

export const get = id => document.getElementById(id);

/** Show what went wrong where the content would stand. */
export function failed(place, error) {
  place.replaceChildren(element("p", "", `This could not be read: ${error.message}.`));
}

export function start() {
  themeButton(get("theme"));
}

export function link(href, ...content) {
  const made = element("a");
  made.href = href;
  made.append(...content);
  return made;
}

export function verdictNode(verdict) {
  const made = element("span", "verdict");
  if (verdict) made.append(element("i", "dot " + verdict), say(verdict));
  else made.append("–");
  return made;
}

/** What a class is called: its label, or its number. */
export function className(label, id, most = 40) {
  return label === null || label === undefined ? element("span", "", say("class ") + whole(id)) : labelNode(label, most);
}

export function when(text) {
  return text.slice(0, 16).replace("T", " ");
}

/** A domain in a few words; the text that --domain takes is its title. */
export function domainNode(text) {
  const box = /^box:(-?[\d.]+|-inf),([\d.]+|inf)$/.exec(text), ball = /^ball:([\d.]+)$/.exec(text);
  let words = null;
  const number = value => Number(value).toLocaleString("en", { maximumFractionDigits: 6 }).replace("-", "−");
  if (text === "unbounded") words = say("every input");
  else if (ball) words = "length at most " + number(ball[1]);
  else if (box && box[2] === "inf") words = box[1] === "-inf" ? say("every input") : "at least " + number(box[1]);
  else if (box && box[1] !== "-inf") words = "-" + box[2] === box[1] ? "within ±" + number(box[2]) : `${number(box[1])} to ${number(box[2])}`;
  const node = words === null ? labelNode(text, 40) : element("span", "", words);
  node.title = text.slice(0, 200);
  return node;
}

export function cell(content, className = "") {
  const made = element("td", className);
  made.append(...[content].flat());
  return made;
}

/** The head of a table, from pairs of title and class. */
export function header(columns) {
  const line = element("tr");
  for (const [title, className] of columns) {
    const place = element("th", className || "", title);
    place.scope = "col";
    line.append(place);
  }
  return line;
}
