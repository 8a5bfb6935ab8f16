"""How large r·x + s can be on a domain, with what rounding may have hidden.

The sum itself is the domain's (`Domain.support`, and in fractions `Domain.upper_bound_exactly`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from uncork.auditing.certify.products import Device
from uncork.core.rigour import TINY, gamma
from uncork.domain import Domain


def upper_bound(
    domain: Domain, residual: np.ndarray, error: np.ndarray, constant: float, slack: float
) -> float:
    """max over x ∈ D of r·x + s, rounded up, for r within `error` of `residual`, s of `constant`.

    +inf where an infinite side of the domain is seen; NaN where something overflowed.
    """
    support, size, underflows = domain.support(residual, error)
    if not np.isfinite(support):
        return float("nan") if np.isnan(support) else float("inf")
    rounding = gamma(len(residual) + 8) * (size + abs(constant) + slack)
    if underflows:
        rounding += (len(residual) + 8) * TINY
    return support + constant + slack + rounding


def upper_bounds(
    domain: Domain,
    residuals: Any,
    errors: Any,
    constants: np.ndarray,
    slacks: np.ndarray,
    device: Device,
) -> np.ndarray:
    """`upper_bound` of many: (n, d), (n, d) on a device, (n,), (n,) here → (n,)."""
    support, size, underflows = domain.supports(residuals, errors, device)
    count = residuals.shape[1] + 8
    rounding = gamma(count) * (size + np.abs(constants) + slacks)
    rounding = rounding + np.where(underflows, count * TINY, 0.0)
    bound = support + constants + slacks + rounding
    return np.where(np.isfinite(support), bound, np.where(np.isnan(support), np.nan, np.inf))


def finite_part(domain: Domain, residual: np.ndarray) -> np.ndarray:
    """The nearest residual whose product with x is bounded above on the domain."""
    outline = domain.outline(len(residual))
    if outline.is_round:
        return residual
    part = np.where(np.isinf(outline.upper), np.minimum(residual, 0.0), residual)
    return np.where(np.isinf(outline.lower), np.maximum(part, 0.0), part)


def part_below_zero(domain: Domain, residual: np.ndarray) -> np.ndarray:
    """The nearest residual whose product with x is nowhere positive, where x = 0 is a corner of the
    domain: what a mixture must leave where all classes tie at 0. Elsewhere zero."""
    outline = domain.outline(len(residual))
    lower, upper = outline.lower, outline.upper
    if (lower > 0).any() or (upper < 0).any():
        return np.zeros_like(residual)
    part = np.where(upper > 0, np.minimum(residual, 0.0), residual)
    return np.where(lower < 0, np.maximum(part, 0.0), part)


def finite_parts(domain: Domain, residuals: Any, device: Device) -> Any:
    """`finite_part` of many, on a device: (n, d)."""
    outline = domain.outline(residuals.shape[1])
    if outline.is_round:
        return residuals
    return _without(residuals, np.isinf(outline.upper), np.isinf(outline.lower), device)


def parts_below_zero(domain: Domain, residuals: Any, device: Device) -> Any:
    """`part_below_zero` of many, on a device: (n, d)."""
    outline = domain.outline(residuals.shape[1])
    lower, upper = outline.lower, outline.upper
    if (lower > 0).any() or (upper < 0).any():
        return device.xp.zeros_like(residuals)
    return _without(residuals, upper > 0, lower < 0, device)


def _without(residuals: Any, positive: np.ndarray, negative: np.ndarray, device: Device) -> Any:
    """Residuals with what is positive, and what is negative, taken out of some features."""
    xp, none = device.xp, device.xp.zeros_like(residuals)
    part = xp.where(device.put(positive) & (residuals > 0), none, residuals)
    return xp.where(device.put(negative) & (part < 0), none, part)
