"""Domains: the set D of inputs that can arrive at a head."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from uncork.errors import UncorkError


class Domain:
    """A convex set of inputs x. `Unbounded`, `Box` and `Ball` are the ones there are."""

    def contains(self, x: np.ndarray) -> np.ndarray:
        """Whether each x (…, d) lies in the domain. Exact: no tolerance."""
        raise TypeError(f"{type(self).__name__} is not a concrete domain")

    def check(self, features: int) -> None:
        """Raise if this domain does not fit inputs of that many features."""

    @property
    def is_cone(self) -> bool:
        """Whether x ∈ D implies s·x ∈ D for every s > 0."""
        return False

    def spec(self) -> str:
        """The text that `parse_domain` reads back."""
        raise TypeError(f"{type(self).__name__} is not a concrete domain")

    def __str__(self) -> str:
        return self.spec()


@dataclass(frozen=True)
class Unbounded(Domain):
    """Every x ∈ ℝᵈ can arrive."""

    def contains(self, x: np.ndarray) -> np.ndarray:
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
            radius = np.asarray(lower, dtype=np.float64)
            if np.isnan(radius).any() or (radius <= 0).any():
                raise UncorkError(f"a box needs a positive radius, not {lower}")
            lower, upper = -radius, radius
        low = np.array(lower, dtype=np.float64)
        high = np.array(upper, dtype=np.float64)
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

    def contains(self, x: np.ndarray) -> np.ndarray:
        return ((x >= self.lower) & (x <= self.upper) & np.isfinite(x)).all(axis=-1)

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
        if not (self.radius > 0 and math.isfinite(self.radius)):
            raise UncorkError(f"a ball needs a positive finite radius, not {self.radius}")

    def contains(self, x: np.ndarray) -> np.ndarray:
        # The float norm may round either way; scaling by a few ulps keeps the answer on the
        # safe side, at the price of refusing points within rounding of the sphere.
        x = np.asarray(x, dtype=np.float64)
        largest = np.abs(x).max(axis=-1, initial=0.0, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            scaled = np.where(largest > 0, x / np.where(largest > 0, largest, 1.0), 0.0)
        norm = largest[..., 0] * np.sqrt((scaled**2).sum(axis=-1))
        slop = 1.0 + (x.shape[-1] + 8) * 2.0**-52
        return np.isfinite(norm) & (np.nextafter(norm * slop, np.inf) <= self.radius)

    def spec(self) -> str:
        return f"ball:{self.radius:.17g}"


def parse_domain(text: str) -> Domain:
    """Read `box:100`, `box:LO,HI`, `box:LO,HI;LO,HI;…`, `ball:R` or `unbounded`."""
    kind, _, rest = text.strip().partition(":")
    expected = "expected box:R, box:LO,HI, ball:R or unbounded"
    try:
        if kind == "unbounded" and not rest:
            return Unbounded()
        if kind == "ball":
            return Ball(float(rest))
        if kind == "box":
            texts = rest.removesuffix(";").split(";")
            pairs = [[float(part) for part in pair.split(",")] for pair in texts]
            if ";" not in rest and len(pairs[0]) in (1, 2):
                return Box(*pairs[0])
            if all(len(pair) == 2 for pair in pairs):
                return Box(np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs]))
    except UncorkError:
        raise
    except ValueError:
        pass
    raise UncorkError(f"domain {text!r} is not understood: {expected}")
