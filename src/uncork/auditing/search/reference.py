"""The algorithms of Grivas, Bogoychev and Lopez (ACL 2022) as they are written: the reference.

One class at a time, float64, nothing clever: tests hold the fast audit to these, and the benchmark
measures against them. What they return is what a float computation or a solver says, which does
not prove anything: the certifier does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from uncork.auditing.search.proposer import Proposal, Proposer, Search, Witnesses
from uncork.auditing.search.space import Space
from uncork.core.errors import UncorkError
from uncork.core.head import Head

PATIENCE = 2500
# The paper's programme asks for a radius of at least this much, well above the solver's tolerance.
_LEAST_RADIUS = 1e-8
_TOLERANCE = 1e-9


def braid_reflect(head: Head, t: int, patience: int = PATIENCE) -> tuple[np.ndarray | None, int]:
    """Algorithm 2: reflect x across z_t = z_i for as long as some class i beats t.

    Starts at x = w_t. Returns an x (d,) that puts t strictly first and lies in the head's domain,
    or None, and the number of reflections made. Quick where it succeeds; a failure says nothing.
    """
    weight, bias = head.rows(0, head.classes), head.offsets
    return _reflect(head, weight, bias, _class(head, t), patience)


def chebyshev(head: Head, t: int) -> tuple[float, np.ndarray | None]:
    """Eq. 6: the largest ball inside the region where t is first, over all classes, by HiGHS.

    Returns its radius and centre x (d,). The centre is kept in the head's box, the ball need not
    be. A radius of 0 means that the region has no interior: t can tie at best. With no x at all
    the radius is −inf, and NaN where the solver gave up. Where a side of the box is infinite so
    can the ball be, and the radius is then cut at 1.
    """
    weight, bias = head.rows(0, head.classes), head.offsets
    return _chebyshev(head, weight, bias, _class(head, t))


def decide_reference(head: Head, t: int, patience: int = PATIENCE) -> str:
    """Figure 4: Braid Reflect first, the linear programme where it fails.

    "argmaxable", "unargmaxable", or "undecided" where the solver gave up or its x does not hold.
    """
    t = _class(head, t)
    weight, bias = head.rows(0, head.classes), head.offsets
    x, _ = _reflect(head, weight, bias, t, patience)
    if x is not None:
        return "argmaxable"
    radius, x = _chebyshev(head, weight, bias, t)
    if np.isnan(radius):
        return "undecided"
    if radius <= _LEAST_RADIUS:
        return "unargmaxable"
    return "argmaxable" if x is not None and _wins(weight, bias, t, x) else "undecided"


def _propose_reflected(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    head = search.head.replace(domain=search.domain)
    patience = PATIENCE if search.patience is None else search.patience
    for t in classes.tolist():
        if search.late():
            return
        x, _ = braid_reflect(head, t, patience)
        if x is not None:
            yield Witnesses(np.array([t]), x[None])


def _propose_centres(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    head = search.head.replace(domain=search.domain)
    for t in classes.tolist():
        if search.late():
            return
        radius, x = chebyshev(head, t)
        if radius > 0 and x is not None:
            yield Witnesses(np.array([t]), x[None])


BRAID_REFLECT = Proposer("Braid Reflect", "decide", _propose_reflected)
CHEBYSHEV = Proposer("Chebyshev", "decide", _propose_centres)


def check_domain(head: Head) -> None:
    """Raise where the paper's linear programme cannot express the head's domain."""
    _box(head)


def _class(head: Head, t: int) -> int:
    if not 0 <= t < head.classes:
        raise UncorkError(f"there is no class {t}: classes are 0 to {head.classes - 1}")
    return int(t)


def _best_other(weight: np.ndarray, bias: np.ndarray, t: int, x: np.ndarray) -> tuple[int, float]:
    """The strongest class other than t at x, and by how much t is ahead of it."""
    logits = weight @ x + bias  # (C,)
    own = logits[t]
    logits[t] = -np.inf
    i = int(np.argmax(logits))
    return i, float(own - logits[i])


def _wins(weight: np.ndarray, bias: np.ndarray, t: int, x: np.ndarray) -> bool:
    return _best_other(weight, bias, t, x)[1] > 0


def _reflect(
    head: Head, weight: np.ndarray, bias: np.ndarray, t: int, patience: int
) -> tuple[np.ndarray | None, int]:
    x = weight[t].copy()
    for reflections in range(patience + 1):
        i, lead = _best_other(weight, bias, t, x)
        if lead > 0:
            inside = bool(head.domain.contains(x))  # the in-bounds check
            return (x if inside else None), reflections
        if reflections == patience:
            break
        normal = weight[t] - weight[i]
        length = normal @ normal
        if length == 0:  # an equal row with no smaller bias: no hyperplane to reflect across
            return None, reflections
        x = x - 2 * (normal @ x + bias[t] - bias[i]) / length * normal
    return None, patience


def _chebyshev(
    head: Head, weight: np.ndarray, bias: np.ndarray, t: int
) -> tuple[float, np.ndarray | None]:
    import highspy

    lower, upper = _box(head)
    normals = np.delete(weight - weight[t], t, axis=0)  # (C − 1, d)
    ahead = np.delete(bias[t] - bias, t)  # (C − 1,)
    norms = np.linalg.norm(normals, axis=1)
    if (ahead[norms == 0] <= 0).any():
        # An equal row that is never behind: no ball, however small, has t strictly first. The
        # programme cannot see this, as that row of it reads 0 ≤ 0.
        return 0.0, None
    rows = norms > 0
    bounded = bool(np.isfinite(lower).all() and np.isfinite(upper).all())
    if not rows.any():
        return np.inf if bounded else 1.0, np.clip(np.zeros(head.features), lower, upper)
    # Dividing a row by its norm changes no solution and leaves r in units of distance:
    # maximise r  s.t.  (w_i − w_t)·x/‖w_i − w_t‖ + r ≤ (b_t − b_i)/‖w_i − w_t‖,  l ≤ x ≤ u,  r ≥ 0
    matrix = np.column_stack([normals[rows] / norms[rows, None], np.ones(rows.sum())])
    programme = highspy.HighsLp()
    count, variables = matrix.shape
    programme.num_row_, programme.num_col_ = count, variables
    programme.sense_ = highspy.ObjSense.kMaximize
    programme.col_cost_ = np.append(np.zeros(head.features), 1.0)
    programme.col_lower_ = np.append(lower, 0.0)
    programme.col_upper_ = np.append(upper, np.inf if bounded else 1.0)
    programme.row_lower_ = np.full(count, -np.inf)
    programme.row_upper_ = ahead[rows] / norms[rows]
    programme.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    programme.a_matrix_.start_ = np.arange(count + 1, dtype=np.int32) * variables
    programme.a_matrix_.index_ = np.tile(np.arange(variables, dtype=np.int32), count)
    programme.a_matrix_.value_ = matrix.ravel()
    solver: Any = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("primal_feasibility_tolerance", _TOLERANCE)
    solver.setOptionValue("dual_feasibility_tolerance", _TOLERANCE)
    solver.passModel(programme)
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return -np.inf, None
    if status != highspy.HighsModelStatus.kOptimal:
        return np.nan, None
    solution = np.array(solver.getSolution().col_value)
    return float(solution[-1]), np.clip(solution[:-1], lower, upper)


def _box(head: Head) -> tuple[np.ndarray, np.ndarray]:
    outline = head.domain.outline(head.features)
    if outline.is_box:
        return outline.lower, outline.upper
    raise UncorkError(
        f"the reference algorithms know boxes and the unbounded domain, not {head.domain}"
    )
