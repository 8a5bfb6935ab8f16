// What the report in a file and the one that is served share: tiles, legend, figures that follow the window and the printer.
import { element, percent, whole } from "./text.js";

export const ORDER = ["unargmaxable", "argmaxable", "tied", "undecided"];
export const FEW = 3; // parts of a mixture named in a row
export const ABOUT = {
  unargmaxable: "Never the argmax, whatever the input. The margin, below zero, says how far behind the class always stays, at least (its " +
    "slack). Mixture: the classes that together beat it everywhere, largest shares first.",
  argmaxable: "Each can be the argmax. Margin: by how much it leads at its witness, at least; a small one means that few inputs reach it.",
  tied: "Equal, weight for weight, to another class: first only together with it.",
  undecided: "Nothing is claimed about these.",
  all: "Margin: above zero, by how much a class leads at its witness; below zero, how far behind an unargmaxable class always stays.",
};

const get = id => document.getElementById(id);

/** One tile a verdict; `choose` is called with the name of the one that was pressed. */
export function tiles(counts, size, names, choose) {
  for (const name of ORDER) {
    const n = counts[name], tile = element("button");
    tile.type = "button";
    tile.dataset.name = name;
    tile.disabled = !n;
    tile.append(element("b", "", whole(n)), element("i", "dot " + name), element("span", "", `${names[name]}, ${percent(n / Math.max(1, size))}`));
    tile.addEventListener("click", () => {
      choose(name);
      get("classes").scrollIntoView({ block: "start" });
    });
    get("tiles").append(tile);
    if (!n) continue;
    const part = element("i", name);
    part.style.flex = `${n} 0 0`;
    get("proportion").append(part);
  }
}

/** Fill the two selects: what is shown, and in which order. [[value, text], …] each. */
export function selects(filters, orders, choose, sort) {
  for (const [select, options] of [[get("filter"), filters], [get("sort"), orders]]) {
    for (const [value, text] of options) {
      const option = element("option", "", text);
      option.value = value;
      select.append(option);
    }
  }
  get("filter").addEventListener("change", event => choose(event.target.value));
  get("sort").addEventListener("change", event => {
    const [key, sign] = event.target.value.split(" ");
    sort([key, Number(sign)]);
  });
}

/** Show charts with their legend, drawn anew whenever the window, the theme or the paper changes; the function that draws them. */
export function figures(made, counts, names) {
  get("charts").replaceChildren(...made.map(chart => chart.figure));
  get("figures").hidden = false;
  const legend = element("div", "legend");
  for (const name of ORDER) {
    if (!counts[name]) continue;
    const entry = element("span");
    entry.append(element("i", "dot " + name), names[name]);
    legend.append(entry);
  }
  get("charts").before(legend);
  const draw = () => made.forEach(chart => chart.draw());
  let waiting = 0;
  const later = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(draw);
  };
  new ResizeObserver(later).observe(get("charts"));
  // Paper is white, whatever the screen is.
  const root = document.documentElement;
  let theme;
  addEventListener("beforeprint", () => {
    theme = root.dataset.theme;
    root.dataset.theme = "light";
    draw();
  });
  addEventListener("afterprint", () => {
    if (theme === undefined) delete root.dataset.theme;
    else root.dataset.theme = theme;
    later();
  });
  return later;
}

/** The button that copies the commands. */
export function copying() {
  get("copy").addEventListener("click", () => {
    const range = document.createRange();
    range.selectNodeContents(get("commands"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    const said = done => { get("copy").textContent = done ? "Copied" : "Selected: press Ctrl-C"; };
    if (navigator.clipboard) navigator.clipboard.writeText(get("commands").textContent).then(() => said(true), () => said(false));
    else said(false);
  });
}
