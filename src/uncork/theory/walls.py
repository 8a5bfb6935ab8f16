"""The walls z_i = z_j of a small head, how they meet, and what that says of its regions. Exact.

Classes i and j are equal on a hyperplane of inputs, their wall. Intersections of walls are flats;
by how many flats there are at each codimension, and how they contain one another, Zaslavsky's
theorem counts the regions without enumerating one. A head in general position has the flats that
any head must have (where i = j and j = k, also i = k) and no others: so every region that a head
lacks is explained by walls that coincide, never meet, or meet in too few dimensions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.rigour import integers
from uncork.theory import counting

Pair = tuple[int, int]
Row = tuple[int, ...]  # a·x + c = 0 in whole numbers, (d + 1,)

_MOST_FLATS = 50_000
_LISTED = 12


@dataclass(frozen=True)
class Wall:
    """A hyperplane of inputs on which pairs of classes are equal; one pair in general position."""

    row: Row
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Flat:
    """An intersection of walls: which ones contain it (a bit each), and its codimension."""

    walls: int
    codimension: int
    möbius: int
    basis: tuple[Row, ...]  # rows that cut it out, in echelon form


@dataclass(frozen=True)
class Coincidence:
    """One reason why a head has fewer regions than a head in general position."""

    kind: str
    classes: tuple[tuple[int, ...], ...]  # the groups of classes it is about
    text: str


@dataclass(frozen=True)
class _Split:
    """How the other walls meet one flat."""

    parallel: tuple[int, ...]  # walls that never do
    crossing: dict[Row, int]  # wall restricted to the flat → the walls (bits) that cut it so


class Walls:
    """The arrangement of a head's walls over all of ℝᵈ, in whole numbers."""

    def __init__(self, head: Head) -> None:
        self.classes, self.features = head.classes, head.features
        values = np.column_stack([head.rows(0, head.classes), head.offsets])
        whole, _ = integers(values.reshape(-1))
        width = head.features + 1
        self.rows: list[Row] = [
            tuple(whole[i * width : (i + 1) * width]) for i in range(head.classes)
        ]
        groups: dict[Row, list[int]] = {}
        for i, row in enumerate(self.rows):
            groups.setdefault(row, []).append(i)
        #: classes equal in row and bias, together; the first of each stands for all
        self.groups: tuple[tuple[int, ...], ...] = tuple(tuple(g) for g in groups.values())
        self.distinct: tuple[int, ...] = tuple(g[0] for g in self.groups)
        found: dict[Row, list[Pair]] = {}
        self.never_equal: list[Pair] = []  # equal rows, different biases: no input makes them equal
        for i, j in itertools.combinations(self.distinct, 2):
            row = _primitive(difference(self.rows[i], self.rows[j]))
            if any(row[:-1]):
                found.setdefault(row, []).append((i, j))
            else:
                self.never_equal.append((i, j))
        self.walls: tuple[Wall, ...] = tuple(Wall(r, tuple(p)) for r, p in found.items())

    @cached_property
    def rank(self) -> int:
        """The dimensions that the differences of rows span: the features that count."""
        basis: tuple[Row, ...] = ()
        for wall in self.walls:
            rest = _reduce((*wall.row[:-1], 0), basis)
            if any(rest):
                basis = (*basis, _primitive(rest))
        return len(basis)

    @cached_property
    def flats(self) -> tuple[Flat, ...]:
        """Every non-empty intersection of walls, by codimension; the first is all of ℝᵈ."""
        levels: list[list[Flat]] = [[Flat(0, 0, 1, ())]]
        below = list(levels[0])
        while True:
            found: dict[int, tuple[Row, ...]] = {}
            for flat in levels[-1]:
                for row, crossing in self._split(flat).crossing.items():
                    found.setdefault(flat.walls | crossing, (*flat.basis, row))
            if len(below) + len(found) > _MOST_FLATS:
                raise UncorkError(
                    f"{self.classes} classes and {self.features} features have more than "
                    f"{_MOST_FLATS:,} intersections of walls: this is for smaller heads"
                )
            level = [
                Flat(
                    walls,
                    len(levels),
                    -sum(flat.möbius for flat in below if flat.walls & ~walls == 0),
                    basis,
                )
                for walls, basis in found.items()
            ]
            if not level:
                return tuple(below)
            levels.append(level)
            below += level

    @property
    def whitney_numbers(self) -> list[int]:
        """|coefficients| of the characteristic polynomial, by codimension; their sum: regions."""
        numbers = [0] * (self.rank + 1)
        for flat in self.flats:
            numbers[flat.codimension] += abs(flat.möbius)
        return numbers

    @property
    def regions(self) -> int:
        """How many regions there are, by Zaslavsky's theorem."""
        return sum(self.whitney_numbers)

    @property
    def bounded_regions(self) -> int:
        """How many of them are bounded."""
        if self.rank < self.features:
            return 0
        return abs(sum(flat.möbius for flat in self.flats))

    def coincidences(self) -> Iterator[Coincidence]:
        """Why there are fewer regions than in general position, the plainest reasons first.

        Nothing is yielded for a head in general position.
        """
        for group in self.groups:
            if len(group) > 1:
                yield Coincidence(
                    "equal classes", (group,), f"{_names(group)} are equal: they always tie"
                )
        for pair in self.never_equal:
            text = f"{_names(pair)} have equal rows: their order never changes"
            yield Coincidence("equal rows", (pair,), text)
        most = min(self.features, len(self.distinct) - 1)
        if self.rank < most:
            yield Coincidence(
                "fewer dimensions",
                (self.distinct,),
                f"the differences of rows span {self.rank} of {most} dimensions",
            )
        yield from self._too_many_ties()
        yield from self._never_met()

    def _too_many_ties(self) -> Iterator[Coincidence]:
        """Flats on which more classes are equal than their codimension accounts for."""
        central = all(row[-1] == self.rows[0][-1] for row in self.rows)
        told: list[tuple[int, int]] = []
        for flat in self.flats:
            if central and flat.codimension == self.rank:
                continue  # without a bias all walls meet in 0: that is no coincidence
            blocks = self._equal(flat)
            surplus = sum(len(block) - 1 for block in blocks) - flat.codimension
            # What was told of walls through this flat shows here again.
            surplus -= sum(known for walls, known in told if walls & ~flat.walls == 0)
            if surplus <= 0:
                continue
            told.append((flat.walls, surplus))
            if flat.codimension == 1:
                kind = "classes on a line" if len(blocks) == 1 else "shared wall"
                text = f"{_blocks(blocks)} on one and the same wall"
            else:
                kind = "concurrent walls"
                text = (
                    f"{_blocks(blocks)} at once in codimension {flat.codimension}, "
                    f"not {flat.codimension + surplus}"
                )
            yield Coincidence(kind, blocks, text)

    def _never_met(self) -> Iterator[Coincidence]:
        """Classes that are never equal at once, though in general position they would be."""
        told: list[tuple[frozenset[int], ...]]
        told = [(frozenset(pair),) for pair in self.never_equal]
        for flat in self.flats:
            if not 0 < flat.codimension < self.rank:
                continue
            for index in self._split(flat).parallel:
                blocks = self._equal(flat, 1 << index)
                if any(_within(known, blocks) for known in told):
                    continue
                told.append(tuple(map(frozenset, blocks)))
                kind = "parallel walls" if flat.codimension == 1 else "walls that never meet"
                yield Coincidence(kind, blocks, f"{_blocks(blocks)} never hold together")

    def _equal(self, flat: Flat, further: int = 0) -> tuple[tuple[int, ...], ...]:
        """The groups of classes that are equal on a flat, and would be on further walls."""
        leader = {i: i for i in self.distinct}
        for pair in self._pairs(flat.walls | further):
            low, high = sorted((leader[pair[0]], leader[pair[1]]))
            if low != high:
                leader = {i: low if at == high else at for i, at in leader.items()}
        blocks: dict[int, list[int]] = {}
        for i, at in leader.items():
            blocks.setdefault(at, []).append(i)
        return tuple(tuple(block) for block in blocks.values() if len(block) > 1)

    def _pairs(self, walls: int) -> Iterator[Pair]:
        for index, wall in enumerate(self.walls):
            if walls >> index & 1:
                yield from wall.pairs

    def _split(self, flat: Flat) -> _Split:
        parallel: list[int] = []
        crossing: dict[Row, int] = {}
        for index, wall in enumerate(self.walls):
            rest = _reduce(wall.row, flat.basis)
            if any(rest[:-1]):
                row = _primitive(rest)
                crossing[row] = crossing.get(row, 0) | 1 << index
            elif rest[-1]:
                parallel.append(index)
        return _Split(tuple(parallel), crossing)


