"""Rounding, bounded: the few facts about float64 that the certifier and the domains stand on.

A bound is made of sums and products of numbers that are zero or more. Every operation gives at
least a share 1 − u of the true result, and a product that underflows a further η = 2⁻¹⁰⁷⁵ less. So
n operations one after another are paid for by a factor of 1 + γ_n and by n·η, if *every factor is a
bound already*. A factor that has underflowed is none: what it lost is multiplied by whatever comes
next, and next may come 1e308. Hence the one rule for every product of a bound with a number:

* pay for a factor before it is multiplied (`mul_up`, `add_up`, `up`), not only for the result;
* or multiply by the small factor (γ, u) last, when nothing large follows.

Gradual underflow is taken for granted, so `check_arithmetic` asks for it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError

UNIT = 2.0**-53  # rounding to nearest errs by at most this share
TINY = 2.0**-1022  # 2⁵³ underflows together err by no more
SMALLEST = 5e-324
LARGEST = sys.float_info.max


def gamma(n: int) -> float:
    """γ_n = n·u/(1 − n·u), rounded up: the relative error of n roundings."""
    return n * UNIT / (1 - n * UNIT) * (1 + 8 * UNIT)


def up(bound: Any, roundings: int) -> Any:
    """A bound again, after `roundings` roundings of sums and products of bounds. Never zero."""
    return bound * (1 + gamma(2 * roundings + 4)) + roundings * TINY


def mul_up(a: Any, b: Any, xp: Any = np) -> Any:
    """a·b for a, b ≥ 0, never below it; zero where a factor is."""
    product = a * b
    # Among the subnormals the share rounds away, and one step up is enough.
    return xp.where((a == 0) | (b == 0), product, product * (1 + 4 * UNIT) + SMALLEST)


def add_up(*terms: Any) -> Any:
    """The sum of terms ≥ 0, never below it; zero where all are."""
    return sum(terms[1:], terms[0]) * (1 + gamma(2 * len(terms)))


def check_arithmetic() -> None:
    """Raise where this thread flushes subnormal numbers to zero: every bound counts on them."""
    if not TINY * 0.5 > 0.0:
        raise UncorkError(
            "this process flushes subnormal numbers to zero, and proofs need them: it called "
            "torch.set_flush_denormal(True), or loaded a library compiled with -ffast-math; "
            "run uncork in a process of its own"
        )


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


def upper_float(value: Fraction) -> float:
    """A float no less than the fraction."""
    try:
        result = float(value)
    except OverflowError:
        return math.inf if value > 0 else -LARGEST
    return math.nextafter(result, math.inf) if Fraction(result) < value else result


def integers(values: np.ndarray) -> tuple[list[int], int]:
    """Floats as whole numbers over one power of two, exactly: (numerators, denominator)."""
    ratios = [float(v).as_integer_ratio() for v in values]
    denominator = max(q for _, q in ratios)  # all are powers of two
    return [p * (denominator // q) for p, q in ratios], denominator


def whole_bits(arrays: Iterable[np.ndarray]) -> int:
    """How many bits these numbers and one have, as whole numbers over one power of two."""
    low, high = 0, 1
    for array in arrays:
        size = np.abs(array[np.isfinite(array) & (array != 0)])
        if len(size):
            low = min(low, math.frexp(float(size.min()))[1] - 54)
            high = max(high, math.frexp(float(size.max()))[1])
    return high - low + 8
