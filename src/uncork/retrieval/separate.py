"""The search: is there a query that separates some items from others? Many questions at once.

S is before the rest at u if some τ lies between their scores: a_i·u + c_i > τ > a_j·u + c_j. With a
length h > 0 for what does not scale, and rows r = ±(a, −1, c), that is r·y > 0 for y = (u, τ, h),
beside g·y ≥ 0 for the sides of the domain. So minimise over y

    ½ Σ max(0, 1 − r·y)² + ½ max(0, 1 − h)² + ½ Σ max(0, −g·y)²

on a few rows. It reaches zero if and only if they can be separated. If not, the weights
α = max(0, 1 − r·y) at the minimum balance, because the gradient vanishes: Σ α r plus weights of
sides is zero, and the τ in it says that both mixtures have equal sums. The function is piecewise
quadratic, so Newton's method with an exact line search ends after finitely many steps.

What is found is only proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uncork.retrieval.certify import Mixtures, SetCertifier

_SAMPLE = 8192  # rows that coordinates are made from
_STEPS = 60
_CENTRED = 12  # of these with a little weight on ‖y‖, which keeps y in the middle of its region
_RIDGE = 1e-3
_VANISHED = 1e-13  # of a gradient, beside the terms that it sums
_INSIDE = 1 - 1e-6
_WHOLE = 2**52  # what weights sum to


@dataclass(frozen=True)
class Answer:
    """For one question: a query u that separates its rows, or weights that say none does."""

    u: np.ndarray | None = None
    weights: np.ndarray | None = None  # (rows,)


class Separation:
    """Coordinates in which rows of items are separated."""

    def __init__(self, certifier: SetCertifier) -> None:
        self.certifier, self.scored = certifier, certifier.scored
        self.base, self.width = certifier.base, certifier.latent.width
        self.outline = self.base.outline(self.width)
        rng = np.random.default_rng(0)
        count = self.scored.count
        sample = np.arange(count)
        if count > _SAMPLE:
            sample = np.sort(rng.choice(count, _SAMPLE, replace=False))
        rows, constants = self._pulled(sample)
        self.middle, self.level = rows.mean(axis=0), float(constants.mean())
        away = rows - self.middle
        spread = constants - self.level
        surrounds = self.outline.surrounds_zero or self.base.is_everything
        self.free = bool(surrounds and not constants.any())
        self.everything = self.free or self.base.is_everything
        if self.everything:
            values, vectors = np.linalg.eigh(away.T @ away / len(away))
            floor = max(float(values[-1]), 0.0) * 1e-10
            self.turn = vectors / np.sqrt(np.maximum(values, floor) + 1e-300)
        else:
            size = float(np.sqrt((away**2).mean())) or 1.0
            self.turn = np.eye(self.width) / size
        self.unit = float(np.abs(spread).max()) or 1.0  # of c: what h is measured in
        self.columns = self.width + (1 if self.free else 2)
        self.sides = self._sides()
        self.radius = np.inf if self.everything else self.outline.radius

    def _pulled(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows and constants as u sees them."""
        taken = self.scored.take(ids)
        rows, _, shift, _ = self.certifier.latent.host.back(taken.values, taken.error)
        return rows, taken.constants + shift

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Rows of y for items, to be above zero: (n, columns)."""
        values, constants = self._pulled(ids)
        parts = [(values - self.middle) @ self.turn, np.full((len(ids), 1), -1.0)]
        if not self.free:
            parts.append(((constants - self.level) / self.unit)[:, None])
        return np.concatenate(parts, axis=1)

    def _sides(self) -> np.ndarray:
        """Rows g of y with g·y ≥ 0 in the domain: (sides, columns). Here u is turn·y₀ and h is a
        length in units of c."""
        if self.everything:
            return np.empty((0, self.columns))
        rows = []
        for j in range(self.width):
            for sign, bound in ((1.0, self.outline.lower[j]), (-1.0, self.outline.upper[j])):
                if np.isfinite(bound):
                    row = np.zeros(self.columns)
                    row[: self.width] = sign * self.turn[j]
                    row[-1] = -sign * bound / self.unit
                    rows.append(row)
        if self.outline.has_total:
            row = np.zeros(self.columns)
            row[: self.width] = -self.turn.sum(axis=0)
            row[-1] = self.outline.total / self.unit
            rows.append(row)
        sides = np.array(rows).reshape(-1, self.columns)
        lengths = np.linalg.norm(sides, axis=1, keepdims=True)
        return np.asarray(sides / np.maximum(lengths, 1e-300))

    def query(self, y: np.ndarray) -> np.ndarray:
        """u for each y (n, columns), inside the domain: (n, latent)."""
        u = y[:, : self.width] @ self.turn.T
        if self.free:
            size = np.linalg.norm(u, axis=1, keepdims=True)
            if np.isfinite(self.outline.radius):
                return np.asarray(u * (self.outline.radius * _INSIDE / np.maximum(size, 1e-300)))
            room = np.minimum(-self.outline.lower, self.outline.upper)
            if np.isfinite(room).any():
                size = np.abs(u / room).max(axis=1, keepdims=True)
            return np.asarray(u / np.maximum(size, 1e-300) * _INSIDE)
        u = u * (self.unit / np.maximum(y[:, -1:], 1e-300))
        if np.isfinite(self.radius):
            size = np.linalg.norm(u, axis=1, keepdims=True)
            u = u * np.minimum(1.0, self.radius * _INSIDE / np.maximum(size, 1e-300))
        elif not self.everything:
            u = np.clip(u, self.outline.lower, self.outline.upper)
            u = u if self.outline.exact else self.base.pulled_in(u)
        return np.asarray(u)

    def guess(self, relevant: Sequence[np.ndarray]) -> np.ndarray:
        """A first query for each set: the one in which its items' whitened rows are as one."""
        found = np.zeros((len(relevant), self.columns))
        for k, ids in enumerate(relevant):
            rows = self.rows(ids)[:, : self.width]
            gram = rows @ rows.T
            gram[np.diag_indices(len(ids))] += 1e-6 * max(float(np.trace(gram)), 1e-300)
            found[k, : self.width] = np.linalg.solve(gram, np.ones(len(ids))) @ rows
        if not self.free:
            found[:, -1] = 1.0
            # −½‖w‖²: the nearest items are those around u itself, at the length that fits
            if self.everything:
                for k, ids in enumerate(relevant):
                    found[k, : self.width] = self._centre(ids)
        return found

    def _centre(self, ids: np.ndarray) -> np.ndarray:
        """Of rows with constants that are not all zero: the mean row as a query."""
        values, _ = self._pulled(ids)
        return np.asarray(np.linalg.pinv(self.turn) @ (values.mean(axis=0) / self.unit))

    def solve(self, rows: list[np.ndarray], height: float = 1.0) -> list[Answer]:
        """Answers for signed rows (k, columns), one question each.

        `height` is what h is to reach: where the domain has sides, a larger one gives weights that
        leave room, because they also say that h cannot be what it is to be.
        """
        longest = max(len(r) for r in rows)
        common = self.sides
        if not self.free:
            upright = np.zeros((1, self.columns))
            upright[0, -1] = 1.0
            common = np.concatenate([upright, self.sides])
        strict = 0 if self.free else 1
        total = longest + len(common)
        table = np.zeros((len(rows), total, self.columns))
        wanted = np.zeros((len(rows), total))
        for k, own in enumerate(rows):
            table[k, : len(own)] = own
            wanted[k, : len(own)] = 1.0
        table[:, longest:] = common
        wanted[:, longest : longest + strict] = height
        newton = _Newton(table, wanted, self.radius / self.unit, self.turn, self.width)
        y, alpha, separated = newton.run()
        answers = []
        queries = self.query(y)
        for k, own in enumerate(rows):
            if separated[k]:
                answers.append(Answer(u=queries[k]))
            else:
                answers.append(Answer(weights=alpha[k, : len(own)]))
        return answers


