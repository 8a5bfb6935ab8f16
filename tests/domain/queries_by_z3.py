"""Small indices on the domains that queries have, beside z3: spans, boxes and hulls of vectors,
non-negative ones, and what leaves LayerNorm or RMSNorm.

As a script it audits as many indices as it is told, and says what z3 disagrees with:

    PYTHONPATH=tests python tests/domain/queries_by_z3.py --heads 1000
"""

from __future__ import annotations

import argparse
import collections
from fractions import Fraction

import numpy as np
import z3

from oracle import inputs_of, real
from uncork.auditing import audit
from uncork.auditing.certify.verify import verify
from uncork.auditing.proofs.verdict import Verdict
from uncork.core.head import Head
from uncork.domain import Box, Domain, LayerNorm, RMSNorm
from uncork.domain.hull import domain_of_queries

WAYS = ("span", "box", "hull", "non-negative", "layernorm", "rmsnorm")


def small_head(seed: int) -> Head:
    """A few items, often equal, zero or on a line, with a domain that queries have."""
    rng = np.random.default_rng(seed)
    way = WAYS[seed % len(WAYS)]
    norm = way.endswith("norm")
    features = int(rng.integers(2 if norm else 1, 4))
    count = int(rng.integers(2, 6 if norm else 9))
    rows = _numbers(rng, (count, features))
    if count > 1 and rng.random() < 0.3:
        i, j = rng.choice(count, 2, replace=False)
        rows[i] = rows[j] * float(rng.choice([1, 2, 0.5, 0]))
    bias = rng.integers(-2, 3, count) / 2.0 if rng.random() < 0.4 else None
    return Head(rows, bias, domain=_domain(rng, way, features))


def _numbers(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    kind = rng.random()
    if kind < 0.5:
        return rng.integers(-2, 3, shape) / 2.0
    rows = rng.normal(size=shape)
    return rows.astype(np.float32).astype(np.float64) if kind < 0.75 else rows


def _domain(rng: np.random.Generator, way: str, features: int) -> Domain:
    if way == "non-negative":
        return Box(0, np.inf)
    if way in ("layernorm", "rmsnorm"):
        gain = rng.integers(-2, 4, features) / 2.0
        if way == "rmsnorm":
            return RMSNorm(gain)
        return LayerNorm(gain, rng.integers(-2, 3, features) / 2.0)
    points = _numbers(rng, (int(rng.integers(1, 6)), features))
    if rng.random() < 0.4:  # on a line or in a plane
        points[:, -1] = points[:, 0] * float(rng.choice([0, 1, -2]))
    return domain_of_queries(points, way)


def truth(head: Head, t: int) -> Verdict | None:
    """What z3 says of one item; None where it does not know in time."""
    rows = [(*row, b) for row, b in zip(head.rows(0, head.classes).tolist(),
                                        head.offsets.tolist(), strict=True)]  # fmt: skip
    x, claims = inputs_of(head.domain, head.features)
    solver = z3.Solver()
    solver.set("timeout", 5000)
    solver.add(*claims)
    for row in rows:
        if row != rows[t]:
            terms = [real(Fraction(a) - Fraction(b)) * v
                     for a, b, v in zip(rows[t], row, x, strict=False)]  # fmt: skip
            solver.add(z3.Sum([*terms, real(Fraction(rows[t][-1]) - Fraction(row[-1]))]) > 0)
    answer = solver.check()
    if answer == z3.unknown:
        return None
    if answer != z3.sat:
        return Verdict.UNARGMAXABLE
    return Verdict.TIED if rows.count(rows[t]) > 1 else Verdict.ARGMAXABLE


def compare(seed: int) -> collections.Counter[str]:
    """How often an audit and z3 agree on an index, and whether its proofs are verified."""
    head = small_head(seed)
    counted: collections.Counter[str] = collections.Counter()
    found = audit(head, progress=False)
    checked = verify(found, head)
    if not checked.ok:
        counted[f"NOT VERIFIED at {seed}"] += 1
    for t, verdict in enumerate(found.verdicts):
        true = truth(head, t)
        if true is None:
            counted["z3 does not know"] += 1
        elif verdict == Verdict.UNDECIDED:
            counted[f"undecided ({type(head.domain).__name__}, truly {true})"] += 1
        else:
            counted["agree" if verdict == true else f"WRONG at {seed}"] += 1
    return counted


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    total: collections.Counter[str] = collections.Counter()
    for one in range(given.seed, given.seed + given.heads):
        total += compare(one)
    print(dict(total))
