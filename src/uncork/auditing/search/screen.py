"""Screening: propose a witness for nearly every class with a few large matrix products.

The first guess for class t is its own whitened row (x = Σ⁻¹(w_t − μ) in input coordinates). Where
another class i wins instead, the input is reflected across the hyperplane z_t = z_i (Braid Reflect,
Algorithm 2 of the paper, in the whitened metric) and tried again, all live classes at once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from uncork.auditing.search.aims import Aim, aims
from uncork.auditing.search.proposer import Proposal, Proposer, Search, Witnesses
from uncork.auditing.search.space import Space

_WORTH_IT = 0.01  # reflections are made while each frees this share of the live classes, or less
_NARROW = 256  # features up to which a class that is left takes factorisations to decide
_DECIDING = 100.0  # times the width squared: products of one row that deciding a class is worth
_LOOK = (3, 16)  # reflections over which it is seen whether they pay: at least, at most
_SAMPLE = (48, 128, 32)  # classes that kinds of guesses are tried on: at least, at most, one of
_ENOUGH = 0.97  # of them that a kind wins for, and no other is tried before it
_NEARLY_ALL = 0.9  # of them that a kind wins for, and the certifier is to tell for the rest
_AFTER = 3  # rounds towards the input of the box nearest to one that was reflected


def winners(space: Space, y: Any) -> np.ndarray:
    """The class that each direction puts first: (n, width) → (n,)."""
    backend = space.backend
    xp = backend.xp
    rows = 4 * backend.rows
    step = max(1, backend.block_bytes // (rows * space.points.itemsize))
    parts = [y[start : start + step] for start in range(0, y.shape[0], step)]

    def first(part: Any) -> np.ndarray:
        best, who = None, None
        for start in range(0, space.head.classes, rows):
            scores = space.scores(part, slice(start, start + rows))
            where = xp.argmax(scores, axis=1) + start
            value = xp.max(scores, axis=1)
            if best is not None:
                better = value > best
                where, value = xp.where(better, where, who), xp.where(better, value, best)
            best, who = value, where
        first_of_equals: np.ndarray = space.representative[backend.get(who)]
        return first_of_equals

    with backend.threads(len(parts)) as over:
        found = list(over(first, parts))
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def propose(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    """Propose witnesses until reflecting stops paying, or as often as `search.patience` says.

    Every input evaluated is a proposal for whichever class it puts first. The directions at which
    reflecting leaves the other classes are hints for those who decide them.
    """
    screening = _Screening(space, classes)
    kinds = aims(space)
    while len(screening.live):
        aim, share = yield from screening.choose(kinds)
        if aim is None:
            break
        kinds = [other for other in kinds if other is not aim]
        yield from screening.guess(aim, search if share >= _NEARLY_ALL else None)
    freed: list[int] = []
    while len(screening.live) and not search.late():
        if search.patience is None:
            pays = _goes_on(freed, len(screening.live), space)
        else:
            pays = len(freed) < search.patience
        if not pays:
            break
        freed.append((yield from screening.reflect()))
    if len(screening.live):
        search.nearly_won = screening.live, space.directions(screening.inputs)


def _goes_on(freed: list[int], live: int, space: Space) -> bool:
    """Whether another reflection pays, after those that freed so many classes each.

    A reflection takes a product with all classes, and deciding a class some factorisations of the
    width. Few live classes are reflected long enough to see one of them freed.
    """
    share = _WORTH_IT
    if space.width <= _NARROW:
        share = min(share, space.head.classes / (_DECIDING * space.width**2))
    rounds = int(np.clip(8 / (share * live), *_LOOK))
    return len(freed) < rounds or sum(freed[-rounds:]) >= share * live * rounds


# How many classes can win is what is asked.
PROPOSER = Proposer("screen", "screen", propose, "reflecting", lambda classes, space: None)


class _Screening:
    """The live classes, the input each is at, and who won there."""

    def __init__(self, space: Space, classes: np.ndarray) -> None:
        self.space, self.live = space, classes
        self.wanted = np.zeros(space.head.classes, dtype=bool)
        self.wanted[classes] = True
        self.inputs: Any = None
        self.winner = np.empty(0, dtype=np.int64)

    def choose(self, kinds: list[Aim]) -> Generator[Proposal, None, tuple[Aim | None, float]]:
        """The kind of first guess that wins most often on a sample, and how often that is.

        None where none wins, unless there is nothing to go on from yet. Those that win nowhere are
        taken off the list.
        """
        if not kinds:
            return None, 0.0
        first = kinds[0]
        least, most, one_of = _SAMPLE
        count = min(len(self.live), max(least, min(most, len(self.live) // one_of)))
        sample = np.sort(np.random.default_rng(0).choice(self.live, count, replace=False))
        won: dict[Aim, int] = {}
        for aim in list(kinds):
            winner = yield from self._evaluate(aim.inputs(sample), sample, aim.by_formula)
            won[aim] = int((winner == sample).sum())
            if not won[aim]:
                kinds.remove(aim)
            if won[aim] >= _ENOUGH * count:
                break
        self._compact()
        best = max(won, key=lambda aim: won[aim])
        if won[best]:
            return best, won[best] / count
        return (first if self.inputs is None else None), 0.0

    def guess(self, aim: Aim, search: Search | None) -> Iterator[Proposal]:
        """Try a first guess for every live class; the first kind tried is gone on from.

        With a search nearly all are expected to win, and are proposed as they are: the certifier's
        product tells who does, and only the others are looked at here.
        """
        space, index = self.space, self.space.backend.index
        first = self.inputs is None
        behind_inputs, behind_winners, behind_classes = [], [], []
        step = max(1, space.backend.chunk_bytes // (8 * space.features))
        for start in range(0, len(self.live), step):
            classes = self.live[start : start + step]
            inputs = aim.inputs(classes)
            if search is not None:
                yield from self._claim(classes, inputs, np.arange(len(classes)), aim.by_formula)
                left = np.flatnonzero(np.isin(classes, search.undecided(classes)))
                classes, inputs = classes[left], inputs[index(left)]
                self.wanted[classes] = True
            winner = yield from self._evaluate(inputs, classes, aim.by_formula)
            behind = np.flatnonzero(self.wanted[classes])
            behind_inputs.append(inputs[index(behind)])
            behind_winners.append(winner[behind])
            behind_classes.append(classes[behind])
        if not behind_classes:
            return
        if first:
            self.inputs = space.backend.xp.concat(behind_inputs, axis=0)
            self.winner = np.concatenate(behind_winners)
            self.live = np.concatenate(behind_classes)
        self._compact()

    def reflect(self) -> Generator[Proposal, None, int]:
        """One reflection of every live input; returns how many classes it freed."""
        before = len(self.live)
        self.inputs = _reflect(self.space, self.live, self.winner, self.inputs)
        self.winner = yield from self._evaluate(self.inputs, self.live)
        self._compact()
        return before - len(self.live)

    def _evaluate(
        self, inputs: Any, classes: np.ndarray, formula: bool = False
    ) -> Generator[Proposal, None, np.ndarray]:
        """Propose each input for the class it puts first; returns those classes: (n,)."""
        space = self.space
        winner = winners(space, space.directions(inputs))
        own = np.flatnonzero((winner == classes) & self.wanted[classes])
        yield from self._claim(winner[own], inputs, own, formula)
        others, where = np.unique(winner, return_index=True)
        new = self.wanted[others]
        yield from self._claim(others[new], inputs, where[new], False)
        return winner

    def _claim(
        self, classes: np.ndarray, inputs: Any, where: np.ndarray, formula: bool
    ) -> Iterator[Proposal]:
        if len(classes):
            self.wanted[classes] = False
            space = self.space
            yield Witnesses(classes, space.proposed(inputs[space.backend.index(where)]), formula)

    def _compact(self) -> None:
        still = np.flatnonzero(self.wanted[self.live])
        self.live = self.live[still]
        if self.inputs is not None:
            self.winner = self.winner[still]
            self.inputs = self.inputs[self.space.backend.index(still)]


def _reflect(space: Space, live: np.ndarray, winner: np.ndarray, inputs: Any) -> Any:
    """Each input mirrored across the hyperplane between its class and the one that won."""
    backend, xp = space.backend, space.backend.xp
    inner = len(space.to_input)
    y = space.directions(inputs)
    a = space.points[backend.index(live)] - space.points[backend.index(winner)]
    gap = xp.sum(a * y, axis=1, keepdims=True)
    size = xp.sum(a[:, :inner] ** 2, axis=1, keepdims=True)
    beyond = -gap
    if space.has_walls:
        # Going back to the box takes part of the way back: the last bit would take for ever.
        least = space.most_even[1] * space.bias_scale if space.lifted else 0.0
        beyond = xp.maximum(beyond, xp.full_like(gap, least))
    step = (beyond - gap) / xp.where(size > 0, size, xp.ones_like(size))
    y = xp.concat([y[:, :inner] + step * a[:, :inner], y[:, inner:]], axis=1)
    x = space.inputs(y)
    if space.has_walls:
        return space.projected(x, _AFTER)
    return space.with_fixed(space.clip(x) if space.lifted else space.enter(x))
