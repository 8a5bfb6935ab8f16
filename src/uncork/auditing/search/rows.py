"""Deciding one class by a linear programme with row generation: the fallback and the check.

    max r   s.t.   a_i·y + r ≤ 0 for the rows considered,   g·y ≤ 0 for sides,   −1 ≤ y ≤ 1

with the unit rows of `centre`. HiGHS solves over a small working set; all classes are priced at the
solution and the worst violators added (the paper's Eq. 6, without the rows that do not bind). Its
answer proposes: a positive r an input, a vanishing one the duals of a mixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.search.mixtures import mixtures_from_duals
from uncork.auditing.search.proposer import Mixtures, Proposal, Proposer, Search, Witnesses
from uncork.auditing.search.space import Space

if TYPE_CHECKING:
    import highspy

_ROUNDS = 200
_ADDED = 32
_POSITIVE = 1e-11


def propose(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    """One class after another; the classes that mattered are a hint for exact arithmetic."""
    for t in classes.tolist():
        if search.late():
            return
        try:
            x, mixture, search.rivals[t] = decide_by_rows(space, t, search.late)
        except ImportError:  # no HiGHS here: exact arithmetic finds its own rows
            return
        one = np.array([t])
        if x is not None:
            yield Witnesses(one, space.proposed(x)[None])
        # Asking certifies the witness now: many at once could exceed what is settled in integers.
        if len(search.undecided(one)) and mixture is not None:
            yield Mixtures([(t, mixture)])


PROPOSER = Proposer("rows", "decide", propose)


def decide_by_rows(
    space: Space, t: int, stop: Callable[[], bool] = bool
) -> tuple[np.ndarray | None, Mixture | None, np.ndarray]:
    """An input that should win, or a mixture, or neither; and the classes that mattered. `stop` is
    asked between rounds and ends the work early."""
    points = _Points(space)
    own = points.of(np.array([t]))[0]
    solver = _solver(space.width)
    rows: list[np.ndarray] = []
    ids: list[int] = []

    def add(row: np.ndarray, class_id: int, radius: float) -> None:
        rows.append(row)
        ids.append(class_id)
        columns = np.arange(space.width + 1, dtype=np.int32)
        solver.addRow(-np.inf, 0.0, space.width + 1, columns, np.append(row, radius))

    if space.lifted:
        height = np.zeros(space.width)
        height[-1] = -1.0
        add(height, -1, 1.0)
    sides = space.sides()
    scores = points.scores(own)
    scores[t] = -np.inf
    scores[space.repeats] = -np.inf
    for i in _largest(scores, 2 * space.width):
        if scores[i] == -np.inf:
            break
        add(_unit(points.of(np.array([i]))[0] - own), int(i), 1.0)
    added_sides: set[int] = set()
    for _ in range(_ROUNDS):
        if stop():
            break
        solver.run()
        if "Optimal" not in str(solver.getModelStatus()):
            break
        solution = solver.getSolution()
        y, r = np.array(solution.col_value[:-1]), solution.col_value[-1]
        mattering = np.array(
            [i for i, v in zip(ids, solution.row_dual, strict=True) if i >= 0 and v]
        )
        if not r > _POSITIVE:
            duals = np.abs(np.array(solution.row_dual))
            mixture = _mixture(space, np.array(ids), duals, np.array(rows), own)
            return None, mixture, mattering
        lead = points.scores(y)
        lead -= lead[t]
        lead[t] = -np.inf
        lead[space.repeats] = -np.inf
        known = [i for i in ids if i >= 0]
        lead[known] = -np.inf
        x = space.inputs(space.backend.asarray(y[None, :]))
        if not space.lifted:
            x = space.enter(x)
        x = space.backend.get(x).astype(np.float64)[0]
        inside = bool(space.domain.contains(x))
        if not space.lifted and len(sides):  # entering a cone has moved the input back
            inside = inside and float((sides @ y).max()) <= 0
        worst = [int(i) for i in _largest(lead, _ADDED) if lead[i] >= 0]
        new_sides = []
        if not inside:
            cut = space.cut(x)
            if cut is not None:
                new_sides.append(cut)
            elif len(sides):
                amount = sides @ y
                for k in np.argsort(-amount)[:_ADDED]:
                    if amount[k] > 0 and int(k) not in added_sides:
                        added_sides.add(int(k))
                        new_sides.append(sides[k])
        if not worst and not new_sides:
            # Every side it could be beyond is a row already: what is outside is rounding.
            return x if inside else _into(space, x), None, mattering
        for i in worst:
            add(_unit(points.of(np.array([i]))[0] - own), i, 1.0)
        for side in new_sides:
            add(side, -1, 0.0)
    return None, None, np.array([i for i in ids if i >= 0])


def _into(space: Space, x: np.ndarray) -> np.ndarray:
    """An input that is outside the domain by rounding, moved onto its side."""
    inside: np.ndarray
    if space.outline.is_round:
        moved = space.backend.get(space.clip(space.backend.asarray(x[None, :])))
        inside = np.asarray(moved, dtype=np.float64)[0]
    else:
        inside = np.clip(x, space.outline.lower, space.outline.upper)
    return inside


class _Points:
    """Points in float64, all of them where they fit, else row by row."""

    def __init__(self, space: Space) -> None:
        self.space = space
        small = space.head.classes * space.width <= 4_000_000
        self.all = space.exact_points(np.arange(space.head.classes)) if small else None

    def of(self, classes: np.ndarray) -> np.ndarray:
        if self.all is None:
            return self.space.exact_points(classes)
        points: np.ndarray = self.all[classes]
        return points

    def scores(self, y: np.ndarray) -> np.ndarray:
        if self.all is not None:
            scores: np.ndarray = self.all @ y
            return scores
        backend = self.space.backend
        return backend.get(self.space.points @ backend.asarray(y)).astype(np.float64)


def _mixture(
    space: Space, ids: np.ndarray, duals: np.ndarray, rows: np.ndarray, own: np.ndarray
) -> Mixture | None:
    """A mixture of the programme's rows, or its duals, as `mixtures_from_duals` reads them."""
    is_height = np.zeros(len(ids), dtype=bool)
    is_height[0] = space.lifted
    order = np.flatnonzero(~is_height)
    mean_length = float(np.linalg.norm(own)) or 1.0
    a = np.concatenate([rows[order], -own[None, :] / mean_length, rows[is_height]])
    weight = _deepest(a, np.arange(len(order), len(a)))
    if weight is None:
        weight = np.concatenate([duals[order], [0.0], duals[is_height]])
    named = ids[order]
    points = space.exact_points(np.where(named >= 0, named, 0)) - own
    lengths = np.where(named >= 0, np.linalg.norm(points, axis=1), 1.0)
    lengths = np.append(np.where(lengths > 0, lengths, 1.0), mean_length)
    put = space.backend.put
    return mixtures_from_duals(
        space.backend, named[None], put(weight[None]), put(a[None]), put(lengths[None])
    )[0]


