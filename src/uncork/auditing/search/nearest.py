"""A ball and a bias, exactly: how far from the origin does the region of a class begin?

The closed region of class t, {u : a_i·u ≥ c_i for all i} with a_i = g_t − g_i and c_i = h_i − h_t,
is a rational polyhedron, so its point u* nearest to the origin is rational too, and so are μ ≥ 0
with u* = Σ μ_i a_i and μ_i (a_i·u* − c_i) = 0. Let the region have an inner point u₀. Then

* if ‖u*‖ < ρ, points between u* and u₀ win strictly inside the ball: a witness;
* if ‖u*‖ ≥ ρ, then for ‖u‖ ≤ ρ   Σ μ_i (a_i·u − c_i) = u*·u − ‖u*‖² ≤ 0: μ is a mixture.

Either way the answer is rational, however close the call. u* is found by the dual active set method
of Goldfarb and Idnani (1983), which needs no tolerance in fractions, with rows added as they are
violated.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uncork.auditing.search.exact import ExactRows

Vector = list[Fraction]


def decide_in_ball(
    rows: ExactRows, square: Fraction, inner: Vector, likely: list[int]
) -> Vector | tuple[list[int], Vector]:
    """A witness u, or classes and their weights; `inner` wins strictly, outside the ball."""
    nearest = _Nearest(len(inner))
    waiting = list(likely)
    while True:
        rows.check_time()
        if nearest.length >= square:
            return nearest.classes, nearest.weights
        violated = _most_violated(rows, nearest.point, waiting)
        if violated is None:
            waiting = rows.not_below(nearest.point, strictly=False)
            if not waiting:
                return _between(nearest.point, inner, square)
            continue
        nearest.add(violated, rows)


def _most_violated(rows: ExactRows, u: Vector, classes: list[int]) -> int | None:
    worst, where = Fraction(0), None
    for i in classes:
        *row, bias = rows.behind(i)
        lead = _dot(row, u) + bias
        if lead > worst:
            worst, where = lead, i
    return where


def _between(near: Vector, inner: Vector, square: Fraction) -> Vector:
    """A point from `near`, inside the ball, towards `inner`, outside of it, still in the ball."""
    share = Fraction(1, 2)
    while True:
        point = [a + share * (b - a) for a, b in zip(near, inner, strict=True)]
        if _dot(point, point) <= square:
            return point
        share /= 2


class _Nearest:
    """The nearest point to the origin that obeys the rows added so far, and its multipliers."""

    def __init__(self, width: int) -> None:
        self.point: Vector = [Fraction(0)] * width
        self.classes: list[int] = []
        self.weights: Vector = []
        self._rows: list[Vector] = []  # a_i of the active classes, linearly independent

    @property
    def length(self) -> Fraction:
        """‖u*‖²."""
        return _dot(self.point, self.point)

    def add(self, i: int, rows: ExactRows) -> None:
        """Move to the nearest point that also puts t at or before class i."""
        *away, bias = rows.behind(i)
        normal, offset = [-v for v in away], bias  # a·u ≥ c
        weight = Fraction(0)
        while True:
            rows.check_time()
            # a = Σ r_k a_k + z with z orthogonal to the active rows.
            share = _solve(self._gram(), [_dot(row, normal) for row in self._rows])
            step = list(normal)
            for r, row in zip(share, self._rows, strict=True):
                step = [p - r * q for p, q in zip(step, row, strict=True)]
            size = _dot(step, normal)
            # How far until an active weight would turn negative, and until class i is met.
            limits = [(w / r, k) for k, (w, r) in enumerate(zip(self.weights, share, strict=True))
                      if r > 0]  # fmt: skip
            blocked, leaving = min(limits, default=(None, -1))
            full = None if size == 0 else (offset - _dot(normal, self.point)) / size
            if blocked is None and full is None:
                raise ArithmeticError("the region is empty, though a point of it is known")
            length = min(v for v in (blocked, full) if v is not None)
            if size != 0:
                self.point = [p + length * q for p, q in zip(self.point, step, strict=True)]
            self.weights = [w - length * r for w, r in zip(self.weights, share, strict=True)]
            weight += length
            if full is not None and length == full:
                self.classes.append(i)
                self.weights.append(weight)
                self._rows.append(normal)
                return
            for kept in (self.classes, self.weights, self._rows):
                del kept[leaving]

    def _gram(self) -> list[Vector]:
        return [[_dot(a, b) for b in self._rows] for a in self._rows]


def _solve(matrix: list[Vector], right: Vector) -> Vector:
    """x with A x = b for a nonsingular A, by elimination without rounding."""
    size = len(right)
    table = [[*row, b] for row, b in zip(matrix, right, strict=True)]
    for k in range(size):
        pivot = next(j for j in range(k, size) if table[j][k])
        table[k], table[pivot] = table[pivot], table[k]
        head = [v / table[k][k] for v in table[k]]
        table[k] = head
        for j in range(size):
            factor = table[j][k]
            if j != k and factor:
                table[j] = [p - factor * q for p, q in zip(table[j], head, strict=True)]
    return [row[-1] for row in table]


def _dot(a: Vector, b: Vector) -> Fraction:
    return sum((p * q for p, q in zip(a, b, strict=True)), Fraction(0))
