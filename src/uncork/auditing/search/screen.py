"""Screening: propose a witness for nearly every class with a few large matrix products.

The first guess for class t is its own whitened row (x = Σ⁻¹(w_t − μ) in input coordinates). Where
another class i wins instead, the input is reflected across the hyperplane z_t = z_i (Braid Reflect,
Algorithm 2 of the paper, in the whitened metric) and tried again, all live classes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from uncork.auditing.search.proposer import Proposal, Proposer, Search, Witnesses
from uncork.auditing.search.space import Space

_WORTH_IT = 0.01  # another reflection is made while it frees this share of the live classes
_SHORTER = (0.25, 0.0625)  # with a bias the length of the input matters too
_FAR = (100.0, 3.0)  # lengths of guesses where walls are in the way, in units of the bias
_ROUNDS = 20  # towards the input nearest to such a guess
_AFTER = 6  # and to one that was reflected


def first_inputs(space: Space, classes: np.ndarray, share: float = 1.0) -> Any:
    """The first guess for each class, inside the domain: (n, d) on the device."""
    inner = len(space.to_input)
    guess = space.points[space.backend.index(classes)][:, :inner] @ space.to_input_device
    return space.with_fixed(space.enter(guess, share))


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
    yield from screening.guess(1.0)
    if space.lifted:
        for share in _SHORTER:
            yield from screening.guess(share)
    if space.has_walls:
        for length in _FAR:
            yield from screening.guess_behind_walls(length)
    rounds, patience = 0, search.patience
    while len(screening.live) and (patience is None or rounds < patience) and not search.late():
        freed = yield from screening.reflect()
        rounds += 1
        if patience is None and rounds >= 3 and freed < _WORTH_IT * len(screening.live):
            break
    if len(screening.live):
        search.nearly_won = screening.live, space.directions(screening.inputs)


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

    def guess(self, share: float) -> Iterator[Proposal]:
        """Try every live class's first guess at a share of the largest length that fits."""
        yield from self._try(
            lambda classes: first_inputs(self.space, classes, share), share == 1.0, share == 1.0
        )

    def guess_behind_walls(self, length: float) -> Iterator[Proposal]:
        """Try the input of the box that is nearest, as logits go, to every live class's own."""
        space, inner = self.space, len(self.space.to_input)

        def inputs(classes: np.ndarray) -> Any:
            guess = space.points[space.backend.index(classes)][:, :inner] @ space.to_input_device
            return space.projected(guess * (length * space.bias_scale), _ROUNDS)

        yield from self._try(inputs, False, True)

    def _try(
        self, make: Callable[[np.ndarray], Any], formula: bool, kept: bool
    ) -> Iterator[Proposal]:
        """Try an input for every live class; if `kept`, go on from there."""
        space, index = self.space, self.space.backend.index
        behind_inputs, behind_winners, behind_classes = [], [], []
        step = max(1, space.backend.chunk_bytes // (8 * space.features))
        for start in range(0, len(self.live), step):
            classes = self.live[start : start + step]
            inputs = make(classes)
            winner = yield from self._evaluate(inputs, classes, formula)
            behind = np.flatnonzero(self.wanted[classes])
            behind_inputs.append(inputs[index(behind)])
            behind_winners.append(winner[behind])
            behind_classes.append(classes[behind])
        if not behind_classes:
            return
        if kept:
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
        self.live, self.winner = self.live[still], self.winner[still]
        self.inputs = self.inputs[self.space.backend.index(still)]


def _reflect(space: Space, live: np.ndarray, winner: np.ndarray, inputs: Any) -> Any:
    """Each input mirrored across the hyperplane between its class and the one that won."""
    backend, xp = space.backend, space.backend.xp
    inner = len(space.to_input)
    y = space.directions(inputs)
    a = space.points[backend.index(live)] - space.points[backend.index(winner)]
    gap = xp.sum(a * y, axis=1, keepdims=True)
    size = xp.sum(a[:, :inner] ** 2, axis=1, keepdims=True)
    step = -2 * gap / xp.where(size > 0, size, xp.ones_like(size))
    y = xp.concat([y[:, :inner] + step * a[:, :inner], y[:, inner:]], axis=1)
    x = space.inputs(y)
    if space.has_walls:
        return space.projected(x, _AFTER)
    return space.with_fixed(space.clip(x) if space.lifted else space.enter(x))
