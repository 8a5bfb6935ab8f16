"""The domain without bounds: every input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from uncork.domain.outline import Outline
from uncork.domain.protocol import Domain, Support, Supports, register


@register
@dataclass(frozen=True)
class Unbounded(Domain):
    """Every x ∈ ℝᵈ can arrive."""

    kind = "unbounded"
    forms = ("unbounded",)

    def contains(self, x: np.ndarray, tolerance: float = 0.0) -> np.ndarray:
        found: np.ndarray = np.isfinite(x).all(axis=-1)
        return found

    def contains_on(self, device: Any, x: Any) -> np.ndarray:
        return np.asarray(device.get(device.xp.all(device.xp.isfinite(x), axis=1)))

    def contains_exactly(self, x: Sequence[Fraction]) -> bool:
        return True

    def support(self, residual: np.ndarray, error: np.ndarray) -> Support:
        size = np.maximum(np.abs(residual - error), np.abs(residual + error))
        if np.isnan(size).any():
            return Support(np.nan, 0.0, False)
        return Support(np.inf if size.any() else 0.0, 0.0, bool(residual.any() or error.any()))

    def supports(self, residuals: Any, errors: Any, device: Any) -> Supports:
        xp, get = device.xp, device.get
        size = xp.maximum(xp.abs(residuals - errors), xp.abs(residuals + errors))
        value = np.where(get(xp.any(size != 0, axis=1)), np.inf, 0.0)
        value = np.where(get(xp.any(xp.isnan(size), axis=1)), np.nan, value)
        seen = get(xp.any((residuals != 0) | (errors != 0), axis=1))
        return Supports(value, np.zeros(len(value)), seen)

    def support_exactly(self, r: Sequence[Fraction]) -> Fraction | None:
        return None if any(r) else Fraction(0)

    @property
    def is_cone(self) -> bool:
        return True

    @property
    def is_everything(self) -> bool:
        return True

    def outline(self, features: int) -> Outline:
        return Outline.of_everything(features)

    def spec(self) -> str:
        return "unbounded"

    @classmethod
    def parse(cls, text: str) -> Domain:
        if text:
            raise ValueError(text)
        return cls()

    def in_words(self, features: int) -> str:
        return "every input there is, however large"
