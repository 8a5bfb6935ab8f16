"""Intervals of what a network computes: bounds that also hold after the run-time's own rounding.

A bound on real numbers is not a bound on what a run-time computes in float32. So every result is
rounded outward to the type the network computes in: rounding is monotone, and what is rounded
from within the bounds stays within them. Functions such as tanh are not rounded correctly by
real run-times; they are taken to be right to `_FUNCTION_UNITS` units of that type. (onnxruntime
1.31 on a CPU: Tanh reaches ±1.00000024 and is 6 units off at most, Softplus 6, Erf 2; Sigmoid is
off by 1.7e-7 at most, reaches 1.00000012, and is zero below −20.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

Bounds = tuple[np.ndarray, np.ndarray]  # lower, upper: alike in shape, float64

_FUNCTION_UNITS = 16.0
_SATURATED = 20.0  # beyond this, sigmoid and tanh are taken to have reached their limits
_NARROW = 2.0**29 + 1  # Veltkamp's constant: what it splits off a float64 has 24 bits


@dataclass(frozen=True)
class Arithmetic:
    """Interval arithmetic for values computed in a float type of `bits` significant bits."""

    bits: int = 24
    tiny: float = 2.0**-126  # smaller results may be flushed to zero
    largest: float = float(np.finfo(np.float32).max)

    @property
    def unit(self) -> float:
        return 2.0**-self.bits

    def down(self, x: np.ndarray) -> np.ndarray:
        """A number of the type that nothing from x upward is rounded below."""
        mantissa, exponent = np.frexp(x)
        with np.errstate(over="ignore", under="ignore"):
            grid = np.ldexp(np.floor(np.ldexp(mantissa, self.bits)), exponent - self.bits)
            # Below `tiny` steps are even; positive numbers may be flushed to zero, and what is
            # nearer to zero than half a step becomes zero by rounding.
            step = self.tiny * 2 * self.unit
            small = np.where(x >= -step / 2, 0.0, np.floor(np.minimum(x, 0.0) / step) * step)
        return np.where(np.isfinite(x), np.where(np.abs(x) < self.tiny, small, grid), x)

    def up(self, x: np.ndarray) -> np.ndarray:
        return -self.down(-x)

    def outward(self, lower: np.ndarray, upper: np.ndarray) -> Bounds:
        """Bounds rounded outward; what could not be computed bounds nothing."""
        lower = np.where(np.isnan(lower) | (lower < -self.largest), -np.inf, lower)
        upper = np.where(np.isnan(upper) | (upper > self.largest), np.inf, upper)
        lower, upper = self.down(lower), self.up(upper)
        # Rounding outward may step over the largest number of the type: that is infinity.
        lower = np.where(lower < -self.largest, -np.inf, lower)
        return lower, np.where(upper > self.largest, np.inf, upper)

    def add(self, a: Bounds, b: Bounds) -> Bounds:
        return self.outward(_add_down(a[0], b[0]), -_add_down(-a[1], -b[1]))

    def subtract(self, a: Bounds, b: Bounds) -> Bounds:
        return self.add(a, (-b[1], -b[0]))

    def multiply(self, a: Bounds, b: Bounds) -> Bounds:
        narrow = [[_narrow(end) for end in side] for side in (a, b)]
        products = [
            _product(a[i], b[j], narrow[0][i] & narrow[1][j]) for i in (0, 1) for j in (0, 1)
        ]
        lower = np.minimum.reduce([product[0] for product in products])
        upper = np.maximum.reduce([product[1] for product in products])
        return self.outward(lower, upper)

    def divide(self, a: Bounds, b: Bounds) -> Bounds:
        return self.multiply(a, self.reciprocal(b))

    def reciprocal(self, a: Bounds) -> Bounds:
        """1/a. A division is rounded once in the run-time, here twice: wider, not narrower."""
        with np.errstate(all="ignore"):
            low, high = np.nextafter(1 / a[1], -np.inf), np.nextafter(1 / a[0], np.inf)
        signed = (a[0] > 0) | (a[1] < 0)
        positive, negative = a[0] > 0, a[1] < 0
        low = np.where(positive, np.maximum(low, 0.0), low)
        high = np.where(negative, np.minimum(high, 0.0), high)
        return self.outward(np.where(signed, low, -np.inf), np.where(signed, high, np.inf))

    def square(self, a: Bounds) -> Bounds:
        far = np.maximum(np.abs(a[0]), np.abs(a[1]))
        near = np.where((a[0] <= 0) & (a[1] >= 0), 0.0, np.minimum(np.abs(a[0]), np.abs(a[1])))
        low, _ = self.multiply((near, near), (near, near))
        _, high = self.multiply((far, far), (far, far))
        return np.maximum(low, 0.0), high

    def function(self, name: str, a: Bounds) -> Bounds:
        """A function that never falls, by name."""
        value, least, most = _RISING[name]
        with np.errstate(all="ignore"):
            low, high = value(a[0]), value(a[1])
        # Types of less than 32 bits are computed in float32, and rounded once more at the end.
        fine = _FUNCTION_UNITS * min(self.unit, 2.0**-24)
        wide = fine + (2 * self.unit if self.bits < 24 else 0.0)
        low, high = low - np.abs(low) * wide, high + np.abs(high) * wide
        if name in _ABSOLUTE:
            # The run-time's error is that of its limits, until it has reached them: from there
            # on it may be at them.
            low = low - fine
            high = np.where(a[1] > -_SATURATED, high + fine, high)
        return self.outward(np.maximum(low, least), np.minimum(high, most * (1 + wide)))


FLOAT32 = Arithmetic()
FLOAT64 = Arithmetic(53, 2.0**-1022, float(np.finfo(np.float64).max))
FLOAT16 = Arithmetic(11, 2.0**-14, 65504.0)
BFLOAT16 = Arithmetic(8, 2.0**-126, 3.3895313892515355e38)


def _add_down(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b rounded down: the rounding error is known exactly (Knuth's TwoSum)."""
    with np.errstate(all="ignore"):
        total = a + b
        back = total - a
        error = (a - (total - back)) + (b - back)
        exact = (error >= 0) | ~np.isfinite(total)
        total = np.where(np.isnan(total), -np.inf, total)  # inf − inf
        return np.where(exact, total, np.nextafter(total, -np.inf))


