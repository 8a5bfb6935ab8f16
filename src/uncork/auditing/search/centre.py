"""Deciding many classes at once: the analytic centre of a class's dual cone, on working sets.

For class t let a_k be unit rows: u_i − u_t for the classes i of a working set, the mean row, and
the sides of the domain (see `space`). Either some y has a_k·y < 0 for all k (then t wins at y
against the working set), or some λ ≥ 0 has Σ λ_k a_k = 0 (then that mixture beats t everywhere):
Gordan's alternative. Newton's method on the self-concordant

    φ(y) = −Σ log(1 − a_k·y)

finds whichever is true. If the minimum exists, its gradient Σ a_k/(1 − a_k·y) = 0 is the mixture;
if not, y runs off along a separating direction. Neither has to be awaited: with s = 1 − A y and the
Newton step dy, λ_k = (1 + a_k·dy/s_k)/s_k balances exactly, and is a mixture as soon as it is
non-negative; and any y with A y < 0 can be priced against all classes with one product. Where t
then wins, y is a witness; where not, the worst offenders replace the rows of smallest λ. A ball
whose size matters adds a term of its own (`cone`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.search.mixtures import mixtures_from_duals
from uncork.auditing.search.proposer import Mixtures, Proposal, Proposer, Search, Witnesses
from uncork.auditing.search.space import Space

_STEPS = 80  # Newton steps for a class, then it is left undecided
_STEPS_WITH_SIDES = 48  # the same where all sides are in: there it may run off between the two
_RIDGE = 1e-9
_MOST_SIDES = 2  # that are in every working set, as a multiple of the width
_BESIDE_SIDES = 0.75  # times the usual number of classes, beside all sides


class Sides(Enum):
    """Which sides of the domain are in a working set."""

    NONE = 0  # as if every input could arrive; only coordinates that some class sees
    CROSSED = 1  # those that inputs were found beyond
    ALL = 2


@dataclass(frozen=True)
class WorkingSets:
    """How large they are, and what is in them."""

    factor: float = 1.0  # times the usual number of classes
    sides: Sides = Sides.CROSSED

    def width(self, space: Space) -> int:
        """Coordinates of directions."""
        return space.width - space.unseen if self.sides is Sides.NONE else space.width

    def classes(self, space: Space) -> int:
        """Three times the width that classes see, twice for wide heads, where rows cost more.
        Coordinates that no class sees take sides to hold, and as many rows again."""
        width = space.width - space.unseen
        if self.sides is Sides.CROSSED:
            width += 2 * space.unseen
        size = (3 if space.width <= 512 else 2) * width
        return min(int(self.factor * size), space.head.classes - len(space.repeats) - 1)


def plans(space: Space) -> Iterator[WorkingSets]:
    """Working sets to try one after the other: a class that one leaves open gets the next.

    Where walls are in the way, most lost classes are lost whatever can arrive, and where inputs
    have coordinates that no class sees, they are told in the few coordinates that count. The others
    are pushed from side to side: there all sides are in from the beginning, and take the place of
    some classes.
    """
    if space.unseen or space.has_walls:
        yield WorkingSets(sides=Sides.NONE)
        if len(space.sides()) <= _MOST_SIDES * space.width:
            yield WorkingSets(1.0 if space.unseen else _BESIDE_SIDES, Sides.ALL)
    yield WorkingSets()
    yield WorkingSets(3.0)


def propose(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    for plan in plans(space):
        yield from propose_in_batches(space, search.undecided(classes), search, plan)


PROPOSER = Proposer("centre", "decide", propose)


def propose_in_batches(
    space: Space,
    classes: np.ndarray,
    search: Search,
    plan: WorkingSets,
    without: np.ndarray | None = None,
) -> Iterator[Proposal]:
    """Decide classes with working sets of one kind, as many at a time as there are threads; as if
    classes `without` whom it is to be did not exist."""

    def work(batch: tuple[np.ndarray, Any]) -> tuple[Proposal, ...]:
        return () if search.late() else decide_batch(space, *batch, plan, search.late, without)

    with space.backend.threads() as over:
        for found in over(work, batches(space, classes, _hints(space, classes, search), plan)):
            # The larger part first: certifying takes a while, and the time left is shown meanwhile.
            yield from sorted(found, key=lambda proposal: -len(proposal.classes))


def _hints(space: Space, classes: np.ndarray, search: Search) -> Any:
    """Where screening left each class; its own point for one that screening thought it won."""
    index = space.backend.index
    hints = space.points[index(classes)]
    if search.nearly_won is not None:
        hinted, directions = search.nearly_won
        _, here, there = np.intersect1d(classes, hinted, return_indices=True)
        if len(here):
            hints[index(here)] = directions[index(there)]
    return hints


def batches(
    space: Space, classes: np.ndarray, hints: Any, plan: WorkingSets
) -> list[tuple[np.ndarray, Any]]:
    """Classes and their hints cut into batches whose working sets fit the backend's block, and one
    for each thread at least."""
    sides = len(space.sides()) if plan.sides is Sides.ALL else 0
    row = (plan.classes(space) + sides + 2) * plan.width(space) * 8
    scores = 2 * space.head.classes * space.points.itemsize
    most = min(-(-len(classes) // space.backend.jobs), space.backend.solve_bytes // (row + scores))
    size = int(max(1, most))
    starts = range(0, len(classes), size)
    return [(classes[start : start + size], hints[start : start + size]) for start in starts]


def decide_batch(
    space: Space,
    classes: np.ndarray,
    hints: Any,
    plan: WorkingSets = WorkingSets(),
    stop: Callable[[], bool] = bool,
    without: np.ndarray | None = None,
) -> tuple[Proposal, ...]:
    """Decide a batch of classes; `stop` is asked between steps and ends the work early.

    `hints` (n, width) are directions at which the classes nearly won, where screening left off: who
    beats them there belongs in the working set.
    """
    batch = _Batch(space, classes, hints, plan, without)
    for _ in range(_STEPS_WITH_SIDES if plan.sides is Sides.ALL else _STEPS):
        if not len(batch.classes) or stop():
            break
        batch.step()
    inputs = np.array(batch.inputs).reshape(len(batch.won), space.features)
    won = np.array(batch.won, dtype=np.int64)
    return Witnesses(won, space.proposed(inputs)), Mixtures(batch.beaten)


class _Batch:
    def __init__(
        self,
        space: Space,
        classes: np.ndarray,
        hints: Any,
        plan: WorkingSets,
        without: np.ndarray | None = None,
    ) -> None:
        self.space, self.backend, self.xp = space, space.backend, space.backend.xp
        self.classes = classes
        self.skipped = space.repeats  # classes that no working set holds
        if without is not None:
            self.skipped = np.union1d(space.repeats, without)
        others = space.head.classes - len(np.union1d(self.skipped, classes[:1]))
        self.size = min(plan.classes(space), max(others, 0))
        self.plan, self.width = plan, plan.width(space)
        self.side_rows = self.backend.put(space.sides())
        self.cone = space.ball_cone()
        self.won: list[int] = []
        self.inputs: list[np.ndarray] = []
        self.beaten: list[tuple[int, Mixture]] = []
        self._begin(hints)

    def _begin(self, hints: Any) -> None:
        """Half of each working set blocks t where screening left off, half in t's own direction."""
        space, xp, index = self.space, self.xp, self.backend.index
        own = space.points[index(self.classes)]  # (B, m)
        here = index(np.arange(len(self.classes)))
        blockers = self._beating(space.scores(hints), (self.size + 1) // 2)
        scores = space.scores(own)  # (B, C)
        scores[here[:, None], blockers] = -np.inf
        further = self._beating(scores, self.size - blockers.shape[1])
        del scores
        self.ids = self.backend.get(xp.concat([blockers, further], axis=1))  # (B, n), −1: a side
        who = np.repeat(np.arange(len(self.classes)), self.size)
        rows, lengths = self._rows(who, self.ids.reshape(-1))
        shape = (len(self.classes), self.size, self.width)
        rows, lengths = xp.reshape(rows, shape), xp.reshape(lengths, shape[:2])
        mean, mean_lengths = _unit(xp, -xp.astype(self._seen(own), xp.float64))  # the origin
        extra = [mean[:, None, :]]
        if self.plan.sides is Sides.ALL:
            everywhere = (len(self.classes), *self.side_rows.shape)
            rows = xp.concat([rows, xp.broadcast_to(self.side_rows, everywhere)], axis=1)
            lengths = xp.concat([lengths, xp.ones_like(rows[:, self.size :, 0])], axis=1)
            none = np.full(everywhere[:2], -1, dtype=self.ids.dtype)
            self.ids = np.concatenate([self.ids, none], axis=1)
        if space.lifted:
            height = xp.zeros_like(extra[0])
            height[:, :, -1] = -1.0
            extra.append(height)
        self.rows = xp.concat([rows, *extra], axis=1)  # (B, n + extra, m)
        self.lengths = xp.concat([lengths, mean_lengths[:, None]], axis=1)
        self.y = xp.zeros_like(mean)

    def _beating(self, scores: Any, count: int) -> Any:
        """The classes of highest score, other than each row's own and repeats: (B, count)."""
        index = self.backend.index
        scores[index(np.arange(len(self.classes))), index(self.classes)] = -np.inf
        if len(self.skipped):
            scores[:, index(self.skipped)] = -np.inf
        return self.backend.largest(scores, count)

    def _rows(self, who: np.ndarray, classes: np.ndarray) -> tuple[Any, Any]:
        """u_i − u_t for (position in the batch, class i) pairs: unit rows (n, m), lengths (n,)."""
        rows = self.space.precise(classes) - self.space.precise(self.classes[who])
        return _unit(self.xp, self._seen(rows))

    def _seen(self, rows: Any) -> Any:
        """The coordinates that directions have here, of rows (n, width)."""
        return rows if self.width == self.space.width else self.space.seen(rows)

    def _whole(self, y: Any) -> Any:
        """Directions (n, m) with the coordinates that are left out here, at zero."""
        if self.width == self.space.width:
            return y
        seen = len(self.space.to_input) - self.space.unseen
        none = self.xp.zeros_like(self.xp.broadcast_to(y[:, :1], (len(y), self.space.unseen)))
        return self.xp.concat([y[:, :seen], none, y[:, seen:]], axis=1)

    def step(self) -> None:
        xp = self.xp
        s = 1 - _times(self.rows, self.y)  # (B, n)
        q = 1 / s
        scaled = self.rows * q[:, :, None]
        hessian = _transpose(scaled) @ scaled
        gradient = xp.sum(scaled, axis=1)
        cone = None if self.cone is None else self.cone.at(self.y)
        if self.width > self.space.width - self.space.unseen:
            # Nothing bends along these until a side of the box does.
            at = np.arange(self.space.unseen) + len(self.space.to_input) - self.space.unseen
            hessian[:, at, at] += _RIDGE
        if cone is not None:
            hessian, gradient = hessian + cone.hessian, gradient + cone.gradient
        move = -self.backend.solve(hessian, gradient)
        bad = ~xp.all(xp.isfinite(move), axis=1)
        move = xp.where(bad[:, None], -gradient, move)
        change = _times(self.rows, move)
        relative = change * q
        duals = q * (1 + relative)
        if cone is not None:
            relative = xp.concat([relative, cone.relative(move)], axis=1)
        balanced = xp.min(relative, axis=1) > -1
        length = _line_search(xp, relative, 1.0 if self.cone is None else self.cone.weight)
        self.y = self.y + length[:, None] * move
        along = xp.max(change, axis=1) < 0
        ahead = xp.max(_times(self.rows, self.y), axis=1) < 0
        if self.cone is not None:
            along, ahead = along & self.cone.contains(move), ahead & self.cone.contains(self.y)
        beaten = self.backend.get(balanced)
        done = np.zeros(len(self.classes), dtype=bool)
        if beaten.any():
            outward = None if cone is None else cone.outward(move)
            done |= self._settle_beaten(np.flatnonzero(beaten), duals, outward)
        ahead, along = self.backend.get(ahead) & ~done, self.backend.get(along) & ~done
        separated = np.flatnonzero(ahead | along)
        if len(separated):
            only_along = self.backend.index((along & ~ahead)[separated].astype(np.int64)) > 0
            at = self.backend.index(separated)
            y = xp.where(only_along[:, None], move[at], self.y[at])
            self._price(separated, y, duals, done)
        self._go_on_with(np.flatnonzero(~done))

    def _settle_beaten(
        self, which: np.ndarray, duals: Any, outward: np.ndarray | None
    ) -> np.ndarray:
        at = self.backend.index(which)
        ids, duals, rows, lengths = self.ids[which], duals[at], self.rows[at], self.lengths[at]
        if outward is not None:
            ids, duals, rows, lengths = self._with_tangents(
                ids, duals, rows, lengths, outward[which]
            )
        found = mixtures_from_duals(self.backend, ids, duals, rows, lengths)
        done = np.zeros(len(self.classes), dtype=bool)
        for k, mixture in zip(which.tolist(), found, strict=True):
            if mixture is not None:
                self.beaten.append((int(self.classes[k]), mixture))
                done[k] = True
        return done

    def _with_tangents(
        self, ids: np.ndarray, duals: Any, rows: Any, lengths: Any, outward: np.ndarray
    ) -> tuple[np.ndarray, Any, Any, Any]:
        """The cone's multiplier as one more row: the ball's tangent plane that it stands for, with
        the weight that best balances the rest."""
        xp, put = self.xp, self.backend.put
        tangents = put(self.space.tangents(outward))
        missing = -xp.sum(rows * duals[:, :, None], axis=1)[:, :-1]
        inner = tangents[:, :-1]
        size = xp.sum(inner * inner, axis=1)
        weight = xp.sum(missing * inner, axis=1) / xp.where(size > 0, size, xp.ones_like(size))
        weight = xp.maximum(weight, xp.zeros_like(weight))[:, None]
        # What the tangent leaves over lies along the height, whose weight takes it in.
        height = xp.sum(rows * duals[:, :, None], axis=1)[:, -1:] + weight * tangents[:, -1:]
        height = xp.maximum(duals[:, -1:] + height, xp.zeros_like(height))
        end = ids.shape[1]
        sides = np.full((len(ids), 1), -1, dtype=ids.dtype)
        return (
            np.concatenate([ids, sides], axis=1),
            xp.concat([duals[:, :end], weight, duals[:, end:-1], height], axis=1),
            xp.concat([rows[:, :end], tangents[:, None, :], rows[:, end:]], axis=1),
            xp.concat([lengths[:, :end], xp.ones_like(weight), lengths[:, end:]], axis=1),
        )

    def _price(self, which: np.ndarray, y: Any, duals: Any, done: np.ndarray) -> None:
        """Hold directions that beat their working set against every class and the domain."""
        space, xp, backend = self.space, self.xp, self.backend
        y = self._whole(y)
        search = xp.astype(y, space.points.dtype)
        classes = backend.index(self.classes[which])
        here = backend.index(np.arange(len(which)))
        lead = space.scores(search)
        lead = lead - lead[here, classes][:, None]
        lead[here, classes] = -np.inf
        if len(self.skipped):
            lead[:, backend.index(self.skipped)] = -np.inf
        worst = backend.largest(lead, max(16, self.size // 8))
        amounts = backend.get(lead[here[:, None], worst])
        del lead
        if self.cone is not None:  # inside a ball by a hair: not to be rounded away
            x = space.sharp_inputs(backend.get(y))
        else:
            x = space.inputs(search)
            x = backend.get(x if space.lifted else space.enter(x)).astype(np.float64)
        inside = space.domain.contains(x)
        if not space.lifted and len(self.side_rows):
            # A cone's sides are crossed by the direction: entering has moved the input back.
            inside &= backend.get(xp.max(y @ self.side_rows.T, axis=1)) <= 0
        ahead = amounts.max(axis=1) < 0
        won = ahead & inside
        self.won.extend(self.classes[which[won]].tolist())
        self.inputs.extend(x[won])
        # Without sides, what is ahead of all classes but outside is for others to bring in.
        left = ~(ahead if self.plan.sides is Sides.NONE else won)
        done[which[~left]] = True
        self._replace(which[left], backend.get(worst)[left], amounts[left], duals)
        # Sides are for those that no class holds back: most lost classes are lost without them.
        for j in np.flatnonzero(left & ahead).tolist():
            self._add_sides(int(which[j]), y[j], duals)
        self._step_back(which[left])

    def _replace(
        self, which: np.ndarray, worst: np.ndarray, amounts: np.ndarray, duals: Any
    ) -> None:
        """Let the worst offenders take the place of the rows of smallest λ."""
        if not len(which):
            return
        weights = self.backend.get(duals[self.backend.index(which)])[:, : self.size]
        count = min(worst.shape[1], self.size)
        order = np.argsort(-amounts, axis=1)[:, :count]
        slots = np.argsort(weights, axis=1)[:, :count]
        place, rank = np.nonzero(np.take_along_axis(amounts, order, axis=1) >= 0)
        if not len(place):
            return
        new = worst[place, order[place, rank]]
        who, slot = which[place], slots[place, rank]
        self.ids[who, slot] = new
        rows, lengths = self._rows(who, new)
        at = self.backend.index(who), self.backend.index(slot)
        self.rows[at], self.lengths[at] = rows, lengths

    def _add_sides(self, k: int, y: Any, duals: Any) -> None:
        """Let the sides of the domain that an input crosses take the place of weak rows."""
        backend = self.backend
        if not len(self.side_rows) or self.plan.sides is not Sides.CROSSED:
            return
        amounts = backend.get(self.side_rows @ y)
        violated = np.flatnonzero(amounts > 0)
        worst = violated[np.argsort(-amounts[violated])][: max(16, self.size // 8)]
        sides = backend.get(self.side_rows)[worst]
        # The rows just replaced are the weakest: these come after them.
        weights = backend.get(duals[k])[: self.size]
        slots = np.argsort(weights)[-min(self.size, self.size // 4 + len(sides)) :][: len(sides)]
        self.ids[k, slots] = -1
        self.rows[k, backend.index(slots)] = backend.put(sides[: len(slots)])

    def _step_back(self, which: np.ndarray) -> None:
        """A new row may be crossed already: go back until every row has room again."""
        if not len(which):
            return
        xp, at = self.xp, self.backend.index(which)
        room = xp.max(_times(self.rows[at], self.y[at]), axis=1)
        crossed = room > 0.5
        shrink = xp.where(crossed, 0.5 / xp.where(crossed, room, xp.ones_like(room)),
                          xp.ones_like(room))  # fmt: skip
        self.y[at] = self.y[at] * shrink[:, None]

    def _go_on_with(self, still_open: np.ndarray) -> None:
        if len(still_open) == len(self.classes):
            return
        self.classes, self.ids = self.classes[still_open], self.ids[still_open]
        at = self.backend.index(still_open)
        self.rows, self.lengths, self.y = self.rows[at], self.lengths[at], self.y[at]


def _line_search(xp: Any, relative: Any, last: float = 1.0) -> Any:
    """Step lengths near the minimum of −Σ log(1 − α·relative_k) along each step: (B,).

    The last two terms count `last` times: they are those of the cone, where there is one.
    """
    weight = xp.ones_like(relative[0])
    weight[-2:] = last
    largest = xp.max(relative, axis=1)
    limit = 0.98 / xp.where(largest > 1e-9, largest, xp.full_like(largest, 1e-9))
    length = xp.minimum(xp.ones_like(limit), limit)
    for _ in range(6):
        ratio = relative / (1 - length[:, None] * relative)
        slope, curve = ratio @ weight, (ratio * ratio) @ weight
        wanted = length - slope / xp.where(curve > 0, curve, xp.ones_like(curve))
        wanted = xp.maximum(wanted, 1e-3 * length)
        length = xp.minimum(xp.minimum(wanted, 8 * length), limit)
    return length


def _times(rows: Any, vectors: Any) -> Any:
    """(B, n, m) · (B, m) → (B, n)."""
    return (rows @ vectors[:, :, None])[:, :, 0]


def _transpose(matrices: Any) -> Any:
    return matrices.swapaxes(1, 2)


def _unit(xp: Any, rows: Any) -> tuple[Any, Any]:
    """Rows (n, m) scaled to length one, and their lengths (n,); a zero row stays zero."""
    lengths = xp.sqrt(xp.sum(rows * rows, axis=-1))
    lengths = xp.where(lengths > 0, lengths, xp.ones_like(lengths))
    return rows / lengths[..., None], lengths
