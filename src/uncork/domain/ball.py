"""Balls: inputs of bounded Euclidean length."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.rigour import row_norms
from uncork.core.text import number
from uncork.domain.outline import Outline
from uncork.domain.protocol import Domain, Support, Supports, register


@register
@dataclass(frozen=True)
class Ball(Domain):
    """‖x‖₂ ≤ radius."""

    radius: float

    kind = "ball"
    numbers = ("radius",)
    forms = ("ball:R",)

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
        within: np.ndarray
        if tolerance:
            within = np.isfinite(norm) & (norm <= self.radius * (1 + tolerance))
        else:
            slop = 1.0 + (x.shape[-1] + 8) * 2.0**-52
            within = np.isfinite(norm) & (np.nextafter(norm * slop, np.inf) <= self.radius)
        return within

    def contains_on(self, device: Any, x: Any) -> np.ndarray:
        xp = device.xp
        # A bound on the norm that leaves as much room as `contains` does.
        norm = row_norms(x, xp) * (1 + (x.shape[1] + 8) * 2.0**-52)
        inside: np.ndarray = device.get(xp.isfinite(norm) & (norm <= self.radius))
        return inside

    def contains_exactly(self, x: Sequence[Fraction]) -> bool:
        return sum(v * v for v in x) <= self.square

    def support(self, residual: np.ndarray, error: np.ndarray) -> Support:
        size = np.maximum(np.abs(residual - error), np.abs(residual + error))
        if np.isnan(size).any():
            return Support(np.nan, 0.0, False)
        norm = float(row_norms(size[None])[0]) * self.outer
        return Support(norm, norm, bool(residual.any() or error.any()))

    def supports(self, residuals: Any, errors: Any, device: Any) -> Supports:
        xp, get = device.xp, device.get
        size = xp.maximum(xp.abs(residuals - errors), xp.abs(residuals + errors))
        norms = get(row_norms(size, xp)) * self.outer  # NaN where an entry is
        return Supports(norms, norms, get(xp.any((residuals != 0) | (errors != 0), axis=1)))

    def upper_bound_exactly(self, r: Sequence[Fraction], s: Fraction) -> Fraction | None:
        # ρ‖r‖ is irrational, but whether ρ‖r‖ ≤ −s is not a question of roots.
        if s > 0:
            return None
        if not any(r):
            return s
        return Fraction(0) if sum(v * v for v in r) * self.square <= s * s else None

    def outline(self, features: int) -> Outline:
        everywhere = Outline.of_everything(features)
        return Outline(everywhere.lower, everywhere.upper, self.radius, self.square)

    def in_words(self, features: int) -> str:
        return f"every input of Euclidean length at most {number(self.radius)}"


class NormBall(Ball):
    """‖u‖₂ ≤ √d, what a normalisation over d features leaves: its radius need not be a float.

    `radius` is √d rounded down, so that what lies inside is inside; `outer` is √d rounded up.
    """

    _features: int

    def __init__(self, features: int) -> None:
        radius = math.sqrt(features)
        if Fraction(radius) ** 2 > features:
            radius = math.nextafter(radius, 0.0)
        super().__init__(radius)
        object.__setattr__(self, "_features", features)

    @property
    def features(self) -> int:
        return self._features

    @property
    def square(self) -> Fraction:
        return Fraction(self.features)

    @property
    def outer(self) -> float:
        exact = Fraction(self.radius) ** 2 == self.features
        return self.radius if exact else math.nextafter(self.radius, math.inf)
