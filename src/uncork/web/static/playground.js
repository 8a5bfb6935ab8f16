/* The playground's state and controls. Every change goes through `changed()`, which draws anew. */
"use strict";

(() => {
  const geometry = uncorkGeometry, words = uncorkWords, view = uncorkView;
  const { PRESETS, MOST, snap, read, written } = uncorkHeads;
  const LISTED = 4; // orders of up to this many classes are listed one by one
  const QUICK = 6; // rankings of more classes wait until the hand rests
  const BOXES = [0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 6, 100, null];
  const LETTERS = "ABCDEFGHIJ";

  const $ = (id) => document.getElementById(id);
  const state = {
    classes: [], bias: false, prevention: "none", box: null, radius: 2, probe: [1, 0.5],
    chosen: 0, steps: [], path: [], ranking: null, unit: 1, preset: null,
    mode: "argmax", set: null,
  };
  let nextKey = 0, waiting = false, counting = 0, running = 0;
  const weights = new view.Panel($("weights"), 3, "w");
  const inputs = new view.Panel($("inputs"), 3, "x");

  /* The head that is judged: the rows with the prevention and the toggles applied. */
  function head() {
    const { classes, radius } = state;
    const prevention = state.mode === "labels" ? "none" : state.prevention;
    let weight = classes.map(({ w }) => w);
    let bias = state.bias ? classes.map(({ b }) => b) : null;
    if (prevention === "norm") {
      bias = null;
      weight = weight.map((w) => {
        const norm = Math.hypot(...w);
        return norm > 0 ? w.map((v) => (v / norm) * radius) : w;
      });
    }
    if (prevention === "bias") bias = weight.map((w) => -(w[0] * w[0] + w[1] * w[1]) / 2);
    return { weight, bias, box: state.box };
  }

  function changed({ keepPath = false, keepPreset = false } = {}) {
    if (!keepPath) {
      state.path = [state.probe];
      state.steps = [];
      state.ranking = null;
      state.set = null;
      clearTimeout(running);
    }
    if (!keepPreset) state.preset = null;
    state.chosen = Math.min(state.chosen, state.classes.length - 1);
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  }

  function draw() {
    const judged = head();
    const names = state.classes.map(({ name }) => name);
    const labels = state.mode === "labels";
    const sets = labels ? geometry.labelSets(judged) : null;
    const verdicts = labels ? aloneOrNever(names, sets) : geometry.judge(judged);
    if (!labels) for (const v of verdicts) v.lost = v.verdict === "unargmaxable";
    const [kind, text] = labels
      ? words.labelSentence(names, sets)
      : words.sentence(judged, names, verdicts, state.prevention);
    const lost = labels ? -1 : verdicts.findIndex((v) => v.lost);
    const logits = geometry.logits(judged, state.probe);
    const top = Math.max(...logits), first = logits.filter((z) => z === top).length;
    const winner = first === 1 ? logits.indexOf(top) : null;
    const mirrored = state.steps.filter((made) => made.state === "moved").at(-1);
    const shown = {
      head: judged, names, verdicts, winner, probe: state.probe, path: state.path,
      keys: state.classes.map(({ key }) => key), colours: state.classes.map(({ colour }) => colour),
      blocked: lost >= 0 ? verdicts[lost].blockers : null, ranking: state.ranking,
      radius: !labels && state.prevention === "norm" ? state.radius : 0, makeHandle,
      mode: state.mode, sets, chosenSet: state.set,
      wall: mirrored ? [state.chosen, mirrored.rival] : null,
    };
    view.drawWeights(weights, shown);
    view.drawInputs(inputs, shown);
    $("sentence").className = `sentence ${kind}`;
    if ($("sentence").textContent !== text) $("sentence").textContent = text;
    drawClasses(shown, logits);
    drawSettings(judged);
    drawCaptions(shown, logits);
    clearTimeout(counting);
    if (labels) drawLabelSets(judged, names, sets);
    else if (names.length <= QUICK) drawRankings(judged, names);
    else counting = setTimeout(() => drawRankings(judged, names), 120);
    $("link").href = `#${written(state)}`;
    document.documentElement.dataset.ready = "yes";
  }

  /* In place of verdicts, whether some input predicts each label and no other. */
  function aloneOrNever(names, sets) {
    const alone = new Set(sets.filter(({ on }) => on.length === 1).map(({ on }) => on[0]));
    return names.map((_, i) => ({
      verdict: alone.has(i) ? "possible alone" : "never alone", lost: !alone.has(i), group: [i],
    }));
  }

  function drawCaptions({ head: judged, names, winner, mode }, logits) {
    if (mode === "labels") {
      $("weights-caption").textContent =
        "Each arrow stands across its label's line, and points to the side where the label is on.";
      const on = logits.flatMap((z, i) => (z > 0 ? [names[i]] : []));
      const predicted = on.length ? words.list(on) : "no label";
      $("inputs-caption").textContent =
        `x = (${state.probe.map(words.figures).join(", ")}) predicts ${predicted}.`;
      return;
    }
    $("weights-caption").textContent = judged.bias
      ? "With a bias a class inside the hull can win: its bias lifts it out. The lines on the right move apart."
      : "x picks the arrow that reaches furthest in its direction (dashed line): always a corner of the hull.";
    const order = logits.map((_, i) => i).sort((i, j) => logits[j] - logits[i] || i - j);
    const ranked = order.map((i, k) =>
      (k && logits[order[k - 1]] === logits[i] ? " = " : k ? " > " : "") + names[i]).join("");
    $("inputs-caption").textContent =
      `x = (${state.probe.map(words.figures).join(", ")}) ranks ${ranked}` +
      (winner === null && names.length > 1 ? "; a tie for first place." : ".");
  }

  function drawSettings(judged) {
    const labels = state.mode === "labels";
    const prevention = labels ? "none" : state.prevention;
    for (const radio of document.querySelectorAll('input[name="mode"]'))
      radio.checked = radio.value === state.mode;
    $("prevention").hidden = $("reflect").hidden = labels;
    $("inputs-title").textContent = labels
      ? "which labels are on where" : "who wins where; equal on a line";
    $("weights-title").textContent = labels
      ? "one arrow a label" : "one arrow a class; the hull of all of them";
    $("probability-title").textContent = labels ? "P(label | x)" : "P(class | x)";
    $("classes-title").textContent = labels ? "Labels" : "Classes";
    $("add").textContent = labels ? "Add a label" : "Add a class";
    $("rankings-title").textContent = labels ? "Label sets" : "Rankings";
    $("rankings-unit").textContent = labels ? "sets" : "orders";
    $("bias").checked = judged.bias !== null;
    $("bias").disabled = prevention !== "none";
    document.querySelector(`input[name="prevention"][value="${prevention}"]`).checked = true;
    $("box").value = BOXES.indexOf(state.box) >= 0 ? BOXES.indexOf(state.box) : BOXES.length - 2;
    $("box-value").textContent = state.box === null ? "all of the plane" : `±${state.box}`;
    $("box").setAttribute("aria-valuetext", $("box-value").textContent);
    $("held").textContent = words.held(state.bias, prevention);
    $("add").disabled = state.classes.length >= MOST;
    for (const button of $("presets").children)
      button.setAttribute("aria-pressed", String(button.textContent === state.preset));
    const select = $("reflect-class");
    const options = state.classes.map(({ name }) => name);
    if ([...select.options].map((o) => o.text).join("\n") !== options.join("\n"))
      select.replaceChildren(...options.map((name, i) => new Option(name, i)));
    select.value = String(state.chosen);
    $("reflect-text").textContent = state.steps.length
      ? words.reflection(options, state.chosen, state.steps)
      : "Starts at the point x of the inputs; drag it anywhere.";
  }

  /* One row a class; rows stay, so that a field being typed into is left alone. */
  function drawClasses({ head: judged, names, verdicts }, logits) {
    const list = $("classes");
    const labels = state.mode === "labels";
    const prevention = labels ? "none" : state.prevention;
    const top = Math.max(...logits), raised = logits.map((z) => Math.exp(z - top));
    const sum = raised.reduce((a, b) => a + b, 0);
    const rows = new Map([...list.children].map((row) => [Number(row.dataset.key), row]));
    const ordered = state.classes.map((entry) => rows.get(entry.key) ?? classRow(entry));
    if (ordered.length !== list.children.length || ordered.some((r, i) => r !== list.children[i]))
      list.replaceChildren(...ordered);
    ordered.forEach((row, i) => {
      const { lost } = verdicts[i];
      row.className = lost ? "lost" : `class-${state.classes[i].colour}`;
      row.querySelector(".name b").textContent = names[i];
      row.querySelector(".name").title = `${names[i]}: ${verdicts[i].verdict}`;
      const values = [...judged.weight[i], judged.bias ? judged.bias[i] : 0];
      row.querySelectorAll("input[type=number]").forEach((input, k) => {
        if (document.activeElement !== input) input.value = String(Math.round(values[k] * 1e4) / 1e4);
        input.disabled = prevention === "norm";
      });
      const slider = row.querySelector("input[type=range]");
      if (document.activeElement !== slider || prevention !== "none") slider.value = values[2];
      slider.disabled = !state.bias || prevention !== "none";
      slider.setAttribute("aria-valuetext", words.figures(values[2]));
      slider.title = slider.disabled ? words.held(state.bias, prevention) : "";
      const share = labels ? 1 / (1 + Math.exp(-logits[i])) : raised[i] / sum;
      row.querySelector(".bar i").style.width = `${100 * share}%`;
      row.querySelector(".bar").setAttribute("aria-label", `probability ${words.percent(share)}`);
      row.querySelector(".why").textContent =
        lost && !labels ? words.mixture(judged, names, i, verdicts[i]) : "";
      row.querySelector(".remove").disabled = state.classes.length < 2;
    });
  }

  function classRow({ key, name }) {
    const row = document.createElement("li");
    row.dataset.key = key;
    const index = () => state.classes.findIndex((entry) => entry.key === key);
    const part = (tag, attributes) => row.appendChild(
      Object.assign(document.createElement(tag), attributes));
    const title = part("span", { className: "name" });
    title.append(Object.assign(document.createElement("span"), { className: "dot" }),
      document.createElement("b"));
    for (const [k, axis] of ["w₁", "w₂"].entries()) {
      const input = part("input", { type: "number", step: String(state.unit / 8) });
      input.setAttribute("aria-label", `${axis} of class ${name}`);
      input.addEventListener("input", () => {
        const value = Number(input.value);
        if (input.value === "" || !Number.isFinite(value) || Math.abs(value) > 1e6) return;
        state.classes[index()].w[k] = value;
        fit();
        changed();
      });
    }
    const slider = part("input", { type: "range", step: String(state.unit / 16) });
    slider.min = String(-3 * state.unit);
    slider.max = String(3 * state.unit);
    slider.setAttribute("aria-label", `bias of class ${name}`);
    slider.addEventListener("input", () => {
      state.classes[index()].b = Number(slider.value);
      changed();
    });
    const bar = part("div", { className: "bar" });
    bar.setAttribute("role", "img");
    bar.appendChild(document.createElement("i"));
    const remove = part("button", { type: "button", className: "quiet remove", textContent: "×" });
    remove.setAttribute("aria-label", `Remove class ${name}`);
    remove.addEventListener("click", () => {
      state.classes.splice(index(), 1);
      changed();
    });
    part("p", { className: "why" });
    return row;
  }

  function drawRankings(judged, names) {
    const found = geometry.rankings(judged);
    const distinct = found.length ? found[0].order.length : names.length;
    $("rankings-found").textContent = found.length.toLocaleString("en");
    $("rankings-formula").textContent =
      geometry.formula(names.length, judged.bias !== null).toLocaleString("en");
    $("rankings-all").textContent = geometry.factorial(names.length).toLocaleString("en");
    $("rankings-note").textContent = words.rankings(judged, found, distinct);
    if (names.length > LISTED || distinct < names.length) return $("orders").replaceChildren();
    const feasible = new Map(found.map(({ order, witness }) => [order.join(), witness]));
    const short = names.every((name) => [...name].length === 1);
    drawChoices("ranking", orders(names.map((_, i) => i)), feasible, (order) => [
      order.map((i) => names[i]).join(short ? "" : " > "),
      order.map((i) => names[i]).join(" > "),
    ]);
  }

  function drawLabelSets(judged, names, sets) {
    $("rankings-found").textContent = sets.length.toLocaleString("en");
    $("rankings-formula").textContent =
      geometry.labelFormula(names.length, judged.bias !== null).toLocaleString("en");
    $("rankings-all").textContent = (2 ** names.length).toLocaleString("en");
    $("rankings-note").textContent = words.labelNote(judged, sets);
    if (names.length > LISTED) return $("orders").replaceChildren();
    const feasible = new Map(sets.map(({ on, witness }) => [on.join(), witness]));
    const all = [...Array(2 ** names.length).keys()]
      .map((bits) => names.flatMap((_, i) => (bits & (1 << i) ? [i] : [])))
      .sort((a, b) => a.length - b.length);
    drawChoices("set", all, feasible, (on) => [
      words.setName(names, on), on.length ? words.list(on.map((i) => names[i])) : "no label",
    ]);
  }

  /* One button a choice, those that no input has struck out; `feasible` gives witnesses. */
  function drawChoices(field, all, feasible, named) {
    const list = $("orders");
    while (list.children.length > all.length) list.lastChild.remove();
    while (list.children.length < all.length) list.appendChild(orderButton());
    all.forEach((choice, k) => {
      const button = list.children[k].firstChild, witness = feasible.get(choice.join());
      const [text, label] = named(choice);
      button.textContent = text;
      button.setAttribute("aria-label", label);
      button.disabled = !witness;
      button.setAttribute("aria-pressed", String(state[field]?.join() === choice.join()));
      button.onclick = () => {
        const chosen = state[field]?.join() === choice.join();
        state[field] = chosen ? null : choice;
        if (!chosen) state.probe = witness;
        state.path = [state.probe];
        state.steps = [];
        changed({ keepPath: true, keepPreset: true });
      };
    });
  }

  function orderButton() {
    const item = document.createElement("li");
    item.appendChild(Object.assign(document.createElement("button"), { type: "button" }));
    return item;
  }

  function orders(items) {
    if (items.length < 2) return [items];
    return items.flatMap((item) =>
      orders(items.filter((other) => other !== item)).map((rest) => [item, ...rest]));
  }

  /* Handles: dragged by pointer or moved by the arrow keys. */
  function makeHandle(key) {
    const group = view.classHandle(key === "probe" ? "x" : "");
    const panel = key === "probe" ? inputs : weights;
    const move = (point) => {
      const most = panel.extent;
      const at = point.map((v) => snap(Math.min(Math.max(v, -most), most), panel.extent / 3));
      if (key === "probe") state.probe = at;
      else state.classes.find((entry) => entry.key === key).w = at;
      changed({ keepPreset: key === "probe" });
    };
    const now = () => {
      if (key === "probe") return state.probe;
      return head().weight[state.classes.findIndex((entry) => entry.key === key)];
    };
    group.addEventListener("pointerdown", (event) => {
      group.setPointerCapture(event.pointerId);
      event.stopPropagation();
    });
    // A finger on a handle drags it; elsewhere it scrolls the page. (touch-action does not reach
    // into an SVG.)
    group.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
    group.addEventListener("pointermove", (event) => {
      if (group.hasPointerCapture(event.pointerId)) move(panel.from(event));
    });
    group.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!step) return;
      event.preventDefault();
      const size = (panel.extent / 3) * (event.shiftKey ? 0.5 : 0.0625);
      move(now().map((v, k) => v + size * step[k]));
    });
    return group;
  }

  function step() {
    const made = geometry.reflect(head(), state.chosen, state.probe);
    state.steps.push(made);
    if (made.state === "moved") {
      state.probe = made.x;
      state.path.push(made.x);
    }
    changed({ keepPath: true, keepPreset: true });
    return made.state === "moved";
  }

  function run(left) {
    if (step() && left > 1) running = setTimeout(() => run(left - 1), 350);
  }

  /* The panels as large as the weights need: half-widths of 3, times a power of two. */
  function fit() {
    const size = Math.max(...state.classes.flatMap(({ w }) => w.map(Math.abs)), 0);
    const wanted = size > 0 ? 2 ** Math.ceil(Math.log2(size / 2.9)) : 1;
    if (wanted > weights.extent / 3 || wanted < weights.extent / 24) weights.extent = 3 * wanted;
  }

  /* A head to play with: rows [w1, w2, b], what is missing taken from the defaults. */
  function open({ rows, names, bias = false, prevention = "none", box = null, preset = null, mode = "argmax" }) {
    state.classes = rows.slice(0, MOST).map((row, i) => ({
      key: nextKey++, colour: i, name: names?.[i] ?? LETTERS[i], w: [row[0], row[1]], b: row[2] ?? 0,
    }));
    Object.assign(state, { bias, prevention, box, preset, mode, chosen: rows.length - 1 });
    const largest = Math.max(...rows.flatMap((row) => [Math.abs(row[0]), Math.abs(row[1])]), 0);
    state.unit = largest > 0 ? 2 ** Math.ceil(Math.log2(largest / 2.9)) : 1;
    weights.extent = 3 * state.unit;
    state.radius = meanNorm();
    if (!state.probe.every(Number.isFinite)) state.probe = [1, 0.5];
    changed({ keepPreset: true });
  }

  function meanNorm() {
    const norms = state.classes.map(({ w }) => Math.hypot(...w)).filter((norm) => norm > 0);
    return norms.length ? norms.reduce((a, b) => a + b, 0) / norms.length : state.unit;
  }

  function random() {
    const count = state.classes.length;
    const draw = () => snap((Math.random() * 2 - 1) * 2.4);
    open({ rows: [...Array(count)].map(() => [draw(), draw(), snap(draw() / 2)]), bias: state.bias,
      prevention: state.prevention, box: state.box, mode: state.mode });
  }

  function connect() {
    for (const preset of PRESETS) {
      const button = Object.assign(document.createElement("button"),
        { type: "button", textContent: preset.name, title: preset.title });
      button.addEventListener("click", () => open({ ...preset, preset: preset.name }));
      $("presets").appendChild(button);
    }
    $("bias").addEventListener("change", () => {
      state.bias = $("bias").checked;
      changed();
    });
    document.querySelectorAll('input[name="mode"]').forEach((radio) =>
      radio.addEventListener("change", () => {
        state.mode = radio.value;
        changed();
      }));
    document.querySelectorAll('input[name="prevention"]').forEach((radio) =>
      radio.addEventListener("change", () => {
        state.prevention = radio.value;
        state.radius = meanNorm();
        changed();
      }));
    $("box").addEventListener("input", () => {
      state.box = BOXES[Number($("box").value)];
      changed({ keepPreset: true });
    });
    $("add").addEventListener("click", () => {
      const used = (list) => (item) => !state.classes.some((entry) => list(entry) === item);
      const free = [...Array(MOST).keys()].find(used((entry) => entry.colour));
      const name = [...LETTERS].find(used((entry) => entry.name)) ?? `new ${nextKey}`;
      const angle = 2.4 * nextKey;
      const w = [Math.cos(angle), Math.sin(angle)].map((v) => snap(v * 2.2 * state.unit, state.unit));
      state.classes.push({ key: nextKey++, colour: free, name, w, b: 0 });
      changed();
    });
    $("shuffle").addEventListener("click", random);
    $("zoom-in").addEventListener("click", () => zoom(0.5));
    $("zoom-out").addEventListener("click", () => zoom(2));
    $("inputs").addEventListener("pointerdown", (event) => {
      state.probe = inputs.from(event).map((v) => snap(v, inputs.extent / 3));
      changed({ keepPreset: true });
    });
    $("reflect-class").addEventListener("change", () => {
      state.chosen = Number($("reflect-class").value);
      changed({ keepPreset: true });
    });
    $("reflect-step").addEventListener("click", step);
    $("reflect-run").addEventListener("click", () => {
      clearTimeout(running);
      run(60);
    });
    $("reflect-reset").addEventListener("click", () => {
      state.probe = [...head().weight[state.chosen]];
      changed({ keepPreset: true });
    });
    themes($("theme"));
    addEventListener("hashchange", () => {
      const given = read(location.hash.slice(1));
      if (given) open(given);
    });
  }

  /* Auto, light, dark: as on the other pages, and kept for them. */
  function themes(button) {
    const kept = "uncork-theme", names = ["auto", "light", "dark"];
    let theme = "auto";
    const apply = () => {
      if (theme === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = theme;
      button.textContent = `Theme: ${theme}`;
    };
    const storage = (use) => {
      try {
        return use(localStorage);
      } catch {
        return null; // a page opened from a file may have none
      }
    };
    const stored = storage((all) => all.getItem(kept));
    if (names.includes(stored)) theme = stored;
    button.addEventListener("click", () => {
      theme = names[(names.indexOf(theme) + 1) % names.length];
      storage((all) => all.setItem(kept, theme));
      apply();
    });
    apply();
  }

  function zoom(factor) {
    inputs.extent = Math.min(Math.max(inputs.extent * factor, 3 / 1024), 3 * 1024);
    changed({ keepPath: true, keepPreset: true });
  }

  connect();
  const given = document.getElementById("head");
  const linked = location.hash.length > 1 ? read(location.hash.slice(1)) : null;
  open(linked ?? (given ? JSON.parse(given.textContent) : { ...PRESETS[0], preset: PRESETS[0].name }));
})();
