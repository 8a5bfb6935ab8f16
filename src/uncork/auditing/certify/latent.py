"""From u to x and back: domains that are affine images of a plain set, every rounding bounded.

A witness is stored as u and stands for x = F(u); a mixture's residual r is pulled back to u, since
r·x = g·u + s for every u. The steps of F are applied one after the other, each with a componentwise
error bound that takes in the error it was handed: never their rounded product. What each step does
is said in `domain.affine`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from uncork.auditing.certify.products import Device
from uncork.domain import Domain
from uncork.domain.affine import Constants, Pulled


class Latent:
    """The map F of a domain: u (latent) ↦ x (features), and r ↦ (g, s) with r·F(u) = g·u + s."""

    def __init__(self, domain: Domain, features: int, device: Device | None = None) -> None:
        view = domain.affine(features)
        self.base, self.steps = view.base, view.steps
        self.width, self.features = view.latent, features
        self.rank = view.rank  # no more dimensions than this can g have
        self.on = Constants(device or Device())

    @cached_property
    def host(self) -> Latent:
        """The same map for NumPy arrays, wherever the large products are made."""
        if isinstance(self.on.device.put(np.zeros(1)), np.ndarray):
            return self
        other = copy.copy(self)
        other.on = Constants(Device())
        return other

    @property
    def is_identity(self) -> bool:
        return not self.steps

    @property
    def shifts(self) -> bool:
        """Whether F(0) may differ from 0."""
        return any(step.moves_zero for step in self.steps)

    # Floats, with error bounds

    def forward(self, u: Any) -> tuple[Any, Any]:
        """x for each u (n, latent), and how far each may be from the true one: (n, d), (n, d)."""
        values, error = u, self.on.xp.zeros_like(u)
        for step in self.steps:
            values, error = step.forward(values, error, self.on)
        return values, error

    def back(self, rows: Any, error: Any) -> Pulled:
        """g and s for each row r (n, d) known up to `error`, and how far each may be off:
        (n, latent), (n, latent), (n,), (n,)."""
        xp = self.on.xp
        shift = xp.sum(xp.zeros_like(rows), axis=1)
        pulled = Pulled(rows, error, shift, xp.zeros_like(shift))
        for step in reversed(self.steps):
            pulled = step.back(pulled, self.on)
        return pulled

    # Fractions

    def forward_exactly(self, u: Sequence[Fraction]) -> list[Fraction]:
        values = list(u)
        for step in self.steps:
            values = step.forward_exactly(values)
        return values

    def back_exactly(self, r: Sequence[Fraction]) -> tuple[list[Fraction], Fraction]:
        """g and s with r·F(u) = g·u + s."""
        values, shift = list(r), Fraction(0)
        for step in reversed(self.steps):
            values, shift = step.back_exactly(values, shift)
        return values, shift
