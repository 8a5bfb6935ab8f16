"""Few features, most classes lost: every class is held against the winners found so far.

A class is lost if it mixes classes that can win, so it never needs the others (Clarkson's
extreme points in C·E operations, E the number of winners; BuildHull of data envelopment
analysis). With the mean row as the origin, the points u_i of the winners and the sides g_s of the
domain (see `space`), class t is lost where

    min Σ λ_i   s.t.   Σ λ_i u_i + Σ μ_s g_s = u_t,   λ, μ ≥ 0

is at most one: what is missing to one is the mean's share. The simplex method stops there; its
basis, as many classes as there are features at most, is the mixture. A larger optimum comes with
prices y that put t before all winners so far: y is held against every class, and whoever is first
there is a winner, known or new. Hundreds of classes pivot at once, and a pivot is one product with
the winners.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.search.aims import first_inputs
from uncork.auditing.search.proposer import Mixtures, Proposal, Proposer, Search, Witnesses
from uncork.auditing.search.screen import winners
from uncork.auditing.search.space import Space

_WIDE = 32  # beyond this a basis is large, and nearly every class can win
_FEWEST = 512  # classes, below which screening is as fast
_SAMPLE = 256  # classes whose first guesses tell whether most classes are lost
_MOST_WIN = 0.6  # share of first guesses that win, above which screening has less to do
_FIRST = 2048  # classes, those farthest out, whose first guesses name the first winners
_ALONE = 384  # winners, besides which a class is tried first
_CHUNK = 16384  # classes between two looks for new winners
_ROUNDS = 60
_ARTIFICIAL = 1e4  # price of the rows that a basis begins with
_COVERED = 0.98  # Σ λ at which a mixture is good enough: the mean's share absorbs the rounding
_OPTIMAL = 1e-9  # reduced costs below which a basis is optimal
_PIVOT = 1e-9
_PIVOTS = 12  # for each feature, then a class is left to others
_INSIDE = 1 - 1e-7  # Σ λ of a class that is not on the surface
_FLAT = 1e-7
_NOTHING = 1e-13
_SLACK = 1e-5

_IS_OPEN, _IS_OPTIMAL, _IS_COVERED = 0, 1, 2


def propose(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    """Decide nearly every class where few can win; leave all of them alone where most can."""
    if not fits(space, classes):
        return
    deciding = _Deciding(space, classes)
    yield from deciding.first_winners()
    while len(deciding.left) and not search.late():
        yield from deciding.next_chunk()


PROPOSER = Proposer("winners", "screen", propose, "few features")


def fits(space: Space, classes: np.ndarray) -> bool:
    """Whether so few features and so few winners are to be expected that this is worth it."""
    if space.width > _WIDE or len(classes) < max(_FEWEST, 1):
        return False
    if space.ball_cone() is not None or not space.outline.exact:
        return False  # a cone that is not flat has no finite list of sides
    sample = np.random.default_rng(0).choice(classes, min(_SAMPLE, len(classes)), replace=False)
    first = winners(space, space.directions(first_inputs(space, sample)))
    return float((first == space.representative[sample]).mean()) <= _MOST_WIN


@dataclass
class _Columns:
    """What a basis may hold: rays of the domain, price 0, then winners, price 1."""

    ids: np.ndarray  # (k,) class, −1 for a ray
    rows: Any  # (k, m) float64 on the device
    prices: Any  # (k,)
    search: Any  # (k, m + 1) rows and prices in search precision


@dataclass
class _Bases:
    """One simplex tableau a class, on the device."""

    targets: Any  # (n, m)
    held: np.ndarray  # (n, m) columns of the basis: positions in `_Columns`, −1 artificial
    inverse: Any  # (n, m, m)
    prices: Any  # (n, m)
    weights: Any  # (n, m) λ

    def take(self, backend: Any, which: np.ndarray) -> _Bases:
        at = backend.index(which)
        return _Bases(
            self.targets[at], self.held[which], self.inverse[at], self.prices[at], self.weights[at]
        )

    def put(self, backend: Any, which: np.ndarray, part: _Bases) -> None:
        at = backend.index(which)
        self.held[which] = part.held
        self.inverse[at], self.prices[at], self.weights[at] = (
            part.inverse, part.prices, part.weights,
        )  # fmt: skip


class _Deciding:
    """The winners so far, and the classes that are still to be held against them."""

    def __init__(self, space: Space, classes: np.ndarray) -> None:
        self.space, self.backend, self.xp = space, space.backend, space.backend.xp
        points = self.backend.get(space.points[self.backend.index(classes)])
        # Farthest first: they are the likely winners, and what is near the mean needs few of them.
        self.left = classes[np.argsort(-np.linalg.norm(points, axis=1), kind="stable")]
        self.wanted = np.zeros(space.head.classes, dtype=bool)
        self.wanted[classes] = True
        self.is_winner = np.zeros(space.head.classes, dtype=bool)
        rays = space.sides()
        if space.lifted:
            down = np.zeros((1, space.width))
            down[0, -1] = -1.0
            rays = np.concatenate([rays, down])
        self.columns = self._columns(np.full(len(rays), -1), self.backend.put(rays))

    def _columns(self, ids: np.ndarray, rows: Any) -> _Columns:
        xp = self.xp
        prices = self.backend.put((ids >= 0).astype(np.float64))
        search = xp.astype(xp.concat([rows, prices[:, None]], axis=1), self.space.points.dtype)
        return _Columns(ids, rows, prices, search)

    def first_winners(self) -> Iterator[Proposal]:
        """Who is first at the first guesses of the classes farthest out."""
        some = self.left[:_FIRST]
        inputs = first_inputs(self.space, some)
        yield from self._claim(winners(self.space, self.space.directions(inputs)), inputs)
        self.left = self.left[~self.is_winner[self.left]]

    def _claim(self, first: np.ndarray, inputs: Any) -> Iterator[Proposal]:
        """Note classes that are first at some inputs as winners, and propose them once each."""
        new, where = np.unique(first, return_index=True)
        unknown = ~self.is_winner[new]
        new, where = new[unknown], where[unknown]
        if not len(new):
            return
        self.is_winner[new] = True
        old = self.columns
        rows = self.xp.concat([old.rows, self.space.precise(new)], axis=0)
        self.columns = self._columns(np.concatenate([old.ids, new]), rows)
        asked = self.wanted[new]
        if asked.any():
            at = where[asked]
            if not isinstance(inputs, np.ndarray):
                at = self.backend.index(at)
            yield Witnesses(new[asked], self.space.proposed(inputs[at]))

    def next_chunk(self) -> Iterator[Proposal]:
        """Decide the next classes, as far as they can be: what is left over is for others."""
        chunk, self.left = self.left[:_CHUNK], self.left[_CHUNK:]
        chunk = chunk[~self.is_winner[chunk]]
        bases = self._begin(chunk)
        for _ in range(_ROUNDS):
            if not len(chunk):
                break
            covered, separated = self._solve(bases)
            yield Mixtures(self._mixtures(chunk[covered], bases.take(self.backend, covered)))
            going = yield from self._price(chunk[separated], bases.take(self.backend, separated))
            chunk, bases = chunk[separated[going]], bases.take(self.backend, separated[going])
        self.left = self.left[~self.is_winner[self.left]]

    def _begin(self, classes: np.ndarray) -> _Bases:
        """Bases of artificial rows ±e_j, whatever sign each class has there."""
        xp, width = self.xp, self.space.width
        targets = xp.astype(self.space.precise(classes), xp.float64)
        if self.space.lifted:  # beaten by a hair more than needed: rounding takes it back
            targets = xp.concat([targets[:, :-1], targets[:, -1:] + _SLACK], axis=1)
        signs = xp.where(targets < 0, -xp.ones_like(targets), xp.ones_like(targets))
        identity = self.backend.put(np.eye(width))
        held = np.full((len(classes), width), -1, dtype=np.int64)
        prices = xp.full_like(targets, _ARTIFICIAL)
        return _Bases(targets, held, signs[:, :, None] * identity[None], prices, xp.abs(targets))

    def _solve(self, bases: _Bases) -> tuple[np.ndarray, np.ndarray]:
        """Pivot every basis until it covers its class or is optimal; positions of both kinds."""
        count = len(bases.held)
        columns = self.columns
        row = (len(columns.ids) + 4 * self.space.width**2) * 8
        step = max(1, self.backend.block_bytes // row)
        parts = [np.arange(s, min(s + step, count)) for s in range(0, count, step)]

        def work(part: np.ndarray) -> tuple[_Bases, np.ndarray]:
            return _pivot_all(self.space, columns, bases.take(self.backend, part))

        with self.backend.threads(len(parts)) as over:
            results = list(over(work, parts))
        states = []
        for part, (solved, state) in zip(parts, results, strict=True):
            bases.put(self.backend, part, solved)
            states.append(state)
        state = np.concatenate(states)
        return np.flatnonzero(state == _IS_COVERED), np.flatnonzero(state == _IS_OPTIMAL)

    def _mixtures(self, classes: np.ndarray, bases: _Bases) -> list[tuple[int, Mixture]]:
        held = self.backend.index(np.maximum(bases.held, 0))
        xp, weights = self.xp, bases.weights
        # Rounding has gathered over the pivots: once more for what is missing.
        missing = bases.targets - (weights[:, None, :] @ self.columns.rows[held])[:, 0, :]
        better = weights + (bases.inverse @ missing[:, :, None])[:, :, 0]
        weights = self.backend.get(xp.where(better > 0, better, xp.zeros_like(better)))
        ids = np.where(bases.held >= 0, self.columns.ids[bases.held], -1)
        named = np.where((ids >= 0) & (weights > 0), weights, 0.0)
        bulk = 1 - named.sum(axis=1)
        found = []
        for t, own, share, rest in zip(
            classes.tolist(), ids.astype(np.int32), named, bulk.tolist(), strict=True
        ):
            at = np.flatnonzero(share > _NOTHING)
            at = at[np.argsort(own[at])]
            found.append((t, Mixture(own[at], share[at], bulk=rest)))
        return found

    def _price(self, classes: np.ndarray, bases: _Bases) -> Generator[Proposal, None, np.ndarray]:
        """Hold the prices of separated classes against all; returns which to go on with."""
        if not len(classes):
            return np.empty(0, dtype=np.int64)
        space = self.space
        inputs = self._inputs(_prices(bases))
        first = winners(space, space.directions(inputs))
        known = self.is_winner[first]
        yield from self._claim(first, inputs)
        # Rounding says that t is behind a winner it is before: for the certifier to see.
        close = np.flatnonzero(known & self.wanted[classes])
        if len(close):
            yield Witnesses(classes[close], space.proposed(inputs[self.backend.index(close)]))
        return np.flatnonzero(~known & ~self.is_winner[classes])

    def _inputs(self, y: Any) -> Any:
        """The inputs that prices stand for, in the domain and in search precision."""
        space, xp = self.space, self.xp
        if space.lifted:
            # At height zero lies an input at infinity: one that is only far away will do.
            size = xp.max(xp.abs(y), axis=1)
            y = xp.concat([y[:, :-1], xp.maximum(y[:, -1], _FLAT * size)[:, None]], axis=1)
        x = space.inputs(xp.astype(y, space.points.dtype))
        return space.with_fixed(space.clip(x) if space.lifted else space.enter(x))


def _prices(bases: _Bases) -> Any:
    """y with y·a = price for every column a of the basis: (n, m)."""
    return (bases.prices[:, None, :] @ bases.inverse)[:, 0, :]


def _pivot_all(space: Space, columns: _Columns, bases: _Bases) -> tuple[_Bases, np.ndarray]:
    """Pivot until each basis covers its class or is optimal: the bases, and how each ended."""
    backend = space.backend
    state = np.full(len(bases.held), _IS_OPEN)
    fresh = bool((bases.held < 0).all())
    for count in (_ALONE, len(columns.ids)) if fresh else (len(columns.ids),):
        some = np.flatnonzero(state != _IS_COVERED)
        part = bases.take(backend, some)
        _pivot(space, columns, count, part, some, bases, state)
    return bases, state


def _pivot(
    space: Space,
    columns: _Columns,
    count: int,
    live: _Bases,
    where: np.ndarray,
    done: _Bases,
    state: np.ndarray,
) -> None:
    """The simplex method over the first columns; what ends is written to `done` and `state`."""
    backend, xp = space.backend, space.backend.xp
    search = columns.search[:count].T
    for _ in range(_PIVOTS * (space.width + 2)):
        y = _prices(live)
        minus = -xp.ones_like(y[:, :1])
        scores = xp.astype(xp.concat([y, minus], axis=1), search.dtype) @ search
        best = xp.argmax(scores, axis=1)
        del scores
        entering = columns.rows[best]
        gain = xp.sum(entering * y, axis=1) - columns.prices[best]
        size = xp.sum(xp.abs(entering * y), axis=1)
        total = xp.sum(live.prices * live.weights, axis=1)
        optimal = backend.get(gain <= _OPTIMAL * (1 + size))
        rest = xp.where(live.prices > 1, live.weights, xp.zeros_like(live.weights))
        real = xp.max(rest, axis=1) <= _NOTHING  # no weight on artificial rows
        covers = backend.get((total <= _COVERED) & real)
        covers |= optimal & backend.get((total <= _INSIDE) & real)
        ended = covers | optimal
        if ended.any():
            at = np.flatnonzero(ended)
            done.put(backend, where[at], live.take(backend, at))
            state[where[at]] = np.where(covers[at], _IS_COVERED, _IS_OPTIMAL)
            going = np.flatnonzero(~ended)
            if not len(going):
                return
            where, live = where[going], live.take(backend, going)
            at = backend.index(going)
            entering, best = entering[at], best[at]
        _exchange(space, columns, live, entering, best)


def _exchange(space: Space, columns: _Columns, live: _Bases, entering: Any, best: Any) -> None:
    """One pivot of every basis: a column enters, and the first whose weight is used up leaves."""
    backend, xp = space.backend, space.backend.xp
    along = (live.inverse @ entering[:, :, None])[:, :, 0]
    usable = along > _PIVOT
    nothing = xp.full_like(along, np.inf)
    ratio = xp.where(usable, live.weights / xp.where(usable, along, xp.ones_like(along)), nothing)
    leaving = xp.argmin(ratio, axis=1)
    here = backend.index(np.arange(len(live.held)))
    step = ratio[here, leaving]
    step = xp.where(xp.isfinite(step), step, xp.zeros_like(step))
    weights = xp.maximum(live.weights - step[:, None] * along, xp.zeros_like(along))
    weights[here, leaving] = step
    row = live.inverse[here, leaving] / along[here, leaving][:, None]
    inverse = live.inverse - along[:, :, None] * row[:, None, :]
    inverse[here, leaving] = row
    live.inverse, live.weights = inverse, weights
    live.prices[here, leaving] = columns.prices[best]
    live.held[np.arange(len(live.held)), backend.get(leaving)] = backend.get(best)