class _Newton:
    def __init__(
        self, table: np.ndarray, wanted: np.ndarray, radius: float, turn: np.ndarray, width: int
    ) -> None:
        self.table, self.wanted = table, wanted  # (B, n, m), (B, n)
        self.radius, self.turn, self.width = radius, turn, width
        self.y = np.zeros((len(table), table.shape[2]))
        self.y[:, -1] = 1.0 if np.isfinite(radius) else 0.0
        self.sizes = np.linalg.norm(table, axis=2)

    def run(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """y, the weights there, and whether y separates."""
        count = len(self.y)
        separated = np.zeros(count, dtype=bool)
        alpha = np.zeros(self.wanted.shape)
        live = np.arange(count)
        for step in range(_STEPS):
            if not len(live):
                break
            ridge = _RIDGE if step < _CENTRED else 0.0
            table, wanted, y = self.table[live], self.wanted[live], self.y[live]
            at = np.einsum("bnm,bm->bn", table, y)
            slack = wanted - at
            here = np.maximum(slack, 0.0)
            gradient = -np.einsum("bnm,bn->bm", table, here)
            hessian = np.einsum("bnm,bn,bnk->bmk", table, slack > 0, table, optimize=True)
            self._round(y, gradient, hessian)
            alpha[live] = here
            size = (here * self.sizes[live]).sum(axis=1)
            left = np.linalg.norm(gradient, axis=1) / np.maximum(size, 1e-300)
            good = self._separates(at, wanted, y)
            if step >= _CENTRED or step == _CENTRED - 1:
                separated[live] = good
            done = np.asarray((good & (step >= _CENTRED - 1)) | (left < _VANISHED))
            separated[live[done]] = good[done]
            scale = np.trace(hessian, axis1=1, axis2=2) / hessian.shape[1] + 1e-300
            diagonal = np.arange(hessian.shape[1])
            if ridge:
                weight = ridge * np.maximum(scale, 1e-12)
                gradient = gradient + weight[:, None] * y
                hessian[:, diagonal, diagonal] += weight[:, None]
            hessian[:, diagonal, diagonal] += (1e-13 * scale)[:, None]
            try:
                move = -np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
            except np.linalg.LinAlgError:
                break
            fine = np.asarray(np.isfinite(move).all(axis=1))
            move = np.where(fine[:, None], move, 0.0)
            length = self._length(slack, np.einsum("bnm,bm->bn", table, move), y, move)
            self.y[live] = y + length[:, None] * move
            live = live[~done]
        return self.y, alpha, separated

    def _separates(self, at: np.ndarray, wanted: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Whether every strict row is above zero, clear of rounding, and no side is crossed."""
        strict = np.where(wanted > 0, at, np.inf).min(axis=1)
        size = np.abs(at).max(axis=1, initial=0.0)
        sides = np.where(wanted > 0, np.inf, at).min(axis=1)
        # Bringing y back over a side must not undo what separates.
        good = (strict > 1e-10 * size) & (sides > -1e-3 * strict)
        if np.isfinite(self.radius):
            good &= self._over(y) <= 1e-3 * strict
        return np.asarray(good)

    def _over(self, y: np.ndarray) -> np.ndarray:
        u = y[:, : self.width] @ self.turn.T
        return np.asarray((np.linalg.norm(u, axis=1) - self.radius * y[:, -1]) / self._unit)

    @property
    def _unit(self) -> float:
        return 1.0 + self.radius

    def _round(self, y: np.ndarray, gradient: np.ndarray, hessian: np.ndarray) -> None:
        """Add ½ max(0, ‖u‖ − R h)² to the gradients and Hessians, where there is a radius."""
        if not np.isfinite(self.radius):
            return
        over = np.maximum(self._over(y), 0.0)
        u = y[:, : self.width] @ self.turn.T
        norm = np.maximum(np.linalg.norm(u, axis=1, keepdims=True), 1e-300)
        out = np.zeros_like(y)
        out[:, : self.width] = (u / norm) @ self.turn
        out[:, -1] = -self.radius
        out /= self._unit
        gradient += over[:, None] * out
        on = (over > 0)[:, None, None]
        hessian += on * out[:, :, None] * out[:, None, :]
        flat = self.turn.T @ self.turn
        along = (u / norm) @ self.turn
        across = flat[None] - along[:, :, None] * along[:, None, :]
        share = (over / norm[:, 0] / self._unit)[:, None, None]
        hessian[:, : self.width, : self.width] += share * across

    def _length(
        self, slack: np.ndarray, along: np.ndarray, y: np.ndarray, move: np.ndarray
    ) -> np.ndarray:
        """The step that minimises the function on a line, by bisection on its slope: (B,)."""

        def slope(length: np.ndarray) -> np.ndarray:
            rest = np.maximum(slack - length[:, None] * along, 0.0)
            found = -(rest * along).sum(axis=1)
            if np.isfinite(self.radius):
                point = y + length[:, None] * move
                over = np.maximum(self._over(point), 0.0)
                u = point[:, : self.width] @ self.turn.T
                norm = np.maximum(np.linalg.norm(u, axis=1), 1e-300)
                du = move[:, : self.width] @ self.turn.T
                rate = (u * du).sum(axis=1) / norm - self.radius * move[:, -1]
                found = found + over * rate / self._unit
            return np.asarray(found)

        low, high = np.zeros(len(slack)), np.ones(len(slack))
        for _ in range(20):  # further while it still goes down
            down = slope(high) < 0
            if not down.any():
                break
            low, high = np.where(down, high, low), np.where(down, 2 * high, high)
        one = np.ones(len(slack))
        flat = np.abs(slope(one)) <= 1e-12 * np.abs(slope(np.zeros(len(slack))))
        for _ in range(40):
            middle = (low + high) / 2
            down = slope(middle) < 0
            low, high = np.where(down, middle, low), np.where(down, high, middle)
        return np.where(flat, 1.0, low)


def whole_mixtures(
    relevant: np.ndarray, left: np.ndarray, others: np.ndarray, right: np.ndarray
) -> Mixtures | None:
    """Weights in floats as whole numbers with equal sums; None where one side has none."""
    sides = []
    for ids, weights in ((relevant, left), (others, right)):
        total = float(weights.sum())
        if not (total > 0 and np.isfinite(total)):
            return None
        whole = np.round(weights / total * _WHOLE).astype(np.int64)
        kept = whole > 0
        ids, whole = ids[kept], whole[kept]
        whole[np.argmax(whole)] += _WHOLE - int(whole.sum())
        sides.append((ids.astype(np.int64), tuple(int(w) for w in whole)))
    return Mixtures(*sides[0], *sides[1])
