// Figures on canvas: every class a dot, and histograms of margins and norms.
import { VERDICTS } from "./data.js";
import { histogram, linearScale, signedScale } from "./scales.js";
import { element, labelNode, say, short, whole } from "./text.js";

const LEFT = 68, RIGHT = 10, TOP = 10, BOTTOM = 40;
const ORDER = [1, 0, 3, 2]; // drawn one over the other: lost classes on top
const REACH = 12; // pixels around a dot that count as pointing at it

function colours() {
  const style = getComputedStyle(document.documentElement);
  const read = name => style.getPropertyValue("--" + name).trim();
  return {
    ink: read("ink"), soft: read("soft"), line: read("line"), strong: read("strong-line"), tint: read("tint"),
    verdicts: VERDICTS.map(read),
  };
}

/** A figure with a canvas; subclasses draw into it. */
class Chart {
  constructor(title, note, classes) {
    this.classes = classes;
    this.figure = element("figure");
    const caption = element("figcaption", "", say(title));
    if (note) caption.append(element("span", "", say(note)));
    this.canvas = element("canvas");
    this.canvas.setAttribute("role", "img");
    this.figure.append(caption, this.canvas);
  }

  draw() {
    const { width, height } = this.canvas.getBoundingClientRect();
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.pen = this.canvas.getContext("2d");
    this.pen.scale(ratio, ratio);
    this.pen.font = "12px " + getComputedStyle(document.body).fontFamily;
    this.colours = colours();
    this.width = width - LEFT - RIGHT;
    this.height = height - TOP - BOTTOM;
    this.paint();
  }

  across(scale, title) {
    const { pen, colours: c } = this;
    pen.fillStyle = c.soft;
    pen.textAlign = "center";
    pen.textBaseline = "top";
    let until = -Infinity;
    for (const tick of [...scale.ticks].sort((a, b) => a - b)) {
      const x = LEFT + scale.at(tick), text = scale.text(tick), half = pen.measureText(text).width / 2;
      if (x - half < until + 6 || x < LEFT - 1 || x > LEFT + this.width + 1) continue;
      pen.fillText(text, x, TOP + this.height + 6);
      until = x + half;
    }
    pen.fillText(title, LEFT + this.width / 2, TOP + this.height + 23);
  }

  upwards(scale, title) {
    const { pen, colours: c } = this;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    pen.lineWidth = 1;
    let until = Infinity;
    for (const tick of [...scale.ticks].sort((a, b) => a - b)) {
      const y = Math.round(TOP + this.height - scale.at(tick)) + 0.5;
      if (y < TOP || y > TOP + this.height + 1) continue;
      pen.strokeStyle = tick === 0 ? c.strong : c.line;
      pen.beginPath();
      pen.moveTo(LEFT, y);
      pen.lineTo(LEFT + this.width, y);
      pen.stroke();
      if (y > until - 13) continue;
      pen.fillStyle = c.soft;
      pen.fillText(scale.text(tick), LEFT - 8, y);
      until = y;
    }
    pen.save();
    pen.translate(8, TOP + this.height / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText(title, 0, 0);
    pen.restore();
  }
}

/** One dot a class. */
export class Scatter extends Chart {
  constructor(title, note, classes, { across, acrossTitle, hint, opened, up = classes.margins, upTitle = "margin" }) {
    super(title, note, classes);
    Object.assign(this, { values: across, acrossTitle, hint, opened, up, upTitle });
    this.figure.classList.add("points");
    this.canvas.addEventListener("pointermove", event => this.pointed(event));
    this.canvas.addEventListener("pointerleave", () => { this.hint.hidden = true; });
    this.canvas.addEventListener("click", event => {
      const row = this.nearest(event);
      if (row >= 0) this.opened(row);
    });
    const lost = classes.counts.unargmaxable;
    this.canvas.setAttribute("aria-label", say(`${title}: ${whole(classes.total ?? classes.size)} classes, ${whole(lost)} of them never first. ` +
      "The table above holds the same numbers."));
  }

