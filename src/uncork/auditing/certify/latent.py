"""From u to x and back: domains that are affine images of a plain set, every rounding bounded.

A witness is stored as u and stands for x = F(u); a mixture's residual r is pulled back to u, since
r·x = g·u + s for every u. The steps of F are applied one after the other, each with a componentwise
error bound that takes in the error it was handed: never their rounded product.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from uncork.auditing.certify.products import Device
from uncork.auditing.certify.rigour import TINY, UNIT, add_up, gamma, integers, mul_up, up
from uncork.domain import Domain
from uncork.domain.affine import Centre, Matrix, Scale, Shift, Step


class Latent:
    """The map F of a domain: u (latent) ↦ x (features), and r ↦ (g, s) with r·F(u) = g·u + s."""

    def __init__(self, domain: Domain, features: int, device: Device | None = None) -> None:
        view = domain.affine(features)
        self.base, self.steps = view.base, view.steps
        self.width, self.features = view.latent, features
        self.rank = view.rank  # no more dimensions than this can g have
        self.device = device or Device()
        self._held: dict[int, Any] = {}

    @cached_property
    def host(self) -> Latent:
        """The same map for NumPy arrays, wherever the large products are made."""
        return (
            self if isinstance(self.device.put(np.zeros(1)), np.ndarray) else self._with(Device())
        )

    def _with(self, device: Device) -> Latent:
        other = copy.copy(self)
        other.device, other._held = device, {}
        return other

    @property
    def is_identity(self) -> bool:
        return not self.steps

    @property
    def shifts(self) -> bool:
        """Whether F(0) may differ from 0."""
        return any(isinstance(step, Shift) and step.offset.any() for step in self.steps)

    # Floats, with error bounds

    def forward(self, u: Any) -> tuple[Any, Any]:
        """x for each u (n, latent), and how far each may be from the true one: (n, d), (n, d)."""
        values, error = u, self.device.xp.zeros_like(u)
        for step in self.steps:
            if isinstance(step, Shift):
                values = values + self._put(step.offset)
                error = up(error + 2 * UNIT * self._size(values), 3)
            else:
                values, error = self._linear(step, values, error, forward=True)
        return values, error

    def back(self, rows: Any, error: Any) -> tuple[Any, Any, Any, Any]:
        """g and s for each row r (n, d) known up to `error`, and how far each may be off:
        (n, latent), (n, latent), (n,), (n,)."""
        xp = self.device.xp
        shift = xp.sum(xp.zeros_like(rows), axis=1)
        slack = xp.zeros_like(shift)
        for step in reversed(self.steps):
            if isinstance(step, Shift):
                offset = self._put(step.offset)
                size = self._size(offset)
                count = len(step.offset) + 16
                moved = rows @ offset
                slack = slack + error @ size + gamma(count) * (self._size(rows) @ size)
                shift = shift + moved
                slack = up(slack + 2 * UNIT * self._size(shift), count)
            else:
                rows, error = self._linear(step, rows, error, forward=False)
        return rows, error, shift, slack

    def _linear(self, step: Step, values: Any, error: Any, forward: bool) -> tuple[Any, Any]:
        """One linear step or its transpose, with what the result may be off by."""
        xp, size = self.device.xp, self._size(values)
        if isinstance(step, Centre):
            count = values.shape[1] + 8
            mean = xp.sum(values, axis=1, keepdims=True) / values.shape[1]
            # The mean errs by the rounding of its sum, and by the mean of the entries' errors.
            off = xp.sum(gamma(count) * size + error, axis=1, keepdims=True) / values.shape[1]
            result = values - mean
            wrong = error + off + 2 * UNIT * (self._size(result) + self._size(mean))
            return result, up(wrong, count)
        if isinstance(step, Scale):
            gain = self._put(step.gain)
            result = values * gain
            # A gain of zero is exact; every other product may round or underflow.
            wrong = mul_up(error, self._size(gain), xp)
            rounding = 2 * UNIT * self._size(result) + TINY * xp.astype(gain != 0, xp.float64)
            return result, add_up(wrong, rounding)
        assert isinstance(step, Matrix)
        matrix = self._put(step.matrix)
        if forward:
            matrix = matrix.T
        # γ comes last: γ|u| may be nothing, and |A| make it something again.
        count = values.shape[1] + 8
        wrong = gamma(count) * ((error / gamma(count) + size) @ self._size(matrix))
        return values @ matrix, up(wrong, count)

    def _size(self, values: Any) -> Any:
        return self.device.xp.abs(values)

    def _put(self, array: np.ndarray) -> Any:
        if id(array) not in self._held:
            self._held[id(array)] = self.device.put(np.asarray(array, dtype=np.float64))
        return self._held[id(array)]

    # Fractions

    def forward_exactly(self, u: Sequence[Fraction]) -> list[Fraction]:
        values = list(u)
        for step in self.steps:
            if isinstance(step, Shift):
                moved = zip(values, step.offset.tolist(), strict=True)
                values = [v + Fraction(c) for v, c in moved]
            else:
                values = self._linear_exactly(step, values, forward=True)
        return values

    def back_exactly(self, r: Sequence[Fraction]) -> tuple[list[Fraction], Fraction]:
        """g and s with r·F(u) = g·u + s."""
        values, shift = list(r), Fraction(0)
        for step in reversed(self.steps):
            if isinstance(step, Shift):
                shift += dot(values, step.offset)
            else:
                values = self._linear_exactly(step, values, forward=False)
        return values, shift

    @staticmethod
    def _linear_exactly(step: Step, values: list[Fraction], forward: bool) -> list[Fraction]:
        if isinstance(step, Centre):
            mean = sum(values, Fraction(0)) / len(values)
            return [v - mean for v in values]
        if isinstance(step, Scale):
            return [v * Fraction(g) for v, g in zip(values, step.gain.tolist(), strict=True)]
        assert isinstance(step, Matrix)
        return [dot(values, row) for row in (step.matrix if forward else step.matrix.T)]


def dot(a: Sequence[Fraction], b: np.ndarray) -> Fraction:
    """a·b, exactly, by way of whole numbers."""
    scale = math.lcm(*(v.denominator for v in a)) if len(a) else 1
    whole = [v.numerator * (scale // v.denominator) for v in a]
    row, row_scale = integers(b)
    return Fraction(sum(p * q for p, q in zip(whole, row, strict=True)), scale * row_scale)
