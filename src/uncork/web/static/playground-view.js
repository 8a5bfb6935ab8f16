/* Both panels of the playground as SVG: drawn anew from the state, handles kept for the pointer. */
"use strict";

const uncorkView = (() => {
  const SIZE = 480, HALF = SIZE / 2;
  const geometry = uncorkGeometry;

  function element(name, attributes = {}, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  /* Panel: an SVG whose middle is the origin and whose half-width is `extent`. */
  class Panel {
    constructor(svg, extent, axis) {
      this.svg = svg;
      this.extent = extent;
      this.axis = axis;
      this.under = svg.appendChild(element("g"));
      this.handles = svg.appendChild(element("g"));
      this.kept = new Map();
    }

    at([x, y]) {
      const scale = HALF / this.extent;
      return [HALF + x * scale, HALF - y * scale];
    }

    from(event) {
      const box = this.svg.getBoundingClientRect();
      const scale = (2 * this.extent) / box.width;
      return [
        (event.clientX - box.left - box.width / 2) * scale,
        -(event.clientY - box.top - box.height / 2) * scale,
      ];
    }

    clear() {
      this.under.replaceChildren();
      this.grid();
    }

    add(name, attributes, text) {
      return this.under.appendChild(element(name, attributes, text));
    }

    grid() {
      const step = 2 ** Math.round(Math.log2(this.extent / 3));
      for (let k = -Math.floor(this.extent / step); k * step <= this.extent; k++) {
        const [p] = this.at([k * step, 0]);
        const kind = k === 0 ? "axis" : "gridline";
        this.add("line", { class: kind, x1: p, x2: p, y1: 0, y2: SIZE });
        this.add("line", { class: kind, y1: p, y2: p, x1: 0, x2: SIZE });
      }
      this.add("text", { class: "axis-name", x: SIZE - 22, y: HALF - 8 }, `${this.axis}₁`);
      this.add("text", { class: "axis-name", x: HALF + 8, y: 18 }, `${this.axis}₂`);
    }

    polygon(points, kind) {
      if (points.length < 3) return;
      const text = points.map((p) => this.at(p).map((v) => v.toFixed(2)).join(",")).join(" ");
      this.add("polygon", { class: kind, points: text });
    }

    line(p, q, kind) {
      const [x1, y1] = this.at(p), [x2, y2] = this.at(q);
      this.add("line", { class: kind, x1, y1, x2, y2 });
    }

    /* A handle that keeps focus and pointer while everything else is drawn anew. */
    handle(key, make) {
      if (!this.kept.has(key)) {
        const made = make();
        this.kept.set(key, made);
        this.handles.appendChild(made);
      }
      return this.kept.get(key);
    }

    keep(keys) {
      for (const [key, made] of this.kept) {
        if (!keys.has(key)) {
          made.remove();
          this.kept.delete(key);
        }
      }
    }

    get square() {
      const e = this.extent;
      return [[-e, -e], [e, -e], [e, e], [-e, e]];
    }

    /* Where the line normal · p + offset = 0 crosses the panel: two points, or null. */
    crossing(normal, offset) {
      const side = geometry.cut(this.square, normal, offset);
      const on = side.filter((p) => {
        const value = normal[0] * p[0] + normal[1] * p[1] + offset;
        return Math.abs(value) <= 1e-9 * (Math.hypot(...normal) * this.extent + Math.abs(offset));
      });
      return on.length >= 2 ? [on[0], on.at(-1)] : null;
    }
  }

  function classHandle(label) {
    const group = element("g", { class: "handle", tabindex: 0, role: "button" });
    group.setAttribute("aria-roledescription", "movable point");
    group.append(
      element("circle", { class: "target", r: 22 }),
      element("circle", { class: "halo", r: 17 }),
      element("circle", { class: "knob", r: 12 }),
      element("text", {}, label),
    );
    return group;
  }

  function place(panel, group, point) {
    const [x, y] = panel.at(point).map((v) => Math.min(Math.max(v, 10), SIZE - 10));
    group.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)})`);
  }

  function drawWeights(panel, shown) {
    const { head, names, verdicts, probe, winner, blocked } = shown;
    panel.clear();
    const corners = shown.mode === "labels" ? [] : geometry.hull(head.weight);
    panel.polygon(corners, "hull");
    if (corners.length === 2) panel.line(corners[0], corners[1], "hull");
    if (shown.radius) {
      const [cx, cy] = panel.at([0, 0]);
      panel.add("circle", { class: "circle", cx, cy, r: (shown.radius * HALF) / panel.extent });
    }
    if (blocked) {
      const points = blocked.map((i) => head.weight[i]);
      if (points.length === 2) panel.line(points[0], points[1], "triangle");
      panel.polygon(points, "triangle");
    }
    if (shown.mode !== "labels" && !head.bias && winner !== null && Math.hypot(...probe) > 0) drawSupport(panel, shown);
    const keys = new Set();
    head.weight.forEach((w, i) => {
      const { lost } = verdicts[i];
      const kind = lost ? "lost" : `class-${shown.colours[i]}`;
      const group = panel.add("g", { class: kind });
      const [x1, y1] = panel.at([0, 0]), [x2, y2] = panel.at(w);
      group.appendChild(element("line", { class: "arrow", x1, y1, x2, y2 }));
      const key = `class-${shown.keys[i]}`;
      keys.add(key);
      const short = [...names[i]].length <= 2;
      const handle = panel.handle(key, () => shown.makeHandle(shown.keys[i]));
      const text = handle.querySelector("text");
      text.textContent = names[i];
      text.setAttribute("class", short ? "" : "outside");
      text.setAttribute("y", short ? 0 : -22);
      handle.setAttribute("class", `handle ${kind}`);
      handle.dataset.class = i;
      handle.dataset.verdict = verdicts[i].verdict;
      const where = w.map(uncorkWords.figures).join(", ");
      const noun = shown.mode === "labels" ? "Label" : "Class";
      handle.setAttribute("aria-label", `${noun} ${names[i]}, weights ${where}: ${verdicts[i].verdict}`);
      place(panel, handle, w);
    });
    panel.keep(keys);
  }

  /* The direction of x, and the line across it that touches the hull at the winner. */
  function drawSupport(panel, { head, probe, winner }) {
    const length = Math.hypot(...probe), unit = probe.map((v) => v / length);
    panel.line([0, 0], unit.map((v) => 0.93 * panel.extent * v), "direction");
    const [px, py] = panel.at(unit.map((v) => 0.965 * panel.extent * v));
    panel.add("text", { class: "axis-name", x: px - 4, y: py + 4 }, "x");
    const w = head.weight[winner], reach = w[0] * unit[0] + w[1] * unit[1];
    const ends = panel.crossing(unit, -reach);
    if (ends) panel.line(ends[0], ends[1], "support");
  }

  function drawInputs(panel, shown) {
    panel.clear();
    if (shown.mode === "labels") drawSets(panel, shown);
    else drawWinners(panel, shown);
    const handle = panel.handle("probe", () => shown.makeHandle("probe"));
    handle.setAttribute("class", "handle probe");
    handle.setAttribute("aria-label", `Input x at ${shown.probe.map(uncorkWords.figures).join(", ")}`);
    place(panel, handle, shown.probe);
  }

  /* The half-plane of every label, laid over one another, and each label set where it is output. */
  function drawSets(panel, { head, names, colours, sets, chosenSet }) {
    const within = head.box === null ? panel.square : boxed(head.box, panel.extent);
    head.weight.forEach((w, i) => {
      const offset = head.bias ? head.bias[i] : 0;
      panel.polygon(geometry.cut(panel.square, w, offset), `half class-${colours[i]}`);
    });
    head.weight.forEach((w, i) => {
      const ends = panel.crossing(w, head.bias ? head.bias[i] : 0);
      if (!ends || Math.hypot(...w) === 0) return;
      panel.line(ends[0], ends[1], `wall of-label class-${colours[i]}`);
      nameWall(panel, ends, `${names[i]}=0`);
    });
    if (chosenSet) panel.polygon(geometry.labelRegion(head, chosenSet, within), "cell");
    if (head.box !== null) drawBox(panel, head.box);
    for (const { on } of sets) {
      const polygon = geometry.labelRegion(head, on, within);
      if (polygon.length < 3) continue;
      const [x, y] = panel.at(centre(polygon));
      panel.add("text", { class: "name-of-set", x, y }, uncorkWords.setName(names, on));
    }
  }

  function drawWinners(panel, shown) {
    const { head, names, verdicts } = shown;
    head.weight.forEach((_, t) => {
      if (verdicts[t].verdict === "unargmaxable" || verdicts[t].group[0] !== t) return;
      const polygon = geometry.region(head, t, panel.square);
      if (polygon.length < 3) return;
      const kind = `class-${shown.colours[t]}`;
      panel.polygon(polygon, `region ${kind}`);
      panel.under.lastChild.dataset.region = t;
    });
    drawWalls(panel, shown);
    if (shown.ranking) drawRanking(panel, shown);
    if (head.box !== null) drawBox(panel, head.box);
    head.weight.forEach((_, t) => {
      if (verdicts[t].verdict === "unargmaxable" || verdicts[t].group[0] !== t) return;
      const inside = head.box === null ? panel.square : boxed(head.box, panel.extent);
      const polygon = geometry.region(head, t, inside);
      if (polygon.length < 3) return;
      const [x, y] = panel.at(centre(polygon));
      const label = verdicts[t].group.map((i) => names[i]).join(" = ");
      panel.add("text", { class: `name-of-region class-${shown.colours[t]}`, x, y }, label);
    });
    drawPath(panel, shown);
  }

  function drawWalls(panel, { head, names, wall }) {
    for (let i = 0; i < head.weight.length; i++) {
      for (let j = i + 1; j < head.weight.length; j++) {
        const normal = [0, 1].map((k) => head.weight[i][k] - head.weight[j][k]);
        if (Math.hypot(...normal) === 0) continue;
        const ends = panel.crossing(normal, head.bias ? head.bias[i] - head.bias[j] : 0);
        if (!ends) continue;
        const current = wall && wall.includes(i) && wall.includes(j);
        panel.line(ends[0], ends[1], current ? "wall current" : "wall");
        if (head.weight.length <= 4 || current) nameWall(panel, ends, `${names[i]}=${names[j]}`);
      }
    }
  }

  function nameWall(panel, [p, q], text) {
    const far = Math.hypot(...p) >= Math.hypot(...q) ? p : q;
    const [x, y] = panel.at(far).map((v) => Math.min(Math.max(v, 20), SIZE - 20));
    panel.add("text", { class: "wall-name", x, y }, text);
  }

  function boxed(box, extent) {
    const e = Math.min(box, extent);
    return [[-e, -e], [e, -e], [e, e], [-e, e]];
  }

  function drawBox(panel, box) {
    const [low] = panel.at([-box, 0]), [high] = panel.at([box, 0]);
    if (low <= 0) return;
    const hole = `M0 0H${SIZE}V${SIZE}H0ZM${low} ${low}V${high}H${high}V${low}Z`;
    panel.add("path", { class: "beyond", d: hole, "fill-rule": "evenodd" });
    panel.add("rect", { class: "box", x: low, y: low, width: high - low, height: high - low });
  }

  function drawRanking(panel, { head, ranking }) {
    const start = head.box === null ? panel.square : boxed(head.box, panel.extent);
    const polygon = ranking.slice(1).reduce((left, j, k) => {
      const i = ranking[k];
      const normal = [0, 1].map((a) => head.weight[i][a] - head.weight[j][a]);
      return geometry.cut(left, normal, head.bias ? head.bias[i] - head.bias[j] : 0);
    }, start);
    panel.polygon(polygon, "cell");
  }

  function drawPath(panel, { path }) {
    if (path.length < 2) return;
    const points = path.map((p) => panel.at(p).map((v) => v.toFixed(2)).join(",")).join(" ");
    panel.add("polyline", { class: "path", points });
    for (const p of path.slice(0, -1)) {
      const [cx, cy] = panel.at(p);
      panel.add("circle", { class: "stop", cx, cy, r: 4 });
    }
  }

  /* The centre of gravity of a polygon. */
  function centre(polygon) {
    let area = 0, x = 0, y = 0;
    polygon.forEach((p, k) => {
      const q = polygon[(k + 1) % polygon.length];
      const part = p[0] * q[1] - q[0] * p[1];
      area += part;
      x += part * (p[0] + q[0]);
      y += part * (p[1] + q[1]);
    });
    return area === 0 ? polygon[0] : [x / (3 * area), y / (3 * area)];
  }

  return { Panel, classHandle, drawWeights, drawInputs };
})();
