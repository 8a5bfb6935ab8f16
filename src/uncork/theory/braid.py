"""Every ranking that a small head can produce, each with an input that produces it. Exact.

Classes are added one at a time. In a region where the classes so far are ranked one way, the
newcomer's feasible places are neighbours of one another: on the way from one place to another it
passes all between, as the regions are convex and the others' order is fixed. So one starts at the
place it takes at the region's own witness and goes on upwards and downwards until a place is
refused. A place is a system of C − 1 strict inequalities, one between each two neighbours in the
ranking; a linear programme in whole numbers either solves it or shows that it has no solution.

No float takes part. `walls` counts the same regions in a wholly different way: see `explain`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from uncork.auditing.search.exact import alternative
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.domain import Domain, Unbounded
from uncork.theory import counting
from uncork.theory.walls import Row, Walls, difference

MOST_RANKINGS = 100_000


@dataclass(frozen=True)
class Ranking:
    """A feasible ranking: classes from first to last, an input that ranks them so, its region."""

    order: tuple[int, ...]
    witness: tuple[Fraction, ...]
    bounded: bool


@dataclass(frozen=True)
class Neighbours:
    """Two regions that share a facet, and the pairs of classes that change places across it."""

    first: int  # index into `Rankings.rankings`
    second: int
    pairs: tuple[tuple[int, int], ...]


class Rankings(Sequence[Ranking]):
    """All feasible rankings of a head's distinct classes, in lexicographic order.

    Classes equal in row and bias always tie; `groups` names them, and the first of each group
    stands for the others in every ranking.
    """

    def __init__(self, walls: Walls, domain: Domain, found: list[Ranking]) -> None:
        self.walls, self.domain = walls, domain
        self.groups = tuple(group for group in walls.groups if len(group) > 1)
        self._found = tuple(sorted(found, key=lambda ranking: ranking.order))

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: Any) -> Any:
        return self._found[index]

    @cached_property
    def orders(self) -> dict[tuple[int, ...], int]:
        """Where each order is found: order → index."""
        return {ranking.order: k for k, ranking in enumerate(self._found)}

    @property
    def bounded(self) -> int:
        """How many of the regions are bounded."""
        return sum(ranking.bounded for ranking in self._found)

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """The classes that some ranking puts first: the argmaxable ones, or their group's first."""
        return tuple(sorted({ranking.order[0] for ranking in self._found}))

    def neighbours(self) -> Iterator[Neighbours]:
        """Every two regions that share a facet, once each.

        Regions on either side of one wall and of no other share a facet: the segment between their
        witnesses crosses that wall alone.
        """
        for k, ranking in enumerate(self._found):
            place = {c: p for p, c in enumerate(ranking.order)}
            for wall in self.walls.walls:
                moved = dict(place)
                for i, j in wall.pairs:
                    step = 1 if place[i] < place[j] else -1
                    moved[i] += step
                    moved[j] -= step
                if len(set(moved.values())) < len(moved):
                    continue
                other = self.orders.get(tuple(sorted(moved, key=lambda c: moved[c])))
                if other is not None and other > k:
                    yield Neighbours(k, other, wall.pairs)


def rankings(head: Head, *, domain: Domain | None = None, most: int = MOST_RANKINGS) -> Rankings:
    """Enumerate every strict ranking that some input of `domain` (default: all of ℝᵈ) produces.

    For heads of a few classes: refused where more than `most` rankings are to be expected. A box
    may be given as the domain; its edge then bounds regions too.
    """
    domain = Unbounded() if domain is None else domain
    size = counting.log_rankings(head.classes, head.features, bias=head.bias is not None)
    if size > math.log(most) + 1e-6:
        expected = f"{math.exp(size):,.0f}" if size < 30 else f"10^{size / math.log(10):,.0f}"
        raise UncorkError(
            f"{head.classes:,} classes and {head.features:,} features have up to {expected} "
            f"rankings: at most {most:,} are enumerated"
        )
    search = _Search(Walls(head), domain)
    return Rankings(search.walls, domain, [search.region(*found) for found in search.all()])


