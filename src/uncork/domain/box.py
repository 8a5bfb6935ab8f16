"""Boxes: inputs bounded feature by feature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import number
from uncork.domain.outline import Outline
from uncork.domain.protocol import Domain, Support, Supports, register

if TYPE_CHECKING:
    from uncork.domain.members import Stored


@register
@dataclass(frozen=True, eq=False)
class Box(Domain):
    """lower ≤ x ≤ upper, feature by feature; sides may be infinite.

    `Box(100)` is −100 ≤ x ≤ 100, `Box(0, inf)` what leaves a ReLU, and arrays of d bounds give
    each feature its own.
    """

    lower: np.ndarray  # (d,) or ()
    upper: np.ndarray  # (d,) or ()

    kind = "box"
    arrays = ("lower", "upper")
    forms = ("box:R", "box:LO,HI")

    def __init__(self, lower: float | np.ndarray, upper: float | np.ndarray | None = None) -> None:
        if upper is None:
            radius = _numbers(lower, "a box")
            if np.isnan(radius).any() or (radius <= 0).any():
                raise UncorkError(f"a box needs a positive radius, not {lower}")
            lower, upper = -radius, radius
        low, high = np.array(_numbers(lower, "a box")), np.array(_numbers(upper, "a box"))
        if low.ndim > 1 or high.ndim > 1:
            raise UncorkError("the bounds of a box are numbers or one bound for each feature")
        try:
            low, high = (np.array(a) for a in np.broadcast_arrays(low, high))
        except ValueError:
            raise UncorkError(
                f"a box with {low.size} lower and {high.size} upper bounds: the counts must agree"
            ) from None
        if np.isnan(low).any() or np.isnan(high).any():
            raise UncorkError("a bound of a box is NaN")
        if (low > high).any():
            at = int(np.argmax(np.atleast_1d(low > high)))
            raise UncorkError(
                f"the box is empty: lower bound {np.atleast_1d(low)[at]:g} is above upper bound "
                f"{np.atleast_1d(high)[at]:g}" + (f" at feature {at}" if low.ndim else "")
            )
        if (low == np.inf).any() or (high == -np.inf).any():
            raise UncorkError("the box is empty: a lower bound of +inf or an upper bound of -inf")
        low.setflags(write=False)
        high.setflags(write=False)
        object.__setattr__(self, "lower", low)
        object.__setattr__(self, "upper", high)

    def bounds(self, features: int) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds, one for each feature: (d,), (d,)."""
        self.check(features)
        shape = (features,)
        return np.broadcast_to(self.lower, shape), np.broadcast_to(self.upper, shape)

    @property
    def is_box(self) -> bool:
        return True

    def sides(self, features: int) -> tuple[np.ndarray, np.ndarray] | None:
        return self.bounds(features)

    def contains(self, x: np.ndarray, tolerance: float = 0.0) -> np.ndarray:
        low, high = self.lower, self.upper
        if tolerance:
            low, high = low - tolerance * np.abs(low), high + tolerance * np.abs(high)
        found: np.ndarray = ((x >= low) & (x <= high) & np.isfinite(x)).all(axis=-1)
        return found

    def contains_on(self, device: Any, x: Any) -> np.ndarray:
        xp = device.xp
        lower, upper = (device.put(bound.copy()) for bound in self.bounds(x.shape[1]))
        inside = xp.isfinite(x) & (x >= lower) & (x <= upper)
        return np.asarray(device.get(xp.all(inside, axis=1)))

    def contains_exactly(self, x: Sequence[Fraction]) -> bool:
        lower, upper = self.bounds(len(x))
        return all(
            (math.isinf(a) or Fraction(a) <= v) and (math.isinf(b) or v <= Fraction(b))
            for v, a, b in zip(x, lower.tolist(), upper.tolist(), strict=True)
        )

    def support(self, residual: np.ndarray, error: np.ndarray) -> Support:
        low, high = residual - error, residual + error
        lower, upper = self.bounds(len(residual))
        if ((high > 0) & np.isinf(upper)).any() or ((low < 0) & np.isinf(lower)).any():
            return Support(np.inf, 0.0, False)
        # An infinite side that is not reached: the other one, or zero.
        left = np.where(np.isinf(lower), np.where(np.isinf(upper), 0.0, upper), lower)
        right = np.where(np.isinf(upper), np.where(np.isinf(lower), 0.0, lower), upper)
        # The worst end of the range of r and of x.
        ends = np.maximum(
            np.maximum(low * left, high * left), np.maximum(low * right, high * right)
        )
        # A product with zero is exact. So is the largest of a feature's products where one of them
        # is with zero and none of the others is positive.
        positive = (high > 0) & ((left > 0) | (right > 0)) | (low < 0) & ((left < 0) | (right < 0))
        nonzero = ((low != 0) | (high != 0)) & (left != 0) & (right != 0)
        underflows = bool((positive | nonzero).any())
        return Support(float(ends.sum()), float(np.abs(ends).sum()), underflows)

    def supports(self, residuals: Any, errors: Any, device: Any) -> Supports:
        xp, get = device.xp, device.get
        low, high = residuals - errors, residuals + errors
        lower, upper = self.bounds(residuals.shape[1])
        # As in `support`.
        left = np.where(np.isinf(lower), np.where(np.isinf(upper), 0.0, upper), lower)
        right = np.where(np.isinf(upper), np.where(np.isinf(lower), 0.0, lower), upper)
        below, above = device.put(np.isinf(lower)), device.put(np.isinf(upper))
        infinite = get(xp.any(((high > 0) & above) | ((low < 0) & below), axis=1))
        a, b = device.put(left), device.put(right)
        ends = xp.maximum(xp.maximum(low * a, high * a), xp.maximum(low * b, high * b))
        positive = (high > 0) & ((a > 0) | (b > 0)) | (low < 0) & ((a < 0) | (b < 0))
        nonzero = ((low != 0) | (high != 0)) & (a != 0) & (b != 0)
        underflows = get(xp.any(positive | nonzero, axis=1))
        value, size = get(xp.sum(ends, axis=1)), get(xp.sum(xp.abs(ends), axis=1))
        return Supports(
            np.where(infinite, np.inf, value), np.where(infinite, 0.0, size), underflows & ~infinite
        )

    def support_exactly(self, r: Sequence[Fraction]) -> Fraction | None:
        total = Fraction(0)
        lower, upper = self.bounds(len(r))
        for value, low, high in zip(r, lower.tolist(), upper.tolist(), strict=True):
            end = high if value > 0 else low
            if value != 0:
                if math.isinf(end):
                    return None
                total += value * Fraction(end)
        return total

    @property
    def features(self) -> int | None:
        return self.lower.size if self.lower.ndim else None

    def check(self, features: int) -> None:
        if self.lower.ndim and self.lower.size != features:
            raise UncorkError(
                f"the box has {self.lower.size} bounds but the head has {features} features"
            )

    @property
    def is_cone(self) -> bool:
        sides = np.concatenate([np.atleast_1d(self.lower), np.atleast_1d(self.upper)])
        return bool(((sides == 0) | np.isinf(sides)).all())

    @property
    def is_everything(self) -> bool:
        return bool((self.lower == -np.inf).all() and (self.upper == np.inf).all())

    def outline(self, features: int) -> Outline:
        return Outline(*self.bounds(features))

    def spec(self) -> str:
        if self.lower.ndim == 0:
            return f"box:{float(self.lower):.17g},{float(self.upper):.17g}"
        pairs = (f"{a:.17g},{b:.17g}" for a, b in zip(self.lower, self.upper, strict=True))
        return "box:" + ";".join(pairs) + (";" if self.lower.size == 1 else "")

    @classmethod
    def parse(cls, text: str) -> Domain:
        texts = text.removesuffix(";").split(";")
        pairs = [[float(part) for part in pair.split(",")] for pair in texts]
        if ";" not in text and len(pairs[0]) in (1, 2):
            return cls(*pairs[0])
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError(text)
        return cls(np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs]))

    @classmethod
    def from_members(cls, stored: Stored) -> Domain:
        lower, upper = stored.array("lower"), stored.array("upper")
        if lower is None or upper is None:
            raise UncorkError("a box needs its lower and its upper bounds")
        return cls(lower, upper)

    def in_words(self, features: int) -> str:
        lower, upper = (np.unique(bound) for bound in self.bounds(features))
        if len(lower) == len(upper) == 1:
            if np.isinf(upper[0]) and np.isfinite(lower[0]):  # what leaves a ReLU or a SiLU
                return f"every input with each feature at least {number(lower[0])}"
            return (
                f"every input with each feature between {number(lower[0])} and {number(upper[0])}"
            )
        return (
            f"every input with each feature in its own range, all within {number(lower[0])} and "
            f"{number(upper[-1])}"
        )

    def __str__(self) -> str:
        if self.lower.ndim == 0:
            return self.spec()
        low, high = self.lower.min(), self.upper.max()
        return f"box of {self.lower.size} ranges, all within [{low:g}, {high:g}]"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Box)
            and np.array_equal(self.lower, other.lower)
            and np.array_equal(self.upper, other.upper)
        )

    def __hash__(self) -> int:
        return hash(self.spec())


def _numbers(values: object, what: str) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise UncorkError(f"the bounds of {what} are numbers, not {values!r}") from None
