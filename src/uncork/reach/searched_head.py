"""The head as reach searches it: rows and biases as functions of u, in float64 on one device.

Where inputs are an image x = F(u), rows are those that u sees (`audit.folded`). A common row is
subtracted from all, which changes no difference of logits. What is found here is only proposed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from uncork.auditing.backend import Backend
from uncork.auditing.folded import searched
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.domain import Domain

_INSIDE = 1 - 1e-12  # a proposal must not leave a ball by rounding


class View:
    """Rows (C, m) minus their mean, biases (C,), and the plain set that u is chosen from."""

    def __init__(self, head: Head, domain: Domain, backend: Backend) -> None:
        affine = domain.affine(head.features)
        seen = searched(head, affine)
        self.head, self.domain, self.backend = head, domain, backend
        self.base, self.width, self.classes = affine.base, affine.latent, head.classes
        unit = 1.0 / getattr(seen, "unit", 1.0)
        self.mean = np.zeros(self.width)
        for _, block in backend.blocks(seen):
            self.mean += backend.get((block / head.classes).sum(axis=0)) * unit
        self.rows = backend.xp.concat(
            [block * unit - backend.put(self.mean) for _, block in backend.blocks(seen)], axis=0
        )
        self.coarse = backend.xp.astype(self.rows, backend.dtype)
        offsets = seen.offsets * unit
        # Not the mean: one class that is masked by −1e30 would leave nothing of the others' biases.
        self.bias = backend.put(offsets - np.median(offsets))
        if not bool(backend.xp.all(backend.xp.isfinite(self.rows))):
            raise UncorkError("the weights are too large for reach: its sums would overflow")
        self.outline = self.base.outline(self.width)
        self.lower, self.upper = self.outline.lower.copy(), self.outline.upper.copy()
        self.radius = self.outline.radius * _INSIDE

    def logits(self, u: Any) -> Any:
        """z at each u, up to a constant of u: (n, m) → (n, C)."""
        return u @ self.rows.T + self.bias

    def inside(self, u: np.ndarray) -> np.ndarray:
        """The nearest point of the set for each u: (n, m)."""
        u = np.clip(u, self.lower, self.upper)
        if np.isfinite(self.radius):
            norms = np.linalg.norm(u, axis=1, keepdims=True)
            u = u * np.minimum(1.0, self.radius / np.maximum(norms, 1e-300))
        return u if self.outline.exact else self.base.pulled_in(u)

    def somewhere(self, count: int) -> np.ndarray:
        """An input of the set, so many times, for classes of which nothing better is known."""
        return np.repeat(self.inside(np.zeros((1, self.width))), count, axis=0)

    def whitened(self) -> np.ndarray:
        """Σ⁻¹ of the rows, on their span: (m, m). x = Σ⁻¹(w_t − μ) is the first guess for t."""
        covariance = self.backend.get(self.rows.T @ self.rows) / self.classes
        scale = np.sqrt(np.diag(covariance))
        scale[scale == 0] = 1.0
        values, vectors = np.linalg.eigh(covariance / scale / scale[:, None])
        kept = values > max(float(values[-1]), 0.0) * 1e-12
        root = (vectors[:, kept] / np.sqrt(values[kept])) / scale[:, None]
        return np.asarray(root @ root.T)
