"""How many rankings of its classes a head can produce: exact integers, and logarithms beyond.

Inputs that rank the classes alike form a region. The walls between regions are z_i = z_j: the
braid arrangement, cut by the head's image, a slice of dimension d. For a head in general position
Zaslavsky's theorem counts the regions from the coefficients of

    (1 + x)(1 + 2x)···(1 + (C−1)x) = Σ_k c(C, C−k) x^k,      c: Stirling numbers of the first kind.

With a bias the slice is affine, and there are Σ_{k≤d} c(C, C−k) regions (Good and Tideman 1977,
Eq. 1), of which |Σ_{k≤d} (−1)^k c(C, C−k)| are bounded (Eq. 2). Dividing the product by (1 + x)
turns that alternating sum into one coefficient: with e_k the elementary symmetric polynomials,

    bounded = e_d(2, …, C−1),    unbounded = 2 Σ_{k<d} e_k(2, …, C−1).

Without a bias every region is a cone, one for each unbounded region of the head with a bias
(Cover 1967; OEIS A071223). From d = C − 1 on, every ranking is feasible.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from uncork.core.errors import UncorkError

_UNIT = 2.0**-53
_MOST_CLASSES = 20_000_000
_LOST_MASS = 1e-280  # probabilities below this are dropped: all of them together are below 1e-270


def rankings(classes: int, features: int, *, bias: bool = False) -> int:
    """The number of feasible rankings of a head in general position, exactly."""
    _check(classes, features)
    if features >= classes - 1:
        return math.factorial(classes)
    if bias:
        return sum(_elementary(1, classes - 1, features))
    return 2 * sum(_elementary(2, classes - 1, features - 1))


def bounded_rankings(classes: int, features: int, *, bias: bool = False) -> int:
    """How many of the rankings live in a bounded region: 0 without a bias, as regions are cones."""
    _check(classes, features)
    if not bias or features >= classes - 1:
        return 0
    return _elementary(2, classes - 1, features)[features]


def unbounded_rankings(classes: int, features: int, *, bias: bool = False) -> int:
    """How many of the rankings live in an unbounded region."""
    return rankings(classes, features, bias=bias) - bounded_rankings(classes, features, bias=bias)


def share(classes: int, features: int, *, bias: bool = False) -> Fraction:
    """The feasible part of all C! rankings."""
    return Fraction(rankings(classes, features, bias=bias), math.factorial(classes))


def log_rankings(
    classes: int, features: int, *, bias: bool = False, bounded: bool = False
) -> float:
    """The natural logarithm of the count, of the bounded regions only if `bounded`.

    For sizes whose integers take too long. Every step adds positive numbers, so the error is that
    of rounding alone: at most `log_error(classes, result)`. −inf where the count is 0.
    """
    _check(classes, features)
    if features >= classes - 1:
        return -math.inf if bounded else log_factorial(classes)
    if bounded and not bias:
        return -math.inf
    if classes > _MOST_CLASSES and (bias or features > 1):  # each takes a step, and memory
        raise UncorkError(
            f"{classes:,} classes are too many to count with: at most {_MOST_CLASSES:,}"
        )
    if bounded:
        return _log_elementary(2, classes - 1, features, summed=False)
    if bias:
        return _log_elementary(1, classes - 1, features, summed=True)
    if features == 1:
        return math.log(2)
    return math.log(2) + _log_elementary(2, classes - 1, features - 1, summed=True)


def log_error(classes: int, logarithm: float) -> float:
    """A bound on the error of `log_rankings` for that many classes and that result."""
    return (4 * classes + 64) * _UNIT + 8 * _UNIT * (abs(logarithm) + log_factorial(classes))


def log_factorial(classes: int) -> float:
    """ln C!"""
    return math.lgamma(classes + 1)


def table(bias: bool, classes: int = 10, features: int = 10) -> list[list[int]]:
    """Rows C = 1 … classes, columns d = 1 … features: Table 2 (no bias) and Table 3 (bias)."""
    return [
        [rankings(c, d, bias=bias) for d in range(1, features + 1)] for c in range(1, classes + 1)
    ]


def _check(classes: int, features: int) -> None:
    if classes < 1:
        raise UncorkError(f"{classes} classes: there is at least one")
    if features < 1:
        raise UncorkError(f"{features} features: there is at least one")


def _elementary(first: int, last: int, most: int) -> list[int]:
    """e_0 … e_most of the numbers first … last: the product of (1 + jx), one factor at a time."""
    e = [1] + [0] * most
    for n, j in enumerate(range(first, last + 1), start=1):
        for k in range(min(n, most), 0, -1):
            e[k] += j * e[k - 1]
    return e


def _log_elementary(first: int, last: int, degree: int, *, summed: bool) -> float:
    """ln e_degree of first … last, or of e_0 + … + e_degree.

    e_k ρ^k / Π(1 + jρ) is the probability of k successes in independent trials that succeed with
    jρ/(1 + jρ). With ρ such that `degree` are expected, what is wanted is near the mode and
    float64 needs no further scaling.
    """
    numbers = np.arange(first, last + 1, dtype=np.float64)
    rho = min(_rho(numbers, degree), 1.0)  # above 1 the largest e_k lies below the degree
    success = numbers * rho / (1 + numbers * rho)
    failure = 1 / (1 + numbers * rho)
    p = np.zeros(degree + 1)
    p[0] = 1.0
    low = high = 0  # p is zero outside [low, high]; subnormals would slow every step down
    for n in range(len(numbers)):
        high = min(high + 1, degree)
        moved = p[low:high] * success[n]
        p[low : high + 1] *= failure[n]
        p[low + 1 : high + 1] += moved
        if n % 16 == 0:
            while low < high and p[low] < _LOST_MASS:
                p[low] = 0.0
                low += 1
            while high > low and p[high] < _LOST_MASS:
                p[high] = 0.0
                high -= 1
    total = p[degree]
    if summed:
        total = math.fsum((p * rho ** np.arange(degree, -1, -1.0)).tolist())
    size = math.fsum(np.log1p(numbers * rho).tolist())
    return float(size - degree * math.log(rho) + math.log(total))


def _rho(numbers: np.ndarray, degree: int) -> float:
    """The odds at which `degree` successes are expected; infinite where all must succeed."""
    if degree >= len(numbers):
        return math.inf
    low, high = -60.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        odds = numbers * math.exp(middle)
        low, high = (middle, high) if (odds / (1 + odds)).sum() < degree else (low, middle)
    return math.exp(low)
