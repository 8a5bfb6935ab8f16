"""The least 1-norm of a bias change under the inequalities met so far, and what that proves.

A mixture λ of others that class t cannot pass says of every change c that frees t

    c_t − Σ λ_i c_i  ≥  Σ λ_i b_i − b_t − support_D(w_t − Σ λ_i w_i),

and the right-hand side is what the certifier proves of it. Classes that touch at one input have
mixtures of the same classes: of many such the sum of their inequalities is kept, not each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Mixture
from uncork.repair.surface import Depths, Surface, proven_leads

_TOGETHER = 8  # inequalities of one input that are kept as one, if there are more


@dataclass(frozen=True)
class _Row:
    """Σ weights · c[classes] ≥ lead; `bulk` is what mixtures spread evenly over all classes."""

    classes: np.ndarray
    weights: np.ndarray
    lead: float
    bulk: float


class Master:
    """min Σ|c_i| under the inequalities so far."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.rows: list[_Row] = []
        self.seen: set[tuple[Any, ...]] = set()

    def add(self, certifier: Certifier, surface: Surface, found: Depths) -> int:
        """The mixtures of classes that lie below; how many inequalities are new."""
        places: dict[bytes, list[int]] = {}
        for k, (raised, mixture) in enumerate(
            zip(found.raises.tolist(), found.mixtures, strict=True)
        ):
            if mixture is None or not raised > surface.close:
                continue
            key = (int(found.classes[k]), mixture.classes.tobytes(),
                   np.round(mixture.weights, 9).tobytes())  # fmt: skip
            if key not in self.seen:
                self.seen.add(key)
                places.setdefault(found.inputs[k].tobytes(), []).append(k)
        named: list[tuple[int, Mixture]] = []
        groups: list[int] = []
        for group, here in enumerate(places.values()):
            for k in here:
                mixture = found.mixtures[k]
                assert mixture is not None
                named.append((int(found.classes[k]), mixture))
                groups.append(group)
        proven: dict[int, list[tuple[int, float, Mixture, float]]] = {}
        for ((t, mixture), lead), group in zip(
            proven_leads(certifier, surface, named), groups, strict=True
        ):
            if np.isfinite(lead):
                proven.setdefault(group, []).append((t, 1.0, mixture, lead))
        before = len(self.rows)
        for rows in proven.values():
            if len(rows) > _TOGETHER:
                self._add(rows)
            else:
                for row in rows:
                    self._add([row])
        return len(self.rows) - before

    def add_dealt(self, certifier: Certifier, dealt: list[tuple[int, float, Mixture]]) -> None:
        """Mixtures of one programme for many classes (`repair_shared`), as one inequality."""
        leads = certifier.mixtures([t for t, *_ in dealt], [m for *_, m in dealt])
        rows = [(*of, float(lead)) for of, lead in zip(dealt, leads, strict=True)]
        rows = [row for row in rows if np.isfinite(row[3]) and row[3] > 0]
        if rows:
            self._add(rows)

    def _add(self, parts: list[tuple[int, float, Mixture, float]]) -> None:
        """One inequality: the sum of those for class, share, mixture and proven lead."""
        total = np.zeros(self.classes)
        lead = bulk = 0.0
        for t, share, mixture, proven in parts:
            weights = np.asarray(mixture.weights, dtype=np.float64)
            whole = float(weights.sum()) + mixture.bulk
            total[t] += share
            np.subtract.at(total, mixture.classes, share * weights / whole)
            lead += share * proven
            bulk += share * mixture.bulk / whole
        named = np.flatnonzero(total)
        self.rows.append(_Row(named, total[named], lead, bulk))

    def solve(self, seconds: float = np.inf) -> tuple[np.ndarray, float]:
        """The least change (C,), and the lower bound that its multipliers prove."""
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix, hstack

        if not self.rows:
            return np.zeros(self.classes), 0.0
        ends = np.cumsum([0, *(len(row.classes) for row in self.rows)])
        matrix = csr_matrix(
            (np.concatenate([row.weights for row in self.rows]),
             np.concatenate([row.classes for row in self.rows]), ends),
            shape=(len(self.rows), self.classes),
        )  # fmt: skip
        least = np.array([row.lead for row in self.rows])
        spread = np.array([row.bulk for row in self.rows])
        options = {"time_limit": seconds} if np.isfinite(seconds) else {}
        solved = linprog(
            np.ones(2 * self.classes), -hstack([matrix, -matrix]).tocsr(), -least,
            bounds=(0, None), method="highs", options=options,
        )  # fmt: skip
        if solved.x is None or solved.status != 0:
            return np.zeros(self.classes), 0.0
        change = solved.x[: self.classes] - solved.x[self.classes :]
        # Multipliers μ prove Σ μ·lead wherever no coefficient of Σ μ·row exceeds one.
        weights = np.maximum(-np.asarray(solved.ineqlin.marginals), 0.0)
        largest = float(np.abs(matrix.T @ weights).max(initial=0.0))
        largest += float(weights @ spread) / self.classes
        needed = float(weights @ least) / (largest * (1 + 1e-9)) if largest > 0 else 0.0
        return change, max(0.0, needed)
