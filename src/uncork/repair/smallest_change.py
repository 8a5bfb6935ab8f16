"""The bias change of least 1-norm that lets every class touch the surface, bounded from both sides.

One input. If the classes t ∈ K below the surface share first place at one input u, at height s,
then the change costs

    Σ_K |s − z_t(u)|  +  Σ_others [z_i(u) − s]₊ ,

and the least over u and s is a linear programme, solved as its dual: one row for each feature, one
column for each class, with weights between 0 and 1 on the others (−1 and 1 on K). Untrained rows
lie within 1e-7 of one another, so for thousands of them one input is nearly as good as one each,
and lowering the hundred classes that stand out at it costs far less than raising the thousands.

Turned round, the weights prove what is needed. With weights from 0 on K as well, Σ_K μ_t w_t meets
Σ ν_i w_i, ν ≤ 1: dealt out to the classes of K, with what each row lacks added on the columns that
are strictly between their sides, ν becomes a mixture for each, and no class is used by more than
one in all of them together.

From above. The search begins with one input for all of K: others that stand out there are lowered,
and what is still below the surface then is raised to it, each class at an input of its own. Raising
alone is tried too where that is quick.

From below. A mixture λ of others that class t cannot pass says of every change c that frees t

    c_t − Σ λ_i c_i  ≥  Σ λ_i b_i − b_t − support_D(w_t − Σ λ_i w_i),

and the right-hand side is what the certifier proves of it. The least change under the inequalities
met so far is a linear programme, and a bound (Benders' master). Classes that touch at one input
have mixtures of the same classes: of many such only the sum of their inequalities is stored.

In turn. The master's solution jumps about while inequalities are few, so what is tried next lies
between it and the best change known. What is tried is completed to a change that does it, and the
mixtures on the way are new inequalities. On small heads the two bounds meet.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Mixture
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.reach.surface import Depths, Surface, depths, proven_leads
from uncork.repair.job import RepairJob, change_size
from uncork.repair.margin import leads_at

# The search
_ROUNDS = 60
_GAP = 0.01
_FEW = 400  # classes below the surface that each get the best input of their own
_QUICK = 20_000  # such classes times features: raising each by itself is tried as well
_SEPARATED = 2_000  # classes times features: what the master's solution buries is looked for
_SECONDS = 300.0
_PROVING = 60.0  # seconds for a bound, if there is none by then
_IDLE = 4  # rounds that found nothing better, after which large heads are left
_TURNS = 12
_STEPS = (0.02, 0.2, 1.0)  # of the way from the best change to the master's: least, first, most
_CROWDED = 3e-6  # of a row's length: rows nearer than this to their median are a crowd
_RISING = 1e-3  # of the largest raise: a class as far above the surface joins it
# The master
_TOGETHER = 8  # inequalities of one input that are summed, if there are more
# One input
_COLUMN_ROUNDS = 60
_ADDED = 400  # columns a round
_FIRST = 600
_INSIDE = 1e-9  # weights further than this from their sides are free to move


@dataclass
class SmallestChange:
    """Biases (C,) as the surface has them, at which the `touching` classes touch at `inputs`; where
    each other class is known to win, (C, latent); and what is proven to be needed."""

    base: np.ndarray
    touching: np.ndarray
    inputs: np.ndarray
    witnesses: np.ndarray
    size: float
    needed: float


def smallest_change(
    job: RepairJob, head: Head, surface: Surface, below: np.ndarray, wanted: np.ndarray
) -> SmallestChange:
    """As little change as is found in the time given (five minutes unless said).

    below   (n,) classes to be freed, one of each group of equals
    wanted  (C,) of bool: classes that must be argmaxable in the end
    """
    witnesses, time_limit = job.inputs, job.options.time_limit
    if not len(below):  # all that is left are equals of classes that win: they get their biases
        return SmallestChange(surface.all_bias, below, np.empty(0), witnesses.copy(), 0.0, 0.0)
    certifier, bar = Certifier(head, head.domain, job.backend), job.progress
    until = time.perf_counter() + (_SECONDS if time_limit is None else time_limit)
    classes, few = surface.searched.classes, len(below) <= _FEW
    search = _Completing(job, surface, below, wanted, until)
    master = _Master(classes)
    best = SmallestChange(surface.all_bias, below, np.empty(0), witnesses.copy(), np.inf, 0.0)
    everyone = np.arange(classes)
    bar.stage("one input", 2)
    crowd = _crowd(surface, below)
    around = np.setdiff1d(everyone, crowd)
    needs = _shared_input(surface, crowd, around, lowering=0.0) if len(crowd) else None
    if needs is not None:
        master.add_dealt(certifier, _dealt(surface, needs, crowd, around))
    bar.advance(1)
    starts: list[tuple[np.ndarray, bool]] = []
    others = np.setdiff1d(everyone, below)
    plans = (_shared_input(surface, below, others), needs)
    bar.advance(1)
    for plan in plans:
        if plan is not None:
            search.hints.append(plan.input)
            above = surface.all_rows @ plan.input + surface.all_bias - plan.height
            change = np.zeros(classes)
            change[others] = -np.maximum(above[others], 0.0)
            starts += [(change, False), (change, True)] if few else [(change, False)]
    if not starts or len(below) * surface.searched.width <= _QUICK:
        starts.append((np.zeros(classes), True))
    bar.stage("1-norm", _ROUNDS if few else len(starts))
    step, idle = _STEPS[1], 0
    for round_ in range(_ROUNDS):
        if round_ < len(starts):
            planned, thorough = starts[round_]
        else:
            aim, needed = master.solve(max(1.0, until - time.perf_counter()))
            best.needed = max(best.needed, needed)
            if best.size <= (1 + _GAP) * best.needed or idle > _IDLE or not few:
                break
            if classes * surface.searched.width <= _SEPARATED:
                tried, found, now = search.raise_buried(aim, best.witnesses)
                if master.add(certifier, now, found):
                    idle = 0
                if tried.size < best.size * (1 - 1e-6):
                    tried.needed = best.needed
                    best = tried
            planned = (1 - step) * (best.base - surface.all_bias) + step * aim
            thorough = True
        if np.isfinite(best.size) and time.perf_counter() > until:
            break
        tried, found, now = search.complete(planned, best.witnesses, thorough)
        bar.advance(1)
        new = master.add(certifier, now, found)
        better = tried.size < best.size * (1 - 1e-6)
        if better:
            tried.needed = best.needed
            best = tried
        if round_ >= len(starts):
            idle = (
                0 if better or (new and len(below) * surface.searched.width <= _QUICK) else idle + 1
            )
            # Where nothing new was met, the master's own solution has not been tried yet.
            step = min(_STEPS[2], 2 * step) if better or not new else max(_STEPS[0], step / 2)
    if not np.isfinite(best.size):
        raise UncorkError(
            "no change of small sum was found: weights and biases differ too much in size for "
            "float64; scale them first, or ask for norm inf"
        )
    if not best.needed:
        best.needed = master.solve(_PROVING)[1]
    return best


def _crowd(surface: Surface, below: np.ndarray) -> np.ndarray:
    """Those whose rows lie together, so that one mixture nearly serves for all."""
    rows = surface.all_rows[below]
    middle = rows[np.argmin(((rows - np.median(rows, axis=0)) ** 2).sum(axis=1))]
    length = float(np.median(np.linalg.norm(surface.rows, axis=1))) or 1.0
    return below[np.linalg.norm(rows - middle, axis=1) <= _CROWDED * length]


class _Completing:
    """From a planned change of the others to one that lets every class touch the surface."""

    def __init__(
        self, job: RepairJob, surface: Surface, below: np.ndarray, wanted: np.ndarray, until: float
    ) -> None:
        self.surface, self.wanted, self.until = surface, wanted, until
        self.equals, self.jobs = job.equals, job.backend.jobs
        self.below = np.zeros(len(wanted), dtype=bool)
        self.below[below] = True
        self.hints: list[np.ndarray] = []  # inputs that are tried for every class

    def complete(
        self, planned: np.ndarray, witnesses: np.ndarray, thorough: bool
    ) -> tuple[SmallestChange, Depths, Surface]:
        """The planned change of those that are not below; those below, and whom it buries, brought
        to the surface.

        `thorough`: each class below at the best input of its own, not one that was hinted at; one
        that stands well above the surface without any change joins it.
        """
        surface = self.surface
        witnesses, planned = witnesses.copy(), np.where(self.below, 0.0, planned)
        bias = surface.all_bias + planned
        above = ~self.below & (~self.wanted | self._leading(witnesses, bias, ~self.below))
        for _ in range(_TURNS):
            asked = np.flatnonzero(~above)
            if not above.any():  # no class is left to carry a surface: this plan leads nowhere
                return self._nothing(witnesses)
            now = Surface(surface.searched, np.flatnonzero(above), bias, surface.shrunk)
            found = self._depths(now, asked, thorough)
            largest = max(float(found.depth.max(initial=0.0)), 0.0)
            limit = np.where(self.below[asked], _RISING * largest if thorough else np.inf, 0.0)
            rising = found.depth < -np.maximum(limit, surface.close)
            change = planned.copy()
            change[asked] += found.depth
            if not rising.any():
                break
            risen = asked[rising]
            witnesses[risen] = found.inputs[rising]
            above[risen] = True
            above &= ~self.wanted | self._leading(witnesses, bias, above)
        size = (
            change_size(change, "1") if not rising.any() and np.isfinite(change).all() else np.inf
        )
        base = surface.all_bias + change
        return SmallestChange(base, asked, found.inputs, witnesses, size, 0.0), found, now

    def _nothing(self, witnesses: np.ndarray) -> tuple[SmallestChange, Depths, Surface]:
        """What a plan that leads nowhere comes to: no change, at an infinite price."""
        none = np.empty(0, dtype=np.int64)
        inputs = np.empty((0, self.surface.searched.width))
        nothing = SmallestChange(self.surface.all_bias, none, inputs, witnesses, np.inf, 0.0)
        found = Depths(none, np.empty(0), inputs, [], np.empty(0, dtype=bool))
        return nothing, found, self.surface

    def raise_buried(
        self, change: np.ndarray, witnesses: np.ndarray
    ) -> tuple[SmallestChange, Depths, Surface]:
        """The change as it is, of those below too; whom it leaves below the surface of all is
        raised to it, which buries no other class."""
        bias = self.surface.all_bias + change
        everyone = np.arange(len(bias))
        now = Surface(self.surface.searched, everyone, bias, self.surface.shrunk)
        leading = self._leading(witnesses, bias, np.ones(len(bias), dtype=bool))
        asked = np.flatnonzero(self.wanted & ~leading)
        found = depths(now, asked, self.jobs, stop=lambda: time.perf_counter() > self.until)
        base = bias.copy()
        base[asked] += found.depth
        size = change_size(base - self.surface.all_bias, "1") if np.isfinite(base).all() else np.inf
        return SmallestChange(base, asked, found.inputs, witnesses.copy(), size, 0.0), found, now

    def _depths(self, now: Surface, asked: np.ndarray, thorough: bool) -> Depths:
        """How far below the surface each is, or might be taken to be: at the inputs hinted at."""
        found = Depths.unknown(asked, now.searched.width)
        solved = np.flatnonzero(~self.below[asked] | thorough | (not self.hints))
        some = depths(now, asked[solved], self.jobs, stop=lambda: time.perf_counter() > self.until)
        found.take(solved, some)
        self._hint(now, found)
        return found

    def _hint(self, now: Surface, found: Depths) -> None:
        """Raises are no larger than at the inputs that were hinted at."""
        rows, bias = now.all_rows[found.classes], now.all_bias[found.classes]
        for u in self.hints:
            raised = float(now.heights(u).max()) - rows @ u - bias
            better = raised < found.depth - now.close
            found.depth[better], found.inputs[better] = raised[better], u

    def _leading(self, witnesses: np.ndarray, bias: np.ndarray, among: np.ndarray) -> np.ndarray:
        """Which classes lead those `among` at the witness they have: (C,) of bool."""
        result = np.zeros(len(bias), dtype=bool)
        known = np.flatnonzero(np.isfinite(witnesses).all(axis=1) & among)
        low = np.where(among, bias, -np.inf)
        middle = self.surface.all_rows.mean(axis=0)
        leads = leads_at(self.surface, known, witnesses[known], low, middle, self.equals)
        result[known[leads > self.surface.close]] = True
        return result


@dataclass(frozen=True)
class _Row:
    """Σ weights · c[classes] ≥ lead; `bulk` is what mixtures spread evenly over all classes."""

    classes: np.ndarray
    weights: np.ndarray
    lead: float
    bulk: float


class _Master:
    """min Σ|c_i| under the inequalities so far."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.rows: list[_Row] = []
        self.seen: set[tuple[Any, ...]] = set()

    def add(self, certifier: Certifier, surface: Surface, found: Depths) -> int:
        """The mixtures of classes that lie below; how many inequalities are new."""
        places: dict[bytes, list[int]] = {}
        for k, (raised, mixture) in enumerate(
            zip(found.depth.tolist(), found.mixtures, strict=True)
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
        """Mixtures of one programme for many classes (`_dealt`), as one inequality."""
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


@dataclass(frozen=True)
class _Shared:
    """The input (m,), the height, the cost in all, and weights: of K (n,), of others (others,)."""

    input: np.ndarray
    height: float
    cost: float
    own: np.ndarray
    weights: np.ndarray


def _shared_input(
    surface: Surface,
    below: np.ndarray,
    others: np.ndarray,
    *,
    raising: np.ndarray | float = 1.0,
    lowering: float = 1.0,
) -> _Shared | None:
    """The best input and height for all of `below`, which no class of `others` may exceed.

    What such a class costs below the height and above it is `raising` ((n,) or one for all) and
    `lowering` times as much. None where the solver gives up.
    """
    import highspy

    m, unit = surface.searched.width, surface.unit
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
    add(-rows[below], -1.0, bias[below], -lowering, raising)
    z = rows[others] @ surface.inside(rows[below].mean(axis=0)) + bias[others]
    chosen = [np.argsort(-z)[:_FIRST], np.argsort(-(rows[others] ** 2).sum(axis=1))[:_FIRST]]
    new = np.unique(np.concatenate(chosen))
    present = np.zeros(len(others), dtype=bool)
    order: list[int] = []
    best: tuple[float, np.ndarray, float] | None = None
    for _ in range(_COLUMN_ROUNDS):
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
        mine = height - rows[below] @ u - bias[below]
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
    got = values[len(below) : len(below) + len(places)]
    named = places[: len(got)] >= 0
    weights[places[: len(got)][named]] = got[named]
    cost, u, height = best
    return _Shared(u, height * unit, cost * unit, values[: len(below)], weights)


def _dealt(
    surface: Surface, shared: _Shared, below: np.ndarray, others: np.ndarray
) -> list[tuple[int, float, Mixture]]:
    """The weights as mixtures: for each class below, its number, its share, and its mixture."""
    own = np.clip(shared.own, 0.0, 1.0)
    taken = np.flatnonzero(own > _INSIDE)
    used = np.flatnonzero(shared.weights > _INSIDE)
    total = float(own[taken].sum())
    if not len(taken) or not len(used) or not total > 0:
        return []
    weights = shared.weights[used] / total  # a mixture of them for the middle of K
    middle = (own[taken] @ surface.all_rows[below[taken]]) / total
    loose = np.flatnonzero((shared.weights[used] < 1 - _INSIDE) & (shared.weights[used] > _INSIDE))
    rows = surface.all_rows[others[used[loose]]]
    lacking = surface.all_rows[below[taken]] - middle
    moves = np.zeros((len(taken), len(used)))
    if len(loose):
        matrix = np.vstack([rows.T, np.full(len(loose), surface.unit)])
        right = np.column_stack([lacking, np.zeros(len(taken))]).T
        moves[:, loose] = np.linalg.lstsq(matrix, right, rcond=1e-13)[0].T
    result = []
    for k, t in enumerate(below[taken].tolist()):
        mixed = weights + moves[k]
        if mixed.min() < 0:
            mixed = weights  # what its row lacks is then paid for by the domain's size
        result.append((t, float(own[taken[k]]), Mixture(others[used], mixed)))
    return result
