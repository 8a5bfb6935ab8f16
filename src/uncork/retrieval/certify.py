"""The trusted code: checks proofs about sets of items, and searches for none.

With z_i = a_i·x + c_i the score of item i at the query x ∈ D (`scored`), two claims are checked,
with the rounding bounds of `auditing.certify` (`docs/explanation/retrieval.md` gives the argument):

* a witness: at an x ∈ D so many of the relevant items are among the first k, or all of them are
  before every other item. An item at the same score counts as ahead.
* two mixtures: weights λ on some relevant items and μ on others, whole numbers with equal sums,
  such that Σ λ_i z_i ≤ Σ μ_j z_j at every x ∈ D. Then at every x some of the others is at or
  above the lowest of these relevant items.

So many pairs of mixtures whose others are pairwise disjoint prove that so many of the others are at
or above the lowest of the relevant items P that they name: a conflict. It costs places: where all
of P are among the first k, only k − (pairs) of the first k can be relevant.

Where the sum must vanish exactly, rounding is absorbed (`auditing.certify.absorber`), with one more
column that keeps the two sums equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from uncork.auditing.certify.absorber import Absorber
from uncork.auditing.certify.balance import Balance
from uncork.auditing.certify.latent import Latent
from uncork.auditing.certify.support import finite_part, part_below_zero, upper_bound
from uncork.core.items import Items
from uncork.core.rigour import TINY, UNIT, add_up, check_arithmetic, gamma, row_norms, up
from uncork.domain import Domain, Unbounded
from uncork.retrieval.scored import Rows, Scored

_ROWS = 4096
_EXACT_SIZE = 200_000  # numbers in rows up to which a proof is also tried in fractions
_PAID = 1.05  # what a query's own error costs, with the rounding of whatever it passes through
_FLOORS = (1e-2, 1e-5, 1e-9)  # of the largest weight: rows that absorb rounding have this much
_MOST_BITS = 1 << 17  # of a whole number in a proof


@dataclass(frozen=True)
class Mixtures:
    """λ on relevant items and μ on others: whole numbers with equal sums."""

    relevant: np.ndarray  # ids
    relevant_weights: tuple[int, ...]
    others: np.ndarray
    other_weights: tuple[int, ...]


@dataclass(frozen=True)
class Seen:
    """Bounds on scores at one query vector."""

    low: np.ndarray  # (relevant,) each relevant item's score is at least this
    high: np.ndarray  # (relevant,) and at most this
    rivals: np.ndarray  # ids of the highest others, highest first
    heights: np.ndarray  # at most these are their scores
    all_seen: bool  # whether there are no others than these

    @property
    def margin(self) -> float:
        """Proven: all relevant items lead all others by so much. Not above zero proves nothing."""
        if not len(self.low):
            return float("nan")
        best = self.heights[0] if len(self.heights) else -np.inf
        return float((self.low.min() - best) * (1 - 2.0**-50))

    def among_first(self, k: int) -> int:
        """Proven: so many relevant items are among the first k. Needs min(k, all) rivals."""
        if len(self.heights) < k and not self.all_seen:
            return 0
        found = 0
        for i, low in enumerate(self.low.tolist()):
            ahead = int((self.heights >= low).sum()) + int((self.high >= low).sum())
            ahead -= int(self.high[i] >= low)
            found += ahead < k
        return found


class SetCertifier:
    """Checks proofs about sets of items for queries in one domain."""

    def __init__(self, items: Items, domain: Domain) -> None:
        self.scored = Scored(items)
        self.domain = domain
        self.latent = Latent(domain, items.features)
        self.base = self.latent.base
        self.kappa = gamma(items.features + 16) * 1.001 + 1.01 * self.scored.share
        self.slop = (items.features + 16) * 2 * TINY

    # Witnesses

    def look(self, u: np.ndarray, relevant: Sequence[np.ndarray], most: int) -> list[Seen | None]:
        """What is proven of the scores at each query u (n, latent): its relevant items, and the
        highest `most` of the others. None where u is outside its set or something overflowed."""
        check_arithmetic()
        u = np.asarray(u, dtype=np.float64)
        with np.errstate(all="ignore"):
            inside = np.asarray(self.base.contains(u))
            x, error = self.latent.forward(u)
            drift = np.zeros(len(u)) if self.latent.is_identity else row_norms(error)
            reach = row_norms(x)
            safe = inside & np.isfinite(4 * reach * (1 + self.scored.norms.max()))
            safe &= np.isfinite(drift)
            reach = self.kappa * reach + _PAID * drift  # of a row of length one
            found: list[Seen | None] = [None] * len(u)
            at = np.flatnonzero(safe)
            if len(at):
                named = [np.asarray(relevant[k], dtype=np.int64) for k in at.tolist()]
                for k, seen in zip(
                    at.tolist(), self._bounds(x[at], reach[at], named, most), strict=True
                ):
                    found[k] = seen
        return found

    def _bounds(
        self, x: np.ndarray, reach: np.ndarray, relevant: list[np.ndarray], most: int
    ) -> list[Seen]:
        scored = self.scored
        most = min(most, scored.count)
        ids = np.zeros((len(x), 0), dtype=np.int64)
        heights = np.zeros((len(x), 0))
        lows = [np.empty(len(r)) for r in relevant]
        highs = [np.empty(len(r)) for r in relevant]
        owner = np.repeat(np.arange(len(x)), [len(r) for r in relevant])
        place = np.concatenate([np.arange(len(r)) for r in relevant] or [np.zeros(0, int)])
        flat = np.concatenate([*relevant, np.zeros(0, dtype=np.int64)])
        for start, block in scored.blocks(_ROWS):
            part = slice(start, start + len(block))
            constants = scored.constants[part]
            z = x @ block.T
            z += constants
            off = self.kappa * np.abs(constants) + scored.slack[part] * 1.01 + self.slop
            upper = np.multiply.outer(reach, scored.norms[part])
            upper += off
            lower_off = upper  # the same room below
            here = np.flatnonzero((flat >= start) & (flat < start + len(block)))
            for k in here.tolist():
                row, column = int(owner[k]), int(flat[k]) - start
                lows[row][place[k]] = z[row, column] - lower_off[row, column]
                highs[row][place[k]] = z[row, column] + lower_off[row, column]
            upper += z
            if len(here):
                upper[owner[here], flat[here] - start] = -np.inf
            upper[np.isnan(upper)] = np.inf
            ids, heights = _highest(ids, heights, upper, start, most)
        seen = []
        for k, named in enumerate(relevant):
            real = heights[k] > -np.inf
            seen.append(
                Seen(lows[k], highs[k], ids[k][real], heights[k][real],
                     int(real.sum()) >= scored.count - len(named))
            )  # fmt: skip
        return seen

    def settled(self, u: np.ndarray, relevant: np.ndarray, seen: Seen) -> Seen:
        """The same with what rounding leaves open compared in fractions, where that is possible:
        bounds that decide as the exact scores do."""
        scored = self.scored
        if not scored.is_exact or not len(seen.low):
            return seen
        close = np.flatnonzero(seen.heights >= seen.low.min())
        if not seen.all_seen and len(close) == len(seen.heights):
            return seen
        if (len(close) + len(relevant)) * scored.features > _EXACT_SIZE:
            return seen
        x = self.latent.forward_exactly([Fraction(v) for v in u.tolist()])
        own = [self.exact_score(int(i), x) for i in relevant]
        rivals = [self.exact_score(int(seen.rivals[j]), x) for j in close]
        order = sorted(set(own) | set(rivals))
        rank = {value: float(k) for k, value in enumerate(order)}
        heights = np.full(len(seen.heights), -1.0)
        heights[close] = [rank[v] for v in rivals]
        exact = np.array([rank[v] for v in own])
        sorting = np.argsort(-heights, kind="stable")
        return Seen(exact, exact, seen.rivals[sorting], heights[sorting], seen.all_seen)

    def exact_score(self, i: int, x: Sequence[Fraction]) -> Fraction:
        row = self.scored.exactly(i)
        return sum((a * b for a, b in zip(row[:-1], x, strict=True)), row[-1])

    def look_exactly(
        self, u: Sequence[Fraction], relevant: np.ndarray, ignored: np.ndarray | None = None
    ) -> tuple[Seen | None, np.ndarray]:
        """As `look`, at a query given as fractions, every item in exact arithmetic; and the items
        other than these that are not below all relevant ones."""
        none = np.empty(0, dtype=np.int64)
        scored = self.scored
        fits = scored.is_exact and scored.count * scored.features <= _EXACT_SIZE
        numbers = [n for v in u for n in (v.numerator, v.denominator)]
        short = all(n.bit_length() <= _MOST_BITS for n in numbers)
        if not fits or not short or len(u) != self.latent.width:
            return None, none
        if not self.base.contains_exactly(u):
            return None, none
        x = self.latent.forward_exactly(u)
        scores = [self.exact_score(i, x) for i in range(scored.count)]
        rank = {value: float(k) for k, value in enumerate(sorted(set(scores)))}
        z = np.array([rank[v] for v in scores])
        left_out = relevant if ignored is None else np.concatenate([relevant, ignored])
        others = np.setdiff1d(np.arange(scored.count), relevant)
        order = others[np.argsort(-z[others], kind="stable")]
        own = z[relevant]
        bad = np.setdiff1d(others[z[others] >= own.min()], left_out)
        return Seen(own, own, order, z[order], True), bad[np.argsort(-z[bad], kind="stable")]

    # Mixtures

    def mixtures(self, proof: Mixtures) -> float:
        """A proven lower bound on Σ μ_j z_j − Σ λ_i z_i over all of D, for weights scaled to sum to
        one. Zero or more is a proof; NaN or less is a refusal."""
        check_arithmetic()
        if not self._sane(proof):
            return float("nan")
        proof = self._without_equals(proof)
        if not len(proof.relevant):
            return 0.0
        with np.errstate(all="ignore"):
            weights = [*proof.relevant_weights, *proof.other_weights]
            lead = float("nan")
            if max(weights) < 2**53:
                lead = self._in_floats(proof)
            size = len(weights) * self.scored.features
            if not lead >= 0 and self.scored.is_exact and size <= _EXACT_SIZE:
                exact = self._exactly(proof)
                return lead if np.isnan(exact) else exact
            return lead

    def conflict(self, relevant: np.ndarray, proofs: Sequence[Mixtures]) -> int:
        """Proven: at every query so many of the items that are not relevant are at or above the
        lowest of those that the proofs name. 0 where a proof fails or they share others."""
        others = np.concatenate([p.others for p in proofs] or [np.empty(0, dtype=np.int64)])
        if len(np.unique(others)) != len(others) or np.isin(others, relevant).any():
            return 0
        named = np.concatenate([p.relevant for p in proofs] or [np.empty(0, dtype=np.int64)])
        if not np.isin(named, relevant).all():
            return 0
        return len(proofs) if all(self.mixtures(p) >= 0 for p in proofs) else 0

    def _sane(self, proof: Mixtures) -> bool:
        sides = (
            (proof.relevant, proof.relevant_weights), (proof.others, proof.other_weights),
        )  # fmt: skip
        for ids, weights in sides:
            if ids.ndim != 1 or ids.dtype.kind not in "iu" or len(ids) != len(weights):
                return False
            if not len(ids) or len(np.unique(ids)) != len(ids):
                return False
            if ids.min() < 0 or ids.max() >= self.scored.count or min(weights) <= 0:
                return False
            if max(weights).bit_length() > _MOST_BITS:
                return False
        if np.isin(proof.relevant, proof.others).any():
            return False
        return sum(proof.relevant_weights) == sum(proof.other_weights)

    def _without_equals(self, proof: Mixtures) -> Mixtures:
        """Of cosine: weights on both sides of one direction cancel, whatever its exact numbers."""
        if self.scored.is_exact:
            return proof
        left = dict(zip(proof.relevant.tolist(), proof.relevant_weights, strict=True))
        right = dict(zip(proof.others.tolist(), proof.other_weights, strict=True))
        near = self.scored.take(proof.relevant).values @ self.scored.take(proof.others).values.T
        for a, b in np.argwhere((near > 1 - 1e-9) | (near == 0)).tolist():
            i, j = int(proof.relevant[a]), int(proof.others[b])
            shared = min(left.get(i, 0), right.get(j, 0))
            if shared and self.scored.same_direction(i, j):
                left[i] -= shared
                right[j] -= shared
        kept_left = {i: w for i, w in left.items() if w}
        kept_right = {j: w for j, w in right.items() if w}
        return Mixtures(
            np.array(list(kept_left), dtype=np.int64), tuple(kept_left.values()),
            np.array(list(kept_right), dtype=np.int64), tuple(kept_right.values()),
        )  # fmt: skip

    def _in_floats(self, proof: Mixtures) -> float:
        ids = np.concatenate([proof.relevant, proof.others])
        signs = np.repeat([1.0, -1.0], [len(proof.relevant), len(proof.others)])
        weights = np.array([*proof.relevant_weights, *proof.other_weights], dtype=np.float64)
        total = float(sum(proof.relevant_weights))
        weights, total = weights / total, 1.0
        # Dividing rounds each weight: what stands for the proof is the weights before.
        rounding = 2 * UNIT
        rows = self.scored.take(ids)
        balance = self._balance(rows, signs, weights, rounding)
        seen = balance.seen_through(self.latent)
        upper = upper_bound(
            self.base, seen.residual, seen.error, seen.constant, seen.constant_error
        )
        if not upper <= 0:
            for view, floor in itertools.product(self._views(balance, seen, rows), _FLOORS):
                better = _absorbed(view, signs, weights, floor)
                upper = better if np.isnan(upper) else float(np.fmin(upper, better))
                if upper <= 0:
                    break
        return float(np.nextafter(-upper / total, -np.inf)) if upper != 0 else 0.0

    def _balance(
        self, rows: Rows, signs: np.ndarray, weights: np.ndarray, rounding: float
    ) -> Balance:
        """Σ ±w a and Σ ±w c, with what rounding of sums, of weights and of rows may hide."""
        signed = weights * signs
        error = gamma(len(weights) + 8) + rounding
        tiny = (len(weights) + 8) * TINY
        off = error * (weights @ np.abs(rows.values)) + weights @ rows.error + tiny
        constant_off = 0.0
        if rows.constants.any() or rows.slack.any():
            constant_off = float(error * (weights @ np.abs(rows.constants)))
            constant_off = float(up(constant_off + float(weights @ rows.slack) + tiny, 8))
        return Balance(
            signed @ rows.values, up(off, len(weights) + 8), float(signed @ rows.constants),
            constant_off, 1.0, 0.0,
        )  # fmt: skip

    def _views(self, balance: Balance, seen: Balance, rows: Rows) -> list[_View]:
        """The sum as u sees it, and as x does: where it vanishes for every x, no u matters."""
        pulled, error, shift, slack = self.latent.host.back(rows.values, rows.error)
        constants = rows.constants + shift
        wrong = add_up(rows.slack, slack, 4 * UNIT * np.abs(constants))
        views = [_View(seen, pulled, error, constants, wrong, self.base, self.latent.rank)]
        if not self.latent.is_identity:
            features = self.scored.features
            plain = (rows.values, rows.error, rows.constants, rows.slack)
            views.append(_View(balance, *plain, Unbounded(), features))
        return views

    def _exactly(self, proof: Mixtures) -> float:
        total = [Fraction(0)] * (self.scored.features + 1)
        sides = (
            (proof.relevant, proof.relevant_weights, 1), (proof.others, proof.other_weights, -1),
        )  # fmt: skip
        for ids, weights, sign in sides:
            for i, weight in zip(ids.tolist(), weights, strict=True):
                row = self.scored.exactly(i)
                total = [a + sign * weight * b for a, b in zip(total, row, strict=True)]
        seen, shift = self.latent.back_exactly(total[:-1])
        upper = self.base.upper_bound_exactly(seen, total[-1] + shift)
        if upper is None or upper > 0:
            return float("nan")
        try:
            lead = float(-upper / sum(proof.relevant_weights))
        except OverflowError:
            return 0.0
        return max(0.0, float(np.nextafter(lead, 0.0)))


@dataclass(frozen=True)
class _View:
    """A sum of rows, the rows themselves, and the set that it is to be bounded on."""

    sum: Balance
    rows: np.ndarray  # (n, width)
    error: np.ndarray
    constants: np.ndarray  # (n,)
    slack: np.ndarray
    base: Domain
    rank: int  # an upper bound on that of all rows

    def wishes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Sums that would be a proof, and in which features they must be hit exactly."""
        residual = self.sum.residual
        every = np.ones(len(residual), dtype=bool)
        wishes = [(np.zeros_like(residual), every)]
        if self.rank < len(residual):  # then not every sum can be reached
            return wishes
        for part in (finite_part, part_below_zero):
            wanted = part(self.base, residual)
            clear = np.abs(wanted) > 1e-6 * np.abs(residual).max(initial=0.0)
            clear &= np.abs(wanted) > 4 * self.sum.error
            wishes.append((np.where(clear, residual, 0.0), ~clear))
            wishes.append((wanted, every))
        return wishes


