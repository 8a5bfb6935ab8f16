"""Witnesses that need not be stored: u_t = scale_t · P (w_t − c), the whitened guess of screening.

Only the formula's parts are kept. Whoever verifies computes the inputs anew and checks the inputs
they computed, so it does not matter that two machines round them differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing.certify.products import Device
from uncork.core.head import Head
from uncork.core.rigour import row_norms
from uncork.domain import Domain
from uncork.domain.outline import Outline

_OTHERWISE = 1e-12  # how differently two machines may round a direction, as a share of its terms
_FAR = 1e4  # how far out an input lies where the domain sets no bound


def to_single(inputs: Any, device: Device) -> Any:
    """Rounded to float32 values, which float32 products can then be exact about."""
    xp = device.xp
    with np.errstate(over="ignore", under="ignore"):
        return xp.astype(xp.astype(inputs, xp.float32), xp.float64)


@dataclass(frozen=True)
class Formula:
    """P (d, latent) in float32 and c (d,) in float64, exact as stored.

    Where the domain is an image x = F(u) the formula gives u, and a domain here is that of u.
    """

    transform: np.ndarray
    centre: np.ndarray

    def directions(self, head: Head, classes: np.ndarray, device: Device) -> Any:
        """P (w_t − c) for each class, on the device: (n, latent)."""
        away = device.take(head, classes) - device.put(self.centre)
        return away @ device.put(self.transform.astype(np.float64))

    def inputs(self, head: Head, classes: np.ndarray, scales: np.ndarray, device: Device) -> Any:
        """The inputs, rounded to float32, in float64, on the device: (n, latent)."""
        directions = self.directions(head, classes, device)
        return to_single(directions * device.put(scales.astype(np.float64))[:, None], device)

    def keeps(
        self,
        domain: Domain,
        head: Head,
        classes: np.ndarray,
        scales: np.ndarray,
        inputs: Any,
        device: Device,
    ) -> np.ndarray:
        """Whether rounding the formula another way would leave each input in the domain: (n,).

        A component of the direction that is all cancellation, scaled up, is all rounding.
        """
        xp, put = device.xp, device.put
        outline = domain.outline(inputs.shape[1])
        if not (outline.has_sides or outline.is_round):
            return np.ones(len(classes), dtype=bool)
        away = xp.abs(device.take(head, classes) - put(self.centre))
        noise = away @ put(np.abs(self.transform.astype(np.float64)))
        noise = noise * put(_OTHERWISE * scales.astype(np.float64))[:, None]
        if outline.is_round:
            norms = device.get(row_norms(xp.abs(inputs) + noise, xp))
            return norms <= outline.radius
        lower, upper = put(outline.lower.copy()), put(outline.upper.copy())
        inside = (inputs - noise >= lower) & (inputs + noise <= upper)
        return device.get(xp.all(inside, axis=1))

    @staticmethod
    def fits(outline: Outline) -> bool:
        """Whether scaling alone brings any direction into the domain."""
        return outline.surrounds_zero

    @staticmethod
    def scales(domain: Domain, directions: Any, device: Device) -> np.ndarray:
        """The length, a hair below the largest that fits, for each direction: (n,) in float32."""
        xp, outline = device.xp, domain.outline(directions.shape[1])
        if outline.is_round:
            limit = outline.radius / device.get(row_norms(directions, xp))
        elif outline.has_sides:
            # 1/room: how much of its side each feature of the direction takes up.
            if (outline.lower == -outline.upper).all():
                taken = xp.abs(directions) * device.put(1 / outline.upper)
            else:
                lower, upper = (device.put(1 / b) for b in (outline.lower, outline.upper))
                taken = xp.maximum(directions * upper, directions * lower)
            limit = 1 / device.get(xp.max(taken, axis=1))
        else:
            limit = _FAR / device.get(xp.max(xp.abs(directions), axis=1))
        scale = (limit * (1 - 1e-5)).astype(np.float32)
        return np.where(np.isfinite(scale), scale, 0).astype(np.float32)
