"""The head as it looks from u, where a domain is x = F(u): for searching, in rounded float64.

What is found there is only proposed. What is proven is proven of the head itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from uncork.auditing.certify.products import Device
from uncork.core.head import Head
from uncork.domain.affine import Affine, Constants

_HELD_BYTES = 32 << 20  # of folded rows that are kept


class Folded:
    """Rows and biases of z as a function of u. Reads like a `Head` where searching reads one."""

    stored = None  # its rows are computed

    def __init__(self, head: Head, view: Affine, device: Device) -> None:
        self.head, self.view = head, view
        self.classes, self.features = head.classes, view.latent
        # Rows and biases are this many times what they really are.
        self.unit = _unit(device.largest_weight(head), view)
        self.offsets = head.offsets * self.unit
        constant = view.image(np.zeros(view.latent))
        if constant.any():
            at = device.put(constant)
            parts = [device.get(block * self.unit @ at) for _, block in device.blocks(head)]
            self.offsets = self.offsets + np.concatenate(parts)
        self._on: dict[int, Constants] = {}

    def fold(self, rows: Any, device: Device) -> Any:
        """Rows (n, d) of the head on a device, seen from u: (n, latent)."""
        if self.unit != 1:
            rows = rows * self.unit
        on = self._on.setdefault(id(device), Constants(device))
        for step in reversed(self.view.steps):
            rows = step.fold(rows, on)
        return rows

    def unfold(self, directions: np.ndarray) -> np.ndarray:
        """Directions of u as directions of x with the same products: (n, latent) → (n, d)."""
        return self.view.linear(directions) * self.unit

    def take(self, classes: np.ndarray) -> np.ndarray:
        if self._rows is not None:
            return np.asarray(self._rows[classes])
        rows: np.ndarray = self.fold(self.head.take(classes), _HOST)
        return rows

    def blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        if self._rows is None:
            for start, block in self.head.blocks(rows):
                yield start, self.fold(block, _HOST)
            return
        for start in range(0, self.classes, rows):
            yield start, self._rows[start : start + rows]

    @cached_property
    def _rows(self) -> np.ndarray | None:
        """All rows (C, latent), read-only, where they are few enough to be folded only once."""
        if 8 * self.classes * self.features > _HELD_BYTES:
            return None
        rows = np.empty((self.classes, self.features))
        for start, block in self.head.blocks(_HOST.rows):
            rows[start : start + len(block)] = self.fold(block, _HOST)
        rows.flags.writeable = False
        return rows


_HOST = Device()


def _unit(size: float, view: Affine) -> float:
    """A power of two that keeps folded rows, of weights up to this size, from over- and
    underflowing; 1 nearly always."""
    for step in view.steps:
        size *= step.growth
    if 1e-200 < size < 1e200 or size == 0:
        return 1.0
    largest = np.frexp(size)[1] if np.isfinite(size) else 1023
    return float(2.0 ** float(np.clip(-largest, -1000, 1000)))


def searched(head: Head, view: Affine, device: Device = _HOST) -> Head | Folded:
    """What searching looks at: the head itself where x is u. Its rows are read on the device."""
    return Folded(head, view, device) if view.steps else head
