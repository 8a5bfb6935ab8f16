"""The largest sparsemax probability of one class, as a linear programme over few classes.

For sparsemax θ is piecewise linear in the input, and smoothing wears out before its kinks do. So

    max θ   s.t.   Σ over sure classes of (s_i + θ) + Σ ξ_i ≤ 1,   ξ_i ≥ s_i + θ,   ξ_i ≥ 0,

with s_i = β(z_i − z_t): sure classes are in the support without doubt, those with a ξ_i of their
own may be on its edge, all others are out. Where the solution shows a class to be misplaced it gets
a ξ_i. The duals are the weights that `sparse_bounds` proves the upper bound with.
"""

from __future__ import annotations

import numpy as np

from uncork.auditing.proofs.verdict import Mixture
from uncork.reach.searched_head import View
from uncork.reach.sparse.newton import derivative, threshold

_ROUNDS = 30
_BAND = 3  # widths: classes near the edge that get a ξ_i from the start
_CLEAR = 1e-9  # how far on the wrong side a class may be


def solve(
    view: View, t: int, beta: float, start: np.ndarray, epsilon: float, bulk: float = 0.0
) -> tuple[np.ndarray, Mixture] | None:
    """An input (m,) and weights on classes, near the optimum; None where the programme fails.

    `start` is what smoothing by `epsilon` ended with; `bulk` is the weight, for each unit of the
    mixture's, that a proof will add on all classes: the mixture leans against it.
    """
    if np.isfinite(view.radius):
        return None
    rows = view.backend.get(view.rows)
    bias = view.backend.get(view.bias)
    away, offsets = beta * (rows - rows[t]), beta * (bias - bias[t])
    v = away @ start + offsets
    theta = float(threshold(np, v[None], 1.0, epsilon)[0])
    share = derivative(np, v + theta, 1.0, epsilon)
    near = np.argsort(np.abs(v + theta))[: _BAND * view.width]
    edge = np.union1d(near, np.flatnonzero((share > 0.001) & (share < 0.999)))
    sure = np.setdiff1d(np.flatnonzero(share >= 0.999), edge)
    for _ in range(_ROUNDS):
        solved = _programme(view, away, offsets, sure, edge)
        if solved is None:
            return None
        u, theta, weights = solved
        v = away @ u + offsets + theta
        fallen = sure[v[sure] < -_CLEAR]
        known = np.union1d(sure, edge)
        risen = np.setdiff1d(np.flatnonzero(v > _CLEAR), known)
        if not len(fallen) and not len(risen):
            c = np.zeros(len(rows))
            c[sure], c[edge] = 1.0, weights
            return u, _balanced(view, away, c, u, bulk)
        risen = risen[np.argsort(-v[risen])[: _BAND * view.width]]
        sure = np.setdiff1d(sure, fallen)
        edge = np.concatenate([edge, fallen, risen])
    return None


def _programme(
    view: View, away: np.ndarray, offsets: np.ndarray, sure: np.ndarray, edge: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray] | None:
    """u, θ and the weights of the edge."""
    from scipy.optimize import linprog

    width, count = view.width, len(edge)
    total = np.concatenate([away[sure].sum(axis=0), [len(sure)], np.ones(count)])
    limits = np.column_stack([away[edge], np.ones(count), -np.eye(count)])
    sides = [(low, high) for low, high in zip(view.lower, view.upper, strict=True)]
    solved = linprog(
        np.concatenate([np.zeros(width), [-1.0], np.zeros(count)]),
        A_ub=np.concatenate([total[None], limits]),
        b_ub=np.concatenate([[1 - offsets[sure].sum()], -offsets[edge]]),
        bounds=[*sides, (None, 1.0), *[(0, None)] * count], method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )  # fmt: skip
    if solved.status != 0:
        return None
    duals = np.maximum(-solved.ineqlin.marginals, 0.0)
    if not duals[0] > 0:
        return None
    u = np.clip(solved.x[:width], view.lower, view.upper)
    return u, float(solved.x[width]), np.clip(duals[1:] / duals[0], 0.0, 1.0)


def _balanced(view: View, away: np.ndarray, c: np.ndarray, u: np.ndarray, bulk: float) -> Mixture:
    """The weights moved a little, so that no input is seen along a side that u does not touch."""
    free = (u > view.lower) & (u < view.upper)
    part = np.flatnonzero((c > 1e-7) & (c < 1 - 1e-7))
    for _ in range(2):
        left = c @ away[:, free] + bulk * c.sum() * away[:, free].mean(axis=0)
        if len(part) and free.any():
            moved = np.linalg.lstsq(away[part][:, free].T, left, rcond=None)[0]
            c[part] = np.clip(c[part] - moved, 0.0, 1.0)
    ids = np.flatnonzero(c > 0)
    return Mixture(ids, c[ids])
