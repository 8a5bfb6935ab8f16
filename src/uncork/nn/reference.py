"""The transforms in NumPy and SciPy, one row at a time: slow, obvious, and without torch.

The twin that the fast versions are held to, and the version for those who only audit. Every
function takes logits of shape (..., n) and works along `axis`; −inf is a masked class; a row that
is masked entirely gives zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

Array = NDArray[np.float64]


def softmax(z: ArrayLike, axis: int = -1) -> Array:
    """exp(z) / Σ exp(z)."""
    return _rows(_softmax_row, z, axis)


def sparsemax(z: ArrayLike, axis: int = -1) -> Array:
    """Martins and Astudillo 2016, Alg. 1: sort, find the support, subtract its threshold."""
    return _rows(_sparsemax_row, z, axis)


def entmax(z: ArrayLike, alpha: float = 1.5, axis: int = -1) -> Array:
    """α-entmax: softmax at 1, sorting at 2 and 1.5, otherwise a root of Σp = 1 by Brent."""
    if alpha == 1:
        return softmax(z, axis)
    if alpha == 2:
        return sparsemax(z, axis)
    if alpha == 1.5:
        return _rows(_entmax15_row, z, axis)
    return _rows(lambda row: _entmax_row(row, alpha), z, axis)


def entmax_threshold(z: ArrayLike, alpha: float = 1.5) -> Array:
    """τ of p = [(α−1) z − τ]₊^{1/(α−1)} along the last axis.  (..., n) → (...)"""
    z = np.asarray(z, dtype=np.float64)
    p = entmax(z, alpha)
    best = np.take_along_axis(z, z.argmax(-1)[..., None], -1)[..., 0]
    return np.asarray((alpha - 1) * best - p.max(-1) ** (alpha - 1))


def alpha_relu(z: ArrayLike, alpha: float = 1.5, tau: float = 0.0) -> Array:
    """[(α−1) z − τ]₊^{1/(α−1)}, elementwise."""
    z = np.asarray(z, dtype=np.float64)
    return np.asarray(np.maximum((alpha - 1) * z - tau, 0.0) ** (1 / (alpha - 1)))


def normmax(z: ArrayLike, alpha: float = 2.0, axis: int = -1) -> Array:
    """argmax ⟨z, p⟩ − ‖p‖_α over the simplex: ‖[z − t]₊‖_β = 1 by Brent, β = α/(α−1)."""
    return _rows(lambda row: _normmax_row(row, alpha), z, axis)


def budget(z: ArrayLike, budget: float = 2.0, axis: int = -1) -> Array:
    """clip(z − t, 0, 1) with Σ = budget, t by Brent; all ones where the budget is not reached."""
    return _rows(lambda row: _budget_row(row, budget), z, axis)


def fenchel_young_loss(z: ArrayLike, target: int, alpha: float = 1.5) -> float:
    """(p − e_y)·z + H_α(p) of one row of finite logits, straight from the definition."""
    z = np.asarray(z, dtype=np.float64)
    p = entmax(z, alpha)
    q = p[p > 0]
    if alpha == 1:
        entropy = -np.sum(q * np.log(q))
    else:
        entropy = np.sum(q - q**alpha) / (alpha * (alpha - 1))
    return float(p @ z - z[target] + entropy)


def alpha_relu_loss(z: ArrayLike, target: int, alpha: float = 1.5, tau: float = 0.0) -> float:
    """(1/α) Σp^α − z_y + (τ + 1/α)/(α−1) of one row."""
    z = np.asarray(z, dtype=np.float64)
    p = alpha_relu(z, alpha, tau)
    return float(np.sum(p**alpha) / alpha - z[target] + (tau + 1 / alpha) / (alpha - 1))


def _rows(solve: Callable[[Array], Array], z: ArrayLike, axis: int) -> Array:
    """`solve` on the finite part of every row along `axis`."""
    moved = np.moveaxis(np.asarray(z, dtype=np.float64), axis, -1)
    out = np.zeros_like(moved)
    for index in np.ndindex(moved.shape[:-1]):
        finite = np.isfinite(moved[index])
        if finite.any():
            out[index][finite] = solve(moved[index][finite])
    return np.moveaxis(out, -1, axis)


def _softmax_row(z: Array) -> Array:
    p = np.exp(z - z.max())
    return np.asarray(p / p.sum())


def _sparsemax_row(z: Array) -> Array:
    z = z - z.max()
    order = np.sort(z)[::-1]
    size = np.arange(1, len(z) + 1)
    excess = np.cumsum(order) - 1
    support = int(np.flatnonzero(order * size > excess)[-1]) + 1
    return np.asarray(np.maximum(z - excess[support - 1] / support, 0.0))


def _entmax15_row(z: Array) -> Array:
    """Peters et al. 2019, Alg. 2: the support is the largest whose quadratic stays below it."""
    z = (z - z.max()) / 2
    order = np.sort(z)[::-1]
    best = order[0] - 1.0
    for size in range(1, len(z) + 1):
        kept = order[:size]
        mean = kept.mean()
        spread = np.sum((kept - mean) ** 2)
        if spread > 1:
            break
        tau = mean - math.sqrt((1 - spread) / size)
        if tau > order[size - 1]:
            break
        best = tau
    return np.asarray(np.maximum(z - best, 0.0) ** 2)


def _entmax_row(z: Array, alpha: float) -> Array:
    """p = [1 + (α−1)(z − S)]₊^{1/(α−1)}, S from one class's bound to n equal ones'."""
    z = z - z.max()
    eps = alpha - 1
    if alpha > 2:
        return _steep_entmax_row(z, eps)

    def probabilities(s: float) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.exp(np.log1p(np.maximum(eps * (z - s), -1.0)) / eps))

    high = -math.expm1(-eps * math.log(len(z))) / eps
    if high == 0:
        return np.ones_like(z)
    s = _root(lambda s: float(probabilities(s).sum() - 1), 0.0, high)
    p = probabilities(s)
    return np.asarray(p / p.sum())


def _steep_entmax_row(z: Array, eps: float) -> Array:
    """p = [(α−1)(z + c)]₊^{1/(α−1)} for α > 2, c by halving.

    The last bit of c moves p by far more than its rounding at the edge of the support: p is taken
    between those of the two neighbouring c.
    """

    def probabilities(c: float) -> Array:
        return np.asarray(np.maximum(eps * (z + c), 0.0) ** (1 / eps))

    low, high = 0.0, 1 / eps
    while low < (middle := low + (high - low) / 2) < high:
        if probabilities(middle).sum() > 1:
            high = middle
        else:
            low = middle
    p, q = probabilities(low), probabilities(high)
    apart = q.sum() - p.sum()
    share = 1.0 if apart == 0 else min(max((1 - p.sum()) / apart, 0.0), 1.0)
    p = p + share * (q - p)
    return np.asarray(p / p.sum())


def _normmax_row(z: Array, alpha: float) -> Array:
    z = z - z.max()
    beta = alpha / (alpha - 1)

    def excess(t: float) -> float:
        return float(np.sum(np.maximum(z - t, 0.0) ** beta) - 1)

    t = _root(excess, -1.0, -(len(z) ** (-1 / beta)))
    w = np.maximum(z - t, 0.0)
    p = np.where(w > 0, w ** (1 / (alpha - 1)), 0.0)
    return np.asarray(p / p.sum())


def _budget_row(z: Array, budget: float) -> Array:
    if budget >= len(z):
        return np.ones_like(z)
    if budget == 0:
        return np.zeros_like(z)

    def excess(t: float) -> float:
        return float(np.clip(z - t, 0, 1).sum() - budget)

    pivot = np.sort(z)[::-1][math.ceil(budget) - 1]
    return np.asarray(np.clip(z - _root(excess, pivot - 1, pivot), 0, 1))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """A zero of a decreasing function; the ends themselves may be it, up to rounding."""
    if function(low) <= 0:
        return low
    if function(high) >= 0:
        return high
    return float(optimize.brentq(function, low, high, xtol=1e-16, rtol=8.9e-16, maxiter=500))
