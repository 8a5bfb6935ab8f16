"""The last resort: one class decided in exact rational arithmetic, rows generated as needed.

Points on a face of the hull have neither a strict witness nor a strict mixture nearby, so floats
cannot settle them. Here the alternative is solved as phase one of the simplex method in whole
numbers (fraction-free pivots, Bland's rule against cycling):

    λ, μ ≥ 0 with  Σ λ_i (w_i − w_t, b_i − b_t) + λ_h (0, −1) + Σ μ_s g_s = 0,  Σ λ = 1

where g_s are the sides of a box. If there is one, the λ_i are the mixture; if not, the optimal
prices are a direction (x·s, s) with s > 0 that puts t strictly before every row considered.

A ball has no sides. Where only directions matter they are not needed; where lengths do, `nearest`
says how far from the origin the class's region begins. Other sets have the sides of their outline,
and further ones that cut off what was found outside them. Where inputs are x = F(u), rows are those
that u sees, and what is found is u.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from uncork.auditing.certify.latent import Latent
from uncork.auditing.proofs.verdict import Mixture, Witness
from uncork.auditing.search.nearest import decide_in_ball
from uncork.auditing.search.proposer import (
    ExactWitness,
    GaveUp,
    Mixtures,
    Proposal,
    Proposer,
    Search,
)
from uncork.auditing.search.space import Space
from uncork.core.head import Head
from uncork.core.rigour import integers
from uncork.domain import Domain
from uncork.domain.outline import Outline

_ADDED = 8  # violated rows added at a time
_MOST_NUMBERS = 1 << 25  # in a tableau: whole numbers of any length, so gigabytes of them


class Limit(Exception):
    """The time allowed for exact solving was reached, or its tableau would be too large."""


def propose(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    """One class after another, each within its own limit and what the audit has left."""
    for t in classes.tolist():
        if search.late():
            return
        seconds = min(search.exact_seconds, search.seconds_left())
        start = search.rivals.get(t, np.empty(0, dtype=np.int64))
        try:
            found = decide_exactly(search.head, search.domain, t, start, space.repeats, seconds)
        except Limit as reached:
            if str(reached):
                yield GaveUp(t, str(reached))
            elif seconds == search.exact_seconds or not search.late():
                yield GaveUp(t, f"exact arithmetic took more than {seconds:g} s")
            continue
        yield Mixtures([(t, found)]) if isinstance(found, Mixture) else ExactWitness(t, found)


PROPOSER = Proposer("exact", "decide", propose, "exactly", uses_space=False)


def decide_exactly(
    head: Head,
    domain: Domain,
    t: int,
    start: np.ndarray,
    repeats: np.ndarray,
    seconds: float = 60.0,
) -> Witness | Mixture:
    """A witness or a mixture for class t, exact.

    `start` names classes likely to matter, `repeats` those to leave out because an equal class
    stands for them. Raises `Limit` when the time is up.
    """
    deadline = time.monotonic() + seconds
    rows = ExactRows(head, Latent(domain, head.features), t, repeats, deadline)
    base = rows.latent.base
    outline = base.outline(rows.latent.width)
    _check_size(outline)
    sides = outline.sides_exactly()
    height = [Fraction(0)] * rows.latent.width + [Fraction(-1)]
    working = [int(i) for i in dict.fromkeys(int(i) for i in start) if i != t]
    while True:
        strict = [rows.behind(i) for i in working] + [height]
        kind, values = alternative(strict, sides, deadline)
        if kind == "mixture":
            return _as_mixture(working, values[: len(working)])
        u = [v / values[-1] for v in values[:-1]]
        if outline.is_round and rows.only_direction_matters:
            norm = sum(v * v for v in u)
            if norm > 0:
                u = [v * Fraction(outline.radius) / (1 + norm) for v in u]
        worst = rows.not_below(u)
        if worst:
            working.extend(worst)
        elif base.contains_exactly(u):
            return _as_witness(u)
        elif outline.exact and outline.square is not None:
            found = decide_in_ball(rows, outline.square, u, working)
            return _as_witness(found) if isinstance(found, list) else _as_mixture(*found)
        else:
            sides.append(_cut(base, u))


def _cut(base: Domain, u: list[Fraction]) -> list[Fraction]:
    """The side g·(x, 1) ≤ 0 of a set that cuts off an input outside it."""
    normal = base.normal(np.array([float(v) for v in u]))
    if normal is not None:
        exact = [Fraction(v) for v in normal.tolist()]
        bound = base.support_exactly(exact)
        if bound is not None and sum(a * b for a, b in zip(exact, u, strict=True)) > bound:
            return [*exact, -bound]
    raise Limit(f"an input outside {base} is not cut off by any side that is known")


class ExactRows:
    """The other classes as class t sees them, in fractions, where inputs are F(u)."""

    def __init__(
        self, head: Head, latent: Latent, t: int, repeats: np.ndarray, deadline: float
    ) -> None:
        self.head, self.latent, self.t, self.deadline = head, latent, t, deadline
        self.skipped = {t, *repeats.tolist()}
        self._own = _exact_row(head, t)
        self._behind: dict[int, list[Fraction]] = {}
        constant = bool((head.offsets == head.offsets[0]).all())
        self.only_direction_matters = constant and not latent.shifts

    def check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise Limit

    def behind(self, i: int) -> list[Fraction]:
        """(g_i − g_t, h_i − h_t): the row and bias of z_i − z_t as a function of u."""
        if i not in self._behind:
            self.check_time()
            *away, bias = _minus(_exact_row(self.head, i), self._own)
            seen, shift = self.latent.back_exactly(away)
            self._behind[i] = [*seen, bias + shift]
        return self._behind[i]

    def not_below(self, u: list[Fraction], strictly: bool = True) -> list[int]:
        """The classes not strictly below t at u (or not below at all), worst first; a few at a
        time."""
        point = [*self.latent.forward_exactly(u), Fraction(1)]
        scale = math.lcm(*(v.denominator for v in point))
        whole = [v.numerator * (scale // v.denominator) for v in point]
        z_t = sum(a * b for a, b in zip(self._own, whole, strict=True))
        worst: list[tuple[Fraction, int]] = []
        for start, block in self.head.blocks(1024):
            self.check_time()
            biases = self.head.offsets[start : start + len(block)]
            for i, row in enumerate(np.column_stack([block, biases]), start):
                if i in self.skipped:
                    continue
                values, row_scale = integers(row)
                z_i = Fraction(sum(a * b for a, b in zip(values, whole, strict=True)), row_scale)
                if z_i > z_t or (strictly and z_i == z_t):
                    worst.append((z_i - z_t, i))
        worst.sort(reverse=True)
        return [i for _, i in worst[:_ADDED]]


def _exact_row(head: Head, i: int) -> list[Fraction]:
    values, scale = integers(np.append(head.rows(i, i + 1)[0], head.offsets[i]))
    return [Fraction(v, scale) for v in values]


def _minus(a: list[Fraction], b: list[Fraction]) -> list[Fraction]:
    return [p - q for p, q in zip(a, b, strict=True)]


def _check_size(outline: Outline) -> None:
    """Raise `Limit` where the tableau is too large before any class is in it."""
    features = len(outline.lower)
    sides = sum(int(np.isfinite(bounds).sum()) for bounds in (outline.lower, outline.upper))
    if features * (features + sides) > _MOST_NUMBERS:
        raise Limit(f"exact arithmetic is not for {features:,} features and {sides:,} sides")


def alternative(
    strict: list[list[Fraction]], sides: list[list[Fraction]], deadline: float
) -> tuple[str, list[Fraction]]:
    """("mixture", weights of the strict rows) or ("direction", y)."""
    width = len(strict[0])
    columns = [_whole([*row, Fraction(1)]) for row in strict]
    columns += [_whole([*row, Fraction(0)]) for row in sides]
    count = len(columns)
    # Tableau: one row a constraint; columns: variables, artificials, right-hand side.
    table = np.zeros((width + 2, count + width + 2), dtype=object)
    for k, (column, _) in enumerate(columns):
        table[: width + 1, k] = column
    for j in range(width + 1):
        table[j, count + j] = 1
    table[width, -1] = 1
    table[-1] = -table[: width + 1].sum(axis=0)  # reduced costs of Σ artificials
    table[-1, count : count + width + 1] = 0
    basis = [count + j for j in range(width + 1)]
    table, denominator, basis = _simplex(table, basis, count, deadline)
    if table[-1, -1] == 0:
        weights = [Fraction(0)] * len(strict)
        for row, variable in enumerate(basis):
            if variable < len(strict):
                weights[variable] = Fraction(table[row, -1], denominator) * columns[variable][1]
        return "mixture", weights
    # Reduced cost of artificial j is 1 − price_j: the prices separate the origin from the rows.
    prices = [1 - Fraction(table[-1, count + j], denominator) for j in range(width)]
    return "direction", prices


def _simplex(
    table: np.ndarray, basis: list[int], count: int, deadline: float
) -> tuple[np.ndarray, int, list[int]]:
    """Minimise the last row's objective over the first `count` columns, in whole numbers."""
    denominator, stalled = 1, 0
    while True:
        if time.monotonic() > deadline:
            raise Limit
        costs = table[-1, :count]
        entering = [k for k in range(count) if costs[k] < 0]
        if not entering:
            return table, denominator, basis
        # The steepest column while it helps; Bland's smallest index once it only turns in place.
        column = entering[0] if stalled > 20 else min(entering, key=lambda k: costs[k])
        best: tuple[Fraction, int, int] | None = None
        for row in range(len(basis)):
            if table[row, column] > 0:
                ratio = Fraction(table[row, -1], table[row, column])
                candidate = (ratio, basis[row], row)
                best = candidate if best is None else min(best, candidate)
        if best is None:  # cannot be: the objective is bounded below by zero
            raise Limit
        stalled = stalled + 1 if best[0] == 0 else 0
        row = best[2]
        pivot = table[row, column]
        pivot_row = table[row].copy()
        factors = table[:, column].copy()
        table = (table * pivot - np.multiply.outer(factors, pivot_row)) // denominator
        table[row] = pivot_row
        denominator = pivot
        basis[row] = column


def _whole(values: list[Fraction]) -> tuple[list[int], Fraction]:
    """A column scaled to whole numbers, and the scale: variable = scale × scaled variable."""
    scale = math.lcm(*(v.denominator for v in values))
    return [v.numerator * (scale // v.denominator) for v in values], Fraction(scale)


def _as_mixture(classes: list[int], weights: list[Fraction]) -> Mixture:
    scale = math.lcm(*(w.denominator for w in weights))
    whole = [int(w * scale) for w in weights]
    shared = math.gcd(*whole) or 1
    kept = [(i, w // shared) for i, w in zip(classes, whole, strict=True) if w]
    kept.sort()
    total = sum(w for _, w in kept)
    return Mixture(
        np.array([i for i, _ in kept], dtype=np.int32),
        np.array([w / total for _, w in kept]),
        integers=tuple(w for _, w in kept),
    )


def _as_witness(x: list[Fraction]) -> Witness:
    scale = math.lcm(*(v.denominator for v in x))
    numerators = tuple(v.numerator * (scale // v.denominator) for v in x)
    try:
        image = np.array([float(v) for v in x])
    except OverflowError:
        image = np.full(len(x), np.nan)
    return Witness(image, numerators, scale)
