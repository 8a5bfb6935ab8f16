"""What a mixture leaves: its balance as a linear function of the input, with bounds on rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uncork.auditing.certify.latent import Latent
from uncork.auditing.certify.rigour import TINY, UNIT, add_up, gamma


@dataclass(frozen=True)
class Balance:
    """r = Σ λ_i (w_t − w_i), s = Σ λ_i (b_t − b_i) and Σ λ_i, each with an error bound."""

    residual: np.ndarray  # (d,)
    error: np.ndarray  # (d,)
    constant: float
    slack: float
    total: float
    total_error: float

    def plus(self, other: Balance) -> Balance:
        rounding = 4 * UNIT * (np.abs(self.residual) + np.abs(other.residual)) + TINY
        slack = self.slack + other.slack
        if slack:
            moved = 4 * UNIT * (abs(self.constant) + abs(other.constant)) + TINY
            slack = add_up(self.slack, other.slack, moved)
        total = self.total + other.total
        return Balance(
            self.residual + other.residual,
            add_up(self.error, other.error, rounding),
            self.constant + other.constant,
            slack,
            total,
            add_up(self.total_error, other.total_error, UNIT * total + TINY),
        )

    def seen_through(self, latent: Latent) -> Balance:
        """The same as a function of u: r·F(u) + s = g·u + s'."""
        if latent.is_identity:
            return self
        rows, error, shift, slack = latent.host.back(self.residual[None], self.error[None])
        constant = self.constant + float(shift[0])
        slack = add_up(self.slack, float(slack[0]), 4 * UNIT * abs(constant))
        return Balance(rows[0], error[0], constant, slack, self.total, self.total_error)


def balance_of(away: np.ndarray, bias_away: np.ndarray, weights: np.ndarray) -> Balance:
    """The balance of classes named one by one: differences (n, d), (n,) and weights (n,)."""
    total = float(weights.sum())
    error = gamma(len(weights) + 8)
    tiny = (len(weights) + 8) * TINY * (1 + total)
    slack = error * float(weights @ np.abs(bias_away))
    return Balance(
        weights @ away,
        error * (weights @ np.abs(away)) + tiny,
        float(weights @ bias_away),
        slack + tiny if bias_away.any() else slack,
        total,
        error * total + TINY,
    )