@dataclass(frozen=True)
class Explanation:
    """How many regions a head has, how many it would have in general position, and why."""

    regions: int
    bounded: int
    expected: int
    expected_bounded: int
    coincidences: tuple[Coincidence, ...]

    def __str__(self) -> str:
        if not self.coincidences:
            return f"{self.regions:,} regions, as in general position"
        compared = "as many" if self.regions == self.expected else f"{self.expected:,}"
        lines = [f"{self.regions:,} regions, {compared} in general position:"]
        lines += [f"  {c.kind}: {c.text}" for c in self.coincidences[:_LISTED]]
        rest = len(self.coincidences) - _LISTED
        return "\n".join(lines + ([f"  and {rest} more"] if rest > 0 else []))


def explain(head: Head) -> Explanation:
    """Count a small head's regions from how its walls meet, and explain what is missing.

    Over all of ℝᵈ, whatever the head's domain. Classes equal in row and bias count as one region's
    tie: `regions` is of the distinct classes, `expected` of all.
    """
    walls = Walls(head)
    bias = bool(np.ptp(head.offsets))
    return Explanation(
        walls.regions,
        walls.bounded_regions,
        counting.rankings(head.classes, head.features, bias=bias),
        counting.bounded_rankings(head.classes, head.features, bias=bias),
        tuple(walls.coincidences()),
    )


