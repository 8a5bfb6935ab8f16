"""The certifier: accepts a verdict only with a proof, using no solver and no trust in rounding.

Everything here is a statement about the real numbers that the stored weights are. Floating point
is used with a-priori error bounds (Higham, *Accuracy and Stability of Numerical Algorithms*, §3.1):
a dot product of n terms, summed in any order, fused or not, errs by at most γ_n Σ|a_k||b_k| with
γ_n = n·u/(1 − n·u), plus n times the smallest normal number for products that underflow. How bounds
are multiplied and added is said in `core.rigour`. What they leave open is settled in integers.
`docs/certificates.md` gives the argument in full.

Two claims are checked:

* a witness: x ∈ D with z_t > z_i for every other class i;
* a mixture: λ ≥ 0, not all zero, with Σ λ_i (z_t − z_i) ≤ 0 at every x ∈ D. Then some z_i ≥ z_t at
  every x, so t is never strictly first.

Where D is an image x = F(u) of a plain set (what leaves a LayerNorm, say), a witness is given as u,
and Σ λ_i (z_t − z_i) is bounded as a function of u: see `latent`. What a plain set adds to a proof,
its support and what it contains, the domain says itself: it is trusted as this code is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from uncork.auditing.certify.balance import Balance, balance_of
from uncork.auditing.certify.bulk import Bulk
from uncork.auditing.certify.digits import most_bits
from uncork.auditing.certify.latent import Latent
from uncork.auditing.certify.products import MOST_FEATURES32, Device, Products, Tilted
from uncork.auditing.certify.support import finite_part, part_below_zero, upper_bound
from uncork.auditing.proofs.verdict import Mixture, Witness
from uncork.core.head import Head
from uncork.core.rigour import (
    LARGEST,
    SMALLEST,
    TINY,
    UNIT,
    add_up,
    check_arithmetic,
    integers,
    lower_float,
    mul_up,
    row_norms,
)
from uncork.domain import Domain, Unbounded

EXACT_PAIRS = 20_000  # pairs (input, class) settled in integers before a block is refused
_EXACT_SIZE = 200_000  # numbers in a mixture's rows up to which it is also tried exactly


class Certifier:
    """Checks witnesses and mixtures against one head on one domain."""

    def __init__(self, head: Head, domain: Domain | None = None, device: Device | None = None):
        self.head = head
        self.domain = head.domain if domain is None else domain
        self.device = device or Device()
        self.latent = Latent(self.domain, head.features, self.device)
        self.base = self.latent.base  # the plain set of u; of x itself where x is u
        self.offsets = head.offsets
        self.products = Products(head, self.device)

    @cached_property
    def bulk(self) -> Bulk:
        """The ball around the mean row that lies inside the hull of all rows."""
        return Bulk.of(self.head, self.device, self.latent)

    @cached_property
    def bulk_of_rows(self) -> Bulk:
        """The same of the rows as they are, whatever inputs see of them."""
        return self.bulk if self.latent.is_identity else Bulk.of(self.head, self.device)

    def equal(self, i: int, t: int) -> bool:
        """Whether two classes are the same function: equal rows and equal bias."""
        if self.offsets[i] != self.offsets[t]:
            return False
        pair = self.head.take(np.array([i, t]))
        return bool((pair[0] == pair[1]).all())

    # Witnesses

    def witnesses(
        self, classes: np.ndarray, u: Any, groups: dict[int, np.ndarray] | None = None
    ) -> np.ndarray:
        """Proven lower bounds on z_t − max z_i, one for each (class, input): (n,).

        A positive entry is a proof; anything else (≤ 0 or NaN) is a refusal. `groups` names, for a
        class t, the classes whose row and bias equal t's: they are left out of the maximum, after
        checking that they really are equal. `u` (n, latent) is NumPy's or the device's.
        """
        check_arithmetic()
        classes = np.asarray(classes, dtype=np.int64)
        margins = np.empty(len(classes))
        step = self.device.inputs
        with np.errstate(all="ignore"):  # what overflows is refused
            for start in range(0, len(classes), step):
                part = slice(start, start + step)
                inputs = u[part]
                if isinstance(inputs, np.ndarray):
                    inputs = self.device.put(inputs.astype(np.float64))
                margins[part] = self._witness_block(classes[part], inputs, groups or {})
        return margins

    def _witness_block(
        self, classes: np.ndarray, u: Any, groups: dict[int, np.ndarray]
    ) -> np.ndarray:
        own_groups = {t: self._own_group(t, groups) for t in classes.tolist() if t in groups}
        inside = self.inside(u)
        margin = np.full(len(classes), np.nan)
        lowest = np.full(len(classes), np.nan)
        narrow = self.device.single and self.head.features <= MOST_FEATURES32
        for single in (True, False) if narrow else (False,):
            left = np.flatnonzero(inside & ~(margin > 0))
            if len(left):
                x, drift = self._inputs(u[self.device.put(left)], single)
                own, rivals = self.products.own_and_rivals(
                    classes[left], x, drift, own_groups, single
                )
                margin[left] = _lead_down(own, rivals)
                lowest[left] = own
        pairs = EXACT_PAIRS
        for k in np.flatnonzero(inside & ~(margin > 0)).tolist():
            t = int(classes[k])
            x, drift = self._inputs(u[k : k + 1], False)
            point = self.device.get(x[0])
            close, others = self.products.close_rows(point, float(drift[0]), lowest[k])
            close = np.setdiff1d(close, own_groups.get(t, [t]))
            pairs -= len(close)
            if pairs < 0:
                break
            exact = [Fraction(v) for v in self.device.get(u[k]).tolist()]
            settled = self._exact_margin(t, self.latent.forward_exactly(exact), close)
            # Rows that were not close are below by the bounds; at least by the smallest float.
            clear = max(float(_lead_down(lowest[k], others)), SMALLEST)
            margin[k] = min(settled, clear)
        return margin

    def _inputs(self, u: Any, single: bool) -> tuple[Any, np.ndarray]:
        """x = F(u) on the device, in float32 values if `single`, and how far each may be from the
        true one: (n, d), (n,)."""
        if self.latent.is_identity:
            return u, np.zeros(len(u))
        xp = self.device.xp
        x, error = self.latent.forward(u)
        if single:
            narrow = xp.astype(xp.astype(x, xp.float32), xp.float64)
            error = add_up(error, xp.abs(x - narrow))
            x = narrow
        return x, self.device.get(row_norms(error, xp))

    def inside(self, u: Any) -> np.ndarray:
        """Whether each u lies in the set it may be chosen from: (n,)."""
        if isinstance(u, np.ndarray):
            return self.base.contains(u)
        return self.base.contains_on(self.device, u)

    @cached_property
    def _most_bits(self) -> int:
        return most_bits(self.head, self.domain)

    def _short(self, numbers: Iterable[int]) -> bool:
        """Whether an exact proof's numbers are no longer than exact arithmetic makes them."""
        return all(n.bit_length() <= self._most_bits for n in numbers)

    def _own_group(self, t: int, groups: dict[int, np.ndarray]) -> list[int]:
        """t, and those classes of its group that really equal it."""
        members = groups.get(t, np.empty(0, dtype=np.int64)).tolist()
        return [t, *(i for i in members if i != t and self.equal(i, t))]

    def exact_witness(
        self, t: int, witness: Witness, groups: dict[int, np.ndarray] | None = None
    ) -> float:
        """As `witnesses`, for one input given as fractions; every row in exact arithmetic."""
        if not self._short([*(witness.numerators or ()), witness.denominator]):
            return float("nan")
        u = witness.fractions()
        if len(u) != self.latent.width or not self.base.contains_exactly(u):
            return float("nan")
        others = np.setdiff1d(np.arange(self.head.classes), self._own_group(t, groups or {}))
        return self._exact_margin(t, self.latent.forward_exactly(u), others)

    def exact_lead(self, t: int, u: Sequence[Fraction], i: int) -> float:
        """z_t − z_i at one input given as fractions: exact but for rounding it down at the end."""
        return self._exact_margin(t, self.latent.forward_exactly(u), np.array([i]))

    def _exact_margin(self, t: int, x: Sequence[Fraction], rows: np.ndarray) -> float:
        """min over the rows of z_t − z_i, exact but for rounding it down at the end."""
        scale = math.lcm(*(v.denominator for v in x))
        whole = [v.numerator * (scale // v.denominator) for v in x] + [scale]
        own = self._logit(t, whole)
        low: Fraction | None = None
        for i in rows.tolist():
            lead = own - self._logit(i, whole)
            low = lead if low is None else min(low, lead)
            if low <= 0:
                break
        return math.inf if low is None else lower_float(low / scale)

    def _logit(self, i: int, x: Sequence[int]) -> Fraction:
        """z_i times the denominator of x, which stands at its end for the bias."""
        row, scale = self._whole_row(i)
        return Fraction(sum(a * b for a, b in zip(row, x, strict=True)), scale)

    def _whole_row(self, i: int) -> tuple[list[int], int]:
        return integers(np.append(self.head.rows(i, i + 1)[0], self.offsets[i]))

    # Mixtures

    def mixture(self, t: int, mixture: Mixture) -> float:
        """A proven lower bound on the lead of the mixture over z_t everywhere on D.

        Zero or more is a proof that t is never strictly first; NaN or less is a refusal.
        """
        return float(self.mixtures([t], [mixture])[0])

    def mixtures(self, classes: Sequence[int], mixtures: Sequence[Mixture]) -> np.ndarray:
        """As `mixture`, for many: those that tilt all classes share their products."""
        check_arithmetic()
        leads = np.full(len(classes), np.nan)
        with np.errstate(all="ignore"):  # what overflows is refused
            tilted = [k for k, m in enumerate(mixtures) if self._is_tilted(m)]
            step = self.device.inputs
            sums: dict[int, tuple[Tilted, int]] = {}
            for start in range(0, len(tilted), step):
                part = tilted[start : start + step]
                x = np.array([mixtures[k].tilt for k in part], dtype=np.float64)
                peaks = np.array([mixtures[k].peak for k in part])
                together = self.products.tilted(x, peaks)
                sums.update({k: (together, row) for row, k in enumerate(part)})
            for k, (t, mixture) in enumerate(zip(classes, mixtures, strict=True)):
                if mixture.tilt is None or k in sums:
                    leads[k] = self._mixture(int(t), mixture, sums.get(k))
        return leads

    def lead(self, t: int, sums: Tilted, row: int, bulk: float) -> float:
        """As `mixture`, for weights on all classes whose bounded sums are given."""
        return self._lead(t, self._tilted(t, sums, row), bulk)

    def seen(self, u: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        """x for each u on the device, how far off it may be, and whether u is in its set."""
        return *self._inputs(u, False), self.inside(u)

    def _is_tilted(self, mixture: Mixture) -> bool:
        return mixture.tilt is not None and mixture.tilt.shape == (self.head.features,)

    def _mixture(self, t: int, mixture: Mixture, tilted: tuple[Tilted, int] | None) -> float:
        classes = np.asarray(mixture.classes, dtype=np.int64)
        weights = np.asarray(mixture.weights, dtype=np.float64)
        if not self._sane(classes, weights, mixture.bulk):
            return float("nan")
        away = self.head.rows(t, t + 1) - self.head.take(classes)  # (n, d): w_t − w_i
        bias_away = self.offsets[t] - self.offsets[classes]
        # Weight on t itself, or on its equals, cancels: it proves nothing about the group.
        other = away.any(axis=1) | (bias_away != 0)
        classes, weights = classes[other], weights[other]
        if not 0 < float(weights.sum()) + mixture.bulk < np.inf:
            return float("nan")
        if mixture.integers is not None:
            if len(mixture.integers) != len(other) or tilted is not None:
                return float("nan")
            if not self._short(mixture.integers):
                return float("nan")
            named = zip(mixture.integers, other.tolist(), strict=True)
            return self._exact_mixture(
                t, classes, [Fraction(w) for w, is_other in named if is_other]
            )
        balance = balance_of(away[other], bias_away[other], weights)
        if tilted is not None:
            balance = balance.plus(self._tilted(t, *tilted))
        lead = self._lead(t, balance, mixture.bulk)
        plain = mixture.bulk == 0 and tilted is None
        if not lead >= 0 and plain and len(classes) * self.head.features <= _EXACT_SIZE:
            exact = self._exact_mixture(t, classes, [Fraction(w) for w in weights.tolist()])
            return lead if np.isnan(exact) else exact
        return lead

    def _sane(self, classes: np.ndarray, weights: np.ndarray, bulk: float) -> bool:
        if classes.shape != weights.shape or classes.ndim != 1:
            return False
        if len(classes) and not (classes.min() >= 0 and classes.max() < self.head.classes):
            return False
        return bool(np.isfinite(weights).all() and (weights >= 0).all() and 0 <= bulk < np.inf)

    def _tilted(self, t: int, sums: Tilted, row: int) -> Balance:
        """Σ l_i (w_t − w_i) and Σ l_i (b_t − b_i) from the sums over all classes."""
        own, own_bias = self.head.rows(t, t + 1)[0] - self.products.centre, self.offsets[t]
        mass, mass_error = float(sums.mass[row]), float(sums.mass_error[row])
        moved, moved_bias = mass * own, mass * own_bias
        residual, constant = moved - sums.rows[row], moved_bias - sums.bias[row]
        rounding = 8 * (UNIT * (np.abs(moved) + np.abs(sums.rows[row])) + TINY)
        error = add_up(sums.rows_error[row], mul_up(mass_error, np.abs(own)), rounding)
        bias_error = float(sums.bias_error[row])
        if own_bias or bias_error:
            bias_rounding = 8 * (UNIT * (abs(moved_bias) + abs(float(sums.bias[row]))) + TINY)
            moved_error = float(mul_up(mass_error, abs(own_bias)))
            bias_error = add_up(bias_error, moved_error, bias_rounding)
        return Balance(residual, error, float(constant), bias_error, mass, mass_error)

    def _lead(self, t: int, balance: Balance, bulk: float) -> float:
        """The best lead that can be proven, with or without the bulk's help."""
        seen = balance.seen_through(self.latent)
        if bulk == 0:
            uppers = [self._upper(seen)]
        else:
            uppers = list(self._with_bulk(self.base, self.bulk, self._own_row(t), seen, bulk))
            if self.latent.shifts:
                # Where x = 0 lies in D and ties all classes, only a residual of zero will do, for
                # x as for u; and zero for x says more: it leaves the bias alone.
                own = self.head.rows(t, t + 1)[0]
                row = own, np.zeros_like(own), float(self.offsets[t]), 0.0
                uppers += self._with_bulk(Unbounded(), self.bulk_of_rows, row, balance, bulk)
        total = balance.total + bulk
        error = add_up(balance.total_error, 2 * UNIT * total + TINY)
        if not total > 0:  # without weight a mixture proves nothing
            return float("nan")
        return max((_share(upper, total, error) for upper in uppers), default=float("nan"))

    def _upper(self, balance: Balance) -> float:
        return upper_bound(
            self.base, balance.residual, balance.error, balance.constant, balance.constant_error
        )

    @staticmethod
    def _with_bulk(
        base: Domain,
        mean: Bulk,
        row: tuple[np.ndarray, np.ndarray, float, float],
        balance: Balance,
        bulk: float,
    ) -> Iterator[float]:
        """Upper bounds on Σ λ_i (z_t − z_i) with the bulk's weight added, one for each argument;
        `row` is t's row and bias, each with an error bound."""
        own, own_error, own_bias, own_bias_error = row

        def upper(residual: np.ndarray, error: np.ndarray, nudge: float) -> float:
            behind = own_bias - mean.bias_low(nudge)
            moved = bulk * behind
            rounding = 8 * (UNIT * abs(moved) + TINY) if behind else 0.0
            bias_error = float(mul_up(bulk, own_bias_error))
            off = add_up(balance.constant_error, bias_error, rounding)
            return upper_bound(base, residual, error, balance.constant + moved, off)

        shift = bulk * (own - mean.centre)
        total = balance.residual + shift
        rounding = 4 * UNIT * (np.abs(shift) + np.abs(balance.residual)) + TINY
        error = add_up(balance.error, rounding, mul_up(bulk, own_error))
        # 1. The bulk as the mean row itself, known up to its own rounding.
        yield upper(total, add_up(error, mul_up(bulk, mean.centre_error)), 0.0)
        # 2. The bulk as a point near the mean that leaves a residual of our choosing: one that no
        #    infinite side of the domain sees, one that is nowhere positive, or none at all.
        wishes = [np.zeros_like(total)]
        if mean.is_full:  # else not every residual can be reached
            wishes += [finite_part(base, total), part_below_zero(base, total)]
        for wanted in wishes:
            # Both divisions round, and the first difference: paid for by the second.
            away = (total - wanted) / bulk
            nudge = mean.nudge(away, add_up(error / bulk, 4 * UNIT * np.abs(away), TINY))
            if nudge is not None:
                yield upper(wanted, np.zeros_like(wanted), nudge)

    def _own_row(self, t: int) -> tuple[np.ndarray, np.ndarray, float, float]:
        """Row and bias of class t as functions of u, each with an error bound."""
        row, bias = self.head.rows(t, t + 1), float(self.offsets[t])
        if self.latent.is_identity:
            return row[0], np.zeros(self.latent.width), bias, 0.0
        g, error, shift, shift_error = self.latent.host.back(row, np.zeros_like(row))
        total = bias + float(shift[0])
        return g[0], error[0], total, add_up(float(shift_error[0]), 4 * UNIT * abs(total))

    def _exact_mixture(self, t: int, classes: np.ndarray, weights: list[Fraction]) -> float:
        own, own_scale = self._whole_row(t)
        residual = [Fraction(0)] * (self.head.features + 1)
        for i, weight in zip(classes.tolist(), weights, strict=True):
            if weight < 0:
                return float("nan")
            if weight == 0:
                continue
            row, row_scale = self._whole_row(i)
            for j, (a, b) in enumerate(zip(own, row, strict=True)):
                residual[j] += weight * (Fraction(a, own_scale) - Fraction(b, row_scale))
        total = sum(weights, Fraction(0))
        if total <= 0:
            return float("nan")
        seen, constant = self.latent.back_exactly(residual[:-1])
        upper = self.base.upper_bound_exactly(seen, residual[-1] + constant)
        return float("nan") if upper is None else lower_float(-upper / total)


def _lead_down(own: Any, rivals: Any) -> Any:
    """own − rivals rounded down: a lower bound less an upper one. Infinite without rivals."""
    lead = (own - rivals) * (1 - 2.0**-50)  # exact where it is subnormal
    return np.where(np.isneginf(rivals), lead, np.minimum(lead, LARGEST))


def _share(upper: float, total: float, error: float) -> float:
    """−upper/total rounded down, zero or more only if `upper` is; `total` known up to `error`."""
    if upper > 0:
        total = (total - error) * (1 - 4 * UNIT)
        return min(math.nextafter(-upper / total, -math.inf), -SMALLEST) if total > 0 else -math.inf
    lead = -upper / add_up(total, error)
    return math.nextafter(min(lead, LARGEST), 0.0) if lead > 0 else lead
