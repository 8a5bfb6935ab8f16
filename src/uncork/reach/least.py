"""The bias change of least 1-norm that lets every class touch the surface, bounded from both sides.

A mixture λ of others that class t cannot pass says of every change c of the biases that repairs t

    c_t − Σ λ_i c_i  ≥  Σ λ_i b_i − b_t − support_D(w_t − Σ λ_i w_i).

The least Σ|c_i| under the inequalities met so far is a lower bound: a linear programme (Benders'
master). Its solution is tried: each class is held against the surface of the changed biases; what
still lies below is raised, which gives a change that does it, and its mixture, which gives one more
inequality. On small heads the two bounds meet.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.audit.certify import Certifier
from uncork.audit.verdict import Mixture
from uncork.reach.strict import leads_at
from uncork.reach.surface import Depths, Surface, depths, proven_leads

_ROUNDS = 40
_GAP = 0.01
_FEW = 400  # classes each of which is solved for; of more, the deepest
_SECONDS = 300.0
_TURNS = 8


@dataclass
class Least:
    """Biases (C,) as the surface has them, at which the `touching` classes touch at `inputs`; where
    each other class is known to win, (C, latent); and what is proven to be needed."""

    base: np.ndarray
    touching: np.ndarray
    inputs: np.ndarray
    witnesses: np.ndarray
    size: float
    needed: float


def least_change(
    certifier: Certifier,
    surface: Surface,
    lost: np.ndarray,
    wanted: np.ndarray,
    witnesses: np.ndarray,
    equals: np.ndarray,
    jobs: int,
    time_limit: float | None,
) -> Least:
    """As little change as is found in the time given (five minutes unless said).

    lost       (n,) classes to be freed, one of each group of equals
    wanted     (C,) of bool: classes that must be argmaxable in the end
    witnesses  (C, latent): where classes win now; NaN where that is not known
    """
    until = time.perf_counter() + (_SECONDS if time_limit is None else time_limit)
    gap = None if len(lost) <= _FEW else _GAP
    found = depths(surface, lost, jobs, gap=gap)
    change = np.zeros(surface.view.classes)
    change[lost] = np.maximum(found.raises, 0.0)
    best = Least(
        surface.all_bias + change, lost, found.inputs, witnesses.copy(), _norm(change), 0.0
    )
    master = _Master(surface.view.classes)
    master.add(certifier, surface, found)
    for _ in range(_ROUNDS):
        planned, needed = master.solve()
        best.needed = max(best.needed, needed)
        if best.size <= (1 + _GAP) * best.needed or time.perf_counter() > until:
            break
        tried, found, now = _complete(surface, planned, wanted, best.witnesses, equals, jobs, gap)
        if tried.size < best.size:
            tried.needed = best.needed
            best = tried
        if not master.add(certifier, now, found):
            break
    return best


def _norm(change: np.ndarray) -> float:
    return float(np.abs(change - np.median(change)).sum())


def _complete(
    surface: Surface,
    planned: np.ndarray,
    wanted: np.ndarray,
    witnesses: np.ndarray,
    equals: np.ndarray,
    jobs: int,
    gap: float | None,
) -> tuple[Least, Depths, Surface]:
    """The planned change, and what is still below the surface raised to it."""
    witnesses, bias = witnesses.copy(), surface.all_bias + planned
    above = ~wanted | _leading(surface, witnesses, bias, equals)
    for _ in range(_TURNS):
        asked = np.flatnonzero(~above)
        now = Surface(surface.view, np.flatnonzero(above), bias, surface.shrunk)
        found = depths(now, asked, jobs, gap=gap)
        change = planned.copy()
        change[asked] += np.maximum(found.raises, 0.0)
        rising = found.raises < -surface.close
        witnesses[asked[rising]] = found.inputs[rising]
        # Who is not asked for stays in the way all the same; who leads must do so to the end.
        held = ~wanted | _leading(surface, witnesses, surface.all_bias + change, equals)
        settled = not rising.any() and bool(held[above].all())
        if settled:
            break
        above &= held
        above[asked[rising]] = True
    size = _norm(change) if settled else np.inf
    base = surface.all_bias + change
    return Least(base, asked, found.inputs, witnesses, size, 0.0), found, now


def _leading(
    surface: Surface, witnesses: np.ndarray, bias: np.ndarray, equals: np.ndarray
) -> np.ndarray:
    """Which classes lead at the witness they have: (C,) of bool."""
    result = np.zeros(len(bias), dtype=bool)
    known = np.flatnonzero(np.isfinite(witnesses).all(axis=1))
    leads = leads_at(surface, known, witnesses[known], bias, surface.all_rows.mean(axis=0), equals)
    result[known[leads > surface.close]] = True
    return result


class _Master:
    """min Σ|c_i| under the inequalities so far."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.rows: list[tuple[int, np.ndarray, np.ndarray, float, float]] = []
        self.seen: set[tuple[Any, ...]] = set()

    def add(self, certifier: Certifier, surface: Surface, found: Depths) -> int:
        """The mixtures of classes that lie below, with what is proven of each; how many are new."""
        named: list[tuple[int, Mixture]] = []
        for t, raised, mixture in zip(
            found.classes.tolist(), found.raises.tolist(), found.mixtures, strict=True
        ):
            if mixture is None or not raised > 0:
                continue
            key = (t, mixture.classes.tobytes(), np.round(mixture.weights, 9).tobytes())
            if key not in self.seen:
                self.seen.add(key)
                named.append((t, mixture))
        new = 0
        for (t, mixture), lead in proven_leads(certifier, surface, named):
            if np.isfinite(lead):
                share = np.asarray(mixture.weights, dtype=np.float64)
                total = float(share.sum()) + mixture.bulk
                self.rows.append((t, mixture.classes, share / total, lead, mixture.bulk / total))
                new += 1
        return new

    def solve(self) -> tuple[np.ndarray, float]:
        """The least change (C,), and the lower bound that its multipliers prove."""
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix, hstack

        if not self.rows:
            return np.zeros(self.classes), 0.0
        data: list[np.ndarray] = []
        columns: list[np.ndarray] = []
        for t, ids, share, *_ in self.rows:
            columns.append(np.append(t, ids))
            data.append(np.append(1.0, -share))
        ends = np.cumsum([0, *(len(c) for c in columns)])
        matrix = csr_matrix(
            (np.concatenate(data), np.concatenate(columns), ends),
            shape=(len(self.rows), self.classes),
        )
        least = np.array([lead for *_, lead, _ in self.rows])
        spread = np.array([bulk for *_, bulk in self.rows])  # over all classes evenly
        solved = linprog(
            np.ones(2 * self.classes), -hstack([matrix, -matrix]).tocsr(), -least,
            bounds=(0, None), method="highs",
        )  # fmt: skip
        if solved.x is None:
            return np.zeros(self.classes), 0.0
        change = solved.x[: self.classes] - solved.x[self.classes :]
        # Multipliers μ prove Σ μ·lead wherever no coefficient of Σ μ·row exceeds one.
        weights = np.maximum(-np.asarray(solved.ineqlin.marginals), 0.0)
        largest = float(np.abs(matrix.T @ weights).max(initial=0.0))
        largest += float(weights @ spread) / self.classes
        needed = float(weights @ least) / (largest * (1 + 1e-9)) if largest > 0 else 0.0
        return change, max(0.0, needed)
