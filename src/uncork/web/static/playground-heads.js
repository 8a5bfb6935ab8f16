/* Heads to play with: the examples, and heads written into links. No DOM. */
"use strict";

const uncorkHeads = (() => {
  const MOST = 10; // classes

  const PRESETS = [
    { name: "Figure 1", title: "After Figure 1: a class inside the hull of the others",
      rows: [[-2, -2, 0], [1, 2, 0], [1.75, -0.75, 0], [0.875, 0.25, 0]] },
    { name: "Figure 2", title: "After Figure 2: four classes that all win, and their rankings",
      rows: [[-2, -1, 0], [-0.75, 1.75, 0], [1.5, 1.25, 0], [1.25, -1.75, 0]] },
    { name: "Figure 7", title: "After Figure 7: three classes have all six rankings, with a bias too",
      rows: [[1.5, 0.75, 0.5], [-1.5, 1, -0.75], [0.25, -1.75, 1]], bias: true },
    { name: "Figure 8", title: "After Figure 8: a bias moves the lines apart, 12 rankings become 18",
      rows: [[-2, -1.5, 0], [0.25, 2, 0.25], [2, -0.75, -0.25], [0.125, 0.125, 1]], bias: true },
    { name: "Equal norms", title: "Ten classes on a circle: every class wins, few rankings exist",
      rows: [...Array(MOST)].map((_, k) => [2 * Math.cos(2.4 * k), 2 * Math.sin(2.4 * k), 0]),
      prevention: "norm" },
    { name: "Label sets", title: "Labels that are each on where z > 0: 11 of 16 sets of them exist",
      rows: [[1, 1.5, -1], [1.25, -1, -0.75], [-1.5, 0.25, -1], [0.5, 0.375, -1.25]], bias: true,
      mode: "labels" },
  ];

  /* To the grid that handles move on: whole numbers of 1/64, so that vectors can meet exactly. */
  function snap(value, unit = 1) {
    return Math.round((value * 64) / unit) / (64 / unit);
  }

  /* The state as text for a link, and back. */
  function written(state) {
    const rows = state.classes.map(({ w, b }) => [...w, b].join(",")).join(";");
    const mode = state.mode === "labels" ? "&mode=labels" : "";
    return `w=${rows}&bias=${Number(state.bias)}&prevention=${state.prevention}&box=${state.box ?? ""}${mode}`;
  }

  function read(text) {
    const given = new URLSearchParams(text);
    const rows = (given.get("w") ?? "").split(";").map((row) => row.split(",").map(Number));
    const sound = rows.length <= MOST && rows.every(
      (row) => row.length === 3 && row.every((v) => Number.isFinite(v) && Math.abs(v) <= 1e6));
    if (!sound) return null;
    const box = Number(given.get("box")), prevention = given.get("prevention");
    return {
      rows, bias: given.get("bias") === "1", box: box > 0 && box <= 1e6 ? box : null,
      prevention: ["norm", "bias"].includes(prevention) ? prevention : "none",
      mode: given.get("mode") === "labels" ? "labels" : "argmax",
    };
  }

  return { PRESETS, MOST, snap, read, written };
})();
