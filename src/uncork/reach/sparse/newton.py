"""Maximising α-entmax's p_t for many classes at once, 1 < α ≤ 2: Newton steps on a smoothed form.

With a = α − 1, k = 1/a ≥ 1 and s_i = β(z_i − z_t), p_t = θᵏ where θ solves

    Σ_i φ(a s_i + θ) = 1,    φ(v) = [v]₊ᵏ,

and θ is concave in the input, since φ is convex (for θ ≤ 0, p_t = 0: how far outside the support).
φ has kinks (for sparsemax it is all kink), so [v]₊ is replaced by ε log(1 + exp(v/ε)), ε shrinking
from level to level. The derivatives c_i = φ'(a s_i + θ) are what `sparse_bounds` proves the upper
bound with, whatever ε is: rounding and smoothing only cost tightness.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from uncork.reach.probability.newton import Batch
from uncork.reach.searched_head import View

_ROOT = 60  # Newton steps on θ
_STRAIGHT = 1e-3
_FLAT = 1e-9  # of the largest second derivative: what bends less is left out of a Hessian


class SparseBatch(Batch):
    """Minimises (1 − θ)/a, which is zero where t is the whole support."""

    def __init__(
        self,
        view: View,
        classes: np.ndarray,
        alpha: float,
        epsilon: float,
        beta: float = 1.0,
        gap: float = 1e-7,
        starts: np.ndarray | None = None,
        whitened: np.ndarray | None = None,
        lean: float = 0.0,
        shares: bool = True,
    ) -> None:
        self.a, self.epsilon = alpha - 1, epsilon
        super().__init__(view, classes, beta, gap, starts, whitened, lean, shares)
        if not shares:  # near its end already
            self.damping = self.damping * 1e-5

    def _weigh(self, z: Any, own: Any) -> tuple[Any, Any]:
        v = self.a * (z - own[:, None])
        theta = threshold(self.xp, v, 1 / self.a, self.epsilon)
        slope = derivative(self.xp, v + theta[:, None], 1 / self.a, self.epsilon)
        slope /= self.xp.sum(slope, axis=1)[:, None]
        return (1 - theta) / self.a, slope

    def _straight(self) -> Any:
        # Where one class outweighs all others nothing bends: what there is to gain, over the way
        # that there is to go, bounds the step.
        far = np.minimum(self.view.upper - self.view.lower, 100.0)
        far = self.backend.put(np.maximum(np.minimum(far, 2 * self.view.radius), 1e-9))
        return _STRAIGHT * self.xp.max(self.xp.abs(self.gradient), axis=1)[:, None] / far

    def _bend(self, row: int) -> tuple[Any, Any, Any]:
        xp, k, epsilon = self.xp, 1 / self.a, self.epsilon
        z = self.view.logits(self.u[row : row + 1])[0] * self.beta
        value = self.value[row]
        if self.lean:
            value = value + self.lean * self.beta * xp.sum(self.u[row] * self.own[row])
            value = value / (1 - self.lean)
        v = self.a * (z - z[int(self.classes[row])]) + (1 - self.a * value)
        curve = self.a * second(xp, v, k, epsilon)
        curve = curve / xp.sum(derivative(xp, v, k, epsilon))
        return self.view.rows, curve > _FLAT * xp.max(curve), curve


def threshold(xp: Any, v: Any, k: float, epsilon: float) -> Any:
    """θ with Σ_i φ(v_i + θ) = 1, one for each row: (n, C) → (n,).

    From the right Newton's steps on the convex increasing sum never pass the root.
    """
    theta = 1 - xp.max(v, axis=1)
    for _ in range(_ROOT):
        positive, share = _softplus(xp, v + theta[:, None], epsilon)
        powers = positive ** (k - 1)
        total = xp.sum(powers * positive, axis=1)
        step = (total - 1) / (k * xp.sum(powers * share, axis=1))
        theta = theta - step
        if bool(xp.all(~(step > 1e-15 * (1 + xp.abs(theta))))):
            break
    return theta


def derivative(xp: Any, v: Any, k: float, epsilon: float) -> Any:
    """φ' of the smoothed φ."""
    positive, share = _softplus(xp, v, epsilon)
    return k * positive ** (k - 1) * share


def second(xp: Any, v: Any, k: float, epsilon: float) -> Any:
    """φ'' of the smoothed φ."""
    positive, share = _softplus(xp, v, epsilon)
    bent = k * positive ** (k - 1) * share * (1 - share) / epsilon
    if k > 1:
        safe = xp.maximum(positive, xp.full_like(positive, 1e-300))
        bent = bent + k * (k - 1) * safe ** (k - 2) * share * share
    return bent


def _softplus(xp: Any, v: Any, epsilon: float) -> tuple[Any, Any]:
    """ε log(1 + exp(v/ε)) and its derivative."""
    small = xp.exp(-xp.abs(v) / epsilon)
    zero = xp.zeros_like(v)
    positive = xp.maximum(v, zero) + epsilon * xp.log1p(small)
    share = xp.where(v > 0, 1 / (1 + small), small / (1 + small))
    return positive, share
