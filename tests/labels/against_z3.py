"""Label sets of small heads beside z3, which decides them in exact real arithmetic.

As a script it goes through as many heads as it is told:

    python tests/labels/against_z3.py --heads 1000
"""

from __future__ import annotations

import argparse
import collections
import itertools

import numpy as np
import z3

from uncork import Ball, Box, Head, Unbounded
from uncork.domain import Domain
from uncork.labels import LabelAudit, LabelSets, SetVerdict, decide_sets


def small_head(seed: int) -> tuple[Head, np.ndarray, LabelSets]:
    """A head of few labels with its thresholds and some sets: often with equal, opposite and zero
    rows, offsets that cancel, and sides that are just touched."""
    rng = np.random.default_rng(seed)
    labels, features = int(rng.integers(2, 8)), int(rng.integers(1, 5))
    coarse = rng.random() < 0.5  # few different numbers: many ties
    draw = (lambda *n: rng.integers(-2, 3, n) / 2.0) if coarse else (lambda *n: rng.normal(size=n))
    weight = draw(labels, features)
    if rng.random() < 0.3:
        i, j = rng.integers(labels, size=2)
        weight[i] = weight[j] * (-1.0 if rng.random() < 0.5 else 1.0)
    bias = draw(labels) if rng.random() < 0.6 else None
    thresholds = draw(labels) if rng.random() < 0.5 else np.zeros(labels)
    domains: list[Domain] = [
        Box(1), Box(100), Box(0, np.inf), Box(-0.5, 2), Unbounded(), Box(0, 1), Ball(1.5),
    ]  # fmt: skip
    domain = domains[int(rng.integers(len(domains)))]
    dtype = np.float32 if rng.random() < 0.5 else np.float64
    head = Head(weight.astype(dtype), None if bias is None else bias.astype(dtype), domain=domain)
    every = [s for k in range(labels + 1) for s in itertools.combinations(range(labels), k)]
    some = rng.choice(len(every), min(len(every), 6), replace=False)
    sets = LabelSets.of(labels, [every[k] for k in some])
    on = rng.permutation(labels)[: int(rng.integers(1, labels + 1))]
    split = int(rng.integers(0, len(on) + 1))
    return (
        head,
        thresholds,
        sets.joined(LabelSets.question(labels, on[:split].tolist(), on[split:].tolist())),
    )


def feasible(head: Head, thresholds: np.ndarray, signs: np.ndarray) -> bool:
    """What z3 says of one set."""
    x = [z3.Real(f"x{j}") for j in range(head.features)]
    solver = z3.Solver()
    exact = z3.RealVal
    base = head.domain
    if isinstance(base, Box):
        lower, upper = base.bounds(head.features)
        solver.add(*(v >= exact(_text(b)) for v, b in zip(x, lower, strict=True) if b > -np.inf))
        solver.add(*(v <= exact(_text(b)) for v, b in zip(x, upper, strict=True) if b < np.inf))
    elif isinstance(base, Ball):
        solver.add(z3.Sum([v * v for v in x]) <= exact(_text(base.radius)) ** 2)
    for i in np.flatnonzero(signs).tolist():
        row = head.rows(i, i + 1)[0]
        z = z3.Sum([exact(_text(w)) * v for w, v in zip(row, x, strict=True)])
        z = z + exact(_text(head.offsets[i])) - exact(_text(thresholds[i]))
        solver.add(z > 0 if signs[i] > 0 else z < 0)
    answer = solver.check()
    assert answer != z3.unknown
    return bool(answer == z3.sat)


def _text(value: float) -> str:
    top, bottom = float(value).as_integer_ratio()
    return f"{top}/{bottom}"


def compared(seed: int) -> tuple[LabelAudit, list[int]]:
    """What uncork decides for one head, and the sets on which z3 disagrees."""
    head, thresholds, sets = small_head(seed)
    found = decide_sets(head, sets, thresholds=thresholds, jobs=1)
    wrong = [
        k
        for k, signs in enumerate(sets.signs())
        if found.verdicts[k]
        != (SetVerdict.FEASIBLE if feasible(head, thresholds, signs) else SetVerdict.INFEASIBLE)
    ]
    return found, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(options.first, options.first + options.heads):
        found, wrong = compared(seed)
        counts.update(found.counts)
        for k in wrong:
            counts["wrong"] += 1
            on = found.sets.on[k].tolist()
            print(f"seed {seed}: set {on} is {SetVerdict(int(found.verdicts[k]))} for uncork",
                  found.domain, found.reasons.get(k))  # fmt: skip
    print(f"{options.heads} heads: " + ", ".join(f"{n} {what}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
