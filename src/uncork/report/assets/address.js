// What is chosen on a page stands in its address, after the #: who follows a link sees the same.

function chosen() {
  return new URLSearchParams(location.hash.slice(1));
}

/** What the address says of a name, or `otherwise`. */
export function inAddress(name, otherwise = "") {
  return chosen().get(name) ?? otherwise;
}

/** Put {name: value} into the address; an empty value takes its name out of it. */
export function putInAddress(values) {
  const all = chosen();
  for (const [name, value] of Object.entries(values)) {
    if (value === "" || value === null) all.delete(name);
    else all.set(name, value);
  }
  const text = String(all);
  replace(text ? "#" + text : location.pathname + location.search);
}

/** Put a query into the address; what stands after the # stays. */
export function putQuery(query) {
  if (location.search !== query) replace(query + location.hash);
}

function replace(address) {
  try {
    history.replaceState(null, "", address);
  } catch {
    // inside another page, as trackers show it, there is none; and some browsers allow so many changes in a while
  }
}

/** An order [key, sign] as the address has it: the key, after a minus where it is descending. */
export function orderText([key, sign]) {
  return (sign < 0 ? "-" : "") + key;
}

/** The order that the address names, if it is by one of these keys; else `otherwise`. */
export function orderInAddress(keys, otherwise) {
  const [, minus, key] = /^(-?)(.*)$/s.exec(inAddress("sort"));
  return keys.includes(key) ? [key, minus ? -1 : 1] : otherwise;
}

/** Put what the address says of a name into a field. Where it says nothing, what was typed there before this script ran stays. */
export function fillFromAddress(field, name) {
  if (inAddress(name)) field.value = inAddress(name);
}
