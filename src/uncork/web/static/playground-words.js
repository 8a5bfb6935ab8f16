/* What the playground says of a head, in words. No DOM. */
"use strict";

const uncorkWords = (() => {
  const figures = (value) => String(Math.round(value * 100) / 100).replace("-", "−");
  const percent = (share) => `${Math.round(100 * share)} %`;

  function list(names, last = "and") {
    if (names.length < 2) return names.join("");
    return `${names.slice(0, -1).join(", ")} ${last} ${names.at(-1)}`;
  }

  /* Why class t can never win, as what follows "class T can never win: ". */
  function reason(head, names, verdict) {
    const { blockers, weights, inBox } = verdict;
    const by = blockers.map((i) => names[i]);
    if (inBox) {
      const box = `inputs within ±${figures(head.box)}`;
      if (by.length === 1) return `for ${box}, ${by[0]} is always ahead`;
      const beats = list(by.slice(0, -1));
      return `for ${box}, wherever it beats ${beats}, ${by.at(-1)} is ahead`;
    }
    if (by.length === 1) return `it points where ${by[0]} does, with a smaller bias`;
    const where = by.length === 2
      ? `on the line between ${list(by)}`
      : `inside the triangle of ${list(by)}`;
    return head.bias ? `it is ${where}, and its bias does not lift it out` : `it is ${where}`;
  }

  /* The proof: t as a mixture of its blockers. */
  function mixture(head, names, t, verdict) {
    const { blockers, weights } = verdict;
    if (!weights) return "";
    const parts = blockers.map((i, k) => `${percent(weights[k])} ${names[i]}`).join(" + ");
    if (!head.bias) return `${names[t]} = ${parts}: never above all of them`;
    const mixed = blockers.reduce((sum, i, k) => sum + weights[k] * head.bias[i], 0);
    return `${parts} has the same weights and bias ${figures(mixed)} against ${figures(head.bias[t])}`;
  }

  /* The one sentence at the top: [kind, text]. */
  function sentence(head, names, verdicts, prevention) {
    const lost = verdicts.flatMap((v, t) => (v.verdict === "unargmaxable" ? [t] : []));
    const tied = verdicts.flatMap((v, t) => (v.verdict === "tied" ? [t] : []));
    if (names.length === 1) return ["", `Class ${names[0]} has no rival: it always wins.`];
    if (lost.length === 1) {
      const [t] = lost;
      return ["lost", `Class ${names[t]} can never win: ${reason(head, names, verdicts[t])}.`];
    }
    if (lost.length > 1) {
      const [t] = lost;
      const first = `${names[t]}: ${reason(head, names, verdicts[t])}`;
      return ["lost", `Classes ${list(lost.map((i) => names[i]))} can never win. ${first}.`];
    }
    if (tied.length) {
      const group = verdicts[tied[0]].group.map((i) => names[i]);
      return ["tied", `${list(group)} are the same class twice over: they can only tie.`];
    }
    const all = names.length === 2 ? "Both classes" : `All ${names.length} classes`;
    if (prevention === "norm") return ["", `${all} can win: on a circle, nobody is inside the hull.`];
    if (prevention === "bias")
      return ["", `${all} can win: with b = −½‖w‖² each wins the inputs nearest to its w.`];
    if (head.bias && insideHull(head).length) {
      const t = insideHull(head)[0];
      return ["", `${all} can win: ${names[t]} is inside the hull, but its bias lifts it out.`];
    }
    return ["", `${all} can win. Drag one into the hull of the others.`];
  }

  /* Classes that would be lost without the bias. */
  function insideHull(head) {
    return uncorkGeometry.judge({ weight: head.weight, bias: null, box: null })
      .flatMap((v, t) => (v.verdict === "unargmaxable" ? [t] : []));
  }

  function rankings(head, found, distinct) {
    const formula = uncorkGeometry.formula(head.weight.length, head.bias !== null);
    const bounded = found.filter((ranking) => ranking.bounded).length;
    if (distinct < head.weight.length) return "Equal classes always tie; one of them is counted.";
    if (found.length === formula) {
      const inside = bounded ? `, ${bounded} of them in a bounded region` : "";
      return `As many as a head in general position has${inside}.`;
    }
    if (head.box !== null && head.bias) return "The box cuts some of the regions off.";
    return "Fewer than in general position: some lines coincide, are parallel, or meet in one point.";
  }

  /* A label set as it is written: A without anything else, A and C, none. */
  function setName(names, on) {
    if (!on.length) return "∅";
    const short = names.every((name) => [...name].length === 1);
    return on.map((i) => names[i]).join(short ? "" : " + ");
  }

  /* The one sentence at the top where labels are predicted each by itself: [kind, text]. */
  function labelSentence(names, sets) {
    const all = 2 ** names.length;
    const alone = names.filter((_, i) => !sets.some(({ on }) => on.length === 1 && on[0] === i));
    if (sets.length === all) return ["", `All ${all} label sets can be predicted.`];
    const start = `${sets.length} of ${all} label sets can be predicted`;
    if (alone.length === 0) return ["", `${start}, every single label among them.`];
    return ["lost", `${start}; never ${list(alone, "or")} alone.`];
  }

  function labelNote(head, sets) {
    const formula = uncorkGeometry.labelFormula(head.weight.length, head.bias !== null);
    const bounded = sets.filter((set) => set.bounded).length;
    if (sets.length === formula) {
      const inside = bounded ? `, ${bounded} of them in a bounded region` : "";
      return `As many as labels in general position have${inside}.`;
    }
    if (head.box !== null && head.bias) return "The box cuts some of the regions off.";
    return "Fewer than in general position: some lines coincide, are parallel, or meet in one point.";
  }

  /* Why fields are grey, or nothing where none is. */
  function held(bias, prevention) {
    if (prevention === "norm")
      return "Fields and bias are grey because prevention holds every class on one circle: drag the arrows, or choose none.";
    if (prevention === "bias") return "The biases are grey because prevention sets them: −½‖w‖².";
    return bias ? "" : "The biases are grey because the bias is switched off, under Head and inputs.";
  }

  /* What Braid Reflect just did. */
  function reflection(names, t, steps) {
    const last = steps.at(-1), made = steps.filter((step) => step.state === "moved").length;
    const after = `${made} ${made === 1 ? "reflection" : "reflections"}`;
    if (last.state === "won") return `${names[t]} wins at x, found after ${after}.`;
    if (last.state === "outside") return `${names[t]} wins at x, but x has left the box (${after}).`;
    if (last.state === "stuck") return `No wall between ${names[t]} and ${names[last.rival]} to mirror at.`;
    return `${names[last.rival]} was ahead of ${names[t]}: mirrored at their wall. ${after} so far.`;
  }

  return { figures, held, percent, list, sentence, mixture, rankings, reflection, setName, labelSentence,
    labelNote };
})();
