"""Rows that absorb what rounding leaves of a sum that must vanish exactly.

Let A be rows, R a matrix, and σ > 0 at most the least singular value of A Rᵀ. Then every r that
such rows can sum to is Aᵀμ for a μ with ‖μ‖ ≤ ‖R r‖/σ. So while weights on these rows are larger
than that, moving them by μ keeps them positive, and the sum is exactly what was wished for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from uncork.core.rigour import TINY, UNIT, gamma, row_norms, up


@dataclass(frozen=True)
class Absorber:
    """Rows A that can make up for a small residual, and how much weight that moves."""

    constants: float  # ≥ the norm of the rows' offsets
    least: float = 0.0  # σ: at most the least singular value of A Rᵀ
    root: np.ndarray | None = None  # R (rank, width)
    root_size: float = 0.0  # ≥ its Frobenius norm
    turned: np.ndarray | None = None  # A Rᵀ (n, rank) in floats
    off: float = 0.0  # and how far it may be off, in the Frobenius norm

    @classmethod
    def of(cls, rows: np.ndarray, error: np.ndarray, constants: float, rank: int) -> Absorber:
        none = cls(constants)
        try:
            values, vectors = np.linalg.eigh(rows.T @ rows)
        except np.linalg.LinAlgError:
            return none
        values, vectors = values[-rank:], vectors[:, -rank:]
        if not (len(values) and values[0] > 0 and np.isfinite(values).all()):
            return none
        root = (vectors / np.sqrt(values)).T  # so that the columns of A Rᵀ are nearly orthonormal
        turned = rows @ root.T
        n, width = rows.shape
        size, root_size, turned_size, error_size = (
            float(row_norms(m.reshape(1, -1))[0]) for m in (rows, root, turned, error)
        )
        defect = turned.T @ turned - np.eye(rank)
        square = 1 - float(row_norms(defect.reshape(1, -1))[0]) * (1 + 8 * UNIT)
        square -= up(gamma(n + 8) * turned_size**2 + n * rank * TINY, 8)
        if not square > 0.25:
            return none
        off = up(gamma(width + 8) * (size * root_size) + error_size * root_size, 8)
        off += n * width * TINY
        least = float(np.sqrt(square)) * (1 - 8 * UNIT) - off
        return cls(constants, least, root, root_size, turned, off)

    def without(self, rows: np.ndarray) -> Absorber | None:
        """The same less some rows; None where that says too little.

        ‖A' Rᵀ x‖² = ‖A Rᵀ x‖² − ‖V x‖² with V those rows of A Rᵀ, and ‖V‖² = ‖V Vᵀ‖ is at most the
        largest sum of the sizes of a row's entries."""
        if self.turned is None or not len(rows):
            return self if self.turned is not None else None
        if len(rows) > 4096:
            return None
        left_out = self.turned[rows]
        sums = np.abs(left_out @ left_out.T).sum(axis=1)
        size = float(row_norms(left_out.reshape(1, -1))[0])
        square = up(float(sums.max()) + gamma(left_out.shape[1] + len(rows) + 8) * size**2, 8)
        longest = float(np.sqrt(square)) * (1 + 8 * UNIT) + self.off
        rest = (self.least**2 * (1 - 8 * UNIT)) - longest**2 * (1 + 8 * UNIT)
        if not rest > 0.01:
            return None
        return replace(self, least=float(np.sqrt(rest)) * (1 - 8 * UNIT), turned=None)

    def reach(self, residual: np.ndarray, error: np.ndarray) -> float:
        """An upper bound on the norm of weights on the rows that sum to a residual known up to
        `error`; NaN where the argument does not hold."""
        if self.root is None or not self.least > 0.05 or not np.isfinite(residual).all():
            return float("nan")
        moved, size, off = (
            float(row_norms(v[None])[0]) for v in (self.root @ residual, residual, error)
        )
        rounding = gamma(len(residual) + 8) * (self.root_size * size)
        return float(up((moved + rounding + self.root_size * off) / self.least, 8))