class _Search:
    """The insertion of one class after another."""

    def __init__(self, walls: Walls, domain: Domain) -> None:
        self.walls, self.features = walls, walls.features
        self.sides = _sides(domain, walls.features)
        self.inside = _start(domain, walls.features)
        # Neighbours in any ranking differ by rows that span all differences.
        spanning = [list(map(Fraction, wall.row[:-1])) for wall in walls.walls]
        spanning += [side[:-1] for side in self.sides]
        self.pointed = _rank(spanning) == walls.features

    def all(self) -> list[tuple[tuple[int, ...], list[Fraction]]]:
        first, *others = self.walls.distinct
        found: list[tuple[tuple[int, ...], list[Fraction]]] = [((first,), self.inside)]
        for newcomer in others:
            found = [child for parent in found for child in self._insert(newcomer, *parent)]
        return found

    def _insert(
        self, newcomer: int, order: tuple[int, ...], x: list[Fraction]
    ) -> Iterator[tuple[tuple[int, ...], list[Fraction]]]:
        own = logit(self.walls.rows[newcomer], x)
        others = [logit(self.walls.rows[i], x) for i in order]
        start = sum(z > own for z in others)

        def at(place: int) -> tuple[tuple[int, ...], list[Fraction] | None]:
            ranked = (*order[:place], newcomer, *order[place:])
            if place == start and own not in others:
                return ranked, x
            return ranked, self._solve(ranked)

        # Where the newcomer ties with a class at x, both places beside it are feasible.
        for places in (range(start, len(order) + 1), range(start - 1, -1, -1)):
            for place in places:
                ranked, witness = at(place)
                if witness is None:
                    break
                yield ranked, witness

    def _solve(self, order: tuple[int, ...]) -> list[Fraction] | None:
        """An input of the domain that ranks the classes in this order; None where there is none."""
        height = [0] * self.features + [-1]
        strict = [*map(list, self._steps(order)), height]
        kind, values = alternative(strict, self.sides, math.inf)  # type: ignore[arg-type]
        if kind == "mixture":
            return None
        return [v / values[-1] for v in values[:-1]]

    def _steps(self, order: tuple[int, ...]) -> list[Row]:
        """Rows that are negative at inputs (x, 1) that rank the classes in this order."""
        rows = self.walls.rows
        return [difference(rows[b], rows[a]) for a, b in itertools.pairwise(order)]

    def region(self, order: tuple[int, ...], x: list[Fraction]) -> Ranking:
        values = [logit(self.walls.rows[i], x) for i in order]
        if any(a <= b for a, b in itertools.pairwise(values)):
            raise RuntimeError(f"the witness of {order} does not rank so: please report this")
        return Ranking(order, tuple(x), self._bounded(order))

    def _bounded(self, order: tuple[int, ...]) -> bool:
        """Whether no direction v ≠ 0 stays in the region for ever.

        Stiemke: if the normals span the space, there is such a v or a combination of all normals
        with positive weights that is 0, never both.
        """
        normals = [list(map(Fraction, row[:-1])) for row in self._steps(order)]
        normals += [side[:-1] for side in self.sides]
        if not self.pointed:
            return False
        total = [sum(column, Fraction(0)) for column in zip(*normals, strict=True)]
        kind, _ = alternative([total], normals, math.inf)
        return kind == "mixture"


def logit(row: Row, x: Sequence[Fraction]) -> Fraction:
    """row · (x, 1), exactly."""
    return sum((w * v for w, v in zip(row[:-1], x, strict=True)), Fraction(row[-1]))


def _sides(domain: Domain, features: int) -> list[list[Fraction]]:
    """Rows g with g·(x, 1) ≤ 0 inside the domain."""
    outline = domain.outline(features)
    if not outline.is_box:
        raise UncorkError(f"rankings are enumerated over ℝᵈ or a box, not over {domain}")
    if (outline.lower >= outline.upper).any():
        raise UncorkError("the box is flat: rankings are enumerated over boxes with an inside")
    return outline.sides_exactly()


def _start(domain: Domain, features: int) -> list[Fraction]:
    """A point inside."""
    outline = domain.outline(features)
    lower, upper = (
        np.clip(bound, -1e300, 1e300).tolist() for bound in (outline.lower, outline.upper)
    )
    return [(Fraction(a) + Fraction(b)) / 2 for a, b in zip(lower, upper, strict=True)]


def _rank(rows: Sequence[Sequence[Fraction | int]]) -> int:
    """The rank of a small matrix, exactly."""
    left, rank = [[Fraction(v) for v in row] for row in rows], 0
    for column in range(len(left[0]) if left else 0):
        pivot = next((k for k in range(rank, len(left)) if left[k][column]), None)
        if pivot is None:
            continue
        left[rank], left[pivot] = left[pivot], left[rank]
        for k in range(rank + 1, len(left)):
            factor = left[k][column] / left[rank][column]
            left[k] = [a - factor * b for a, b in zip(left[k], left[rank], strict=True)]
        rank += 1
    return rank