  paint() {
    const { pen, classes, values } = this;
    let low = Infinity, high = -Infinity;
    for (const x of values) if (x < low || x > high) { low = Math.min(low, x); high = Math.max(high, x); }
    const padding = (high - low || 1) * 0.015;
    const x = linearScale(low - padding, high + padding, this.width);
    const y = signedScale(this.up, this.height);
    const zero = TOP + this.height - y.at(0);
    pen.fillStyle = this.colours.tint;
    if (classes.counts.unargmaxable && this.up === classes.margins) pen.fillRect(LEFT, zero, this.width, Math.max(0, TOP + this.height - zero));
    this.upwards(y, this.upTitle);
    this.across(x, say(this.acrossTitle));
    this.px = new Float32Array(classes.size);
    this.py = new Float32Array(classes.size);
    for (let row = 0; row < classes.size; row++) {
      this.px[row] = LEFT + x.at(values[row]);
      this.py[row] = TOP + this.height - y.at(this.up[row]);
    }
    const many = classes.size > 4000;
    for (const verdict of ORDER) {
      pen.fillStyle = this.colours.verdicts[verdict];
      const lost = verdict === 2, size = lost ? (many ? 3.4 : 5) : many ? 1.8 : 3.4;
      pen.globalAlpha = lost ? 0.85 : many ? 0.45 : 0.65;
      for (let row = 0; row < classes.size; row++) {
        if (classes.verdicts[row] !== verdict || Number.isNaN(this.py[row])) continue;
        if (lost) {
          // A diamond, so that colour is not the only difference.
          const px = this.px[row], py = this.py[row];
          pen.beginPath();
          pen.moveTo(px, py - size); pen.lineTo(px + size, py); pen.lineTo(px, py + size); pen.lineTo(px - size, py);
          pen.fill();
        } else pen.fillRect(this.px[row] - size / 2, this.py[row] - size / 2, size, size);
      }
    }
    pen.globalAlpha = 1;
  }

  nearest(event) {
    if (!this.px) return -1;
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    let best = -1, least = REACH * REACH;
    for (let row = 0; row < this.px.length; row++) {
      const dx = this.px[row] - x, dy = this.py[row] - y, away = dx * dx + dy * dy;
      if (away < least) { least = away; best = row; }
    }
    return best;
  }

  pointed(event) {
    const row = this.nearest(event);
    this.hint.hidden = row < 0;
    if (row < 0) return;
    const { classes } = this, id = classes.ids[row], label = classes.label(id);
    this.hint.replaceChildren();
    if (label !== null) this.hint.append(labelNode(label, 24), " ");
    this.hint.append(say(`class ${whole(id)}, ${this.upTitle} ${short(this.up[row])}`));
    const right = event.clientX > innerWidth - 220;
    this.hint.style.left = right ? "" : event.clientX + 14 + "px";
    this.hint.style.right = right ? innerWidth - event.clientX + 14 + "px" : "";
    this.hint.style.top = event.clientY + 14 + "px";
  }
}

/** How many classes fall where, verdicts stacked with the lost ones at the bottom. */
export class Histogram extends Chart {
  constructor(title, note, classes, { values, signed, acrossTitle }) {
    super(title, note, classes);
    Object.assign(this, { values, signed, acrossTitle });
    let low = Infinity, high = -Infinity;
    for (const x of values) {
      if (!Number.isFinite(x)) continue;
      low = Math.min(low, x);
      high = Math.max(high, x);
    }
    this.low = low;
    this.high = high;
    this.canvas.setAttribute("aria-label", `${say(title)}: from ${short(low)} to ${short(high)}`);
  }

  paint() {
    const { pen, classes, values } = this;
    const padding = (this.high - this.low || 1) * 0.02;
    const x = this.signed ? signedScale(values, this.width) : linearScale(this.low - padding, this.high + padding, this.width);
    const bins = Math.max(12, Math.min(80, Math.floor(this.width / 7)));
    const counts = histogram(values, classes.verdicts, VERDICTS.length, x, this.width, bins, classes.each);
    let most = 1;
    for (let bin = 0; bin < bins; bin++) most = Math.max(most, counts.reduce((sum, kind) => sum + kind[bin], 0));
    const y = linearScale(0, most * 1.05, this.height);
    this.upwards(y, say("classes"));
    this.across(x, say(this.acrossTitle));
    const step = this.width / bins;
    for (let bin = 0; bin < bins; bin++) {
      let below = 0;
      for (const verdict of [2, 3, 0, 1]) {
        const n = counts[verdict][bin];
        if (!n) continue;
        const size = Math.max(1.5, y.at(n));
        pen.fillStyle = this.colours.verdicts[verdict];
        pen.fillRect(LEFT + bin * step + 0.5, TOP + this.height - below - size, Math.max(1, step - 1), size);
        below += size;
      }
    }
  }
}
