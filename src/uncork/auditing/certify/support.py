"""How large r·x + s can be on a domain, with what rounding may have hidden.

The sum itself is the domain's (`Domain.support`, and in fractions `Domain.upper_bound_exactly`).
"""

from __future__ import annotations

import numpy as np

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
