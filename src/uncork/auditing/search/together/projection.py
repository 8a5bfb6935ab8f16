"""Wide heads: the point nearest to a class in the hull of the others, for many classes at once.

Let p be the point of the hull of all other points (and of the mean, the origin) that is nearest to
u_t. If p = u_t, the weights of p are a mixture; if not, y = u_t − p puts t before every other
class, as p·y ≥ u_i·y for all i. So one problem gives either answer:

    min ‖Σ λ_i u_i − u_t‖²   s.t.   λ ≥ 0,  Σ λ_i ≤ 1 − the mean's share.

Points are whitened, so UᵀU is a multiple of the identity and nothing but λ ≥ 0 bends the problem:
accelerated projected gradients need a few hundred products with all points, where a class at a time
takes dozens of factorisations of the width. The mean's share absorbs what they leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.search.proposer import Mixtures, Proposal, Proposer, Search, Witnesses
from uncork.auditing.search.screen import winners
from uncork.auditing.search.space import Space

_NARROW = 256  # up to this many features a working set decides a class faster
_PER_FEATURE = 16  # classes, beyond which products with all of them are too long
_LOOK = 20  # rounds between two looks at where the classes are
_NEAR = 0.2  # of the distance that the mean's share can absorb
_SLACK = 1e-3  # how much higher a bias is to be beaten than it is


class _Stage(NamedTuple):
    bulk: float  # the mean's share of a mixture
    rounds: int
    sharp: bool  # in float64, or in search precision


# Nearly all are far from the surface; for the others the mean's share must be small.
_STAGES = (_Stage(0.05, 200, False), _Stage(0.002, 1000, True))


def propose(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    """Witnesses as soon as they win, mixtures as soon as they are near enough."""
    if not _fits(space):
        return
    for stage in _STAGES:
        yield from _propose_in_batches(space, search.undecided(classes), search, stage)


def _propose_in_batches(
    space: Space, classes: np.ndarray, search: Search, stage: _Stage
) -> Iterator[Proposal]:
    size = max(1, space.backend.chunk_bytes // (8 * space.head.classes * space.points.itemsize))
    for start in range(0, len(classes), size):
        yield from _Nearest(space, classes[start : start + size], stage).propose(search)


def _fits(space: Space) -> bool:
    few = space.head.classes <= _PER_FEATURE * space.width
    if space.width <= _NARROW or not few or space.unseen or space.ball_cone() is not None:
        return False
    # Sides of a cone would be further generators.
    return not (space.domain.is_cone and space.outline.has_sides)


def _steps(classes: np.ndarray, space: Space) -> int:
    return len(classes) if _fits(space) else 0


PROPOSER = Proposer("projection", "decide", propose, "nearest", _steps)


class _Nearest:
    """Weights λ (n, C) of the nearest points found so far."""

    def __init__(self, space: Space, classes: np.ndarray, stage: _Stage) -> None:
        self.space, self.backend, self.xp = space, space.backend, space.backend.xp
        self.classes = classes
        self.stage, self.points = stage, space.points
        if stage.sharp and len(classes):
            self.points = space.precise(np.arange(space.head.classes))
        self.targets = self.points[self.backend.index(classes)]
        if space.lifted:
            height = self.targets[:, -1:] + _SLACK
            self.targets = self.xp.concat([self.targets[:, :-1], height], axis=1)
        norms = self.xp.sum(self.points * self.points, axis=1)
        self.reach = float(self.xp.max(norms)) ** 0.5 or 1.0
        # The largest eigenvalue of UᵀU: the whitened part is C·I, the bias is one more direction.
        self.curve = (2.0 if space.lifted else 1.0) * space.head.classes
        self.out = self.backend.index(space.repeats)

    def propose(self, search: Search) -> Iterator[Proposal]:
        xp = self.xp
        shape = (len(self.classes), self.space.head.classes)
        weights = xp.zeros(shape, dtype=self.targets.dtype, device=self.targets.device)
        ahead, momentum = weights, 1.0
        for round_ in range(1, self.stage.rounds + 1):
            if not len(self.classes) or search.late():
                return
            missing = self._missing(ahead)
            moved = self._projected(ahead + (missing @ self.points.T) / self.curve)
            before, momentum = momentum, (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            ahead = moved + ((before - 1) / momentum) * (moved - weights)
            weights = moved
            if round_ % _LOOK == 0:
                going = yield from self._look(weights)
                at = self.backend.index(going)
                self.classes, self.targets = self.classes[going], self.targets[at]
                weights, ahead = weights[at], ahead[at]

    def _missing(self, weights: Any) -> Any:
        """u_t − p, less what lies straight above p: the bias of a mixture may be higher. (n, m)"""
        missing = self.targets - weights @ self.points
        if self.space.lifted:
            height = self.xp.maximum(missing[:, -1:], self.xp.zeros_like(missing[:, -1:]))
            missing = self.xp.concat([missing[:, :-1], height], axis=1)
        return missing

    def _projected(self, weights: Any) -> Any:
        """The nearest λ ≥ 0 of other classes with Σ λ ≤ 1 − the mean's share."""
        xp, index = self.xp, self.backend.index
        weights[index(np.arange(len(self.classes))), index(self.classes)] = 0.0
        if len(self.space.repeats):
            weights[:, self.out] = 0.0
        zero = xp.zeros_like(weights)
        weights = xp.maximum(weights, zero)
        # Σ max(λ − level, 0) is convex and falls with the level: Newton's method from below.
        level = xp.zeros_like(weights[:, :1])
        for _ in range(12):
            left = xp.maximum(weights - level, zero)
            over = xp.sum(left, axis=1, keepdims=True) - (1 - self.stage.bulk)
            held = xp.sum(xp.astype(left > 0, left.dtype), axis=1, keepdims=True)
            over = xp.where(over > 0, over, xp.zeros_like(over))
            if not bool(xp.any(over > 1e-7)):
                break
            level = level + over / xp.where(held > 0, held, xp.ones_like(held))
        return xp.maximum(weights - level, zero)

    def _look(self, weights: Any) -> Any:
        """Propose what has become clear; returns the positions of the classes to go on with."""
        space, xp, backend = self.space, self.xp, self.backend
        missing = self._missing(weights)
        far = backend.get(xp.sqrt(xp.sum(missing * missing, axis=1)))
        near = far <= _NEAR * self.stage.bulk / self.reach
        inputs = self._inputs(missing)
        won = (winners(space, space.directions(inputs)) == self.classes) & ~near
        if won.any():
            at = np.flatnonzero(won)
            yield Witnesses(self.classes[at], space.proposed(inputs[backend.index(at)]))
        if near.any():
            at = np.flatnonzero(near)
            found = backend.get(weights[backend.index(at)]).astype(np.float64)
            yield Mixtures(
                [
                    (int(t), self._mixture(own))
                    for t, own in zip(self.classes[at], found, strict=True)
                ]
            )
        return np.flatnonzero(~won & ~near)

    def _inputs(self, y: Any) -> Any:
        space, xp = self.space, self.xp
        y = xp.astype(y, space.points.dtype)
        if not space.lifted:
            return space.enter(space.inputs(y))
        size = xp.sqrt(xp.sum(y * y, axis=1, keepdims=True))
        height = xp.maximum(y[:, -1:], 1e-6 * size)
        return space.clip(space.inputs(xp.concat([y[:, :-1], height], axis=1)))

    @staticmethod
    def _mixture(weights: np.ndarray) -> Mixture:
        at = np.flatnonzero(weights)
        return Mixture(at.astype(np.int32), weights[at], bulk=1 - float(weights.sum()))
