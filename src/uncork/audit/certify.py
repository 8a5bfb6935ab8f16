"""The certifier: accepts a verdict only with a proof, using no solver and no trust in rounding.

Everything here is a statement about the real numbers that the stored weights are. Floating point
is used with a-priori error bounds (Higham, *Accuracy and Stability of Numerical Algorithms*, §3.1):
a dot product of n terms, summed in any order, fused or not, errs by at most γ_n Σ|a_k||b_k| with
γ_n = n·u/(1 − n·u), plus n times the smallest normal number for products that underflow. What the
bounds leave open is settled in integers. `docs/certificates.md` gives the argument in full.

Two claims are checked:

* a witness: x ∈ D with z_t > z_i for every other class i;
* a mixture: λ ≥ 0, not all zero, with Σ λ_i (z_t − z_i) ≤ 0 at every x ∈ D. Then some z_i ≥ z_t at
  every x, so t is never strictly first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from uncork.audit.bulk import Bulk
from uncork.audit.rigour import SMALLEST, TINY, UNIT, gamma, integers, lower_float, row_norms
from uncork.audit.verdict import Mixture, Witness
from uncork.domain import Ball, Box, Domain
from uncork.head import Head

_ROWS = 4096  # rows of W looked at in one go where no product is made
EXACT_PAIRS = 20_000  # pairs (input, class) settled in integers before a block is refused


class Device:
    """Where products are computed: NumPy here, another array library in a subclass."""

    xp: Any = np
    inputs = 512  # inputs in one product
    rows = 4096  # rows of W in one product

    def put(self, array: np.ndarray) -> Any:
        return array

    def get(self, array: Any) -> np.ndarray:
        return array

    def blocks(self, head: Head) -> Iterator[tuple[int, Any]]:
        """The rows of the head in float64, a block at a time: (first row, (n, d))."""
        return head.blocks(self.rows)


class Certifier:
    """Checks witnesses and mixtures against one head on one domain."""

    def __init__(self, head: Head, domain: Domain | None = None, device: Device | None = None):
        self.head = head
        self.domain = head.domain if domain is None else domain
        self.device = device or Device()
        self.offsets = head.offsets
        # One rounding for each of d products and d additions, the rest for norms, bias and bounds.
        self._kappa = gamma(head.features + 16) * 1.001
        self._slop = (head.features + 8) * TINY

    @cached_property
    def norms(self) -> np.ndarray:
        """An upper bound on ‖w_i‖₂ for every row: (C,)."""
        return np.concatenate([row_norms(block) for _, block in self.head.blocks(_ROWS)])

    @cached_property
    def bulk(self) -> Bulk:
        """The ball around the mean row that lies inside the hull of all rows."""
        return Bulk.of(self.head)

    # Witnesses

    def witnesses(
        self, classes: np.ndarray, x: np.ndarray, groups: dict[int, np.ndarray] | None = None
    ) -> np.ndarray:
        """Proven lower bounds on z_t − max z_i, one for each (class, input): (n,).

        A positive entry is a proof; anything else (≤ 0 or NaN) is a refusal. `groups` names, for a
        class t, the classes whose row and bias equal t's: they are left out of the maximum, after
        checking that they really are equal.
        """
        classes = np.asarray(classes, dtype=np.int64)
        margins = np.empty(len(classes))
        step = self.device.inputs
        for start in range(0, len(classes), step):
            part = slice(start, start + step)
            margins[part] = self._witness_block(classes[part], x[part], groups or {})
        return margins

    def _witness_block(
        self, classes: np.ndarray, x: np.ndarray, groups: dict[int, np.ndarray]
    ) -> np.ndarray:
        x = np.asarray(x, dtype=np.float64)  # (n, d)
        lowest, rivals = self._own_and_rivals(classes, x, groups)
        with np.errstate(invalid="ignore"):
            margin = (lowest - rivals) * (1 - 2.0**-50)
        inside = self.domain.contains(x)
        margin[~inside] = np.nan
        left = EXACT_PAIRS
        for k in np.flatnonzero(inside & ~(margin > 0)):
            if left <= 0:
                break
            t = int(classes[k])
            close = self._close_rows(t, x[k], lowest[k], groups)
            left -= len(close)
            if left < 0:
                break
            margin[k] = self._exact_margin(t, [Fraction(v) for v in x[k].tolist()], close)
        return margin

    def _own_and_rivals(
        self, classes: np.ndarray, x: np.ndarray, groups: dict[int, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """A lower bound on z_t and an upper bound on every other z_i: (n,), (n,)."""
        xp, put = self.device.xp, self.device.put
        reach = row_norms(x)  # (n,)
        own_rows, own_bias = self.head.take(classes), self.offsets[classes]
        with np.errstate(over="ignore", invalid="ignore"):
            own = np.einsum("nd,nd->n", own_rows, x) + own_bias
            own -= self._kappa * (reach * self.norms[classes] + np.abs(own_bias)) + self._slop
        grouped = [k for k, t in enumerate(classes.tolist()) if t in groups]
        # Bias and error bound ride along as two more features, so that one product gives every
        # upper bound: [w, b + κ|b| + slop, κ‖w‖] · [x, 1, ‖x‖].
        inputs = put(np.column_stack([x, np.ones(len(x)), reach]))
        bias_column = self.offsets + self._kappa * np.abs(self.offsets) + self._slop
        extra = np.column_stack([bias_column, np.nextafter(self._kappa * self.norms, np.inf)])
        best = put(np.full(len(x), -np.inf))
        for start, block in self.device.blocks(self.head):
            stop = start + block.shape[0]
            with np.errstate(over="ignore", invalid="ignore"):
                scores = inputs @ xp.concat([block, put(extra[start:stop])], axis=1).T
            here = np.flatnonzero((classes >= start) & (classes < stop))
            if len(here):
                scores[put(here), put(classes[here] - start)] = -np.inf
            for k in grouped:
                for i in self._own_group(int(classes[k]), groups):
                    if start <= i < stop:
                        scores[k, i - start] = -np.inf
            # NaN (an overflow) must not vanish in a maximum: a NaN here refuses the witness.
            best = xp.maximum(best, xp.max(scores, axis=1))
        rivals = self.device.get(best)
        # Where a partial sum may have overflowed, to either side, the bounds say nothing.
        with np.errstate(over="ignore"):
            largest = reach * self.norms.max() + np.abs(self.offsets).max()
        return own, np.where(np.isfinite(4 * largest), rivals, np.nan)

    def _own_group(self, t: int, groups: dict[int, np.ndarray]) -> list[int]:
        if t not in groups:
            return [t]
        members = [int(i) for i in groups[t]]
        return [i for i in members if i == t or self.equal(i, t)]

    def equal(self, i: int, t: int) -> bool:
        """Whether two classes are the same function: equal rows and equal bias."""
        if self.offsets[i] != self.offsets[t]:
            return False
        pair = self.head.take(np.array([i, t]))
        return bool((pair[0] == pair[1]).all())

    def _close_rows(
        self, t: int, x: np.ndarray, lowest: float, groups: dict[int, np.ndarray]
    ) -> np.ndarray:
        """Rows that the float bounds do not put clearly below z_t."""
        reach = float(row_norms(x[None])[0])
        close = []
        for start, block in self.head.blocks(_ROWS):
            stop = start + len(block)
            bias, norms = self.offsets[start:stop], self.norms[start:stop]
            with np.errstate(over="ignore", invalid="ignore"):
                upper = block @ x + bias
                upper += self._kappa * (reach * norms + np.abs(bias)) + self._slop
                close.append(start + np.flatnonzero(~(upper < lowest)))
        return np.setdiff1d(np.concatenate(close), self._own_group(t, groups))

    def exact_witness(
        self, t: int, witness: Witness, groups: dict[int, np.ndarray] | None = None
    ) -> float:
        """As `witnesses`, for one input given as fractions; every row in exact arithmetic."""
        x = witness.fractions()
        if not _contains_exactly(self.domain, x):
            return float("nan")
        others = np.setdiff1d(np.arange(self.head.classes), self._own_group(t, groups or {}))
        return self._exact_margin(t, x, others)

    def _exact_margin(self, t: int, x: Sequence[Fraction], rows: np.ndarray) -> float:
        """min over the rows of z_t − z_i, exact but for rounding it towards zero at the end."""
        numerators, scale = _over_common(x)
        low: Fraction | None = None
        own, own_scale = integers(np.append(self.head.rows(t, t + 1)[0], self.offsets[t]))
        for start in range(0, len(rows), _ROWS):
            ids = rows[start : start + _ROWS]
            block = np.column_stack([self.head.take(ids), self.offsets[ids]])
            for row in block:
                mine, mine_scale = integers(row)
                z_t = Fraction(_dot(own, numerators, scale), own_scale)
                z_i = Fraction(_dot(mine, numerators, scale), mine_scale)
                low = z_t - z_i if low is None else min(low, z_t - z_i)
                if low <= 0:
                    return lower_float(low / scale)
        # Nothing close: every other row is below by the bounds, by an amount not looked at.
        return SMALLEST if low is None else lower_float(low / scale)

    # Mixtures

    def mixture(self, t: int, mixture: Mixture) -> float:
        """A proven lower bound on the lead of the mixture over z_t everywhere on D.

        Zero or more is a proof that t is never strictly first; NaN or less is a refusal.
        """
        classes = np.asarray(mixture.classes, dtype=np.int64)
        weights = np.asarray(mixture.weights, dtype=np.float64)
        if not self._sane(classes, weights, mixture.bulk):
            return float("nan")
        exactly = None if mixture.integers is None else [Fraction(w) for w in mixture.integers]
        if exactly is not None and len(exactly) != len(classes):
            return float("nan")
        with np.errstate(over="ignore"):
            away = self.head.rows(t, t + 1) - self.head.take(classes)  # (n, d): w_t − w_i
            bias_away = self.offsets[t] - self.offsets[classes]
        # Weight on t itself, or on its equals, cancels: it proves nothing about the group.
        other = away.any(axis=1) | (bias_away != 0)
        classes, weights = classes[other], weights[other]
        if not 0 < float(weights.sum()) + mixture.bulk < np.inf:
            return float("nan")
        if exactly is not None:
            kept = [w for w, keep in zip(exactly, other.tolist(), strict=True) if keep]
            return self._exact_mixture(t, classes, kept)
        lead = self._float_mixture(t, away[other], bias_away[other], weights, mixture.bulk)
        if lead >= 0:
            return lead
        if mixture.bulk == 0 and len(classes) * self.head.features <= 200_000:
            exact = self._exact_mixture(t, classes, [Fraction(w) for w in weights.tolist()])
            if exact >= 0:
                return exact
        return lead

    def _sane(self, classes: np.ndarray, weights: np.ndarray, bulk: float) -> bool:
        if classes.shape != weights.shape or classes.ndim != 1:
            return False
        if len(classes) and not (classes.min() >= 0 and classes.max() < self.head.classes):
            return False
        return bool(np.isfinite(weights).all() and (weights >= 0).all() and 0 <= bulk < np.inf)

    def _float_mixture(
        self, t: int, away: np.ndarray, bias_away: np.ndarray, weights: np.ndarray, bulk: float
    ) -> float:
        own, own_bias = self.head.rows(t, t + 1)[0], float(self.offsets[t])
        total = float(weights.sum()) + bulk
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            error = gamma(len(weights) + 8)
            residual = weights @ away
            residual_error = error * (weights @ np.abs(away))
            lead = float(weights @ bias_away)
            lead_error = error * float(weights @ np.abs(bias_away))
            tiny = (len(weights) + 8) * TINY * (1 + total)
            if bias_away.any():
                lead_error += tiny
            if bulk == 0:
                uppers = [self._upper(residual, residual_error + tiny, lead, lead_error)]
            else:
                uppers = list(
                    self._with_bulk(
                        own, own_bias, bulk, residual, residual_error + tiny, lead, lead_error
                    )
                )
        return max((_lead(upper, total) for upper in uppers), default=float("nan"))

    def _with_bulk(
        self,
        own: np.ndarray,
        own_bias: float,
        bulk: float,
        residual: np.ndarray,
        residual_error: np.ndarray,
        lead: float,
        lead_error: float,
    ) -> Iterator[float]:
        """Upper bounds on Σ λ_i (z_t − z_i) with the bulk's weight added, one for each argument."""
        mean = self.bulk

        def upper(residual, residual_error, nudge: float) -> float:
            behind = own_bias - mean.bias_low(nudge)
            error = 8 * (UNIT * bulk * abs(behind) + TINY * (1 + bulk)) if behind else 0.0
            return self._upper(residual, residual_error, lead + bulk * behind, lead_error + error)

        shift = bulk * (own - mean.centre)
        total = residual + shift
        error = residual_error + 4 * UNIT * (np.abs(shift) + np.abs(residual)) + TINY * (1 + bulk)
        # 1. The bulk as the mean row itself, known up to its own rounding.
        yield upper(total, error + bulk * mean.centre_error + TINY, 0.0)
        # 2. The bulk as a point near the mean that leaves a residual of our choosing: one that no
        #    infinite side of the domain sees, or none at all.
        for wanted in (_finite_part(self.domain, total), np.zeros_like(total)):
            nudge = mean.nudge((total - wanted) / bulk, error / bulk + TINY)
            if nudge is not None:
                yield upper(wanted, np.zeros_like(wanted), nudge)

    def _upper(
        self, residual: np.ndarray, residual_error: np.ndarray, lead: float, lead_error: float
    ) -> float:
        """max over x ∈ D of r·x + s, rounded up, for r and s within their errors."""
        support, size = _support(self.domain, residual, residual_error)
        if not np.isfinite(support):
            return float("nan") if np.isnan(support) else float("inf")
        rounding = gamma(self.head.features + 8) * (size + abs(lead) + lead_error)
        if residual.any() or residual_error.any():
            rounding += (self.head.features + 8) * TINY
        return support + lead + lead_error + rounding

    def _exact_mixture(self, t: int, classes: np.ndarray, weights: list[Fraction]) -> float:
        own, own_scale = integers(np.append(self.head.rows(t, t + 1)[0], self.offsets[t]))
        residual = [Fraction(0)] * (self.head.features + 1)
        total = Fraction(0)
        for i, weight in zip(classes.tolist(), weights, strict=True):
            if weight < 0:
                return float("nan")
            if weight == 0:
                continue
            total += weight
            row, row_scale = integers(np.append(self.head.rows(i, i + 1)[0], self.offsets[i]))
            for j, (a, b) in enumerate(zip(own, row, strict=True)):
                residual[j] += weight * (Fraction(a, own_scale) - Fraction(b, row_scale))
        if total <= 0:
            return float("nan")
        upper = _support_exactly(self.domain, residual[:-1], residual[-1])
        if upper is None:
            return float("nan")
        return lower_float(-upper / total)


