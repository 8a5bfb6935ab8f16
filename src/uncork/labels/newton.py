"""One label set at a time by Newton steps: the same problem as `search`, solved to the last digit.

The objective ½ Σ max(0, m − s_i (a_i·u + c_i))² + ½ ω² dist(u, D)² is quadratic between the places
where a term begins or ends. With H the Hessian of the terms that count at u, the step −H⁻¹ g is
the way to their minimum, and the best length along it is found exactly, since the slope is
piecewise linear. Between few such steps the terms that count no longer change, and the next
step ends at the minimum itself. A step costs a product of those rows with themselves, so this is
for the few sets that many cheap steps left open.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from uncork.labels.search import Asker, LabelSearch, Proposed

_STEPS = 80
_HALVINGS = 60
_DAMPING = 1e-10  # of the Hessian's mean diagonal: where few rows count, it is singular
_NEARLY = 1e-3
_VANISHED = 1e-11
_ROUGH = 1e-3  # what is left of a gradient above which a step need not be exact
_STILL = 1e-13  # a gradient this small beside its terms is all rounding


def propose_one(search: LabelSearch, k: int, asker: Asker) -> bool:
    """Propose for set k until something is accepted; whether it was."""
    return any(_with_margin(search, k, margin, asker) for margin in search.margins)


def _with_margin(search: LabelSearch, k: int, margin: float, asker: Asker) -> bool:
    problem, backend, one = search.sharp, search.backend, np.array([k])
    signs = asker.signs_of(one)
    held = problem.held(signs)
    end = search.ends.get(k) if margin == search.margins[0] else None
    v = problem.start(held, margin) if end is None else backend.put(end[None])

    def accepted(u: np.ndarray, target: float | None = None) -> bool:
        targets = None if target is None else np.array([target])
        return bool(asker.settle(Proposed(one, u, targets), signs)[0])

    for _ in range(_STEPS):
        if asker.late():
            return False
        looked = problem.look(v, held, margin)
        inside = search.inside(v)
        lowest = float(backend.get(problem.lowest(inside, held))[0])
        if lowest > 0 and accepted(search.proposed(backend.get(inside))):
            return True
        left, bound = float(backend.get(looked.left)[0]), float(backend.get(looked.bound)[0])
        slack = search.any_length or bound < 0
        enough = _VANISHED if search.must_vanish else _NEARLY
        if slack and left < enough and accepted(backend.get(v), margin):
            return True
        if not left > _STILL:
            return False
        way = _way(search, v, held, margin, left > _ROUGH)
        length = _length(search, v, way, held, margin)
        if not length > 0:
            return False
        v = v + length * way
    return False


def _terms(search: LabelSearch, v: Any, held: Any, margin: float) -> tuple[Any, Any, Any]:
    """The weights λ of one input, which of them count, and how far it is outside."""
    xp, problem = search.backend.xp, search.sharp
    signed = held * (v @ problem.rows.T + problem.offsets)
    counts = (held != 0) & (signed < margin)
    weights = xp.where(counts, margin - signed, xp.zeros_like(signed))
    out = search.out(v) if search.omega else xp.zeros_like(v)
    return weights, counts, out


def _way(search: LabelSearch, v: Any, held: Any, margin: float, rough: bool) -> Any:
    """−H⁻¹ g at one input: (1, latent); `rough`: H in the search's own precision will do."""
    backend, problem = search.backend, search.sharp
    weights, counts, out = _terms(search, v, held, margin)
    downhill = (weights * held) @ problem.rows - search.omega**2 * out
    chosen = backend.index(np.flatnonzero(backend.get(counts)[0]))
    rows = (search.coarse if rough else problem).rows[chosen]
    hessian = backend.get(rows.T @ rows).astype(np.float64)
    hessian = hessian + search.omega**2 * _outward(search, backend.get(v)[0], backend.get(out)[0])
    diagonal = np.arange(search.width)
    hessian[diagonal, diagonal] += _DAMPING * float(hessian[diagonal, diagonal].mean()) + 1e-300
    return backend.solve(backend.put(hessian[None]), downhill)


def _outward(search: LabelSearch, v: np.ndarray, out: np.ndarray) -> np.ndarray:
    """The Hessian of half the squared distance from the domain: of sides and of a ball."""
    beyond = np.diag((out != 0).astype(np.float64))
    if not search.outline.is_round or not out.any():
        return beyond
    length = float(np.linalg.norm(v))
    share, way = search.radius / length, v / length
    return (1 - share) * np.eye(len(v)) + share * np.multiply.outer(way, way)


def _length(search: LabelSearch, v: Any, way: Any, held: Any, margin: float) -> float:
    """How far along the way the objective falls: where its slope, which only grows, is zero."""
    backend, problem = search.backend, search.sharp
    signed = backend.get(held * (v @ problem.rows.T + problem.offsets))[0]
    change = backend.get(held * (way @ problem.rows.T))[0]
    asked = backend.get(held)[0] != 0
    signed, change = signed[asked], change[asked]
    begin, step = v, way

    def slope(length: float) -> float:
        steep = -float(np.maximum(margin - signed - length * change, 0.0) @ change)
        if search.omega:
            out = backend.get(search.out(begin + length * step))[0]
            steep += search.omega**2 * float(out @ backend.get(step)[0])
        return steep

    if not slope(0.0) < 0:
        return 0.0
    low, high = 0.0, 1.0
    while slope(high) < 0 and high < 1e6:
        low, high = high, 4 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if slope(middle) < 0:
            low = middle
        else:
            high = middle
        if high - low < 1e-9 * high:
            break
    return high
