"""The plain domains: every input, a box, a ball."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from uncork.core.errors import UncorkError

if TYPE_CHECKING:
    from uncork.domain.affine import Affine


class Domain:
    """A convex set of inputs x: `Unbounded`, `Box`, `Ball`, or an affine image of one of these
    (`LayerNorm`, `RMSNorm`, `Image`)."""

    def contains(self, x: np.ndarray, tolerance: float = 0.0) -> np.ndarray:
        """Whether each x (…, d) lies in the domain: exactly, or for inputs that were computed with
        rounding, up to a relative tolerance. Never true outside with a tolerance of zero."""
        raise TypeError(f"{type(self).__name__} is not a concrete domain")

    def check(self, features: int) -> None:
        """Raise if this domain does not fit inputs of that many features."""

    @property
    def is_cone(self) -> bool:
        """Whether x ∈ D implies s·x ∈ D for every s > 0."""
        return False

    def affine(self, features: int) -> Affine:
        """The domain as an affine image of a plain one, for inputs of that many features."""
        from uncork.domain.affine import Affine

        self.check(features)
        return Affine(self, (), features, features)

    def spec(self) -> str:
        """Text that identifies the domain; `parse_domain` reads that of a plain one back."""
        raise TypeError(f"{type(self).__name__} is not a concrete domain")

    def __str__(self) -> str:
        return self.spec()


def _numbers(values: object, what: str) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise UncorkError(f"the bounds of {what} are numbers, not {values!r}") from None


@dataclass(frozen=True)
class Unbounded(Domain):
    """Every x ∈ ℝᵈ can arrive."""

    def contains(self, x: np.ndarray, tolerance: float = 0.0) -> np.ndarray:
        return np.isfinite(x).all(axis=-1)

    @property
    def is_cone(self) -> bool:
        return True

    def spec(self) -> str:
        return "unbounded"


@dataclass(frozen=True, eq=False)
class Box(Domain):
    """lower ≤ x ≤ upper, feature by feature; sides may be infinite.

    `Box(100)` is −100 ≤ x ≤ 100, `Box(0, inf)` what leaves a ReLU, and arrays of d bounds give
    each feature its own.
    """

    lower: np.ndarray  # (d,) or ()
    upper: np.ndarray  # (d,) or ()

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

    def contains(self, x: np.ndarray, tolerance: float = 0.0) -> np.ndarray:
        low, high = self.lower, self.upper
        if tolerance:
            low, high = low - tolerance * np.abs(low), high + tolerance * np.abs(high)
        return ((x >= low) & (x <= high) & np.isfinite(x)).all(axis=-1)

    def check(self, features: int) -> None:
        if self.lower.ndim and self.lower.size != features:
            raise UncorkError(
                f"the box has {self.lower.size} bounds but the head has {features} features"
            )

    @property
    def is_cone(self) -> bool:
        sides = np.concatenate([np.atleast_1d(self.lower), np.atleast_1d(self.upper)])
        return bool(((sides == 0) | np.isinf(sides)).all())

    def spec(self) -> str:
        if self.lower.ndim == 0:
            return f"box:{float(self.lower):.17g},{float(self.upper):.17g}"
        pairs = (f"{a:.17g},{b:.17g}" for a, b in zip(self.lower, self.upper, strict=True))
        return "box:" + ";".join(pairs) + (";" if self.lower.size == 1 else "")

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


@dataclass(frozen=True)
class Ball(Domain):
    """‖x‖₂ ≤ radius."""

    radius: float

    def __post_init__(self) -> None:
        if not isinstance(self.radius, numbers.Real):
            raise UncorkError(f"the radius of a ball is a number, not {self.radius!r}")
        if not (self.radius > 0 and math.isfinite(self.radius)):
            raise UncorkError(f"a ball needs a positive finite radius, not {self.radius}")

    @property
    def square(self) -> Fraction:
        """The radius squared, exactly."""
        return Fraction(self.radius) ** 2

    @property
    def outer(self) -> float:
        """The radius rounded up: what a bound on everything in the ball has to use."""
        return self.radius

    def contains(self, x: np.ndarray, tolerance: float = 0.0) -> np.ndarray:
        # The float norm may round either way; scaling by a few ulps keeps the answer on the
        # safe side, at the price of refusing points within rounding of the sphere.
        x = np.asarray(x, dtype=np.float64)
        largest = np.abs(x).max(axis=-1, initial=0.0, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            scaled = np.where(largest > 0, x / np.where(largest > 0, largest, 1.0), 0.0)
        norm = largest[..., 0] * np.sqrt((scaled**2).sum(axis=-1))
        if tolerance:
            return np.isfinite(norm) & (norm <= self.radius * (1 + tolerance))
        slop = 1.0 + (x.shape[-1] + 8) * 2.0**-52
        return np.isfinite(norm) & (np.nextafter(norm * slop, np.inf) <= self.radius)

    def spec(self) -> str:
        return f"ball:{self.radius:.17g}"


class NormBall(Ball):
    """‖u‖₂ ≤ √d, what a normalisation over d features leaves: its radius need not be a float.

    `radius` is √d rounded down, so that what lies inside is inside; `outer` is √d rounded up.
    """

    features: int

    def __init__(self, features: int) -> None:
        radius = math.sqrt(features)
        if Fraction(radius) ** 2 > features:
            radius = math.nextafter(radius, 0.0)
        super().__init__(radius)
        object.__setattr__(self, "features", features)

    @property
    def square(self) -> Fraction:
        return Fraction(self.features)

    @property
    def outer(self) -> float:
        exact = Fraction(self.radius) ** 2 == self.features
        return self.radius if exact else math.nextafter(self.radius, math.inf)