def _lead(upper: float, total: float) -> float:
    """−upper/total rounded down, zero or more only if `upper` is zero or less."""
    if upper > 0:
        return min(-upper / total, -SMALLEST)
    return -upper / total * (1 - 4 * UNIT)


def _support(domain: Domain, residual: np.ndarray, error: np.ndarray) -> tuple[float, float]:
    """max over x ∈ D of r·x for r within `error` of `residual`, and the size of what was summed."""
    r = np.asarray(residual, dtype=np.float64)
    low, high = r - error, r + error
    if isinstance(domain, Box):
        lower, upper = domain.bounds(len(r))
        # Whichever end of the range of r and of x is worst; an infinite end must never be used.
        left = np.where(np.isinf(lower), _finite(upper), lower)
        right = np.where(np.isinf(upper), _finite(lower), upper)
        ends = np.maximum(
            np.maximum(low * left, high * left), np.maximum(low * right, high * right)
        )
        if ((high > 0) & np.isinf(upper)).any() or ((low < 0) & np.isinf(lower)).any():
            return float("inf"), 0.0
        return float(ends.sum()), float(np.abs(ends).sum())
    size = np.maximum(np.abs(low), np.abs(high))
    if isinstance(domain, Ball):
        norm = float(row_norms(size[None])[0]) * domain.radius
        return norm, norm
    return (float("inf") if size.any() else 0.0), 0.0


