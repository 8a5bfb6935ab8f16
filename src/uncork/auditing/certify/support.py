"""How large r·x + s can be on a domain: bounded rigorously in floats, or exactly in fractions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from uncork.auditing.certify.rigour import TINY, gamma, row_norms
from uncork.domain import Ball, Box, Domain


def upper_bound(
    domain: Domain, residual: np.ndarray, error: np.ndarray, constant: float, slack: float
) -> float:
    """max over x ∈ D of r·x + s, rounded up, for r within `error` of `residual`, s of `constant`.

    +inf where an infinite side of the domain is seen; NaN where something overflowed.
    """
    support, size = _support(domain, residual, error)
    if not np.isfinite(support):
        return float("nan") if np.isnan(support) else float("inf")
    rounding = gamma(len(residual) + 8) * (size + abs(constant) + slack)
    if _may_underflow(domain, residual, error):
        rounding += (len(residual) + 8) * TINY
    return support + constant + slack + rounding


def _may_underflow(domain: Domain, residual: np.ndarray, error: np.ndarray) -> bool:
    """Whether some product behind the support may have been rounded among the subnormals.

    A product with zero is exact. So is the largest of a feature's products where one of them is
    with zero and none of the others is positive.
    """
    if not isinstance(domain, Box):
        return bool(residual.any() or error.any())
    low, high = residual - error, residual + error
    left, right = _sides(domain, len(residual))
    positive = (high > 0) & ((left > 0) | (right > 0)) | (low < 0) & ((left < 0) | (right < 0))
    nonzero = ((low != 0) | (high != 0)) & (left != 0) & (right != 0)
    return bool((positive | nonzero).any())


def _support(domain: Domain, residual: np.ndarray, error: np.ndarray) -> tuple[float, float]:
    """max over x ∈ D of r·x before rounding, and the size of what was summed."""
    low, high = residual - error, residual + error
    if isinstance(domain, Box):
        lower, upper = domain.bounds(len(residual))
        if ((high > 0) & np.isinf(upper)).any() or ((low < 0) & np.isinf(lower)).any():
            return float("inf"), 0.0
        # The worst end of the range of r and of x.
        left, right = _sides(domain, len(residual))
        ends = np.maximum(
            np.maximum(low * left, high * left), np.maximum(low * right, high * right)
        )
        return float(ends.sum()), float(np.abs(ends).sum())
    size = np.maximum(np.abs(low), np.abs(high))
    if np.isnan(size).any():
        return float("nan"), 0.0
    if isinstance(domain, Ball):
        norm = float(row_norms(size[None])[0]) * domain.outer
        return norm, norm
    return (float("inf") if size.any() else 0.0), 0.0


def _sides(domain: Box, features: int) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of the box. An infinite one that is not reached: the other, or zero."""
    lower, upper = domain.bounds(features)
    left = np.where(np.isinf(lower), _finite(upper), lower)
    return left, np.where(np.isinf(upper), _finite(lower), upper)


def _finite(bounds: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(bounds), 0.0, bounds)


def finite_part(domain: Domain, residual: np.ndarray) -> np.ndarray:
    """The nearest residual whose product with x is bounded above on the domain."""
    if isinstance(domain, Ball):
        return residual
    if isinstance(domain, Box):
        lower, upper = domain.bounds(len(residual))
        part = np.where(np.isinf(upper), np.minimum(residual, 0.0), residual)
        return np.where(np.isinf(lower), np.maximum(part, 0.0), part)
    return np.zeros_like(residual)


def part_below_zero(domain: Domain, residual: np.ndarray) -> np.ndarray:
    """The nearest residual whose product with x is nowhere positive, where x = 0 is a corner of the
    domain: what a mixture must leave where all classes tie at 0. Elsewhere zero."""
    if not isinstance(domain, Box):
        return np.zeros_like(residual)
    lower, upper = domain.bounds(len(residual))
    if (lower > 0).any() or (upper < 0).any():
        return np.zeros_like(residual)
    part = np.where(upper > 0, np.minimum(residual, 0.0), residual)
    return np.where(lower < 0, np.maximum(part, 0.0), part)


def upper_bound_exactly(domain: Domain, r: Sequence[Fraction], s: Fraction) -> Fraction | None:
    """max over x ∈ D of r·x + s where it is rational, else any number of the same sign; None: ∞."""
    if isinstance(domain, Box):
        lower, upper = domain.bounds(len(r))
        for value, low, high in zip(r, lower.tolist(), upper.tolist(), strict=True):
            end = high if value > 0 else low
            if value != 0:
                if math.isinf(end):
                    return None
                s += value * Fraction(end)
        return s
    if not any(r):
        return s
    if isinstance(domain, Ball):
        square = sum(value * value for value in r) * domain.square
        return Fraction(0) if s <= 0 and square <= s * s else Fraction(1)
    return None


def contains_exactly(domain: Domain, x: Sequence[Fraction]) -> bool:
    """Whether a rational input lies in the domain."""
    if isinstance(domain, Box):
        lower, upper = domain.bounds(len(x))
        return all(
            (math.isinf(a) or Fraction(a) <= v) and (math.isinf(b) or v <= Fraction(b))
            for v, a, b in zip(x, lower.tolist(), upper.tolist(), strict=True)
        )
    if isinstance(domain, Ball):
        return sum(v * v for v in x) <= domain.square
    return True