def difference(a: Row, b: Row) -> Row:
    return tuple(p - q for p, q in zip(a, b, strict=True))


def _primitive(row: Row) -> Row:
    """The row in lowest terms with its first entry positive: one row for one hyperplane."""
    shared = math.gcd(*row)
    if not shared:
        return row
    first = next(v for v in row if v)
    shared = shared if first > 0 else -shared
    return tuple(v // shared for v in row)


def _reduce(row: Row, basis: tuple[Row, ...]) -> Row:
    """The row less multiples of the basis, so that it is zero at each basis row's first entry.

    Each basis row was reduced by those before it, so taking them in order leaves no earlier entry
    non-zero. What is left depends, up to a factor, only on the row's restriction to the flat.
    """
    for other in basis:
        at = next(k for k, v in enumerate(other) if v)
        if row[at]:
            factor, pivot = row[at], other[at]
            row = tuple(v * pivot - u * factor for v, u in zip(row, other, strict=True))
    return row


def _within(finer: Iterable[frozenset[int]], coarser: Sequence[Sequence[int]]) -> bool:
    return all(any(block <= set(other) for other in coarser) for block in finer)


def _names(classes: Iterable[int]) -> str:
    every = [str(i) for i in classes]
    return f"classes {', '.join(every[:-1])} and {every[-1]}"


def _blocks(blocks: Iterable[Iterable[int]]) -> str:
    return ", ".join(" = ".join(map(str, block)) for block in blocks)
