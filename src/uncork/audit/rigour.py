"""Rounding, bounded: the few facts about float64 that the certifier stands on."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Any

import numpy as np

UNIT = 2.0**-53  # rounding to nearest errs by at most this share
TINY = 2.0**-1022  # no underflow errs by more, gradual or flushed to zero
SMALLEST = 5e-324
LARGEST = sys.float_info.max


def gamma(n: int) -> float:
    """γ_n = n·u/(1 − n·u), rounded up: the relative error of n roundings."""
    return n * UNIT / (1 - n * UNIT) * (1 + 8 * UNIT)


def row_norms(rows: Any, xp: Any = np) -> Any:
    """Upper bounds on the Euclidean norms of the rows (n, d): no overflow, no underflow."""
    largest = xp.max(xp.abs(rows), axis=1)
    zero = largest == 0
    scale = xp.where(zero, xp.ones_like(largest), largest)
    with np.errstate(all="ignore"):  # NaN and infinity stay what they are
        square = xp.sum((rows / scale[:, None]) ** 2, axis=1)
        norms = scale * xp.sqrt(square) * (1 + gamma(rows.shape[1] + 8))
    # Among the subnormals a factor rounds away: one step up is always enough.
    return xp.where(zero, largest, norms + SMALLEST)


def lower_float(value: Fraction) -> float:
    """A float no greater than the fraction, except that its sign is kept: > 0 stays > 0."""
    if value == 0:
        return 0.0
    try:
        result = float(value)
    except OverflowError:
        return LARGEST if value > 0 else -math.inf
    if Fraction(result) > value:
        result = math.nextafter(result, -math.inf)
    if value > 0:
        return max(result, SMALLEST)
    return min(result, -SMALLEST)


def integers(values: np.ndarray) -> tuple[list[int], int]:
    """Floats as whole numbers over one power of two, exactly: (numerators, denominator)."""
    ratios = [float(v).as_integer_ratio() for v in values]
    denominator = max(q for _, q in ratios)  # all are powers of two
    return [p * (denominator // q) for p, q in ratios], denominator
