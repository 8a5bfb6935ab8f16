"""The best rank of a class of a head of few features, exactly, by going through all planes.

At a direction x the classes at or above t are those with a_i·x ≥ 0, a_i = w_i − w_t. Their number
changes only where some a_i·x is zero, and ties count, so it is least inside a cell of the
arrangement of the planes a_i·x = 0. Where the a_i span all d features, every cell has a corner: a
direction v on which d − 1 independent planes meet. Next to v every class with a_i·v > 0 is above t,
and of those with a_i·v = 0 as many as the same question for them alone says: none where they are
d − 1, which can all be brought below. So all choices of d − 1 classes give the answer.

A bias is one more feature, with a class that must stay below: h > 0.

In floats, a_i·v is known up to a bound. Choices at which no more than d − 1 classes lie within it
are settled; the others are, where they matter, in fractions. Most choices have so many of the first
few classes above them that the others need not be looked at. This code is trusted: a certificate
says that it was run, and checking it is running it again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from uncork.auditing.certify.certifier import Certifier
from uncork.core.rigour import check_arithmetic, gamma, integers

MOST_FEATURES = 4
_MOST_WORK = 2 << 30  # choices × classes
_CHUNK = 1 << 21  # numbers at a time
_FEW = 48  # classes that tell of most choices that they matter no more
_MOST_EXACT = 2000  # choices settled in fractions
_TINY = 1e-280  # beside rows of size one


@dataclass(frozen=True)
class Depth:
    """How many classes are at or above t everywhere, at least; and a direction with so many, where
    it is known that there is one."""

    least: int
    direction: np.ndarray | None  # (d,) or (d + 1,) with the length that goes with a bias


def can_enumerate(certifier: Certifier, features: int = MOST_FEATURES) -> bool:
    """Whether the planes of this head are few, and its domain leaves only directions."""
    head = certifier.head
    if not certifier.latent.is_identity:
        return False
    base = certifier.base
    biased = bool((certifier.offsets != certifier.offsets[0]).any())
    width = head.features + biased
    if biased and not base.is_everything:
        return False
    if not (base.is_everything or base.outline(head.features).surrounds_zero):
        return False
    return 2 <= width <= features and work_of(certifier) <= _MOST_WORK


def work_of(certifier: Certifier) -> int:
    """What going through all planes takes for one class: choices × classes."""
    head = certifier.head
    biased = bool((certifier.offsets != certifier.offsets[0]).any())
    return math.comb(head.classes, head.features + biased - 1) * head.classes


def depth(
    certifier: Certifier,
    t: int,
    equals: np.ndarray,
    stop: Callable[[], bool] = bool,
    enough: int | None = None,
) -> Depth | None:
    """Proven by going through all planes; None where that did not settle it, or where `stop`, which
    is asked now and then, said so. `enough`: whether it is so many or more is all that is asked,
    which takes a fraction of the time."""
    check_arithmetic()
    if not can_enumerate(certifier):
        return None
    head, offsets = certifier.head, certifier.offsets
    own = {t, *(int(i) for i in equals if certifier.equal(int(i), t))}
    others = np.array([i for i in range(head.classes) if i not in own], dtype=np.int64)
    if not len(others):
        return Depth(0, np.ones(head.features))
    rows = head.take(others) - head.take(np.array([t]))
    weights = np.ones(len(others), dtype=np.int64)
    biased = bool((offsets != offsets[0]).any())
    if biased:
        rows = np.column_stack([rows, offsets[others] - offsets[t]])
        height = np.zeros((1, rows.shape[1]))
        height[0, -1] = -1.0
        rows, weights = np.concatenate([rows, height]), np.append(weights, len(others) + 1)

    def exactly(k: int) -> list[Fraction]:
        if biased and k == len(others):
            return [Fraction(0)] * head.features + [Fraction(-1)]
        return _difference(certifier, int(others[k]), t, biased)

    if not np.isfinite(rows).all() or not rows.any():
        return None
    size = 2.0 ** -float(np.frexp(np.abs(rows).max())[1])
    return _Planes(rows * size, weights, exactly, enough).run(stop)


def _difference(certifier: Certifier, i: int, t: int, biased: bool) -> list[Fraction]:
    """a_i in fractions."""
    found = []
    for k in (i, t):
        row = certifier.head.rows(k, k + 1)[0]
        whole, scale = integers(np.append(row, certifier.offsets[k]) if biased else row)
        found.append([Fraction(v, scale) for v in whole])
    return [a - b for a, b in zip(*found, strict=True)]


class _Planes:
    def __init__(
        self,
        rows: np.ndarray,
        weights: np.ndarray,
        exactly: Callable[[int], list[Fraction]],
        enough: int | None = None,
    ) -> None:
        self.rows, self.weights, self.exactly = rows, weights, exactly  # (n, m), (n,)
        self.width = rows.shape[1]
        self.best = int(weights.sum()) + 1
        if enough is not None:
            self.best = min(self.best, enough)
        self.direction: np.ndarray | None = None
        self.open: list[tuple[int, int, tuple[int, ...]]] = []  # (least, sign, choice)

    def run(self, stop: Callable[[], bool]) -> Depth | None:
        if len(self.rows) < self.width - 1:
            return None
        for chosen in self._choices():
            if stop():
                return None
            self._look(chosen)
        if self.best > int(self.weights.sum()):  # the rows may not span all features
            if exact_rank([self.exactly(k) for k in range(len(self.rows))]) < self.width:
                return None
        elif exact_rank([self.exactly(k) for k in self._independent()]) < self.width:
            return None
        self.open.sort()
        for count, (least, sign, choice) in enumerate(self.open):
            if least >= self.best:
                break
            if count >= _MOST_EXACT:
                return None
            self._settle(sign, choice)
        if self.best > int(self.weights.sum()):
            return None
        return Depth(self.best, self.direction)

    def _independent(self) -> list[int]:
        """Rows that probably span all features: the pivots of an elimination in floats."""
        left, picked = self.rows.copy(), []
        for _ in range(self.width):
            at = int(np.argmax((left**2).sum(axis=1)))
            picked.append(at)
            pivot = left[at] / max(float(np.linalg.norm(left[at])), 1e-300)
            left = left - np.outer(left @ pivot, pivot)
        return picked

    def _choices(self) -> Iterator[np.ndarray]:
        """All choices of m − 1 rows, some at a time: (k, m − 1)."""
        size = max(1, _CHUNK // len(self.rows))
        waiting: list[np.ndarray] = []
        for part in _combinations(len(self.rows), self.width - 1):
            waiting.append(part)
            if sum(map(len, waiting)) >= size:
                whole = np.concatenate(waiting)
                yield from (whole[k : k + size] for k in range(0, len(whole), size))
                waiting = []
        if waiting:
            yield np.concatenate(waiting)

    def _look(self, chosen: np.ndarray) -> None:
        picked = self.rows[chosen]  # (k, m − 1, m)
        corners, sizes = _crossed(picked)
        if len(self.rows) > 2 * _FEW and self.best <= int(self.weights.sum()):
            at = corners @ self.rows[:_FEW].T
            off = (gamma(48) * sizes.sum(axis=1) + _TINY)[:, None]  # entries of rows are below one
            above, below = at > off, at < -off
            least = np.minimum(self._weight(above), self._weight(below))
            matter = np.flatnonzero(least < self.best)
            chosen, corners, sizes = chosen[matter], corners[matter], sizes[matter]
            if not len(chosen):
                return
        above, below = self._sides(corners, sizes)
        unclear = (~(above | below)).sum(axis=1)
        for sign, sure in ((1, above), (-1, below)):
            least = self._weight(sure)
            settled = unclear == self.width - 1
            if settled.any():
                k = int(np.argmin(np.where(settled, least, np.iinfo(np.int64).max)))
                if least[k] < self.best:
                    self.best = int(least[k])
                    self.direction = self._beside(sign * corners[k], chosen[k])
            for k in np.flatnonzero(~settled & (least < self.best)).tolist():
                self.open.append((int(least[k]), sign, tuple(chosen[k].tolist())))

    def _sides(self, corners: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which rows are surely above zero at each corner, and surely below: (k, n)."""
        at = corners @ self.rows.T
        # a_i rounds once; a corner's entry is a sum of at most 6 products of 3 numbers.
        off = gamma(48) * (sizes @ np.abs(self.rows).T) + _TINY
        return at > off, at < -off

    def _weight(self, some: np.ndarray) -> np.ndarray:
        """The weights of some of the first rows, summed: (k, n) of booleans → (k,)."""
        weights = self.weights[: some.shape[1]].astype(np.float64)  # far below 2⁵³: exact
        return np.asarray((some.astype(np.float64) @ weights).astype(np.int64))

    def _beside(self, corner: np.ndarray, zero: np.ndarray) -> np.ndarray:
        """A direction next to a corner, with the rows that are zero there below zero."""
        corner = corner / max(float(np.linalg.norm(corner)), 1e-300)
        away, *_ = np.linalg.lstsq(self.rows[zero], -np.ones(len(zero)), rcond=None)
        at, change = self.rows @ corner, self.rows @ away
        at[zero] = 0.0
        falling = (at < 0) & (change > 0)
        rising = (at > 0) & (change < 0)
        limits = np.abs(at[falling | rising] / change[falling | rising])
        return np.asarray(corner + 0.5 * float(limits.min(initial=1.0)) * away)

    def _settle(self, sign: int, choice: tuple[int, ...]) -> None:
        """The least number of classes next to one corner, in fractions."""
        corner = exact_cross([self.exactly(k) for k in choice])
        if not any(corner):
            return
        corner = [sign * v for v in corner]
        zero, count = [], 0
        for k, weight in enumerate(self.weights.tolist()):
            row = self.exactly(k)
            value = sum((a * b for a, b in zip(row, corner, strict=True)), Fraction(0))
            count += weight * (value > 0)
            if value == 0:
                zero.append((row, weight))
        if count >= self.best:
            return
        count += exact_depth([row for row, _ in zero], [w for _, w in zero])
        if count < self.best:
            self.best = count
            largest = max(abs(v) for v in corner)
            self.direction = np.array([float(v / largest) for v in corner])