def _absorbed(view: _View, signs: np.ndarray, weights: np.ndarray, floor: float) -> float:
    """An upper bound for weights near these whose sum is exactly what is wished for.

    What the wish says nothing of may move as much as the weights do: features in which the sum
    lies clear of zero need not be hit, where only its sign there matters.
    """
    able = weights >= floor * weights.max()
    least = float(weights[able].min()) * (1 - 4 * UNIT)
    rows, error = view.rows[able], view.error[able]
    size = float(row_norms(add_up(np.abs(view.constants[able]), view.slack[able])[None])[0])
    column = 2.0 ** np.round(np.log2(max(float(np.abs(rows).max()), 1e-300)))
    best = float("nan")
    for wanted, exact in view.wishes():
        rank = view.rank if exact.all() else int(exact.sum())
        if int(able.sum()) < rank + 1:
            continue
        lifted = np.column_stack([rows[:, exact], np.full(len(rows), column)])
        absorber = Absorber.of(
            lifted * signs[able, None],
            np.column_stack([error[:, exact], np.zeros(len(rows))]), size, rank + 1,
        )  # fmt: skip
        away = (view.sum.residual - wanted)[exact]
        room = add_up(view.sum.error[exact], 2 * UNIT * np.abs(away))
        # The two sums of weights are equal exactly: nothing is to be moved there.
        moved = absorber.reach(np.append(away, 0.0), np.append(room, 0.0))
        if not moved <= least / 2:
            continue
        extra = float(up(moved * absorber.constants, 4)) if absorber.constants else 0.0
        lengths = row_norms(add_up(np.abs(rows), error).T)
        follows = np.where(exact, 0.0, add_up(view.sum.error, up(moved * lengths, 4)))
        slack = float(add_up(view.sum.constant_error, extra))
        bound = upper_bound(view.base, wanted, follows, view.sum.constant, slack)
        best = float(np.fmin(best, bound))
        if best <= 0:
            break
    return best


def _highest(
    ids: np.ndarray, heights: np.ndarray, upper: np.ndarray, start: int, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """The highest of those so far and of one more block, highest first."""
    count = upper.shape[1]
    if count > most:
        if heights.shape[1] == most and (upper.max(axis=1) <= heights[:, -1]).all():
            return ids, heights
        best = np.argpartition(-upper, most - 1, axis=1)[:, :most]
    else:
        best = np.broadcast_to(np.arange(count), upper.shape)
    both = np.concatenate([heights, np.take_along_axis(upper, best, axis=1)], axis=1)
    names = np.concatenate([ids, best + start], axis=1)
    order = np.argsort(-both, axis=1, kind="stable")[:, :most]
    return np.take_along_axis(names, order, axis=1), np.take_along_axis(both, order, axis=1)
