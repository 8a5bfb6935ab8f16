"""Sets of few items beside z3, which decides them in exact real arithmetic.

As a script it goes through as many collections of items as it is told:

    PYTHONPATH=tests python tests/retrieval/sets_by_z3.py --items 1000
"""

from __future__ import annotations

import argparse
import collections
import itertools
from fractions import Fraction

import numpy as np
import z3

from oracle import inputs_of
from uncork.core.items import Items
from uncork.domain import Ball, Box, Domain, Hull, LayerNorm, Unbounded
from uncork.domain.hull import domain_of_queries
from uncork.retrieval.certify import SetCertifier
from uncork.retrieval.questions import Question, Questions

_MILLISECONDS = 5000  # of z3, for one question
DOMAINS: list[Domain] = [
    Unbounded(), Box(1), Box(0, np.inf), Box(-0.5, 2), Box(0.25, 1), Ball(1.5),
]  # fmt: skip


def small_items(seed: int) -> tuple[Items, Domain, list[Question]]:
    """A few items, often with equal, opposite and parallel rows, a domain and some questions."""
    rng = np.random.default_rng(seed)
    count, features = int(rng.integers(3, 9)), int(rng.integers(1, 4))
    metric = ("inner", "euclidean", "cosine")[seed % 3]
    if metric == "cosine" and features > 1 and rng.random() < 0.3:  # lengths that are roots
        count = min(count, 5)
        rows = rng.integers(-2, 3, (count, features)) * 1.0
        rows[~rows.any(axis=1), 0] = 1.0
    elif metric == "cosine":
        rows = np.array([_rational_length(rng, features) for _ in range(count)])
    elif rng.random() < 0.5:
        rows = rng.integers(-2, 3, (count, features)) / 2.0
    else:
        rows = rng.normal(size=(count, features))
    if rng.random() < 0.3:
        i, j = rng.integers(count, size=2)
        rows[i] = rows[j] * (2.0 if metric == "cosine" else 1.0)
    domain = DOMAINS[int(rng.integers(len(DOMAINS)))]
    if rng.random() < 0.2:
        domain = Hull(rng.integers(-2, 3, (int(rng.integers(2, 6)), features)) / 2.0)
    elif rng.random() < 0.2:
        points = rng.integers(-2, 3, (int(rng.integers(1, 3)), features)) / 2.0
        domain = domain_of_queries(points, "span")
    elif rng.random() < 0.1 and features > 1:
        gain, offset = rng.integers(-2, 3, (2, features)) / 2.0
        domain = LayerNorm(gain, offset)
    if isinstance(domain, Ball) and metric == "euclidean":  # z3 is slow where lengths matter
        domain = Unbounded()
    bias = rng.integers(-2, 3, count) / 2.0 if metric == "inner" and rng.random() < 0.3 else None
    if isinstance(domain, Ball) and bias is not None:
        bias = None
    items = Items(rows, metric, bias=bias)
    asked = []
    for _ in range(4):
        order = rng.permutation(count)
        size = int(rng.integers(1, count))
        free = int(rng.integers(0, count - size)) if rng.random() < 0.3 else 0
        asked.append(Question(np.sort(order[:size]), np.sort(order[size : size + free])))
    return items, domain, asked


def _rational_length(rng: np.random.Generator, features: int) -> list[float]:
    """A row of whole numbers whose length is one too."""
    if features == 1:
        return [float(rng.choice([-2, -1, 1, 3]))]
    m, n, p, q = (int(v) for v in rng.integers(-2, 3, 4))
    if features == 2:
        m = m or 1
        return [float(m * m - n * n), float(2 * m * n)]
    if not any((m, n, p, q)):
        m = 1
    return [float(m * m + n * n - p * p - q * q), float(2 * (m * q + n * p)),
            float(2 * (n * q - m * p))]  # fmt: skip


def scores(items: Items, x: list[z3.ArithRef]) -> tuple[list[z3.ArithRef], list[z3.BoolRef]]:
    """Every item's score at x, exactly, and what must hold of the numbers in them: the roots that
    are the lengths of rows."""
    found, roots = [], {}
    for i in range(len(items)):
        row = [Fraction(v) for v in items.rows(i, i + 1)[0].tolist()]
        square = sum((v * v for v in row), Fraction(0))
        constant = Fraction(0) if items.bias is None else Fraction(float(items.bias[i]))
        root = None
        if items.metric == "euclidean":
            constant = -square / 2
        elif items.metric == "cosine" and square:  # w / ‖w‖ = w ‖w‖ / ‖w‖²
            outer, inner = _root(square)
            row = [v * outer / square for v in row]
            if inner != 1:
                root = roots.setdefault(inner, z3.Real(f"root{inner}"))
        terms = [z3.RealVal(str(a)) * v for a, v in zip(row, x, strict=True)]
        score = z3.Sum([*terms, z3.RealVal(str(constant))])
        found.append(score if root is None else root * score)
    claims = [root > 0 for root in roots.values()]
    return found, claims + [root * root == inner for inner, root in roots.items()]


def _root(square: Fraction) -> tuple[Fraction, int]:
    """√square as a fraction times the root of a whole number without squares in it."""
    whole, outer = square.numerator * square.denominator, 1
    divisor = 2
    while divisor * divisor <= whole:
        while whole % (divisor * divisor) == 0:
            whole //= divisor * divisor
            outer *= divisor
        divisor += 1
    return Fraction(outer, square.denominator), whole


def possible(items: Items, domain: Domain, question: Question) -> bool:
    """What z3 says of one question; a `TimeoutError` where it says nothing in time."""
    solver = z3.Solver()
    solver.set("timeout", _MILLISECONDS)
    x, claims = inputs_of(domain, items.features)
    solver.add(*claims)
    z, roots = scores(items, x)
    solver.add(*roots)
    others = np.setdiff1d(np.arange(len(items)), [*question.items, *question.free])
    solver.add(*(z[i] > z[j] for i in question.items for j in others))
    answer = solver.check()
    if answer == z3.unknown:
        raise TimeoutError
    return bool(answer == z3.sat)


def most_among_first(items: Items, domain: Domain, relevant: np.ndarray, k: int) -> int:
    """The most relevant items that are among the first k at any query, by trying every choice of
    which these are and which others are let past."""
    others = np.setdiff1d(np.arange(len(items)), relevant)
    for size in range(min(k, len(relevant)), 0, -1):
        for chosen in itertools.combinations(relevant.tolist(), size):
            rest = np.setdiff1d(relevant, chosen)
            for past in itertools.combinations(others.tolist(), min(k - size, len(others))):
                free = np.array([*rest.tolist(), *past], dtype=np.int64)
                if possible(items, domain, Question(np.array(chosen), free)):
                    return size
    return 0


def compare(seed: int) -> collections.Counter[str]:
    """How often we and z3 agree."""
    items, domain, asked = small_items(seed)
    counted: collections.Counter[str] = collections.Counter()
    decided = Questions(SetCertifier(items, domain)).ask(asked)
    for question, decision in zip(asked, decided, strict=True):
        if decision.possible is None:
            counted["undecided"] += 1
            continue
        try:
            same = decision.possible == possible(items, domain, question)
        except TimeoutError:
            counted["z3 does not know"] += 1
            continue
        counted["agree" if same else f"WRONG at {seed}"] += 1
    return counted


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    total: collections.Counter[str] = collections.Counter()
    for one in range(given.seed, given.seed + given.items):
        total += compare(one)
    print(dict(total))
