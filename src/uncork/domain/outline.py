"""What searching sees of a plain set: the box, or the ball, that holds it.

Searching proposes and the certifier decides, so an outline may be larger than its set: what is
proposed outside the set is pulled into it, or refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass(frozen=True, eq=False)
class Outline:
    """{x : lower ≤ x ≤ upper, ‖x‖₂ ≤ radius}: a box or a ball, as sides or radius are infinite."""

    lower: np.ndarray  # (d,)
    upper: np.ndarray  # (d,)
    radius: float = math.inf
    square: Fraction | None = None  # the radius squared, exactly
    exact: bool = True  # whether the set is all of its outline
    total: float = math.inf  # Σ x ≤ total, where that and lower ≤ x ≤ upper are the whole set

    @property
    def has_total(self) -> bool:
        """Whether the set is one of shares: a box cut off by a bound on the sum."""
        return math.isfinite(self.total)

    @classmethod
    def of_everything(cls, features: int, exact: bool = True) -> Outline:
        return cls(np.full(features, -np.inf), np.full(features, np.inf), exact=exact)

    @property
    def is_box(self) -> bool:
        """Whether the set is a box; its sides may be infinite, all of them too."""
        return self.exact and not self.is_round

    @property
    def is_round(self) -> bool:
        return math.isfinite(self.radius)

    @property
    def has_sides(self) -> bool:
        return bool((np.isfinite(self.lower) | np.isfinite(self.upper)).any())

    @property
    def surrounds_zero(self) -> bool:
        """Whether scaling brings every direction into the set."""
        return self.exact and bool((self.lower < 0).all() and (self.upper > 0).all())

    @property
    def fixed(self) -> np.ndarray:
        """The value of each feature that has only one, NaN for the others: (d,)."""
        return np.where(self.lower == self.upper, self.lower, np.nan)

    @property
    def longest(self) -> float:
        """An upper bound on ‖x‖₂, in floats."""
        corner = np.linalg.norm(np.maximum(np.abs(self.lower), np.abs(self.upper)))
        return min(self.radius, float(corner))

    def sides_exactly(self) -> list[list[Fraction]]:
        """A row g for each finite side, with g·(x, 1) ≤ 0 inside."""
        rows = []
        features = len(self.lower)
        for j in range(features):
            for sign, bound in ((1, float(self.upper[j])), (-1, float(self.lower[j]))):
                if math.isfinite(bound):
                    row = [Fraction(0)] * (features + 1)
                    row[j], row[-1] = Fraction(sign), -sign * Fraction(bound)
                    rows.append(row)
        return rows

    def nearest(self, matrix: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """u of the outline for which M u comes nearest to each target: (n, rows) → (n, d)."""
        if self.has_sides:
            found = [_nearest_in_box(matrix, y, self.lower, self.upper) for y in targets]
            return np.array(found).reshape(-1, matrix.shape[1])
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        kept = values > values[0] * 1e-12 if len(values) and values[0] > 0 else values > 0
        left, values, right = left[:, kept], values[kept], right[kept]
        turned = targets @ left  # (n, rank)
        damping = self._damping(turned, values) if self.is_round else np.zeros((len(targets), 1))
        nearest: np.ndarray = (turned * values / (values**2 + damping)) @ right
        return nearest

    def _damping(self, turned: np.ndarray, values: np.ndarray) -> np.ndarray:
        """min ‖M u − y‖ in a ball: u = (MᵀM + κ)⁻¹Mᵀ y with the least κ ≥ 0 that fits."""

        def length(kappa: np.ndarray) -> np.ndarray:
            found: np.ndarray = np.linalg.norm(
                turned * values / (values**2 + kappa), axis=1, keepdims=True
            )
            return found

        low = np.zeros((len(turned), 1))
        high = np.full_like(low, np.inf)
        outside = length(low) > self.radius
        guess = np.where(outside, (values[0] ** 2 if len(values) else 1.0) * 1e-16, 0.0)
        for _ in range(200):
            longer = length(guess) > self.radius
            low, high = np.where(longer, guess, low), np.where(longer, high, guess)
            with np.errstate(all="ignore"):
                middle = np.where(np.isfinite(high), (low + high) / 2, guess * 4)
            guess = np.where(outside, middle, 0.0)
        return np.where(outside & np.isfinite(high), high, 0.0)


def _nearest_in_box(
    matrix: np.ndarray, target: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    from scipy.optimize import lsq_linear

    bounds = (lower, np.nextafter(upper, np.inf))  # SciPy wants room between them
    size = np.abs(matrix).max(initial=0.0) or 1.0  # and steps that its tolerances can see
    matrix, target = matrix / size, target / size
    # The active set method is sharp where u is determined, the other where it is not. Either may
    # step over a bound by less than a rounding: its answer is brought back.
    answers = [
        lsq_linear(matrix, target, bounds, method, tol=1e-14, max_iter=10 * matrix.shape[1]).x
        for method in ("bvls", "trf")
    ]
    inside = [np.clip(u, lower, upper) for u in answers]
    return min(inside, key=lambda u: float(np.linalg.norm(matrix @ u - target)))
