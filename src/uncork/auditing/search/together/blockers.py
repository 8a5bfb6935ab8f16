"""Many items: the input nearest to a class's own at which none of its blockers is ahead.

Where rows are by the hundred thousand, a product with all of them is dear, and reflecting needs
many. Who blocks a class at its own row are a few dozen others, most of them among the longest rows
(of rows made round, see `guesses`). So blockers are sought among those first, and the class's own
point u_t is moved no further than they ask for:

    min ‖y − u_t‖   s.t.   (u_t − u_i)·y ≥ δ ‖u_t − u_i‖ ‖u_t‖   for every blocker i,

by Hildreth's method, one multiplier after the other and all classes at once. The margin δ is what
keeps those away that are not among the blockers. Only then y is held against all rows; who is ahead
there joins the blockers, and after a few rounds nearly every class that can win has won.

The others are probably lost. Where the nearest point with δ = 0 is zero, its multipliers are a
mixture: v_t + Σ λ_i (v_t − v_i) = 0 with the mean of all rows at the origin. Where it is not, it is
the next y (Gilbert's and Wolfe's way to the nearest point of a polytope).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.search.guesses import weighted
from uncork.auditing.search.proposer import Mixtures, Proposal, Proposer, Search, Witnesses
from uncork.auditing.search.space import Space
from uncork.auditing.search.tilt import nonnegative_least_squares

WORTH_IT = 1 << 40  # classes × rows × features, below which reflecting is as fast
_WIDE = 320  # features, beyond which working sets are large
_LONGEST = 6  # one row in so many is among the longest
_BLOCKERS = 24  # that join at a time
_NEAR = 0.03  # who is behind by no more than this share of the score is a blocker too
_MARGINS = (0.02, 0.02, 0.01, 0.005)  # δ, round by round: not every class has much to spare
_SWEEPS = 30
_LEAST = 1e-4  # δ where it was halved many times
_LOST_ROUNDS = 8
_MOST = 112  # blockers that are kept where a mixture is sought, besides new ones
_ZERO = 1e-7  # length of a nearest point, as a share of the class's own, that counts as none
_NOTHING = 1e-13
_CHUNK = 16384  # classes at a time
_ROWS = 16384  # rows in one product
_SET_BYTES = 24 << 20  # of working sets that one thread has at a time


def propose(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    """Witnesses for nearly all classes that can win, then mixtures for those that cannot."""
    if not fits(space, classes):
        return
    blocking = _Blocking(space, classes)
    for start in range(0, len(classes), _CHUNK):
        if search.late():
            return
        yield from blocking.win(blocking.still(classes[start : start + _CHUNK]), search)
    left = search.undecided(classes)
    blocking.forget_others(left)
    for start in range(0, len(left), _CHUNK):
        yield from blocking.lose(left[start : start + _CHUNK], search)


def _steps(classes: np.ndarray, space: Space) -> int:
    return len(classes) if fits(space, classes) else 0


def fits(space: Space, classes: np.ndarray) -> bool:
    """Whether a product with all rows is dear, and only the direction of an input matters."""
    if space.width > _WIDE or space.lifted or space.has_walls or space.unseen:
        return False
    if not isinstance(space.points, np.ndarray) or space.ball_cone() is not None:
        return False
    if not np.isnan(space.fixed).all():
        return False
    return len(classes) * space.head.classes * space.width >= WORTH_IT


PROPOSER = Proposer("blockers", "screen", propose, "blockers", _steps)


@dataclass(frozen=True)
class _Rows:
    """Points to hold directions against, and the classes they are of."""

    points: np.ndarray  # (n, m)
    ids: np.ndarray  # (n,)
    place: np.ndarray  # (C,) of each class among them, −1: not there


class _Blocking:
    def __init__(self, space: Space, classes: np.ndarray) -> None:
        self.space, self.backend = space, space.backend
        count = space.head.classes
        self.everyone = np.flatnonzero(space.representative == np.arange(count))
        self.wanted = np.zeros(count, dtype=bool)
        self.wanted[classes] = True
        found = weighted(space, space.width)
        if found is None:
            self.turn, round_points = np.eye(space.width), space.points
        else:
            _, self.turn, middle = found
            round_points = np.empty_like(space.points)
            for start in range(0, count, _ROWS):
                part = space.points[start : start + _ROWS].astype(np.float64)
                round_points[start : start + _ROWS] = (part - middle) @ self.turn.T
        self.round = self._rows(round_points, self.everyone)
        lengths = np.linalg.norm(round_points[self.everyone], axis=1)
        longest = max(1, len(self.everyone) // _LONGEST)
        some = np.sort(self.everyone[np.argpartition(-lengths, longest - 1)[:longest]])
        self.longest = self._rows(round_points, some)
        self.plain: _Rows | None = None
        self.known: dict[int, np.ndarray] = {}  # blockers of those that did not win

    def _rows(self, points: np.ndarray, ids: np.ndarray) -> _Rows:
        place = np.full(self.space.head.classes, -1)
        place[ids] = np.arange(len(ids))
        whole = len(ids) == len(points)
        return _Rows(points if whole else points[ids], ids, place)

    def still(self, classes: np.ndarray) -> np.ndarray:
        """Those of some classes that have not won as somebody else's rival."""
        return np.asarray(classes[self.wanted[classes]])

    def forget_others(self, classes: np.ndarray) -> None:
        self.wanted[:] = False
        self.wanted[classes] = True
        self.known = {int(t): self.known[int(t)] for t in classes if int(t) in self.known}

    # Winning

    def win(self, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
        """Propose inputs for some classes, and for whoever is first there instead."""
        if not len(classes):
            return
        everyone, longest = self.round, self.longest
        own = everyone.points[everyone.place[classes]].astype(np.float64)
        blockers = self._ahead(longest, own, classes, most=True)[0]
        y = self._moved(everyone, own, classes, blockers, _MARGINS[0])
        more, first = self._ahead(longest, y, classes)
        some = np.flatnonzero(first != classes)
        blockers = _joined(blockers, more)
        y[some] = self._moved(everyone, own[some], classes[some], blockers[some], _MARGINS[0])
        for margin in (*_MARGINS[1:], 0.0):
            more, first = self._ahead(everyone, y, classes)
            yield from self._claim(first, y @ self.turn)
            live = np.flatnonzero(self.wanted[classes])
            classes, own, first, y = classes[live], own[live], first[live], y[live]
            blockers = _joined(blockers[live], more[live])
            if not len(classes) or not margin or search.late():
                break
            y = self._moved(everyone, own, classes, blockers, margin)
        for t, some in zip(classes.tolist(), blockers, strict=True):
            self.known[t] = some[some >= 0]

    def _claim(self, first: np.ndarray, directions: np.ndarray) -> Iterator[Proposal]:
        """Each direction (n, m) in the coordinates of the space, for the class first there."""
        new, where = np.unique(first, return_index=True)
        asked = self.wanted[new]
        if asked.any():
            self.wanted[new[asked]] = False
            space = self.space
            y = directions[where[asked]].astype(space.points.dtype)
            inputs = space.with_fixed(space.enter(space.inputs(y)))
            yield Witnesses(new[asked], space.proposed(inputs))

    # Losing

    def lose(self, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
        """Propose mixtures for classes that have not won, or inputs after all."""
        if self.plain is None:
            self.plain = self._rows(self.space.points, self.everyone)
        everyone = self.plain
        own = np.asarray(self.space.precise(classes), dtype=np.float64)
        widest = max((len(self.known.get(int(t), ())) for t in classes), default=0)
        blockers = np.full((len(classes), max(widest, 1)), -1)
        for k, t in enumerate(classes.tolist()):
            some = self.known.get(t, np.empty(0, dtype=np.int64))
            blockers[k, : len(some)] = some
        for turn in range(_LOST_ROUNDS):
            nearest, shares = self._nearest(everyone, own, classes, blockers)
            length = np.linalg.norm(nearest, axis=1)
            beaten = length <= _ZERO * np.linalg.norm(own, axis=1)
            at = np.flatnonzero(beaten)
            yield Mixtures(
                [(int(classes[k]), _mixture(blockers[k], shares[k])) for k in at.tolist()]
            )
            left = np.flatnonzero(~beaten & self.wanted[classes])
            if not len(left) or search.late():
                return
            classes, own, nearest = classes[left], own[left], nearest[left]
            order = np.argsort(-shares[left], axis=1, kind="stable")[:, :_MOST]
            blockers = np.take_along_axis(blockers[left], order, axis=1)
            nearest /= np.maximum(length[left], 1e-300)[:, None]
            margin = max(_MARGINS[-1] * 0.5**turn, _LEAST)
            y = self._moved(everyone, nearest, classes, blockers, margin)
            more, first = self._ahead(everyone, y, classes)
            yield from self._claim(first, y)
            blockers = _joined(blockers, more)

    def _nearest(
        self, rows: _Rows, own: np.ndarray, classes: np.ndarray, blockers: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The point of {v_t + Σ λ_i (v_t − v_i), λ ≥ 0} nearest to zero, and λ: (n, m), (n, k)."""

        def work(part: slice) -> tuple[np.ndarray, np.ndarray]:
            away, lengths = self._away(classes[part], blockers[part])
            gram = away @ away.swapaxes(1, 2)
            right = -(away @ own[part, :, None])[:, :, 0]
            found = np.asarray(nonnegative_least_squares(self.backend, gram, right))
            found[~np.isfinite(found).all(axis=1)] = 0.0
            return own[part] + (found[:, None, :] @ away)[:, 0], found / lengths

        parts = self._parts(blockers.shape, 6)
        with self.backend.threads(len(parts)) as over:
            done = list(over(work, parts))
        return np.concatenate([a for a, _ in done]), np.concatenate([b for _, b in done])

    def _away(self, classes: np.ndarray, blockers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """v_t − v_i in float64, of unit length or zero: (n, k, m), and their lengths (n, k)."""
        shape = (*blockers.shape, self.space.width)
        others = np.asarray(self.space.precise(np.maximum(blockers, 0).reshape(-1)))
        away = np.asarray(self.space.precise(classes))[:, None, :] - others.reshape(shape)
        return _unit(away, blockers)

    # What both share

    def _parts(self, shape: tuple[int, ...], times: int = 2) -> list[slice]:
        """Of so many classes with so many blockers, as many at a time as fit."""
        row = 8 * shape[1] * (self.space.width + times * shape[1])
        step = max(1, _SET_BYTES // max(1, row))
        return [slice(start, start + step) for start in range(0, shape[0], step)]

    def _moved(
        self,
        rows: _Rows,
        own: np.ndarray,
        classes: np.ndarray,
        blockers: np.ndarray,
        margin: float,
    ) -> np.ndarray:
        """Directions near `own` (n, m) at which every blocker is behind: unit rows (n, m)."""

        def work(part: slice) -> np.ndarray:
            ids = blockers[part]
            others = rows.points[rows.place[np.maximum(ids, 0)]].astype(np.float64)
            at = rows.points[rows.place[classes[part]]].astype(np.float64)
            away = _unit(at[:, None, :] - others, ids)[0]
            return _project(own[part], away, ids >= 0, margin)

        parts = self._parts(blockers.shape)
        with self.backend.threads(len(parts)) as over:
            done = list(over(work, parts))
        y = np.concatenate(done) if done else np.zeros_like(own)
        return np.asarray(y / np.maximum(np.linalg.norm(y, axis=1, keepdims=True), 1e-300))

    def _ahead(
        self, rows: _Rows, y: np.ndarray, classes: np.ndarray, most: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Who is ahead of each class at its direction, or nearly, −1 where there are no more, and
        who is first: (n, k), (n,). `most`: those of highest score, wherever they are."""
        directions = y.astype(rows.points.dtype)
        at = self.round if rows is self.longest else rows
        own = np.einsum("ij,ij->i", directions, at.points[at.place[classes]])
        size = 512 if not most else max(1, self.backend.block_bytes // (4 * len(rows.ids)))
        parts = [slice(start, start + size) for start in range(0, len(classes), size)]

        def work(part: slice) -> tuple[np.ndarray, np.ndarray]:
            if most:
                return self._highest(rows, directions[part], classes[part])
            return _ahead_of(rows, directions[part], own[part], classes[part])

        with self.backend.threads(len(parts)) as over:
            done = list(over(work, parts))
        if not done:
            return np.full((0, _BLOCKERS), -1), np.empty(0, dtype=np.int64)
        return np.concatenate([a for a, _ in done]), np.concatenate([b for _, b in done])

    def _highest(
        self, rows: _Rows, y: np.ndarray, classes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        scores = y @ rows.points.T
        at = rows.place[classes]
        here = np.flatnonzero(at >= 0)
        scores[here, at[here]] = -np.inf
        found = self.backend.largest(scores, min(_BLOCKERS, len(rows.ids)))
        ids = rows.ids[found]
        return np.where(ids == classes[:, None], -1, ids), classes


def _ahead_of(
    rows: _Rows, y: np.ndarray, own: np.ndarray, classes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in classes]
    near = own - _NEAR * np.abs(own)
    places = rows.place[classes]
    for start in range(0, len(rows.ids), _ROWS):
        scores = y @ rows.points[start : start + _ROWS].T
        here = np.flatnonzero((places >= start) & (places < start + _ROWS))
        scores[here, places[here] - start] = -np.inf
        for k in np.flatnonzero(scores.max(axis=1) >= near).tolist():
            at = np.flatnonzero(scores[k] >= near[k])
            if len(at) > _BLOCKERS:
                at = at[np.argpartition(scores[k, at], -_BLOCKERS)[-_BLOCKERS:]]
            found[k].append((at + start, scores[k, at]))
    ahead, first = np.full((len(classes), _BLOCKERS), -1), classes.copy()
    for k, parts in enumerate(found):
        if parts:
            at, score = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            order = np.argsort(-score)[:_BLOCKERS]
            ahead[k, : len(order)] = rows.ids[at[order]]
            if score[order[0]] >= own[k]:
                first[k] = rows.ids[at[order[0]]]
    return ahead, first


def _joined(blockers: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Both, each class once: (n, k), (n, l) → (n, k + l) or fewer."""
    known = (more[:, :, None] == blockers[:, None, :]).any(axis=2)
    both = np.concatenate([blockers, np.where(known, -1, more)], axis=1)
    order = np.argsort(both < 0, axis=1, kind="stable")  # those that exist first
    both = np.take_along_axis(both, order, axis=1)
    return both[:, : max(1, int((both >= 0).sum(axis=1).max(initial=0)))]


def _unit(away: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.linalg.norm(away, axis=2)
    lengths = np.where(lengths > 0, lengths, 1.0)
    return away / lengths[:, :, None] * (ids >= 0)[:, :, None], lengths


def _project(own: np.ndarray, away: np.ndarray, held: np.ndarray, margin: float) -> np.ndarray:
    """The points nearest to `own` (n, m) with a_i·y ≥ δ ‖own‖ for rows (n, k, m) that are held."""
    gram = np.ascontiguousarray((away @ away.swapaxes(1, 2)).swapaxes(0, 1))  # (k, n, k)
    room = np.linalg.norm(own, axis=1) * margin
    lead = (away @ own[:, :, None])[:, :, 0] - room[:, None]  # a_i·y − δ‖own‖
    shares = np.zeros(held.shape)
    for _ in range(_SWEEPS):
        largest = 0.0
        for j in range(held.shape[1]):
            new = np.maximum(0.0, shares[:, j] - lead[:, j]) * held[:, j]
            change = new - shares[:, j]
            if change.any():
                shares[:, j] = new
                lead += change[:, None] * gram[j]
                largest = max(largest, float(np.abs(change / room).max()))
        if largest < 1e-2:
            break
    return np.asarray(own + (shares[:, None, :] @ away)[:, 0])


def _mixture(blockers: np.ndarray, shares: np.ndarray) -> Mixture:
    """λ_i of the blockers beside 1 for the mean of all rows."""
    total = 1 + float(shares[blockers >= 0].sum())
    at = np.flatnonzero((blockers >= 0) & (shares > _NOTHING * total))
    at = at[np.argsort(blockers[at])]
    return Mixture(blockers[at].astype(np.int32), shares[at] / total, bulk=1 / total)
