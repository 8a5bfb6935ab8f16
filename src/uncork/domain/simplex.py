"""The simplex: shares of a whole. A hull of points is an image of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from uncork.core.rigour import gamma
from uncork.domain.outline import Outline
from uncork.domain.protocol import Domain, Support, Supports, register

_INSIDE = 1 - 1e-6


@register
@dataclass(frozen=True)
class Simplex(Domain):
    """u ≥ 0 with Σ u ≤ 1. What is missing to one is the share of a further, unnamed part."""

    kind = "simplex"
    forms = ("simplex",)

    def support_exactly(self, r: Sequence[Fraction]) -> Fraction:
        return max(Fraction(0), *r)  # at a corner

    def contains_exactly(self, x: Sequence[Fraction]) -> bool:
        return all(v >= 0 for v in x) and sum(x) <= 1

    def contains(self, x: np.ndarray, tolerance: float = 0.0) -> np.ndarray:
        x = np.asarray(x, dtype=np.float64)
        with np.errstate(all="ignore"):
            total, room = x.sum(axis=-1), 2 * gamma(x.shape[-1] + 8)
            inside: np.ndarray = (x >= -tolerance).all(axis=-1) & np.isfinite(total)
            if tolerance:
                return np.asarray(inside & (total <= 1 + tolerance))
            clear = inside & (total * (1 + room) <= 1)
            close = np.atleast_1d(inside & ~clear & (total * (1 - room) <= 1))
        found = np.atleast_1d(clear)
        rows = x.reshape(-1, x.shape[-1])
        for k in np.flatnonzero(close.reshape(-1)).tolist():
            found.reshape(-1)[k] = self.contains_exactly([Fraction(v) for v in rows[k].tolist()])
        return found.reshape(x.shape[:-1])

    def support(self, residual: np.ndarray, error: np.ndarray) -> Support:
        top = np.max(residual + error, initial=0.0)
        return Support(float(top), abs(float(top)), False)

    def supports(self, residuals: Any, errors: Any, device: Any) -> Supports:
        xp = device.xp
        top = device.get(xp.max(residuals + errors, axis=1))
        value = np.where(np.isnan(top), top, np.maximum(top, 0.0))
        return Supports(value, np.abs(value), np.zeros(len(value), dtype=bool))

    def outline(self, features: int) -> Outline:
        return Outline(np.zeros(features), np.ones(features), exact=False, total=1.0)

    def normal(self, x: np.ndarray) -> np.ndarray | None:
        if x.sum() > 1:
            return np.ones(len(x))
        lowest = int(np.argmin(x))
        return -np.eye(len(x))[lowest] if x[lowest] < 0 else None

    def pulled_in(self, x: np.ndarray) -> np.ndarray:
        """The nearest of these shares, a little inside."""
        x = np.asarray(x, dtype=np.float64)
        rows = x.reshape(-1, x.shape[-1]).copy()
        outside = np.flatnonzero(np.isfinite(rows).all(axis=1) & ~self.contains(rows))
        if len(outside):
            rows[outside] = nearest_shares(rows[outside]) * _INSIDE
        found: np.ndarray = rows.reshape(x.shape)
        return found

    def _middle(self, features: int) -> np.ndarray:
        return np.full(features, 1 / (features + 2))

    def spec(self) -> str:
        return "simplex"

    @classmethod
    def parse(cls, text: str) -> Domain:
        if text:
            raise ValueError(text)
        return cls()

    def in_words(self, features: int) -> str:
        return "every input of features that are zero or more and sum to at most one"


def nearest_shares(x: np.ndarray) -> np.ndarray:
    """The nearest u ≥ 0 with Σ u ≤ 1 for each row, in floats: (n, d)."""
    positive = np.maximum(x, 0.0)
    over = positive.sum(axis=1) > 1
    if not over.any():
        return np.asarray(positive)
    # Subtract what makes the positive parts sum to one (Held, Wolfe and Crowder).
    ordered = -np.sort(-x[over], axis=1)
    count = np.arange(1, x.shape[1] + 1)
    shifts = (np.cumsum(ordered, axis=1) - 1) / count
    last = x.shape[1] - 1 - np.argmax((ordered > shifts)[:, ::-1], axis=1)
    positive[over] = np.maximum(x[over] - shifts[np.arange(len(last)), last][:, None], 0.0)
    return np.asarray(positive)
