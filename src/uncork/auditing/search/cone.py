"""The ball as a cone beside the rows of `centre`: its barrier, Newton terms and multiplier.

With y = (y_x, y_0) an input u = σ Kᵀy_x / y_0 lies in the ball of radius ρ where p = (ρ y_0, z),
z = σ Kᵀy_x, lies in the second-order cone p_0 ≥ ‖z‖. As the rows a_k·y ≤ 0 enter φ as
−log(1 − a_k·y), the cone enters as −ω log q, q = (1 + p_0)² − ‖z‖², with a weight ω. Along a step
q(α)/q(0) = (1 − α r₁)(1 − α r₂) with real r₁, r₂ (q is hyperbolic): the cone is for the line
search, and for whether the multipliers are non-negative, nothing but two more rows with relative
changes r₁ and r₂.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from uncork.auditing.backend import Backend


class BallCone:
    """The cone of one ball, for a batch of directions y (B, m) at a time, in float64."""

    def __init__(self, to_input: np.ndarray, scale: float, radius: float, backend: Backend) -> None:
        self.backend, self.xp = backend, backend.xp
        # As much as there are dimensions: next to dozens of rows a single term lets y run along the
        # cone's side, where it is curved and steps are short.
        self.weight = float(len(to_input) + 1)
        # In a unit in which neither part of p is large.
        unit = float(np.hypot(radius, scale * np.linalg.norm(to_input, 2)))
        self.height = radius / unit  # p_0 = height · y_0
        self.inputs = backend.put(to_input * (scale / unit))  # z = y_x @ inputs
        self.square = self.inputs @ self.inputs.T  # ‖z‖² = y_x·square·y_x

    def contains(self, y: Any) -> Any:
        """Whether each direction stands for an input strictly inside the ball: (B,)."""
        z = y[:, :-1] @ self.inputs
        return self.height * y[:, -1] > self.xp.sqrt(self.xp.sum(z * z, axis=1))

    def at(self, y: Any) -> ConeTerms:
        return ConeTerms(self, y)


class ConeTerms:
    """The barrier −ω log q at directions y: gradient (B, m), Hessian (B, m, m), and a step's."""

    def __init__(self, cone: BallCone, y: Any) -> None:
        self.cone = cone
        xp = cone.xp
        self.top = 1 + cone.height * y[:, -1]
        turned = y[:, :-1] @ cone.square
        self.y, self.q = y, self.top**2 - xp.sum(turned * y[:, :-1], axis=1)
        self.slope = 2 * xp.concat([-turned, cone.height * self.top[:, None]], axis=1)  # ∇q

    @property
    def gradient(self) -> Any:
        return self.cone.weight * -self.slope / self.q[:, None]

    @property
    def hessian(self) -> Any:
        scaled = self.slope / self.q[:, None]
        result = scaled[:, :, None] * scaled[:, None, :]
        result[:, :-1, :-1] += 2 * self.cone.square / self.q[:, None, None]
        result[:, -1, -1] -= 2 * self.cone.height**2 / self.q
        return self.cone.weight * result

    def relative(self, move: Any) -> Any:
        """r₁ and r₂ of a step: (B, 2)."""
        xp = self.cone.xp
        half = -xp.sum(self.slope * move, axis=1) / (2 * self.q)
        spread = half**2 - self._bend(move) / self.q
        spread = xp.sqrt(xp.maximum(spread, xp.zeros_like(spread)))
        return xp.stack([half - spread, half + spread], axis=1)

    def _bend(self, move: Any) -> Any:
        inner = move[:, :-1]
        turned = self.cone.xp.sum((inner @ self.cone.square) * inner, axis=1)
        return (self.cone.height * move[:, -1]) ** 2 - turned

    def outward(self, move: Any) -> np.ndarray:
        """Where the multiplier of the cone after a full step points, as the unit input (B, latent)
        at which the ball's tangent plane does the same."""
        xp, cone = self.cone.xp, self.cone
        z, dz = self.y[:, :-1] @ cone.inputs, move[:, :-1] @ cone.inputs
        rate = xp.sum(self.slope * move, axis=1) / self.q
        direction = z * (1 - rate)[:, None] + dz
        length = xp.sqrt(xp.sum(direction * direction, axis=1))
        length = xp.where(length > 0, length, xp.ones_like(length))
        return cone.backend.get(direction / length[:, None])