def _deepest(rows: np.ndarray, spare: np.ndarray) -> np.ndarray | None:
    """λ ≥ 0 with Σ λ_k a_k = 0 and Σ λ = 1 that leaves the most to the spare rows, the mean and the
    height: they are what absorbs rounding. None where there is nothing to leave.

    Any λ is as good to the programme, and its own is a corner, with nothing to spare.
    """
    from scipy.optimize import linprog

    if not np.isfinite(rows).all():  # sides of a box, where weights are near the end of the range
        return None
    balance = np.column_stack(
        [np.vstack([rows.T, np.ones(len(rows))]), np.zeros(rows.shape[1] + 1)]
    )
    least = np.zeros((len(spare), len(rows) + 1))
    least[np.arange(len(spare)), spare], least[:, -1] = -1.0, 1.0
    solved = linprog(
        np.append(np.zeros(len(rows)), -1.0), A_ub=least, b_ub=np.zeros(len(spare)),
        A_eq=balance, b_eq=np.append(np.zeros(rows.shape[1]), 1.0), method="highs",
    )  # fmt: skip
    return solved.x[:-1] if solved.status == 0 and solved.x[-1] > 0 else None


def _solver(width: int) -> highspy.Highs:
    import highspy

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("primal_feasibility_tolerance", 1e-10)
    solver.setOptionValue("dual_feasibility_tolerance", 1e-10)
    for _ in range(width):
        solver.addVar(-1.0, 1.0)
    solver.addVar(-np.inf, 1.0)
    solver.changeColCost(width, -1.0)
    return solver


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    count = min(count, len(values))
    top = np.argpartition(-values, count - 1)[:count] if count < len(values) else np.arange(count)
    return top[np.argsort(-values[top])]


def _unit(row: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(row)
    return row / norm if norm > 0 else row