def _combinations(count: int, taken: int) -> Iterator[np.ndarray]:
    """All choices of `taken` out of `count` numbers, ascending, many at a time: (k, taken)."""
    if taken == 1:
        yield np.arange(count)[:, None]
        return
    if taken == 2:
        yield np.column_stack(np.triu_indices(count, 1))
        return
    for first in range(count - taken + 1):
        for rest in _combinations(count - first - 1, taken - 1):
            rest = rest + first + 1
            yield np.column_stack([np.full(len(rest), first), rest])


def _crossed(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is orthogonal to m − 1 rows, and the same sums with every term positive:
    (k, m − 1, m) → (k, m), (k, m)."""
    width = rows.shape[2]
    columns = np.ascontiguousarray(rows.transpose(1, 2, 0))  # (m − 1, m, k)
    sizes = np.abs(columns)
    corner, bound = np.empty((len(rows), width)), np.empty((len(rows), width))
    known: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}
    for j in range(width):
        kept = tuple(c for c in range(width) if c != j)
        minor, most = _minor(columns, sizes, kept, known)
        corner[:, j], bound[:, j] = (-1) ** j * minor, most
    return corner, bound


def _minor(
    columns: np.ndarray,
    sizes: np.ndarray,
    kept: tuple[int, ...],
    known: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray]:
    """The determinant of the last rows on some columns, along its first row; and its terms summed
    without their signs."""
    row = len(columns) - len(kept)
    if len(kept) == 1:
        return columns[row, kept[0]], sizes[row, kept[0]]
    if kept not in known:
        value: np.ndarray | float = 0.0
        most: np.ndarray | float = 0.0
        for place, column in enumerate(kept):
            rest, large = _minor(columns, sizes, kept[:place] + kept[place + 1 :], known)
            value = value + (-1) ** place * columns[row, column] * rest
            most = most + sizes[row, column] * large
        known[kept] = np.asarray(value), np.asarray(most)
    return known[kept]


def _parity(order: Sequence[int]) -> int:
    swaps = sum(a > b for a, b in itertools.combinations(order, 2))
    return -1 if swaps % 2 else 1


# Fractions: the slow and obvious way, which is also the last word


def exact_cross(rows: Sequence[Sequence[Fraction]]) -> list[Fraction]:
    """What is orthogonal to m − 1 rows of m numbers; zero where they are dependent."""
    width = len(rows) + 1
    corner = []
    for j in range(width):
        kept = [c for c in range(width) if c != j]
        total = Fraction(0)
        for order in itertools.permutations(range(len(kept))):
            term = Fraction(_parity(order))
            for row, column in enumerate(order):
                term *= rows[row][kept[column]]
            total += term
        corner.append((-1) ** j * total)
    return corner


def exact_rank(rows: Sequence[Sequence[Fraction]]) -> int:
    return len(_columns(rows))


def _columns(rows: Sequence[Sequence[Fraction]]) -> list[int]:
    """Columns that span all others, by elimination."""
    left = [list(row) for row in rows if any(row)]
    found = []
    for j in range(len(left[0]) if left else 0):
        at = next((k for k, row in enumerate(left) if row[j]), None)
        if at is None:
            continue
        pivot = left.pop(at)
        found.append(j)
        reduced = []
        for row in left:
            share = row[j] / pivot[j]
            reduced.append([a - share * b for a, b in zip(row, pivot, strict=True)])
        left = reduced
    return found


def exact_depth(rows: Sequence[Sequence[Fraction]], weights: Sequence[int]) -> int:
    """min over y of the weights of rows with a·y ≥ 0, by all choices of rows, in fractions."""
    columns = _columns(rows)
    always = sum(w for row, w in zip(rows, weights, strict=True) if not any(row))
    if not columns:
        return always
    pairs = [
        ([row[j] for j in columns], w) for row, w in zip(rows, weights, strict=True) if any(row)
    ]
    if len(columns) == 1:
        up = sum(w for row, w in pairs if row[0] > 0)
        return always + min(up, sum(w for _, w in pairs) - up)
    best = sum(w for _, w in pairs)
    for choice in itertools.combinations(pairs, len(columns) - 1):
        corner = exact_cross([row for row, _ in choice])
        if not any(corner):
            continue
        values = [sum((a * b for a, b in zip(row, corner, strict=True)), Fraction(0))
                  for row, _ in pairs]  # fmt: skip
        zero = [k for k, v in enumerate(values) if v == 0]
        tied = exact_depth([pairs[k][0] for k in zero], [pairs[k][1] for k in zero])
        for sign in (1, -1):
            above = sum(w for v, (_, w) in zip(values, pairs, strict=True) if sign * v > 0)
            best = min(best, above + tied)
    return always + best
