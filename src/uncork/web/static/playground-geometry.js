/* The geometry of a head with two features, in whole numbers: who can win, why not, and in which
   orders. Nothing here touches the page, so that tests can hold it to what uncork says.

   A head is {weight: [[w1, w2], …], bias: [b, …] or null, box: R or null}: inputs within ±R, or
   all of the plane. Every float is a whole number times a power of two, so (w1, w2, b) of all
   classes become BigInts at once, and no verdict depends on rounding.

   An input (x, y) is the ray (x, y, 1) of homogeneous space; directions are rays (x, y, 0). A set of
   strict inequalities is solved by clipping: each quadrant is a cone with three edges, each
   inequality cuts a piece off, and what is left has an inside or there is no solution. */
"use strict";

const uncorkGeometry = (() => {
  const bits = new DataView(new ArrayBuffer(8));

  /* value = mantissa · 2^exponent, the mantissa odd or 0. */
  function split(value) {
    bits.setFloat64(0, value);
    const word = bits.getBigUint64(0);
    const exponent = Number((word >> 52n) & 0x7ffn);
    let mantissa = word & 0xfffffffffffffn;
    if (exponent > 0) mantissa |= 0x10000000000000n;
    let power = Math.max(exponent, 1) - 1075;
    if (mantissa === 0n) return [0n, 0];
    const zeros = trailingZeros(mantissa);
    mantissa >>= BigInt(zeros);
    power += zeros;
    return [value < 0 ? -mantissa : mantissa, power];
  }

  function trailingZeros(mantissa) {
    let zeros = 0;
    for (const step of [32, 16, 8, 4, 2, 1]) {
      if (BigInt.asUintN(step, mantissa >> BigInt(zeros)) === 0n) zeros += step;
    }
    return zeros;
  }

  /* Floats as BigInts, all scaled by the same power of two. */
  function integers(values) {
    const parts = values.map(split);
    const lowest = Math.min(0, ...parts.map(([, power]) => power));
    return parts.map(([mantissa, power]) => mantissa << BigInt(power - lowest));
  }

  function rowsOf(head) {
    const flat = head.weight.flatMap((w, i) => [w[0], w[1], head.bias ? head.bias[i] : 0]);
    const whole = integers(flat);
    return head.weight.map((_, i) => whole.slice(3 * i, 3 * i + 3));
  }

  /* The sides of the box, as inequalities side · (x, y, h) > 0. The edge itself does not matter:
     a region that meets a box with an inside meets its inside. */
  function sidesOf(head) {
    if (head.box === null || head.box === undefined) return [];
    const [one, far] = integers([1, head.box]);
    return [[one, 0n, far], [-one, 0n, far], [0n, one, far], [0n, -one, far]];
  }

  const minus = (a, b) => [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
  const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
  const cross = (a, b) => [
    a[1] * b[2] - a[2] * b[1],
    a[2] * b[0] - a[0] * b[2],
    a[0] * b[1] - a[1] * b[0],
  ];
  const same = (a, b) => a[0] === b[0] && a[1] === b[1] && a[2] === b[2];
  const negative = (a) => [-a[0], -a[1], -a[2]];

  /* A cone: its rays in order, each with the plane through it and the next one. `inward` is positive
     on every ray of the quadrant, and tells a ray from its opposite. */
  function quadrants() {
    return [[1n, 1n], [-1n, 1n], [-1n, -1n], [1n, -1n]].map(([sx, sy]) => ({
      inward: [sx, sy, 1n],
      edges: [
        { ray: [sx, 0n, 0n], plane: [0n, 0n, 1n] },
        { ray: [0n, sy, 0n], plane: [1n, 0n, 0n] },
        { ray: [0n, 0n, 1n], plane: [0n, 1n, 0n] },
      ],
    }));
  }

  /* The part of a cone where plane · ray ≥ 0; null where that part has no inside. A new ray is the
     cross product of two given planes, so numbers do not grow from cut to cut. */
  function clip(cone, plane) {
    const values = cone.edges.map((edge) => dot(plane, edge.ray));
    if (!values.some((value) => value > 0n)) return null;
    if (values.every((value) => value >= 0n)) return cone;
    const edges = [];
    cone.edges.forEach((edge, k) => {
      const here = values[k], next = values[(k + 1) % values.length];
      if (here > 0n || (here === 0n && next > 0n)) edges.push(edge);
      else if (here === 0n) edges.push({ ray: edge.ray, plane });
      if (here > 0n && next < 0n) edges.push({ ray: meet(cone, edge.plane, plane), plane });
      if (here < 0n && next > 0n)
        edges.push({ ray: meet(cone, edge.plane, plane), plane: edge.plane });
    });
    return { inward: cone.inward, edges };
  }

  function meet(cone, first, second) {
    const ray = cross(first, second);
    return dot(cone.inward, ray) < 0n ? negative(ray) : ray;
  }

  /* Where every inequality holds strictly: pieces of it, one for each quadrant it reaches. */
  function solve(planes) {
    const pieces = [];
    for (const start of quadrants()) {
      let cone = start;
      for (const plane of planes) {
        cone = clip(cone, plane);
        if (cone === null) break;
      }
      if (cone !== null) pieces.push(cone);
    }
    return pieces;
  }

  /* A point inside a cone, as a ray. Rays are brought to a like size first, so that the point lies
     well inside. */
  function middle(cone) {
    const sizes = cone.edges.map(({ ray }) => bitLength(dot(cone.inward, ray)));
    const most = Math.max(...sizes);
    return cone.edges.reduce((sum, { ray }, k) => {
      const shift = BigInt(most - sizes[k]);
      return [sum[0] + (ray[0] << shift), sum[1] + (ray[1] << shift), sum[2] + (ray[2] << shift)];
    }, [0n, 0n, 0n]);
  }

  const bitLength = (value) => (value < 0n ? -value : value).toString(16).length * 4;

  /* The quotient of two BigInts as the float nearby, whatever their size. */
  function quotient(numerator, denominator) {
    const shift = 60 + bitLength(denominator) - bitLength(numerator);
    const scaled = shift >= 0 ? numerator << BigInt(shift) : numerator >> BigInt(-shift);
    return Number(scaled / denominator) * 2 ** -shift;
  }

  const point = (ray) => [quotient(ray[0], ray[2]), quotient(ray[1], ray[2])];

  const equals = (rows, t) => rows.flatMap((row, i) => (same(row, rows[t]) ? [i] : []));

  function pieces(rows, sides, t, rivals) {
    const planes = rivals.filter((i) => !same(rows[i], rows[t])).map((i) => minus(rows[t], rows[i]));
    return solve([...planes, ...sides]);
  }

  /* One verdict a class, with a witness where there is one, the class's equals, and otherwise its
     blockers. */
  function judge(head) {
    const rows = rowsOf(head), sides = sidesOf(head);
    const all = rows.map((_, i) => i);
    return all.map((t) => {
      const found = pieces(rows, sides, t, all);
      const group = equals(rows, t);
      if (found.length > 0) {
        const witness = point(middle(found[0]));
        return { verdict: group.length > 1 ? "tied" : "argmaxable", witness, group };
      }
      return { verdict: "unargmaxable", group, ...blockers(rows, sides, t) };
    });
  }

  /* The fewest classes that together keep t from winning. Where three convex sets of the plane
     always meet, all do (Helly): so three are enough. `inBox` says whether it takes the box. */
  function blockers(rows, sides, t) {
    const others = rows.flatMap((row, i) => (same(row, rows[t]) ? [] : [i]));
    for (const within of sides.length ? [[], sides] : [[]]) {
      for (const size of [1, 2, 3]) {
        const blocking = subsets(others, size).filter((set) => !pieces(rows, within, t, set).length);
        if (blocking.length) {
          const best = leastBy(blocking, (set) => spread(rows, set));
          return { blockers: best, inBox: within.length > 0, weights: mixture(rows, t, best) };
        }
      }
    }
    throw new Error("a class without a region has blockers");
  }

  function subsets(items, size) {
    if (size === 0) return [[]];
    return items.flatMap((item, k) =>
      subsets(items.slice(k + 1), size - 1).map((rest) => [item, ...rest]));
  }

  function leastBy(items, measure) {
    return items.map((item) => [measure(item), item]).reduce((a, b) => (b[0] < a[0] ? b : a))[1];
  }

  /* How far apart classes are, in floats: only to choose the tightest of several triangles. */
  function spread(rows, set) {
    const scale = Math.max(...set.flatMap((i) => rows[i].map(bitLength)), 53) - 53;
    const at = set.map((i) => rows[i].map((value) => Number(value >> BigInt(scale))));
    let total = 0;
    for (const p of at) for (const q of at) total += Math.hypot(p[0] - q[0], p[1] - q[1]);
    return total;
  }

  /* Weights λ with Σ λ_i w_i = w_t over the blockers, in floats; null where there are none (in a
     box the mixture may also lean on the box). */
  function mixture(rows, t, set) {
    const target = rows[t];
    if (set.length === 1) {
      const [i] = set;
      return rows[i][0] === target[0] && rows[i][1] === target[1] ? [1] : null;
    }
    const flat = ([a, b]) => [a, b, 1n];
    if (set.length === 2) {
      const [p, q] = set.map((i) => flat(rows[i]));
      const along = minus(q, p), to = minus(flat(target), p);
      if (along[0] * to[1] !== along[1] * to[0]) return null;
      const axis = along[0] !== 0n ? 0 : 1;
      if (along[axis] === 0n) return to[axis] === 0n && along[1 - axis] === to[1 - axis] ? [1, 0] : null;
      const share = quotient(to[axis], along[axis]);
      return share >= 0 && share <= 1 ? [1 - share, share] : null;
    }
    const corners = set.map((i) => flat(rows[i]));
    const area = dot(corners[0], cross(corners[1], corners[2]));
    if (area === 0n) return null;
    const weights = [0, 1, 2].map((k) =>
      quotient(dot(flat(target), cross(corners[(k + 1) % 3], corners[(k + 2) % 3])), area));
    return weights.every((weight) => weight >= 0) ? weights : null;
  }

  /* Every strict ranking of the distinct classes that some input produces: order, a witness, and
     whether its region is bounded. The first of equal classes stands for all of them. */
  function rankings(head) {
    const rows = rowsOf(head);
    const distinct = rows.flatMap((_, i) => (equals(rows, i)[0] === i ? [i] : []));
    let cells = solve(sidesOf(head));
    for (const [i, j] of subsets(distinct, 2)) {
      const wall = minus(rows[i], rows[j]), other = negative(wall);
      cells = cells.flatMap((cell) =>
        [clip(cell, wall), clip(cell, other)].filter((part) => part !== null));
    }
    const found = new Map();
    for (const cell of cells) {
      const inside = middle(cell);
      const logits = new Map(distinct.map((i) => [i, dot(rows[i], inside)]));
      const order = [...distinct].sort((i, j) => (logits.get(i) > logits.get(j) ? -1 : 1));
      const key = order.join(",");
      const bounded = cell.edges.every(({ ray }) => ray[2] !== 0n);
      const earlier = found.get(key);
      if (earlier) earlier.bounded &&= bounded;
      else found.set(key, { order, witness: point(inside), bounded });
    }
    return [...found.values()].sort((a, b) => compare(a.order, b.order));
  }

  /* Every set of labels with z_i > 0 exactly for its labels and z_i < 0 for all others at some input:
     the labels, a witness, and whether its region is bounded. */
  function labelSets(head) {
    const rows = rowsOf(head);
    let cells = solve(sidesOf(head));
    for (const row of rows) {
      cells = cells.flatMap((cell) =>
        [clip(cell, row), clip(cell, negative(row))].filter((part) => part !== null));
    }
    const found = new Map();
    for (const cell of cells) {
      const inside = middle(cell);
      const on = rows.flatMap((row, i) => (dot(row, inside) > 0n ? [i] : []));
      const bounded = cell.edges.every(({ ray }) => ray[2] !== 0n);
      const earlier = found.get(on.join());
      if (earlier) earlier.bounded &&= bounded;
      else found.set(on.join(), { on, witness: point(inside), bounded });
    }
    return [...found.values()].sort((a, b) => a.on.length - b.on.length || compare(a.on, b.on));
  }

  /* How many of them labels in general position have with two features (Cover;
     uncork.theory.label_sets has the general case). */
  function labelFormula(labels, bias) {
    return bias ? 1 + labels + (labels * (labels - 1)) / 2 : 2 * labels;
  }

  function compare(a, b) {
    const k = a.findIndex((value, index) => value !== b[index]);
    return k < 0 ? 0 : a[k] - b[k];
  }

  /* How many rankings C classes in general position have with two features (Good and Tideman;
     uncork.theory.counting has the general case). */
  function formula(classes, bias) {
    if (classes <= 3) return [1, 1, 2, 6][classes];
    const pairs = (classes * (classes - 1)) / 2;
    if (!bias) return 2 * pairs;
    let products = 0; // e_2(1, …, C − 1)
    for (let i = 1; i < classes; i++) for (let j = i + 1; j < classes; j++) products += i * j;
    return 1 + pairs + products;
  }

  function factorial(n) {
    return n < 2 ? 1 : n * factorial(n - 1);
  }

  const logits = (head, x) =>
    head.weight.map((w, i) => w[0] * x[0] + w[1] * x[1] + (head.bias ? head.bias[i] : 0));

  /* One step of Braid Reflect (Algorithm 2 of the paper): where class `rival` beats t at x, x is
     mirrored at the wall between them. */
  function reflect(head, t, x) {
    const z = logits(head, x);
    let rival = -1;
    z.forEach((value, i) => {
      if (i !== t && (rival < 0 || value > z[rival])) rival = i;
    });
    if (rival < 0 || z[t] - z[rival] > 0) {
      const inside = head.box === null || x.every((value) => Math.abs(value) <= head.box);
      return { state: inside ? "won" : "outside", rival, x };
    }
    const normal = [0, 1].map((k) => head.weight[t][k] - head.weight[rival][k]);
    const length = normal[0] * normal[0] + normal[1] * normal[1];
    if (length === 0) return { state: "stuck", rival, x };
    const ahead = normal[0] * x[0] + normal[1] * x[1]
      + (head.bias ? head.bias[t] - head.bias[rival] : 0);
    return { state: "moved", rival, x: x.map((value, k) => value - (2 * ahead / length) * normal[k]) };
  }

  /* For pictures, in floats: the part of a polygon where normal · p + offset ≥ 0. */
  function cut(polygon, normal, offset) {
    const value = (p) => normal[0] * p[0] + normal[1] * p[1] + offset;
    return polygon.flatMap((p, k) => {
      const q = polygon[(k + 1) % polygon.length];
      const here = value(p), next = value(q);
      const part = here >= 0 ? [p] : [];
      if (here >= 0 !== next >= 0) {
        const share = here / (here - next);
        part.push([p[0] + share * (q[0] - p[0]), p[1] + share * (q[1] - p[1])]);
      }
      return part;
    });
  }

  /* For pictures: where class t is first, within a polygon. */
  function region(head, t, polygon) {
    return head.weight.reduce((left, w, i) => {
      if (i === t || left.length === 0) return left;
      const mine = head.weight[t];
      const offset = head.bias ? head.bias[t] - head.bias[i] : 0;
      return cut(left, [mine[0] - w[0], mine[1] - w[1]], offset);
    }, polygon);
  }

  /* For pictures: where exactly these labels are on, within a polygon. */
  function labelRegion(head, on, polygon) {
    return head.weight.reduce((left, w, i) => {
      const side = on.includes(i) ? 1 : -1;
      const offset = head.bias ? head.bias[i] : 0;
      return left.length ? cut(left, w.map((v) => side * v), side * offset) : left;
    }, polygon);
  }

  /* For pictures: corners of the convex hull, counter-clockwise (Andrew's monotone chain). */
  function hull(points) {
    const sorted = [...points].sort((p, q) => p[0] - q[0] || p[1] - q[1]);
    const turn = (o, p, q) => (p[0] - o[0]) * (q[1] - o[1]) - (p[1] - o[1]) * (q[0] - o[0]);
    const chain = (list) => {
      const out = [];
      for (const p of list) {
        while (out.length > 1 && turn(out.at(-2), out.at(-1), p) <= 0) out.pop();
        out.push(p);
      }
      return out.slice(0, -1);
    };
    return sorted.length < 3 ? sorted : [...chain(sorted), ...chain([...sorted].reverse())];
  }

  return {
    judge, rankings, formula, factorial, logits, reflect, cut, region, hull,
    labelSets, labelFormula, labelRegion,
  };
})();