def _product(a: np.ndarray, b: np.ndarray, narrow: np.ndarray) -> Bounds:
    """a · b rounded down and up; zero times anything, infinity too, is zero.

    Two narrow numbers, of 24 bits, have a product of 48, which float64 holds.
    """
    with np.errstate(all="ignore"):
        zero = (a == 0) | (b == 0)
        product = np.where(zero, 0.0, a * b)
        exact = (narrow & (np.abs(product) > 2.0**-1000)) | zero | np.isinf(a) | np.isinf(b)
        return (
            np.where(exact, product, np.nextafter(product, -np.inf)),
            np.where(exact, product, np.nextafter(product, np.inf)),
        )


def _narrow(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        scaled = x * _NARROW
        return np.isinf(x) | (scaled - (scaled - x) == x)


def _one_plus_tanh(x: np.ndarray) -> np.ndarray:
    return 2 * special.expit(2 * x)  # 1 + tanh x, without cancellation


def _one_plus_erf(x: np.ndarray) -> np.ndarray:
    return special.erfc(-x)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


# Each with its least and its largest value. SciPy's own errors are far below a float32 unit; where
# its result underflows to zero the next larger float is the bound.
def _no_zero(value: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.where(np.isfinite(x), np.nextafter(value(x), np.inf), value(x))


_INF = float("inf")
_RISING: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float]] = {
    "Sigmoid": (_no_zero(special.expit), 0.0, 1.0),
    "Tanh": (np.tanh, -_INF, 1.0),
    "OnePlusTanh": (_no_zero(_one_plus_tanh), 0.0, 2.0),
    "Erf": (special.erf, -_INF, 1.0),
    "OnePlusErf": (_no_zero(_one_plus_erf), 0.0, 2.0),
    "Softplus": (_no_zero(_softplus), 0.0, _INF),
    "Exp": (_no_zero(np.exp), 0.0, _INF),
    "Expm1": (np.expm1, -_INF, _INF),
    "Log": (np.log, -_INF, _INF),
    "Sqrt": (np.sqrt, 0.0, _INF),
    "Atan": (np.arctan, -_INF, _INF),
    "Softsign": (lambda x: np.where(np.isinf(x), np.sign(x), x / (1 + np.abs(x))), -_INF, 1.0),
}
_ABSOLUTE = {"Sigmoid", "OnePlusTanh", "OnePlusErf", "Expm1"}
