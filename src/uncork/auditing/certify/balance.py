"""What a mixture leaves: its balance as a linear function of the input, with bounds on rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing.certify.latent import Latent
from uncork.auditing.certify.products import Device
from uncork.core.rigour import TINY, UNIT, add_up, gamma


@dataclass(frozen=True)
class Balance:
    """r = Σ λ_i (w_t − w_i), s = Σ λ_i (b_t − b_i) and Σ λ_i, each with an error bound."""

    residual: np.ndarray  # (d,)
    error: np.ndarray  # (d,)
    constant: float
    constant_error: float
    total: float
    total_error: float

    def plus(self, other: Balance) -> Balance:
        rounding = 4 * UNIT * (np.abs(self.residual) + np.abs(other.residual)) + TINY
        constant_error = self.constant_error + other.constant_error
        if constant_error:
            moved = 4 * UNIT * (abs(self.constant) + abs(other.constant)) + TINY
            constant_error = add_up(self.constant_error, other.constant_error, moved)
        total = self.total + other.total
        return Balance(
            self.residual + other.residual,
            add_up(self.error, other.error, rounding),
            self.constant + other.constant,
            constant_error,
            total,
            add_up(self.total_error, other.total_error, UNIT * total + TINY),
        )

    def seen_through(self, latent: Latent) -> Balance:
        """The same as a function of u: r·F(u) + s = g·u + s'."""
        if latent.is_identity:
            return self
        rows, error, shift, constant_error = latent.host.back(self.residual[None], self.error[None])
        constant = self.constant + float(shift[0])
        constant_error = add_up(
            self.constant_error, float(constant_error[0]), 4 * UNIT * abs(constant)
        )
        return Balance(rows[0], error[0], constant, constant_error, self.total, self.total_error)


@dataclass(frozen=True)
class Balances:
    """Many balances: rows of arrays on a device, numbers in NumPy's arrays."""

    residual: Any  # (n, d)
    error: Any
    constant: np.ndarray  # (n,)
    constant_error: np.ndarray
    total: np.ndarray
    total_error: np.ndarray
    device: Device

    @classmethod
    def concat(cls, parts: list[Balances], device: Device) -> Balances:
        if len(parts) == 1:
            return parts[0]

        def joined(pick: Callable[[Balances], np.ndarray]) -> np.ndarray:
            return np.concatenate([pick(part) for part in parts])

        return cls(
            device.xp.concat([part.residual for part in parts], axis=0),
            device.xp.concat([part.error for part in parts], axis=0),
            joined(lambda part: part.constant),
            joined(lambda part: part.constant_error),
            joined(lambda part: part.total),
            joined(lambda part: part.total_error),
            device,
        )

    @property
    def linear(self) -> tuple[Any, Any]:
        return self.residual, self.error

    @property
    def fixed(self) -> tuple[np.ndarray, np.ndarray]:
        return self.constant, self.constant_error

    def at(self, rows: np.ndarray) -> Balances:
        """Some of them."""
        index = self.device.put(rows)
        return Balances(
            self.residual[index],
            self.error[index],
            self.constant[rows],
            self.constant_error[rows],
            self.total[rows],
            self.total_error[rows],
            self.device,
        )

    def plus(self, other: Balances) -> Balances:
        xp = self.device.xp
        rounding = 4 * UNIT * (xp.abs(self.residual) + xp.abs(other.residual)) + TINY
        moved = 4 * UNIT * (np.abs(self.constant) + np.abs(other.constant)) + TINY
        error = add_up(self.constant_error, other.constant_error, moved)
        exact = (self.constant_error == 0) & (other.constant_error == 0)
        total = self.total + other.total
        return Balances(
            self.residual + other.residual,
            add_up(self.error, other.error, rounding),
            self.constant + other.constant,
            np.where(exact, 0.0, error),
            total,
            add_up(self.total_error, other.total_error, UNIT * total + TINY),
            self.device,
        )

    def seen_through(self, latent: Latent) -> Balances:
        """The same as functions of u: r·F(u) + s = g·u + s'."""
        if latent.is_identity:
            return self
        rows, error, shift, slack = latent.back(self.residual, self.error)
        constant = self.constant + self.device.get(shift)
        constant_error = add_up(
            self.constant_error, self.device.get(slack), 4 * UNIT * np.abs(constant)
        )
        return Balances(
            rows, error, constant, constant_error, self.total, self.total_error, self.device
        )


def balance_of(away: np.ndarray, bias_away: np.ndarray, weights: np.ndarray) -> Balance:
    """The balance of classes named one by one: differences (n, d), (n,) and weights (n,)."""
    total = float(weights.sum())
    error = gamma(len(weights) + 8)
    tiny = (len(weights) + 8) * TINY * (1 + total)
    constant_error = error * float(weights @ np.abs(bias_away))
    return Balance(
        weights @ away,
        error * (weights @ np.abs(away)) + tiny,
        float(weights @ bias_away),
        constant_error + tiny if bias_away.any() else constant_error,
        total,
        error * total + TINY,
    )
