"""Pairwise disjoint mixtures against one class: what proves that it is never in the top k.

At every input each mixture has a class at or above t, so k disjoint ones prove that k classes are.
The classes are dealt into groups, those that beat t at its best input first, so that every group
gets its share of them; whether t lies in the hull of a group is found for all groups at once
(Gordan's alternative, as in `audit.centre`, with the whole group as the working set). What a
mixture uses up is what counts: classes that beat t at its best input are scarce, so of a group's
mixtures a vertex with as little of them as can be is taken (a small linear programme). What is left
is dealt again.
"""

from __future__ import annotations

import numpy as np

from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.search.mixtures import balanced
from uncork.auditing.search.space import Space

_STEPS = 40
_RIDGE = 1e-12
_LARGEST = 12  # widths in a group at most
_SMALL = 200  # classes that a group may always have
_FEWER = (0.5, 0.7, 0.7, 0.8, 0.9)  # shares of a mixture's classes kept, tried in turn
_COLUMNS = 5  # widths: classes of a group that its vertex is chosen from
_ROOM = 1e-8  # weight of the height in a vertex: what the proof has to spare for rounding
_CHEAP = 1e-3  # what a class costs a vertex, where a scarce one costs 1
_BYTES = 64 << 20  # rows of groups solved in one go


