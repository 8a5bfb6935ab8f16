// How a label set is written: the names of its labels, or their numbers.
import { element, labelNode, whole } from "/assets/text.js";

/** One label: its name, or its number where it has none. */
export function oneLabel(name, number, most = 40) {
  return name === null || name === undefined ? element("span", "", "label " + whole(number)) : labelNode(name, most);
}

function listed(numbers, names, most) {
  const nodes = numbers.slice(0, most).flatMap((number, k) => [...(k ? [", "] : []), oneLabel(names?.[k], number)]);
  if (numbers.length > most) nodes.push(` and ${whole(numbers.length - most)} more`);
  return nodes;
}

/** The labels that are on; of a question with free labels, those that are off too. */
export function setNodes(set, most = 12) {
  const nodes = set.labels.length ? listed(set.labels, set.names, most) : [set.off === null ? "no label" : "any set"];
  if (set.off?.length) nodes.push(" without ", ...listed(set.off, set.off_names, most));
  if (set.off !== null) nodes.push(element("span", "aside", "others free"));
  return nodes;
}
