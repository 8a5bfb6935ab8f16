"""Hulls: every mixture of given inputs, such as the vectors of real queries."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.rigour import UNIT, gamma, up
from uncork.domain.affine import Affine, Constants, Matrix, Pulled, Shift, Step
from uncork.domain.box import Box
from uncork.domain.images import Image, ImageOf, exact_numbers
from uncork.domain.members import Stored
from uncork.domain.protocol import Domain, register
from uncork.domain.simplex import Simplex
from uncork.domain.unbounded import Unbounded

MOST_POINTS = 4096  # each is a number that is searched for
WAYS = ("span", "box", "hull")


@register
class Hull(ImageOf):
    """x = Σ_k λ_k p_k with λ ≥ 0 and Σ λ = 1: the convex hull of two points or more.

    As an image: u are all shares but the first, λ = (1 − Σ u, u), and x = Pᵀ λ.
    """

    kind = "hull"
    arrays = ("points",)

    def __init__(self, points: Any) -> None:
        self.points = exact_numbers(points, "the points of a hull")  # (count, d)
        if self.points.ndim != 2 or len(self.points) < 2 or not self.points.shape[1]:
            raise UncorkError(
                f"the points of a hull have shape {self.points.shape}: expected two points or "
                "more, one a row"
            )
        if len(self.points) > MOST_POINTS:
            raise UncorkError(
                f"a hull of {len(self.points):,} points: at most {MOST_POINTS:,} can be searched "
                "(give some of them, or the box around them)"
            )

    @property
    def features(self) -> int:
        return int(self.points.shape[1])

    @classmethod
    def from_members(cls, stored: Stored) -> Domain:
        points = stored.array("points")
        if points is None:
            raise UncorkError("a hull needs its points")
        return cls(points)

    def affine(self, features: int) -> Affine:
        self.check(features)
        count = len(self.points)
        first = np.eye(1, count)[0]
        steps: tuple[Step, ...] = (Rest(), Shift(first), Matrix(self.points.T))
        return Affine(Simplex(), steps, count - 1, features)

    def contains(self, x: np.ndarray, tolerance: float = 0.0) -> np.ndarray:
        """As for every domain, but in floats: up to a tolerance of 1e-9 at least."""
        from scipy.optimize import nnls

        x = np.asarray(x, dtype=np.float64)
        self.check(x.shape[-1])
        rows, size = x.reshape(-1, self.features), np.abs(self.points).max(initial=0.0) or 1.0
        system = np.vstack([self.points.T / size, np.ones(len(self.points))])
        room = max(tolerance, 1e-9) * np.sqrt(self.features + 1)
        inside = [
            bool(np.isfinite(row).all()) and nnls(system, np.append(row / size, 1.0))[1] <= room
            for row in rows
        ]
        return np.array(inside, dtype=bool).reshape(x.shape[:-1])

    def __str__(self) -> str:
        return f"hull of {len(self.points)} points of {self.features} features"

    def in_words(self, features: int) -> str:
        return f"every mixture of {len(self.points):,} given inputs"


@dataclass(frozen=True)
class Rest(Step):
    """u ↦ (−Σ u, u): with one added to the first, shares that sum to one."""

    def apply(self, u: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.concatenate([-u.sum(axis=-1, keepdims=True), u], axis=-1)
        return found

    def fold(self, rows: Any, on: Constants) -> Any:
        return rows[:, 1:] - rows[:, :1]

    def forward(self, values: Any, error: Any, on: Constants) -> tuple[Any, Any]:
        xp, count = on.xp, values.shape[1] + 8
        off = xp.sum(gamma(count) * xp.abs(values) + error, axis=1, keepdims=True)
        total = -xp.sum(values, axis=1, keepdims=True)
        return xp.concat([total, values], axis=1), xp.concat([up(off, count), error], axis=1)

    def back(self, pulled: Pulled, on: Constants) -> Pulled:
        rows = self.fold(pulled.rows, on)
        error = pulled.error[:, 1:] + pulled.error[:, :1] + 2 * UNIT * on.xp.abs(rows)
        return Pulled(rows, up(error, 4), pulled.shift, pulled.slack)

    def forward_exactly(self, values: list[Fraction]) -> list[Fraction]:
        return [-sum(values, Fraction(0)), *values]

    def back_exactly(self, r: list[Fraction], s: Fraction) -> tuple[list[Fraction], Fraction]:
        return [v - r[0] for v in r[1:]], s

    @property
    def growth(self) -> float:
        return 2.0

    def bits(self, width: int) -> int:
        return width.bit_length() + 2


def domain_of_queries(queries: Any, way: str) -> Domain:
    """What query vectors (count, d) stand for as a domain: their `span`, the `box` around them,
    or their `hull`."""
    if way not in WAYS:
        raise UncorkError(f"queries as {way!r}: expected {', '.join(WAYS)}")
    points = exact_numbers(queries, "the query vectors")
    if points.ndim != 2 or not points.size:
        raise UncorkError(f"the query vectors have shape {points.shape}: expected one row a query")
    points = np.unique(points, axis=0)
    if way == "box" or (len(points) == 1 and way == "hull"):
        return Box(points.min(axis=0), points.max(axis=0))
    if way == "hull":
        return Hull(points)
    # Well clear of rounding: where it is not, the points themselves are the span.
    clear = 1e-9 * float(np.linalg.norm(points, 2))
    if np.linalg.matrix_rank(points, tol=clear) == points.shape[1]:
        return Unbounded()
    return Image(Unbounded(), points.T)
