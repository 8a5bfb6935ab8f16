// One class: its proof, its neighbours, how near it comes.
import { codePoints, element, labelNode, percent, say, short, whole } from "./text.js";

const LONG = 400; // characters of a label shown before "show all"

function range(lower, upper, write) {
  const low = write(lower), high = write(upper);
  return low === high ? low : `${low} to ${high}`;
}

/** The panel of one class. `opened` is called with the id of another class that was chosen in it. */
export class Detail {
  constructor(dialog, classes, opened) {
    Object.assign(this, { dialog, classes, opened });
    dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close(); });
  }

  /** Show a class; `before` and `after` are the rows around it in the table, −1 where there is none. */
  show(row, before, after) {
    const { classes } = this, id = classes.ids[row], label = classes.label(id);
    const bar = element("div", "detail-bar");
    const place = element("span", "", say("class ") + whole(id));
    bar.append(place, this.button("Previous", before), this.button("Next", after));
    const close = element("button", "quiet", "Close");
    close.type = "button";
    close.addEventListener("click", () => this.dialog.close());
    bar.append(close);
    const parts = [bar, this.title(id, label)];
    if (label !== null && label !== "") parts.push(element("div", "code-points", codePoints(label)));
    parts.push(this.statement(row), ...this.proof(row), this.numbers(row), ...this.near(id));
    this.dialog.replaceChildren(...parts);
    if (!this.dialog.open) this.dialog.showModal();
    this.dialog.scrollTop = 0;
    close.focus();
  }

  button(text, row) {
    const made = element("button", "quiet", text);
    made.type = "button";
    made.disabled = row < 0;
    if (row >= 0) made.addEventListener("click", () => this.opened(this.classes.ids[row]));
    return made;
  }

  title(id, label) {
    const title = element("h2", "detail-label");
    title.id = "detail-title";
    if (label === null) {
      title.textContent = say("class ") + whole(id);
      return title;
    }
    title.classList.toggle("long", label.length > 40);
    title.append(labelNode(label, LONG));
    if (label.length > LONG) {
      const more = element("button", "quiet", `Show all ${whole(label.length)} characters`);
      more.type = "button";
      more.addEventListener("click", () => title.replaceChildren(labelNode(label, Infinity)));
      title.append(" ", more);
    }
    return title;
  }

  statement(row) {
    const { classes } = this, verdict = classes.verdict(row), margin = classes.margins[row];
    const line = element("p", "statement");
    line.append(element("i", "dot " + verdict));
    const slack = short(Math.abs(margin));
    const reason = classes.reasons[classes.ids[row]];
    const texts = {
      argmaxable: `Some input puts it first, ahead of every other class by at least ${slack}.`,
      unargmaxable: margin === 0
        ? "No input puts it strictly first: a mixture of other classes is at or above it everywhere."
        : `No input puts it first: a mixture of other classes stays at least ${slack} above it everywhere.`,
      tied: "Equal to another class, weight for weight: it can share first place, never hold it alone.",
      undecided: "Nothing was proven about it" + (reason ? `: ${reason}` : "."),
    };
    const own = classes.about && classes.about[verdict];
    line.append(verdict === "undecided" ? texts[verdict] : own || say(texts[verdict]));
    return line;
  }

  proof(row) {
    const { classes } = this, id = classes.ids[row], verdict = classes.verdict(row);
    if (verdict === "unargmaxable") {
      const { parts, size } = classes.mixture(id);
      if (!parts.length) return [element("h3", "", "Who takes its place"), element("p", "soft", say("All classes together, leaning one way."))];
      const shares = parts.reduce((sum, part) => sum + part[1], 0);
      const list = this.list(parts, percent, "unargmaxable", Math.max(...parts.map(part => part[1])));
      const rest = 1 - shares > 0.0005
        ? `The rest, ${percent(1 - shares)}, is ${size ? `shared by ${whole(Math.max(0, size - parts.length))} further classes` : "spread over further classes"}.` : "";
      return [element("h3", "", "Who takes its place: the largest parts of the mixture"), list, element("p", "soft", say(rest))];
    }
    if (verdict === "tied") {
      const group = (classes.groups.get(id) || []).filter(other => other !== id).slice(0, 12);
      return [element("h3", "", "Equal to"), this.list(group.map(other => [other, NaN]), () => "", "argmaxable", 1)];
    }
    const next = classes.runnersUp(id);
    if (!next.length) return [];
    return [
      element("h3", "", "Next in line where it wins: its lead over them"),
      this.list(next, short, "argmaxable", Math.max(...next.map(part => part[1]))),
    ];
  }

  near(id) {
    const found = this.classes.nearest(id);
    if (!found.length) return [];
    return [element("h3", "", say("Nearest rows, and how far their weights are")), this.list(found, short, "", 0)];
  }

  list(entries, write, kind, most) {
    const list = element("ul", "rows");
    for (const [other, value] of entries) {
      const { classes } = this, item = element("li"), row = classes.rowOf(other), label = classes.label(other);
      const name = element(row >= 0 ? "button" : "span");
      if (row >= 0) {
        name.type = "button";
        name.addEventListener("click", () => this.opened(other));
        name.append(element("i", "dot " + classes.verdict(row)));
      }
      if (label !== null) name.append(labelNode(label, 40), element("small", "", say("class ") + whole(other)));
      else name.append(say("class ") + whole(other));
      item.append(name, element("span", "value", write(value)));
      if (most > 0 && value >= 0) {
        const measure = element("i", "measure " + kind);
        measure.style.width = Math.max(1, (100 * value) / most) + "%";
        item.append(measure);
      }
      list.append(item);
    }
    return list;
  }

  numbers(row) {
    const { classes } = this, list = element("dl", "numbers"), outlook = classes.outlook;
    const add = (name, text, note) => {
      const box = element("div"), value = element("dd", "", text);
      if (note) value.append(element("small", "", note));
      box.append(element("dt", "", name), value);
      list.append(box);
    };
    const margin = classes.margins[row], verdict = classes.verdict(row);
    if (!Number.isNaN(margin)) add(verdict === "unargmaxable" ? "slack" : "margin", short(Math.abs(margin)));
    if (classes.norms) add(say("length of its row"), short(classes.norms[row]));
    const known = name => outlook && outlook[name] && !Number.isNaN(outlook[name][row]);
    if (known("probability_upper")) {
      add("highest probability", range(outlook.probability_lower[row], outlook.probability_upper[row], percent), say("any input can give it"));
    }
    if (known("best_rank_lower")) add("best rank", range(outlook.best_rank_lower[row], outlook.best_rank_upper[row], whole), say("any input can give it"));
    if (known("bias_needed")) add("bias it needs", "+" + short(outlook.bias_needed[row]), "to be first somewhere");
    return list;
  }
}
