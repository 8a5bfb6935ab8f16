"""Rows moved together: every lost class brought to the surface at one input, and told apart there.

A row moved by e·x/‖x‖² gains e at x, and at all inputs with the same x·u: on that plane H the move
is a raise of the bias. So what `strict` does for biases holds for rows on H. All lost classes are
given one height at x, less a strictly convex g of their rows, plus κ to clear what is there:

    e_t = top(x) − z_t(x) − g_t + κ,     g_t = (η/2)·|P(w_t − a)|²,     u_t = x + η P(w_t − a),

P the projection along H. At u_t class t leads every other lost class s by (η/2)·|P(w_s − w_t)|²,
whatever they are and however many. Rows that crowd are first moved apart, each a little in a
direction of its own square to x, so that this is more than the rounding of the rows. One x for all
need not be the best for each: the longest move is kept short, not every move.
"""

from __future__ import annotations

import numpy as np

from uncork.core.head import Head
from uncork.repair.margin import allowance
from uncork.repair.surface import Programme, Surface

_APART = (0.05, 0.1, 0.2, 0.5, 1.0, 3.0)  # of the longest move that is needed
_CURVED = (4.0, 16.0, 64.0, 256.0)  # how many roundings the least lead is
_SCALES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_STEPS = 8
_PARTS = (1.0, 0.7, 0.5, 0.3, 0.1, 0.03)  # of the way to what is best for the deepest class
_BLOCK = 512


def common_input(surface: Surface, lost: np.ndarray, pool: np.ndarray) -> np.ndarray | None:
    """An input (m,) at which the longest of the moves that are needed is short; None if none helps.

    The search goes downhill from the best of the pool (n, m): with θ the longest move and n = x/‖x‖
    fixed, min over x of max_i z_i − (w_t + θ n)·x − b_t is below zero only where t needs less.
    """
    affine = surface.view.domain.affine(surface.view.head.features)
    rows, bias = surface.all_rows[lost], surface.all_bias[lost]

    def cost(u: np.ndarray) -> float:
        x = affine.image(u[None])[0] if affine.steps else u
        length = float(np.linalg.norm(x))
        if not length > 0:
            return np.inf
        return (float(surface.heights(u).max()) - float((rows @ u + bias).min())) / length

    scaled = [surface.inside(factor * u) for u in pool for factor in _SCALES]
    if not scaled:
        return None
    best = min(scaled, key=cost)
    value = cost(best)
    if not np.isfinite(value):
        return None
    programme = Programme(surface)
    for _ in range(_STEPS):
        t = int(np.argmin(rows @ best + bias))
        way = best / float(np.linalg.norm(best))
        aim = programme.solve(rows[t] + value * way, float(bias[t])).input
        between = [surface.inside(best + part * (aim - best)) for part in _PARTS]
        found = min(between, key=cost)
        if not cost(found) < value * (1 - 1e-3):
            break
        best, value = found, cost(found)
    return best


def moved_together(
    head: Head, surface: Surface, lost: np.ndarray, u: np.ndarray, seed: int, margin: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (n, d) for the lost classes as they would be stored, inputs (n, m) at which they should
    win, and how far beyond the margin they lead there in floats (n,). The shortest of some ways to
    do it."""
    affine = head.domain.affine(head.features)
    x = affine.image(u[None])[0] if affine.steps else u
    length = float(np.linalg.norm(x))
    fold = affine.parts()[0] if affine.steps else None  # x = fold @ u + …

    def folded(rows: np.ndarray) -> np.ndarray:
        return rows if fold is None else rows @ fold

    plain = head.take(lost)
    seen = surface.all_rows[lost]
    off = surface.all_bias[lost]
    along = folded(x[None])[0]
    along = along / max(float(np.linalg.norm(along)), 1e-300)
    top = float(surface.heights(u).max())
    # One of NumPy's numbers: where its square overflows it is infinite, where Python's would raise.
    needed = (top - seen @ u - off).max() / length
    side = np.random.default_rng(seed).standard_normal(plain.shape)
    side -= np.outer(side @ x, x) / length**2
    side /= np.linalg.norm(side, axis=1, keepdims=True).clip(1e-300)
    sided = folded(side)
    kind = head.weight.dtype
    grain = float(np.finfo(kind).eps) if kind.kind == "f" else 2.0**-24
    here = np.repeat(x[None], len(lost), axis=0)
    asked = float(np.nanmax(allowance(head, head.offsets, lost, here, margin)))
    rounding = max(grain * float(np.abs(plain).max()) * length, asked / _CURVED[0])
    others = np.setdiff1d(np.arange(head.classes), lost)
    best: tuple[tuple[int, float], np.ndarray, np.ndarray, np.ndarray] | None = None
    for apart in _APART:
        away = apart * max(needed, 1e-3 * np.linalg.norm(plain, axis=1).mean())
        parted = seen + away * sided
        level = parted - parted.mean(axis=0)
        level -= np.outer(level @ along, along)
        for curved in _CURVED:
            eta = curved * rounding / away**2
            inputs = surface.view.inside(u + eta * level)
            g = 0.5 * eta * (level**2).sum(axis=1)
            raises = top - parted @ u - off - g
            here = (parted * inputs).sum(axis=1) + off + raises
            clear = max(
                float((_tops(surface, others, inputs[k : k + _BLOCK]) - here[k : k + _BLOCK]).max())
                for k in range(0, len(lost), _BLOCK)
            )
            raises += max(clear, 0.0) * 1.02 + 4 * rounding + 1.1 * asked
            rows = plain + away * side + np.outer(raises / length**2, x)
            stored = rows.astype(kind).astype(np.float64)
            longest = float(np.linalg.norm(stored - plain, axis=1).max())
            if best is not None and best[0][0] == -len(lost) and longest >= best[0][1]:
                continue
            leads = _leads(surface, lost, seen + folded(stored - plain), inputs) - asked
            leads = np.where(np.isfinite(stored).all(axis=1), leads, -np.inf)
            key = (-int((leads > 0).sum()), longest)
            if best is None or key < best[0]:
                best = key, stored, inputs, leads
    assert best is not None
    return best[1], best[2], best[3]


def _tops(surface: Surface, classes: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """The largest z of these classes at each input: (n, m) → (n,)."""
    z = inputs @ surface.all_rows[classes].T + surface.all_bias[classes]
    return np.asarray(z.max(axis=1, initial=-np.inf))


def _leads(surface: Surface, lost: np.ndarray, rows: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """z_t − max z_i over all i, at each lost class's input, with its rows in place: (n,)."""
    every = surface.all_rows.copy()
    every[lost] = rows
    leads = np.empty(len(lost))
    for k in range(0, len(lost), _BLOCK):
        some = lost[k : k + _BLOCK]
        z = inputs[k : k + _BLOCK] @ every.T + surface.all_bias
        here = np.arange(len(some))
        own = z[here, some]
        z[here, some] = -np.inf
        leads[k : k + len(some)] = own - z.max(axis=1)
    return leads
