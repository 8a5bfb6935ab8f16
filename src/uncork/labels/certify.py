"""The trusted code: checks proofs about label sets, and searches for none.

With a sign s_i = ±1 for every label that a set speaks about, a set is feasible if some x ∈ D has
s_i (w_i·x + b_i − θ_i) > 0 for all of them. Two claims are checked, with the rounding bounds of
`auditing.certify` (`docs/explanation/label-sets.md` gives the argument in full):

* a witness: an x ∈ D for which all of these hold;
* a mixture: λ ≥ 0, not all zero, with Σ λ_i s_i (w_i·x + b_i − θ_i) ≤ 0 at every x ∈ D. Then not
  all of its terms can be positive, so no x does.

A mixture is given as weights, or as one input: then λ_i = max(0, m − s_i z_i) there, whatever
floats that gives.

Where the sum must vanish exactly (no bias and no threshold, say), floats cannot show it, and need
not. Let A be the signed rows of the labels with λ_i ≥ ρ, R a matrix, and σ > 0 at most the least
singular value of A Rᵀ. Then every r that such rows can sum to is Aᵀμ for a μ with ‖μ‖ ≤ ‖R r‖/σ. So
while that is at most ρ/2, the weights λ − μ are positive and sum to exactly what was wished for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from uncork.auditing.certify.absorber import Absorber
from uncork.auditing.certify.balance import Balance, balance_of
from uncork.auditing.certify.digits import most_bits
from uncork.auditing.certify.latent import Latent
from uncork.auditing.certify.products import Device, Products
from uncork.auditing.certify.support import finite_part, part_below_zero, upper_bound
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.rigour import (
    TINY,
    UNIT,
    add_up,
    check_arithmetic,
    gamma,
    integers,
    lower_float,
    row_norms,
    up,
    whole_bits,
)
from uncork.domain import Domain

EXACT_PAIRS = 20_000  # pairs (input, label) settled in integers before a block is refused
_EXACT_SIZE = 200_000  # numbers in a mixture's rows up to which it is also tried exactly
_PAID = 1.05  # what an input's own error costs, with the rounding of whatever it passes through
_LARGEST_ABSORBER = 1 << 30  # products that are made for one set alone
_FLOORS = (1e-2, 1e-5, 1e-9)  # of the largest weight: labels that absorb rounding have this much


class LabelCertifier:
    """Checks proofs about label sets of one head with one threshold for each label."""

    def __init__(
        self,
        head: Head,
        thresholds: np.ndarray,
        domain: Domain | None = None,
        device: Device | None = None,
    ) -> None:
        self.head = head
        self.thresholds = np.asarray(thresholds, dtype=np.float64)
        if self.thresholds.shape != (head.classes,) or not np.isfinite(self.thresholds).all():
            raise UncorkError(
                f"thresholds of shape {self.thresholds.shape}: expected one finite number for "
                f"each of {head.classes} labels"
            )
        self.domain = head.domain if domain is None else domain
        self.domain.check(head.features)
        self.device = device or Device()
        self.latent = Latent(self.domain, head.features, self.device)
        self.base = self.latent.base
        self.products = Products(head, self.device)
        # c = b − θ rounds once: by nothing where the two are exact, as for θ = 0.
        self.offsets = head.offsets - self.thresholds
        back = self.offsets - head.offsets
        lost = (head.offsets - (self.offsets - back)) - (self.thresholds + back)
        exact = np.isfinite(self.offsets) & (lost == 0)
        self.offset_errors = np.where(exact, 0.0, 2 * UNIT * np.abs(self.offsets) + TINY)

    # Witnesses

    def witnesses(self, signs: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Proven lower bounds on min_i s_i (z_i − θ_i), one for each (set, input): (n,).

        A positive entry is a proof; anything else is a refusal. `signs` is (n, labels), `u`
        (n, latent).
        """
        check_arithmetic()
        u = np.asarray(u, dtype=np.float64)
        margins = np.full(len(u), np.nan)
        budget = EXACT_PAIRS
        with np.errstate(all="ignore"):  # what overflows is refused
            inside = np.flatnonzero(self.base.contains(u))
            if not len(inside):
                return margins
            x, drift = self._inputs(u[inside])
            margins[inside] = self._least(signs[inside], x, drift)
            for k in np.flatnonzero(np.isfinite(margins) & ~(margins > 0)).tolist():
                margins[k], spent = self._settled(signs[k], u[k], budget)
                budget -= spent
        return margins

    def _inputs(self, u: np.ndarray) -> tuple[Any, np.ndarray]:
        """x = F(u) on the device, and how far each may be from the true one: (n, d), (n,)."""
        given = self.device.put(u)
        if self.latent.is_identity:
            return given, np.zeros(len(u))
        x, error = self.latent.forward(given)
        return x, self.device.get(row_norms(error, self.device.xp))

    def _least(self, signs: np.ndarray, x: Any, drift: np.ndarray) -> np.ndarray:
        """The least of the lower bounds of each row: (n,)."""
        xp, put, get = self.device.xp, self.device.put, self.device.get
        length = row_norms(x, xp)
        reach, away = get(length), put(drift)
        least = np.full(len(signs), np.inf)
        for start, block in self.device.blocks(self.head):
            part = slice(start, start + block.shape[0])
            z = x @ block.T + put(self.offsets[part])
            here = xp.astype(put(signs[:, part]), xp.float64)
            low = here * z - self._errors(length, away, part, put)
            low = xp.where(here == 0, xp.full_like(low, np.inf), low)
            # NaN must not vanish in a minimum: a sum of the row carries it.
            lowest = get(xp.min(low, axis=1))
            least = np.minimum(least, np.where(np.isnan(get(xp.sum(z, axis=1))), np.nan, lowest))
        return np.where(np.isfinite(4 * reach * self.products.norms.max()), least, np.nan)

    def lowest(self, signs: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Proven lower bounds on s_i (z_i − θ_i) at inputs of D: (n, labels); −inf where none can
        be had."""
        check_arithmetic()
        u = np.asarray(u, dtype=np.float64)
        with np.errstate(all="ignore"):
            x, drift = self._inputs(u)
            reach = self.device.get(row_norms(x, self.device.xp))
            blocks = self.device.blocks(self.head)
            z = np.concatenate([self.device.get(x @ block.T) for _, block in blocks], axis=1)
            low = signs * (z + self.offsets) - self._errors(reach, drift, slice(None))
            fine = np.isfinite(low) & self.base.contains(u)[:, None]
            return np.where(fine & np.isfinite(4 * reach)[:, None], low, -np.inf)

    def _errors(
        self, reach: Any, drift: Any, part: slice, put: Callable[[np.ndarray], Any] = np.asarray
    ) -> Any:
        """How far each product may be off, for inputs of these lengths that may be off by that
        much: (n, labels of the part), where `put` puts things."""
        norms, offsets = put(self.products.norms[part]), put(np.abs(self.offsets[part]))
        wrong = put(2 * self.offset_errors[part])
        size = reach[:, None] * norms + offsets
        error = self.products.kappa * size + self.products.slop + wrong
        return error + _PAID * (drift[:, None] * norms)

    def _settled(self, signs: np.ndarray, u: np.ndarray, budget: int) -> tuple[float, int]:
        """The margin of one input with the labels that floats leave open in fractions."""
        x, drift = self._inputs(u[None])
        reach = np.asarray(self.device.get(row_norms(x, self.device.xp)))
        point = self.device.get(x)[0]
        z = np.concatenate([block @ point for _, block in self.head.blocks(4096)]) + self.offsets
        error = self._errors(reach, drift, slice(None))[0]
        asked = signs != 0
        low = np.where(asked, signs * z - error, np.inf)
        if (signs * z + error < 0)[asked].any():  # some label is on the wrong side
            return float(low.min()), 0
        close = np.flatnonzero(~(low > 0))
        if len(close) > budget:
            return float("nan"), 0
        exact = self.latent.forward_exactly([Fraction(v) for v in u.tolist()])
        margin = self.exact_margin(signs, exact, close)
        clear = float(low[low > 0].min(initial=np.inf))
        return min(margin, clear), len(close)

    def exact_witness(self, signs: np.ndarray, u: Sequence[Fraction]) -> float:
        """As `witnesses`, for one input given as fractions; every label in exact arithmetic."""
        numbers = [n for v in u for n in (v.numerator, v.denominator)]
        if len(u) != self.latent.width or not self._short(numbers):
            return float("nan")
        if not self.base.contains_exactly(u):
            return float("nan")
        return self.exact_margin(signs, self.latent.forward_exactly(u), np.flatnonzero(signs))

    def exact_margin(self, signs: np.ndarray, x: Sequence[Fraction], labels: np.ndarray) -> float:
        """min over the labels of s_i (z_i − θ_i) at x, exact but for rounding it down."""
        low: Fraction | None = None
        for i in labels.tolist():
            row = self._exact_row(i)
            z = sum((a * b for a, b in zip(row[:-1], x, strict=True)), row[-1]) * int(signs[i])
            low = z if low is None else min(low, z)
            if low <= 0:
                break
        return float("inf") if low is None else lower_float(low)

    def _exact_row(self, i: int) -> list[Fraction]:
        """(w_i, b_i − θ_i) in fractions."""
        values, scale = integers(self.head.rows(i, i + 1)[0])
        offset = Fraction(float(self.head.offsets[i])) - Fraction(float(self.thresholds[i]))
        return [*(Fraction(v, scale) for v in values), offset]

    @cached_property
    def _most_bits(self) -> int:
        more = whole_bits([self.thresholds]) * (self.latent.width + 3) * 8
        return most_bits(self.head, self.domain) + more

    def _short(self, numbers: Sequence[int]) -> bool:
        """Whether an exact proof's numbers are no longer than exact arithmetic makes them."""
        return all(n.bit_length() <= self._most_bits for n in numbers)

    # Mixtures

    def mixture(
        self,
        signs: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray,
        whole: tuple[int, ...] | None = None,
    ) -> float:
        """A proven lower bound on −Σ λ_i s_i (z_i − θ_i) / Σ λ_i over all of D, for weights of
        some labels; `whole` are the weights exactly, where floats are not.

        Zero or more is a proof that the set is infeasible; NaN or less is a refusal.
        """
        check_arithmetic()
        labels, weights = np.asarray(labels), np.asarray(weights, dtype=np.float64)
        if not self._sane(signs, labels, weights):
            return float("nan")
        with np.errstate(all="ignore"):
            if whole is not None:
                if len(whole) != len(labels) or not self._short(whole):
                    return float("nan")
                return self._exact_mixture(signs, labels, [Fraction(w) for w in whole])
            away = self.head.take(labels) * signs[labels, None]
            balance = balance_of(away, self.offsets[labels] * signs[labels], weights)
            wrong = up(float(weights @ self.offset_errors[labels]), len(labels) + 4)
            if self.offset_errors[labels].any():
                slack = add_up(balance.constant_error, wrong)
                balance = _with_slack(balance, slack)
            lead = self._lead(balance, labels, weights)
            if not lead >= 0 and away.size <= _EXACT_SIZE:
                exact = self._exact_mixture(signs, labels, [Fraction(w) for w in weights.tolist()])
                return lead if np.isnan(exact) else exact
            return lead

    def _sane(self, signs: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> bool:
        if labels.ndim != 1 or labels.shape != weights.shape or not len(labels):
            return False
        if labels.dtype.kind not in "iu" or len(np.unique(labels)) != len(labels):
            return False
        if labels.min() < 0 or labels.max() >= self.head.classes or (signs[labels] == 0).any():
            return False
        fine = np.isfinite(weights).all() and (weights >= 0).all()
        return bool(fine and 0 < weights.sum() < np.inf)

    def tilted(self, signs: np.ndarray, u: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """As `mixture`, for weights λ_i = max(0, m − s_i (z_i − θ_i)) at an input u with m > 0,
        many at once: (n, labels), (n, latent), (n,) → (n,)."""
        check_arithmetic()
        u = np.asarray(u, dtype=np.float64)
        leads = np.full(len(u), np.nan)
        step = self.device.inputs
        with np.errstate(all="ignore"):
            for start in range(0, len(u), step):
                part = slice(start, start + step)
                leads[part] = self._tilted(signs[part], u[part], targets[part])
        return leads

    def weights_at(self, signs: np.ndarray, u: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The weights that inputs stand for: (n, labels)."""
        x, _ = self._inputs(np.asarray(u, dtype=np.float64))
        put, get = self.device.put, self.device.get
        parts = [
            get(x @ block.T + put(self.offsets[start : start + block.shape[0]]))
            for start, block in self.device.blocks(self.head)
        ]
        weights = np.maximum(targets[:, None] - signs * np.concatenate(parts, axis=1), 0.0)
        return np.where(signs == 0, 0.0, weights)

    def _tilted(self, signs: np.ndarray, u: np.ndarray, targets: np.ndarray) -> np.ndarray:
        weights = self.weights_at(signs, u, targets)
        leads = np.full(len(u), np.nan)
        for k, balance in self._balances(signs, weights):
            used = np.flatnonzero(weights[k])
            leads[k] = self._lead(balance, used, weights[k, used])
        return leads

    def ceilings(self, signs: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Proven upper bounds on Σ λ_i s_i (z_i − θ_i) over all of D, for weights λ ≥ 0 of all
        labels: (n, labels), (n, labels) → (n,). Infinite where there is none."""
        check_arithmetic()
        found = np.full(len(weights), np.inf)
        if not (weights >= 0).all():
            return found
        with np.errstate(all="ignore"):
            for k, balance in self._balances(signs, weights):
                upper = self._upper(balance.seen_through(self.latent))
                found[k] = np.inf if np.isnan(upper) else upper
        return found

    def _balances(self, signs: np.ndarray, weights: np.ndarray) -> Iterator[tuple[int, Balance]]:
        """Σ λ_i s_i w_i and Σ λ_i s_i c_i of each row of weights with a sum, in bounded floats."""
        put, get, xp = self.device.put, self.device.get, self.device.xp
        signed = weights * signs
        rows: Any = 0.0
        sizes: Any = 0.0
        for start, block in self.device.blocks(self.head):
            part = slice(start, start + block.shape[0])
            rows = rows + put(signed[:, part]) @ block
            sizes = sizes + put(weights[:, part]) @ xp.abs(block)
        rows, sizes = get(rows), get(sizes)
        count = self.head.classes + 16
        error, tiny = gamma(count), count * TINY
        totals = weights.sum(axis=1)
        constants, constant_sizes = signed @ self.offsets, weights @ np.abs(self.offsets)
        wrong = weights @ self.offset_errors
        any_offset = bool(self.offsets.any() or self.offset_errors.any())
        for k in np.flatnonzero(np.isfinite(totals) & (totals > 0)).tolist():
            total = float(totals[k])
            tiny_here = tiny * (1 + total)
            slack = 0.0
            if any_offset:
                slack = up(error * float(constant_sizes[k]) + 2 * float(wrong[k]), 8) + tiny_here
            yield k, Balance(
                rows[k], error * sizes[k] + tiny_here, float(constants[k]), slack,
                total, error * total + TINY,
            )  # fmt: skip

    def _upper(self, seen: Balance) -> float:
        return upper_bound(self.base, seen.residual, seen.error, seen.constant, seen.constant_error)

    def _lead(self, balance: Balance, labels: np.ndarray, weights: np.ndarray) -> float:
        """The best lead that can be proven, as it stands or with the rounding absorbed."""
        seen = balance.seen_through(self.latent)
        upper = self._upper(seen)
        if not upper <= 0:
            for floor in _FLOORS:
                better = self._absorbed(seen, labels, weights, floor)
                upper = better if np.isnan(upper) else float(np.fmin(upper, better))
                if upper <= 0:
                    break
        if not balance.total - balance.total_error > 0:
            return float("nan")
        size = balance.total + (balance.total_error if upper <= 0 else -balance.total_error)
        lead = -upper / size
        return float(np.nextafter(lead, -np.inf)) if lead != 0 else 0.0

    def _absorbed(
        self, seen: Balance, labels: np.ndarray, weights: np.ndarray, floor: float
    ) -> float:
        """An upper bound for weights near these whose sum is exactly what is wished for."""
        able = weights >= floor * weights.max()
        chosen, least = labels[able], float(weights[able].min())
        if len(chosen) < self.latent.rank:
            return float("nan")
        absorber = self._absorber(chosen)
        if absorber is None:
            return float("nan")
        wishes = [np.zeros_like(seen.residual)]
        if self.latent.rank == self.latent.width:  # else not every residual can be reached
            wishes += [
                finite_part(self.base, seen.residual), part_below_zero(self.base, seen.residual)
            ]  # fmt: skip
        best = float("nan")
        for wanted in wishes:
            away = seen.residual - wanted
            moved = absorber.reach(away, add_up(seen.error, 2 * UNIT * np.abs(away)))
            if not moved <= least / 2:
                continue
            slack = add_up(seen.constant_error, float(up(moved * absorber.constants, 4)))
            if not absorber.constants:
                slack = seen.constant_error
            zero = np.zeros_like(wanted)
            best = float(np.fmin(best, upper_bound(self.base, wanted, zero, seen.constant, slack)))
            if best <= 0:  # proven; where 0 is in the domain, no other wish gives a lower bound
                break
        return best

    def _absorber(self, labels: np.ndarray) -> Absorber | None:
        """What these labels can absorb: from what all can, less the others, where these are few."""
        others = np.setdiff1d(np.arange(self.head.classes), labels, assume_unique=True)
        if len(others) <= self.head.classes // 4:
            found = self._of_all.without(others)
            if found is not None:
                return found
        if len(labels) * self.latent.width**2 > _LARGEST_ABSORBER:
            return None
        return self._made(labels)

    @cached_property
    def _of_all(self) -> Absorber:
        return self._made(np.arange(self.head.classes))

    def _made(self, labels: np.ndarray) -> Absorber:
        rows = self.head.take(labels)
        error = np.zeros_like(rows)
        constants, wrong = self.offsets[labels], self.offset_errors[labels]
        if not self.latent.is_identity:
            rows, error, shift, slack = self.latent.host.back(rows, error)
            constants = constants + shift
            wrong = add_up(wrong, slack, 4 * UNIT * np.abs(constants))
        size = float(row_norms(add_up(np.abs(constants), wrong)[None])[0])
        return Absorber.of(rows, error, size, self.latent.rank)

    def _exact_mixture(
        self, signs: np.ndarray, labels: np.ndarray, weights: Sequence[Fraction]
    ) -> float:
        if any(w < 0 for w in weights) or not any(weights):
            return float("nan")
        total = [Fraction(0)] * (self.head.features + 1)
        for i, weight in zip(labels.tolist(), weights, strict=True):
            if weight:
                signed = weight * int(signs[i])
                total = [a + signed * b for a, b in zip(total, self._exact_row(i), strict=True)]
        seen, shift = self.latent.back_exactly(total[:-1])
        upper = self.base.upper_bound_exactly(seen, total[-1] + shift)
        if upper is None:
            return float("nan")
        return lower_float(-upper / sum(weights, Fraction(0)))


def _with_slack(balance: Balance, slack: float) -> Balance:
    return Balance(
        balance.residual, balance.error, balance.constant, float(slack),
        balance.total, balance.total_error,
    )  # fmt: skip
