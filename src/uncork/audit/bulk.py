"""The bulk of the rows: a ball around their mean that provably lies inside their hull.

In coordinates v_i = K(w_i − c), with K near the inverse square root of the covariance and c near
the mean, the second moment S = (1/C) Σ v_i v_iᵀ is near the identity. For any q solve
(S − q v̄ᵀ) p = q − v̄ and set μ_i = (1 + v_i·p)/C: then Σ μ_i v_i = q Σ μ_i. If ‖S − I‖ ≤ η and
‖v_i‖ ≤ M for all i, then ‖p‖ ≤ (‖q‖ + ‖v̄‖)/(1 − η − ‖q‖‖v̄‖), so every μ_i ≥ 0 as soon as M‖p‖ ≤ 1:
q is a mixture of the v_i. Only upper bounds on η, M and ‖v̄‖ are needed, and η need only be below
one, so nothing has to be computed accurately; it only has to be bounded rigorously.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.audit.products import Device
from uncork.audit.rigour import TINY, UNIT, gamma, row_norms
from uncork.head import Head

_SAFE = 1e100  # no square of a safe number over- or underflows


@dataclass(frozen=True)
class Bulk:
    """Bounds on the rows in coordinates where they are round; see the module's text."""

    centre: np.ndarray  # (d,) c, the mean row as a float
    centre_error: np.ndarray  # (d,) how far the true mean may be from c
    transform: np.ndarray | None  # (d, d) K, or None where the rows span no ball
    transform_norm: float  # ≥ ‖K‖_F
    defect: float  # η ≥ ‖S − I‖
    offset: float  # ≥ ‖v̄‖
    reach: float  # M ≥ max ‖v_i‖
    bias_mean: float
    bias_error: float
    bias_range: tuple[float, float]

    @classmethod
    def of(cls, head: Head, device: Device) -> Bulk:
        with np.errstate(all="ignore"):  # what overflows ends as a bound of infinity or NaN
            return cls._of(head, device)

    @classmethod
    def _of(cls, head: Head, device: Device) -> Bulk:
        count, width = head.classes, head.features
        total, size = np.zeros(width), np.zeros(width)
        for _, block in device.blocks(head):
            total += device.get(device.xp.sum(block, axis=0))
            size += device.get(device.xp.sum(device.xp.abs(block), axis=0))
        centre = total / count
        centre_error = gamma(count + 8) * size / count + np.abs(centre) * 4 * UNIT + TINY
        bias = head.offsets
        transform, bounds = None, (np.inf, np.inf, np.inf, np.inf)
        found = _whiten(head, device, centre)
        if found is not None:
            transform, bounds = found, _bounds(head, device, centre, found)
        return cls(
            centre, centre_error, transform, *bounds,
            bias_mean=float(bias.mean()),
            bias_error=gamma(count + 8) * float(np.abs(bias).mean()) + TINY,
            bias_range=(float(bias.min()), float(bias.max())),
        )  # fmt: skip

    def nudge(self, residual: np.ndarray, error: np.ndarray) -> float | None:
        """M‖p‖ for a mixture of all rows that lies `residual` away from the centre, or None.

        `residual` (d,) is known up to `error` (d,). None: the argument does not reach that far.
        """
        if self.transform is None or not np.isfinite(residual).all():
            return None
        with np.errstate(all="ignore"):
            return self._nudge(self.transform, residual, error)

    def _nudge(
        self, transform: np.ndarray, residual: np.ndarray, error: np.ndarray
    ) -> float | None:
        size = np.linalg.norm(np.abs(residual) + error)
        q = np.linalg.norm(transform @ residual) + TINY
        # The product's own rounding, and what the residual's error can become.
        q += self.transform_norm * (gamma(len(residual) + 8) * size + np.linalg.norm(error))
        q *= 1 + gamma(len(residual) + 8)
        room = 1 - self.defect - q * self.offset
        if not room > 0:
            return None
        share = self.reach * (q + self.offset) / room * (1 + 16 * UNIT)
        # Below a half, no weight of the mixture is anywhere near zero.
        return float(share) if share <= 0.5 and np.isfinite(share) else None

    def bias_low(self, nudge: float) -> float:
        """The least bias that the nudged mean row can have (`nudge` as returned above)."""
        low, high = self.bias_range
        spread = (high - low) * 2 * nudge / (1 - nudge)
        return max(low, self.bias_mean - self.bias_error - spread * (1 + 16 * UNIT))


def _whiten(head: Head, device: Device, centre: np.ndarray) -> np.ndarray | None:
    """K with K Σ Kᵀ near the identity, however it was found; None where Σ is singular."""
    total: Any = 0.0
    middle = device.put(centre)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for _, block in device.blocks(head):
            away = block - middle
            total = total + away.T @ away
        covariance = device.get(total) / head.classes
    if not np.isfinite(covariance).all() or not np.diag(covariance).min() > 1 / _SAFE:
        return None
    try:
        transform = np.linalg.inv(np.linalg.cholesky(covariance))
    except np.linalg.LinAlgError:
        return None
    sane = np.isfinite(transform).all() and np.abs(transform).max() < _SAFE
    return transform if sane else None


def _bounds(
    head: Head, device: Device, centre: np.ndarray, transform: np.ndarray
) -> tuple[float, float, float, float]:
    """Rigorous ‖K‖, η, ‖v̄‖ and M for this centre and transform."""
    count, width = head.classes, head.features
    norm = float(row_norms(transform.reshape(1, -1))[0])
    moment_sum: Any = 0.0
    mean = np.zeros(width)
    middle, turn = device.put(centre), device.put(np.ascontiguousarray(transform.T))
    reach = energy = length = leak = drift = 0.0
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for _, block in device.blocks(head):
            away = block - middle
            product = away @ turn
            moment_sum = moment_sum + product.T @ product
            mean += device.get(device.xp.sum(product, axis=0))
            sizes = device.get(row_norms(product, device.xp))
            # ‖computed v_i − true v_i‖: one rounding for w − c, d products and additions.
            errors = gamma(width + 8) * norm * device.get(row_norms(away, device.xp))
            reach = max(reach, float((sizes + errors).max()))
            energy += float((sizes**2).sum())
            length += float(sizes.sum())
            leak += float((2 * sizes * errors + errors**2).sum())
            drift += float(errors.sum())
        slack = gamma(count + 8)
        up = 1 + gamma(count + width**2 + 64)  # norms of d × d matrices are sums of d² squares
        moment = device.get(moment_sum) / count - np.eye(width)
        defect = (
            np.linalg.norm(moment) + (2 * slack * energy + leak) / count
        ) * up + width * UNIT * 4
        offset = (np.linalg.norm(mean) / count + (2 * slack * length + drift) / count) * up
    return norm, float(defect), float(offset), float(reach * up)
