"""Witnesses that need not be stored: x_t = scale_t · P (w_t − c), the whitened guess of screening.

Only the formula's parts are kept. Whoever verifies computes the inputs anew and checks the inputs
they computed, so it does not matter that two machines round them differently.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uncork.domain import Ball, Box, Domain
from uncork.head import Head


def to_single(inputs: np.ndarray) -> np.ndarray:
    """Rounded to float32 values, which float32 products can then be exact about."""
    with np.errstate(over="ignore", under="ignore"):
        return inputs.astype(np.float32).astype(np.float64)


@dataclass(frozen=True)
class Formula:
    """P (d, d) in float32 and c (d,) in float64, exact as stored."""

    transform: np.ndarray
    centre: np.ndarray

    def directions(self, head: Head, classes: np.ndarray) -> np.ndarray:
        """P (w_t − c) for each class: (n, d)."""
        return (head.take(classes) - self.centre) @ self.transform.astype(np.float64)

    def inputs(self, head: Head, classes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """The inputs, rounded to float32, in float64: (n, d)."""
        return to_single(self.directions(head, classes) * scales[:, None].astype(np.float64))

    @staticmethod
    def fits(domain: Domain) -> bool:
        """Whether scaling alone brings any direction into the domain."""
        if isinstance(domain, Box):
            return bool((domain.lower < 0).all() and (domain.upper > 0).all())
        return True

    @staticmethod
    def scales(domain: Domain, directions: np.ndarray) -> np.ndarray:
        """The length, a hair below the largest that fits, for each direction: (n,) in float32."""
        if isinstance(domain, Ball):
            limit = domain.radius / np.maximum(np.linalg.norm(directions, axis=1), 1e-300)
        elif isinstance(domain, Box) and np.isfinite(domain.upper).any():
            lower, upper = domain.bounds(directions.shape[1])
            with np.errstate(divide="ignore", invalid="ignore"):
                room = np.where(directions > 0, upper / directions, lower / directions)
            limit = np.where(np.isnan(room), np.inf, room).min(axis=1)
            limit = np.where(np.isfinite(limit), limit, 1.0)
        else:
            limit = 1e4 / np.maximum(np.abs(directions).max(axis=1), 1e-300)
        with np.errstate(over="ignore"):
            scale = (limit * (1 - 1e-5)).astype(np.float32)
        return np.where(np.isfinite(scale), scale, 0).astype(np.float32)
