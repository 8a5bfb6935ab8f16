"""A domain as x = F(u): a plain set of u, and exact steps from u to x.

The steps are kept apart, because their product would have to be rounded: every number in them is
exact, and so is what they say together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uncork.domain.sets import Box, Domain


@dataclass(frozen=True)
class Centre:
    """u ↦ u − mean(u): what LayerNorm does first. One dimension is lost."""


@dataclass(frozen=True, eq=False)
class Scale:
    """u ↦ gain ⊙ u."""

    gain: np.ndarray  # (d,)


@dataclass(frozen=True, eq=False)
class Matrix:
    """u ↦ A u."""

    matrix: np.ndarray  # (rows, columns)


@dataclass(frozen=True, eq=False)
class Shift:
    """u ↦ u + offset."""

    offset: np.ndarray  # (d,)


Step = Centre | Scale | Matrix | Shift


@dataclass(frozen=True)
class Affine:
    """x = steps(u) with u in a plain domain; without steps x is u itself."""

    base: Domain  # Unbounded, Box or Ball
    steps: tuple[Step, ...]  # in the order in which they are applied to u
    latent: int  # how many numbers u has
    features: int  # how many x has

    @property
    def rank(self) -> int:
        """An upper bound on the dimension of the domain."""
        rank = min(self.latent, self.features)
        for step in self.steps:
            if isinstance(step, Centre):  # only ever the first step
                rank = min(rank, self.latent - 1)
            elif isinstance(step, Scale):
                rank = min(rank, int(np.count_nonzero(step.gain)))
            elif isinstance(step, Matrix):
                rank = min(rank, *(int(step.matrix.any(axis=axis).sum()) for axis in (0, 1)))
        return rank

    @property
    def is_point(self) -> bool:
        """Whether only one x can arrive."""
        fixed = isinstance(self.base, Box) and bool((self.base.lower == self.base.upper).all())
        return fixed or self.rank == 0

    def image(self, u: np.ndarray) -> np.ndarray:
        """x for each u, in floats: (…, latent) → (…, d)."""
        return self._apply(u, shifted=True)

    def linear(self, u: np.ndarray) -> np.ndarray:
        """M u for each u, where x = M u + c: (…, latent) → (…, d)."""
        return self._apply(u, shifted=False)

    def _apply(self, u: np.ndarray, shifted: bool) -> np.ndarray:
        x = np.asarray(u, dtype=np.float64)
        for step in self.steps:
            if isinstance(step, Centre):
                x = x - x.mean(axis=-1, keepdims=True)
            elif isinstance(step, Scale):
                x = x * step.gain
            elif isinstance(step, Matrix):
                x = x @ step.matrix.T
            elif shifted:
                x = x + step.offset
        return x

    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        """M (d, latent) and c (d,) with x = M u + c, in floats."""
        return self.linear(np.eye(self.latent)).T, self.image(np.zeros(self.latent))
