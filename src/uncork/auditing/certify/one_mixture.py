"""One mixture at a time, on the host: slow and obvious, what `mixtures` is held to by its tests.

Nothing but tests asks for it. Both bound the same sums; where they round differently, both bounds
hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from uncork.auditing.certify.balance import Balance, balance_of
from uncork.auditing.certify.bulk import Bulk
from uncork.auditing.certify.products import Tilted
from uncork.auditing.certify.support import finite_part, part_below_zero, upper_bound
from uncork.auditing.proofs.verdict import Mixture
from uncork.core.rigour import LARGEST, SMALLEST, TINY, UNIT, add_up, check_arithmetic, mul_up
from uncork.domain import Domain, Unbounded

if TYPE_CHECKING:
    from uncork.auditing.certify.certifier import Certifier


class OneMixture:
    """As `Certifier.mixture`: a proven lower bound on the lead of one mixture over its class."""

    def __init__(self, certifier: Certifier) -> None:
        self.certifier, self.head, self.base = certifier, certifier.head, certifier.base
        self.latent, self.offsets = certifier.latent, certifier.offsets

    def lead(self, t: int, mixture: Mixture) -> float:
        check_arithmetic()
        with np.errstate(all="ignore"):  # what overflows is refused
            return self._mixture(t, mixture)

    def _mixture(self, t: int, mixture: Mixture) -> float:
        classes = np.asarray(mixture.classes, dtype=np.int64)
        weights = np.asarray(mixture.weights, dtype=np.float64)
        if not self._sane(classes, weights, mixture.bulk):
            return float("nan")
        tilt = mixture.tilt
        if tilt is not None and (tilt.shape != (self.head.features,) or mixture.integers):
            return float("nan")
        if mixture.integers is not None:
            return self.certifier.exact_mixture(t, mixture)
        away = self.head.rows(t, t + 1) - self.head.take(classes)  # (n, d): w_t − w_i
        bias_away = self.offsets[t] - self.offsets[classes]
        # Weight on t itself, or on its equals, cancels: it proves nothing about the group.
        other = away.any(axis=1) | (bias_away != 0)
        weights = weights[other]
        if not 0 < float(weights.sum()) + mixture.bulk < np.inf:
            return float("nan")
        balance = balance_of(away[other], bias_away[other], weights)
        if tilt is not None:
            x, peaks = np.asarray(tilt, dtype=np.float64)[None], np.array([mixture.peak])
            balance = balance.plus(self.tilted(t, self.certifier.products.tilted(x, peaks), 0))
        lead = self.lead_of(t, balance, mixture.bulk)
        if not lead >= 0 and mixture.bulk == 0 and tilt is None:
            exact = self.certifier.exact_mixture(t, mixture)
            return lead if np.isnan(exact) else exact
        return lead

    def _sane(self, classes: np.ndarray, weights: np.ndarray, bulk: float) -> bool:
        if classes.shape != weights.shape or classes.ndim != 1:
            return False
        if len(classes) and not (classes.min() >= 0 and classes.max() < self.head.classes):
            return False
        return bool(np.isfinite(weights).all() and (weights >= 0).all() and 0 <= bulk < np.inf)

    def tilted(self, t: int, sums: Tilted, row: int) -> Balance:
        """Σ l_i (w_t − w_i) and Σ l_i (b_t − b_i) from the sums over all classes."""
        centre = self.certifier.products.centre
        own, own_bias = self.head.rows(t, t + 1)[0] - centre, self.offsets[t]
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

    def lead_of(self, t: int, balance: Balance, bulk: float) -> float:
        """The best lead that can be proven, with or without the bulk's help."""
        seen = balance.seen_through(self.latent)
        if bulk == 0:
            uppers = [self._upper(seen)]
        else:
            mean = self.certifier.bulk
            uppers = list(self._with_bulk(self.base, mean, self._own_row(t), seen, bulk))
            if self.latent.shifts:
                # Where x = 0 lies in D and ties all classes, only a residual of zero will do, for
                # x as for u; and zero for x says more: it leaves the bias alone.
                own, mean = self.head.rows(t, t + 1)[0], self.certifier.bulk_of_rows
                row = own, np.zeros_like(own), float(self.offsets[t]), 0.0
                uppers += self._with_bulk(Unbounded(), mean, row, balance, bulk)
        total = balance.total + bulk
        error = add_up(balance.total_error, 2 * UNIT * total + TINY)
        if not total > 0:  # without weight a mixture proves nothing
            return float("nan")
        shares = [_share(upper, total, error) for upper in uppers]
        return max((share for share in shares if not np.isnan(share)), default=float("nan"))

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


def _share(upper: float, total: float, error: float) -> float:
    """−upper/total rounded down, zero or more only if `upper` is; `total` known up to `error`."""
    if upper > 0:
        total = (total - error) * (1 - 4 * UNIT)
        return min(math.nextafter(-upper / total, -math.inf), -SMALLEST) if total > 0 else -math.inf
    lead = -upper / add_up(total, error)
    return math.nextafter(min(lead, LARGEST), 0.0) if lead > 0 else lead
