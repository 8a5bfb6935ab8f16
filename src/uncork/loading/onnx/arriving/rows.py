"""Rows of a value that lie in more than a box: what a norm or a linear map leaves along an axis."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from uncork.domain import Ball, Domain, Image, RMSNorm
from uncork.loading.onnx.intervals import Arithmetic, Bounds


@dataclass(frozen=True)
class Norm:
    """Rows gain ⊙ u + offset with ‖u‖₂ ≤ radius, each feature off by `error` at most.

    The radius holds for what floats compute. The sum of u is not zero after LayerNorm: floats lose
    the mean of a row that is large against its spread.
    """

    axis: int  # counted from the end
    radius: float
    gain: np.ndarray  # (n,)
    offset: np.ndarray  # (n,)
    error: np.ndarray  # (n,), of what the run-time computed after the norm
    room: float  # by how much the ball grows to hold that
    unit: bool = False  # rows of length one rather than √n

    @property
    def size(self) -> int:
        return len(self.gain)

    def along(self, axis: int) -> Norm:
        return replace(self, axis=axis)

    def scaled(self, factor: np.ndarray, a: Arithmetic) -> Norm:
        factor = np.broadcast_to(factor, (self.size,))
        made = replace(self, gain=self.gain * factor, offset=self.offset * factor,
                       error=self.error * np.abs(factor))  # fmt: skip
        return made.rounded(a)

    def shifted(self, offset: np.ndarray, a: Arithmetic) -> Norm:
        return replace(self, offset=self.offset + offset).rounded(a)

    def rounded(self, a: Arithmetic) -> Norm:
        """With the error of one more operation: half a unit of a number as large as any."""
        moves = (self.gain != 0) | (self.error != 0) | (self.offset != 0)
        size = self._reach() + np.abs(self.offset) + self.error
        # What float64 loses in the products above is far less than the 2 here allows.
        return replace(self, error=self.error + np.where(moves, size * a.unit * 2 + a.tiny, 0.0))

    def _reach(self) -> np.ndarray:
        return np.abs(self.gain) * self.radius

    def bounds(self) -> Bounds:
        """Each feature's range, (n,)."""
        reach = (self._reach() + self.error) * (1 + 2.0**-40)
        lower, upper = self.offset - reach, self.offset + reach
        return np.nextafter(lower, -np.inf), np.nextafter(upper, np.inf)

    def domain(self) -> Domain | None:
        """The rows and all that rounding makes of them.

        ‖(g u + e)/g'‖ ≤ max(g/g')·‖u‖ + ‖e/g'‖, which is at most the radius where g' ≥ (1 + ρ)g
        and g' ≥ e √n (1 + ρ)/(ρ · radius).
        """
        root = math.sqrt(self.size)
        least = self.error * (root * (1 + self.room) / (self.room * self.radius))
        gain = np.maximum(np.abs(self.gain) * (1 + self.room), least) * (1 + 2.0**-40)
        if not np.isfinite(gain).all() or not np.isfinite(self.offset).all():
            return None
        inner: Domain
        if self.unit and (gain == gain[0]).all() and gain[0] > 0:
            inner = Ball(float(gain[0]) * self.radius * (1 + 2.0**-40))
        else:
            inner = RMSNorm(gain * (self.radius / root) * (1 + 2.0**-40), features=self.size)
        return Image(inner, offset=self.offset) if self.offset.any() else inner


@dataclass(frozen=True)
class Linear:
    """Rows matrix u + offset for rows u of another domain, in real numbers."""

    axis: int
    inner: Domain
    matrix: np.ndarray  # (n, m)
    offset: np.ndarray | None = None

    @property
    def size(self) -> int:
        return len(self.matrix)

    def along(self, axis: int) -> Linear:
        return replace(self, axis=axis)

    def scaled(self, factor: np.ndarray, a: Arithmetic) -> Linear:
        factor = np.broadcast_to(factor, (self.size,))
        offset = None if self.offset is None else self.offset * factor
        return replace(self, matrix=self.matrix * factor[:, None], offset=offset)

    def shifted(self, offset: np.ndarray, a: Arithmetic) -> Linear:
        offset = np.broadcast_to(offset, (self.size,))
        return replace(self, offset=offset if self.offset is None else self.offset + offset)

    def rounded(self, a: Arithmetic) -> Linear:
        return self

    def domain(self) -> Domain | None:
        finite = np.isfinite(self.matrix).all()
        finite &= self.offset is None or np.isfinite(self.offset).all()
        return Image(self.inner, self.matrix, self.offset) if finite else None


Rows = Norm | Linear
