"""What a domain takes for granted of a model's inputs: in words, and as a check of data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Assumption:
    """Something floats make necessary to say; `names` are values whose sum it is about."""

    text: str
    names: tuple[str, ...] = ()

    def holds(self, values: Mapping[str, np.ndarray]) -> bool:
        """Whether every row of these values keeps to it."""
        return True


@dataclass(frozen=True)
class Spread(Assumption):
    """No row's mean is more than `ratio` times its spread √(variance + ε)."""

    ratio: float = 8.0
    epsilon: float = 1e-5

    def holds(self, values: Mapping[str, np.ndarray]) -> bool:
        with np.errstate(all="ignore"):
            total = sum(values[name].astype(np.float64) for name in self.names)
            rows = np.asarray(total)
            spread = rows.var(axis=-1) + self.epsilon
            return bool((rows.mean(axis=-1) ** 2 <= self.ratio**2 * spread).all())


@dataclass(frozen=True)
class Length(Assumption):
    """Every row is zero or at least `least` long."""

    least: float = 0.0

    def holds(self, values: Mapping[str, np.ndarray]) -> bool:
        with np.errstate(all="ignore"):
            rows = np.asarray(sum(values[name].astype(np.float64) for name in self.names))
            length = np.sqrt((rows**2).sum(axis=-1))
            return bool(((length == 0) | (length >= self.least)).all())
