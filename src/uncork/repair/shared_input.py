"""One input at which all lost classes could touch the surface, at the least change of biases.

If lost classes t ∈ K share first place at one input u, at height s, then the change costs

    Σ_K |s − z_t(u)|  +  Σ_others [z_i(u) − s]₊ ,

and the least over u and s is a linear programme, solved as its dual: a row a feature, a column a
class, with weights between 0 and 1 on the others (−1 and 1 on K). Untrained rows lie within 1e-7 of
one another, so for thousands of them one input is nearly as good as an input each, and lowering the
hundred classes that stand out at it costs far less than raising the thousands.

Turned round, the weights prove what is needed. With weights from 0 on K as well, Σ_K μ_t w_t meets
Σ ν_i w_i, ν ≤ 1: dealt out to the classes of K, with what each row lacks added on the columns that
are strictly between their sides, ν becomes a mixture for each, and no class is used by more than
one in all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uncork.auditing.proofs.verdict import Mixture
from uncork.repair.surface import Surface

_ROUNDS = 60
_ADDED = 400  # columns a round
_FIRST = 600
_INSIDE = 1e-9  # weights further than this from their sides are free to move


@dataclass(frozen=True)
class Shared:
    """The input (m,), the height, the cost in all, and weights: of K (n,), of others (others,)."""

    input: np.ndarray
    height: float
    cost: float
    own: np.ndarray
    weights: np.ndarray


def shared_input(
    surface: Surface,
    lost: np.ndarray,
    others: np.ndarray,
    *,
    raising: np.ndarray | float = 1.0,
    lowering: float = 1.0,
) -> Shared | None:
    """The best input and height for all of `lost`, which no class of `others` may exceed.

    What a lost class costs below the height and above it is `raising` ((n,) or one for all) and
    `lowering` times as much. None where the solver gives up.
    """
    import highspy

    m, unit = surface.view.width, surface.unit
    solver = highspy.Highs()
    for name, value in (("output_flag", False), ("threads", 1)):
        solver.setOptionValue(name, value)
    nothing = np.empty(0, dtype=np.int32), np.empty(0)
    for _ in range(m + 1):
        solver.addRow(0.0, 0.0, 0, *nothing)

    def add(
        rows: np.ndarray, last: float, costs: np.ndarray, low: float, high: np.ndarray | float
    ) -> None:
        count, height = len(rows), m + 1
        full = np.column_stack([rows, np.full(count, last)])
        solver.addCols(
            count, costs, np.full(count, low), np.broadcast_to(high, count).copy(), count * height,
            np.arange(0, count * height, height, dtype=np.int32),
            np.tile(np.arange(height, dtype=np.int32), count), full.ravel(),
        )  # fmt: skip

    eye = np.eye(m)
    free = np.append(surface.upper, -surface.lower)
    add(np.vstack([eye, -eye]), 0.0, free, 0.0, highspy.kHighsInf)
    rows, bias = surface.all_rows / unit, surface.all_bias / unit
    add(-rows[lost], -1.0, bias[lost], -lowering, raising)
    z = rows[others] @ surface.inside(rows[lost].mean(axis=0)) + bias[others]
    chosen = [np.argsort(-z)[:_FIRST], np.argsort(-(rows[others] ** 2).sum(axis=1))[:_FIRST]]
    new = np.unique(np.concatenate(chosen))
    present = np.zeros(len(others), dtype=bool)
    order: list[int] = []
    best: tuple[float, np.ndarray, float] | None = None
    for _ in range(_ROUNDS):
        present[new] = True
        order.extend(new.tolist())
        add(rows[others[new]], 1.0, -bias[others[new]], 0.0, 1.0)
        solver.run()
        duals = np.array(solver.getSolution().row_dual)
        if len(duals) != m + 1 or not np.isfinite(duals).all():
            return None
        met, height = duals[:-1], -float(duals[-1])
        u = surface.inside(met)
        above = rows[others] @ u + bias[others] - height
        mine = height - rows[lost] @ u - bias[lost]
        cost = float((raising * np.maximum(mine, 0)).sum() + np.maximum(above, 0).sum())
        cost += lowering * float(np.maximum(-mine, 0).sum())
        if best is None or cost < best[0]:
            best = cost, u, height
        missing = np.where(present, -np.inf, above)
        new = np.argsort(-missing)[:_ADDED]
        new = new[missing[new] > 1e-12 * abs(height) + 1e-15]
        norm = float(np.linalg.norm(met))
        if norm > surface.radius * (1 + 1e-9):  # of a ball one more tangent plane
            add(met[None] / norm, 0.0, np.array([surface.radius]), 0.0, highspy.kHighsInf)
            order.append(-1)
        elif not len(new):
            break
    assert best is not None
    values = np.array(solver.getSolution().col_value)[2 * m :]
    weights = np.zeros(len(others))
    places = np.array(order, dtype=np.int64)
    got = values[len(lost) : len(lost) + len(places)]
    named = places[: len(got)] >= 0
    weights[places[: len(got)][named]] = got[named]
    cost, u, height = best
    return Shared(u, height * unit, cost * unit, values[: len(lost)], weights)


def dealt(
    surface: Surface, shared: Shared, lost: np.ndarray, others: np.ndarray
) -> list[tuple[int, float, Mixture]]:
    """The weights as mixtures: for each lost class, its number, its share, and its mixture."""
    own = np.clip(shared.own, 0.0, 1.0)
    taken = np.flatnonzero(own > _INSIDE)
    used = np.flatnonzero(shared.weights > _INSIDE)
    total = float(own[taken].sum())
    if not len(taken) or not len(used) or not total > 0:
        return []
    weights = shared.weights[used] / total  # a mixture of them for the middle of K
    middle = (own[taken] @ surface.all_rows[lost[taken]]) / total
    loose = np.flatnonzero((shared.weights[used] < 1 - _INSIDE) & (shared.weights[used] > _INSIDE))
    rows = surface.all_rows[others[used[loose]]]
    lacking = surface.all_rows[lost[taken]] - middle
    moves = np.zeros((len(taken), len(used)))
    if len(loose):
        matrix = np.vstack([rows.T, np.full(len(loose), surface.unit)])
        right = np.column_stack([lacking, np.zeros(len(taken))]).T
        moves[:, loose] = np.linalg.lstsq(matrix, right, rcond=1e-13)[0].T
    result = []
    for k, t in enumerate(lost[taken].tolist()):
        mixed = weights + moves[k]
        if mixed.min() < 0:
            mixed = weights  # what its row lacks is then paid for by the domain's size
        result.append((t, float(own[taken[k]]), Mixture(others[used], mixed)))
    return result