def _finite(bounds: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(bounds), 0.0, bounds)


def _finite_part(domain: Domain, residual: np.ndarray) -> np.ndarray:
    """The nearest residual whose product with x is bounded above on the domain."""
    if isinstance(domain, Ball):
        return residual
    if isinstance(domain, Box):
        lower, upper = domain.bounds(len(residual))
        part = np.where(np.isinf(upper), np.minimum(residual, 0.0), residual)
        return np.where(np.isinf(lower), np.maximum(part, 0.0), part)
    return np.zeros_like(residual)


def _support_exactly(domain: Domain, r: list[Fraction], s: Fraction) -> Fraction | None:
    """max over x ∈ D of r·x + s where it is rational, else any number of the same sign; None: ∞."""
    if isinstance(domain, Box):
        lower, upper = domain.bounds(len(r))
        for value, low, high in zip(r, lower.tolist(), upper.tolist(), strict=True):
            end = high if value > 0 else low
            if value != 0:
                if np.isinf(end):
                    return None
                s += value * Fraction(end)
        return s
    if not any(r):
        return s
    if isinstance(domain, Ball):
        square = sum(value * value for value in r) * Fraction(domain.radius) ** 2
        return Fraction(0) if s <= 0 and square <= s * s else Fraction(1)
    return None


def _contains_exactly(domain: Domain, x: list[Fraction]) -> bool:
    if isinstance(domain, Box):
        lower, upper = domain.bounds(len(x))
        return all(
            (np.isinf(a) or Fraction(a) <= v) and (np.isinf(b) or v <= Fraction(b))
            for v, a, b in zip(x, lower.tolist(), upper.tolist(), strict=True)
        )
    if isinstance(domain, Ball):
        return sum(v * v for v in x) <= Fraction(domain.radius) ** 2
    return True


def _over_common(x: Sequence[Fraction]) -> tuple[list[int], int]:
    scale = 1
    for value in x:
        scale = scale * value.denominator // _gcd(scale, value.denominator)
    return [value.numerator * (scale // value.denominator) for value in x], scale


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def _dot(row_and_bias: Sequence[int], x: Sequence[int], one: int) -> int:
    """(w·x + b) · one in integers, for x given over the denominator `one`."""
    return sum(a * b for a, b in zip(row_and_bias, x, strict=False)) + row_and_bias[-1] * one
