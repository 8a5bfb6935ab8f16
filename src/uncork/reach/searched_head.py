"""The head as reach and repair search it: rows and biases as functions of u, on one device.

Where inputs are an image x = F(u), the rows are those that act on u (`auditing.folded`). A common
row is subtracted from all, which changes no difference of logits. What is found here is only
proposed.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from uncork.auditing.backend import Backend
from uncork.auditing.folded import searched
from uncork.auditing.proofs.verdict import Verdict
from uncork.auditing.result import Audit
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.domain import Domain

_INSIDE = 1 - 1e-12  # a proposal must not leave a ball by rounding
_FARTHER = (1.0, 5.0, 30.0, 1000.0)  # how far out a witness is tried where the domain is infinite


class SearchedHead:
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

    def anywhere(self, count: int) -> np.ndarray:
        """The same input of the set for `count` classes that have no better one: (count, m)."""
        return np.repeat(self.inside(np.zeros((1, self.width))), count, axis=0)

    @cached_property
    def is_infinite(self) -> bool:
        """Whether u may be as large as you like."""
        sides = np.isfinite([self.lower, self.upper]).all()
        return not (sides or np.isfinite(self.radius))

    @property
    def farther(self) -> tuple[float, ...]:
        """The factors by which a winning input is scaled: where the domain is infinite, a class
        that wins wins by more farther out."""
        return _FARTHER if self.is_infinite else (1.0,)

    def witnesses(self, audit: Audit | None, classes: np.ndarray) -> list[np.ndarray]:
        """The audit's witnesses of argmaxable classes, each (n, m), NaN where there is none."""
        if audit is None or audit.domain != self.domain:
            return []
        if audit.fingerprint != self.head.fingerprint:
            return []
        starts = np.full((len(classes), self.width), np.nan)
        for k, t in enumerate(classes.tolist()):
            if audit.proofs.verdicts[t] in (Verdict.ARGMAXABLE, Verdict.TIED):
                witness = audit.latent_witness(t)
                if witness is not None:
                    starts[k] = witness
        return [starts * factor for factor in self.farther]

    @cached_property
    def whitened(self) -> np.ndarray:
        """Σ⁻¹ of the rows, on their span: (m, m). x = Σ⁻¹(w_t − μ) is the first guess for t."""
        covariance = self.backend.get(self.rows.T @ self.rows) / self.classes
        scale = np.sqrt(np.diag(covariance))
        scale[scale == 0] = 1.0
        values, vectors = np.linalg.eigh(covariance / scale / scale[:, None])
        spanned = values > max(float(values[-1]), 0.0) * 1e-12
        root = (vectors[:, spanned] / np.sqrt(values[spanned])) / scale[:, None]
        return np.asarray(root @ root.T)