class Dealer:
    """The classes other than t as seen from t, and the groups they are dealt into."""

    def __init__(self, space: Space, points: np.ndarray, t: int, equals: np.ndarray) -> None:
        self.space = space
        away = points - points[t]
        lengths = np.linalg.norm(away, axis=1)
        others = np.setdiff1d(np.arange(len(points)), equals)
        # Classes that look the same from every input tie everywhere.
        self.same = others[lengths[others] == 0]
        self.others = others[lengths[others] > 0]
        self.lengths = lengths[self.others]
        self.unit = away[self.others] / self.lengths[:, None]  # (n, width)
        self.sides = space.sides()
        extra = [self.sides]
        if space.lifted:
            height = np.zeros((1, space.width))
            height[0, -1] = -1.0
            extra.append(height)
        self.extra = np.concatenate(extra)
        self.scarce: np.ndarray = np.zeros(len(self.others), dtype=bool)

    def disjoint(self, y: np.ndarray, most: int, guess: int = 8) -> list[Mixture]:
        """Up to `most` mixtures of pairwise disjoint sets, as many as dealing finds.

        `y` (width,) is a direction at which few classes beat t; `guess` says how many groups to
        begin with.
        """
        found = [Mixture(np.array([i]), np.ones(1)) for i in self.same.tolist()]
        strength = self.unit @ y
        self.scarce = strength >= 0
        pool = np.argsort(-strength, kind="stable")  # positions among the others, strongest first
        count = max(1, guess)
        while len(found) < most and len(pool):
            count = min(count, most - len(found), max(1, int(len(pool) / self.space.width)))
            held = self._deal(pool, count)
            if held:
                found += held[: most - len(found)]
                used = np.concatenate([m.classes for m in found])
                pool = pool[~np.isin(self.others[pool], used)]
            elif count == 1:
                break
            count = max(1, len(held) or count // 3)
        return found

    def _deal(self, pool: np.ndarray, count: int) -> list[Mixture]:
        """Mixtures of those among `count` groups dealt from the pool that hold one."""
        size = min(-(-len(pool) // count), max(_LARGEST * self.space.width, _SMALL))
        dealt = pool
        if size * count < len(pool):  # the strongest blockers, and an even sample of the rest
            strong = size * count // 2
            rest = pool[strong:]
            picked = np.linspace(0, len(rest) - 1, size * count - strong).astype(np.int64)
            dealt = np.concatenate([pool[:strong], rest[np.unique(picked)]])
        groups = [dealt[k::count] for k in range(count)]
        return [mixture for mixture in self.solve(groups) if mixture is not None]

    def solve(self, groups: list[np.ndarray]) -> list[Mixture | None]:
        """A mixture for each group (positions among the others), or None where there is none."""
        result: list[Mixture | None] = []
        width = self.space.width
        longest = max((len(g) for g in groups), default=1) + len(self.extra)
        step = max(1, _BYTES // (8 * longest * width))
        for start in range(0, len(groups), step):
            part = groups[start : start + step]
            count = max(len(g) for g in part)
            rows = np.zeros((len(part), count + len(self.extra), width))
            for k, group in enumerate(part):
                rows[k, : len(group)] = self.unit[group]
            rows[:, count:] = self.extra
            duals = gordan(self.space, rows)
            good: np.ndarray = np.asarray(np.isfinite(duals).all(axis=1))
            duals = np.where(good[:, None], duals, 0.0)
            weights, fine = balanced(self.space.backend, rows, duals)
            for k, group in enumerate(part):
                usable = bool(good[k] and fine[k])
                vertex = self._vertex(group, rows[k], duals[k]) if usable else None
                if vertex is None and usable:
                    one = slice(k, k + 1)
                    shares = self._fewer(rows[one], weights[one], fine[one], count)[0]
                    vertex = self._mixture(group, shares)
                result.append(vertex)
        return result

    def _fewer(
        self, rows: np.ndarray, weights: np.ndarray, fine: np.ndarray, count: int
    ) -> np.ndarray:
        """The smallest weights dropped as far as the rest can balance without them: the classes
        they stood on are free for other mixtures."""
        for share in _FEWER:
            shares = np.sort(weights[:, :count], axis=1)[:, ::-1]
            held = (shares > 0).sum(axis=1)
            keep = np.minimum(held, np.maximum(self.space.width + 1, (share * held).astype(int)))
            limit = np.take_along_axis(shares, np.maximum(keep - 1, 0)[:, None], axis=1)
            fewer = weights.copy()
            fewer[:, :count][weights[:, :count] < limit] = 0.0
            fewer, good = balanced(self.space.backend, rows, fewer)
            weights = np.where((good & fine)[:, None], fewer, weights)
        return weights

    def _vertex(self, group: np.ndarray, rows: np.ndarray, duals: np.ndarray) -> Mixture | None:
        """A mixture of no more of the group's classes than it needs, few of them scarce."""
        from scipy.optimize import linprog

        width = self.space.width
        chosen = np.sort(np.argsort(-duals[: len(group)])[: _COLUMNS * width])
        cost = np.where(self.scarce[group[chosen]], 1.0, _CHEAP)
        at, named, least = chosen, np.ones(len(chosen)), np.zeros(len(chosen))
        if self.space.lifted:  # the height, with a little weight: room for rounding
            at, cost = np.append(chosen, len(rows) - 1), np.append(cost, 0.0)
            named, least = np.append(named, 0.0), np.append(least, _ROOM)
        solved = linprog(
            cost, A_eq=np.vstack([rows[at].T, named]), b_eq=np.append(np.zeros(width), 1.0),
            bounds=[(low, None) for low in least.tolist()], method="highs-ds",
        )  # fmt: skip
        if solved.status != 0:
            return None
        sparse = np.zeros(len(rows))
        sparse[at] = np.where(solved.x > 1e-12, solved.x, 0.0)
        moved, good = balanced(self.space.backend, rows[None], sparse[None])
        return self._mixture(group, moved[0]) if good[0] else None

    def _mixture(self, group: np.ndarray, weights: np.ndarray) -> Mixture | None:
        shares = weights[: len(group)] / self.lengths[group]
        total = shares.sum()
        if not (total > 0 and np.isfinite(total)):
            return None
        kept = np.flatnonzero(shares > 0)
        kept = kept[np.argsort(self.others[group[kept]])]
        return Mixture(self.others[group[kept]].astype(np.int32), shares[kept] / total)


def gordan(space: Space, rows: np.ndarray) -> np.ndarray:
    """λ ≥ 0 with Σ λ_k a_k = 0 for each system of rows, NaN where a·y < 0 has a solution (or none
    was found in time): (B, n, m) → (B, n). Rows of zeros are no rows."""
    result = np.full(rows.shape[:2], np.nan)
    live = np.arange(len(rows))
    present: np.ndarray = np.asarray(rows.any(axis=2))
    y = np.zeros((len(rows), rows.shape[2]))
    with np.errstate(all="ignore"):
        for _ in range(_STEPS):
            if not len(live):
                break
            part, here = rows[live], present[live]
            q = 1 / (1 - np.einsum("bnm,bm->bn", part, y[live]))
            scaled = part * q[:, :, None]
            hessian = scaled.swapaxes(1, 2) @ scaled
            hessian[:, range(hessian.shape[1]), range(hessian.shape[1])] += _RIDGE
            move = -space.backend.solve(hessian, scaled.sum(axis=1))
            change = np.einsum("bnm,bm->bn", part, move)
            relative = change * q
            balanced_now: np.ndarray = np.asarray(relative.min(axis=1) > -1)
            result[live[balanced_now]] = np.where(here, q * (1 + relative), 0.0)[balanced_now]
            y[live] += _length(relative)[:, None] * move
            ahead = np.einsum("bnm,bm->bn", part, y[live])
            separated = (np.where(here, ahead, -1).max(axis=1) < 0) | (
                np.where(here, change, -1).max(axis=1) < 0
            )
            live = live[~(balanced_now | separated | ~np.isfinite(move).all(axis=1))]
    return result


def _length(relative: np.ndarray) -> np.ndarray:
    """Step lengths near the minimum of −Σ log(1 − α·relative_k): (B,)."""
    largest = relative.max(axis=1)
    limit = 0.98 / np.maximum(largest, 1e-9)
    length = np.minimum(1.0, limit)
    for _ in range(6):
        ratio = relative / (1 - length[:, None] * relative)
        slope, curve = ratio.sum(axis=1), (ratio * ratio).sum(axis=1)
        wanted = np.maximum(length - slope / np.maximum(curve, 1e-300), 1e-3 * length)
        length = np.minimum(np.minimum(wanted, 8 * length), limit)
    return length
