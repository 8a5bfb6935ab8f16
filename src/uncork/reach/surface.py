"""How far classes lie below the surface max_i z_i: the least raise that lets a class touch it.

With (w_i, b_i) the classes that carry the surface and u ∈ D, class t has to be raised by

    δ_t  =  min over u of  max_i z_i(u) − z_t(u)  =  max over λ of  Σ λ_i b_i − b_t − support_D(r),

λ ≥ 0, Σ λ = 1, r = w_t − Σ λ_i w_i: a linear programme and its dual. The dual is solved, with one
row for each feature and one column for each class, because only its right-hand side (w_t, 1)
changes from class to class: HiGHS begins where the last one ended. Columns are generated: all
classes are priced at the solution, and the worst offenders added. A basis that is feasible for
other classes too is optimal for them: thousands of untrained rows fall to one. A ball has a column
for each tangent plane that is met.

What is found is proposed: an input proves that δ_t is no more, a mixture that it is no less.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Mixture
from uncork.core.progress import Progress
from uncork.reach.searched_head import SearchedHead

_ROUNDS = 200
_ADDED = 100  # columns a round
_CLOSE = 1e-10  # bounds this near to one another, as a share of the surface's size, have met
_FAR = 1e5  # how far an infinite side is taken to be, in units that change logits by their range
_BULK = (1e-6, 1e-3)  # shares of a mixture spread over all classes, tried in turn
_FEASIBLE = -1e-12
_COLUMNS = 5  # columns that stay from class to class, for each feature
_SMALL = 600  # carriers that are all given to the programme at once


@dataclass
class Depths:
    """For each class asked for: the raise that is enough, where it touches, and a mixture that says
    it takes that much (not yet certified)."""

    classes: np.ndarray  # (n,)
    depth: np.ndarray  # (n,); below zero for a class that stands above the surface already
    inputs: np.ndarray  # (n, latent)
    mixtures: list[Mixture | None]
    exact: np.ndarray  # (n,) of bool: whether the class was solved for

    @classmethod
    def unknown(cls, classes: np.ndarray, width: int) -> Depths:
        """Of each class nothing yet."""
        n = len(classes)
        return cls(
            classes, np.full(n, np.inf), np.full((n, width), np.nan), [None] * n,
            np.zeros(n, dtype=bool),
        )  # fmt: skip

    def take(self, places: np.ndarray, other: Depths) -> None:
        """What was found for the classes at these places."""
        self.depth[places], self.inputs[places] = other.depth, other.inputs
        self.exact[places] = other.exact
        for k, mixture in zip(places.tolist(), other.mixtures, strict=True):
            self.mixtures[k] = mixture


class Surface:
    """The carriers' upper surface over the set of u, perhaps shrunk towards its middle."""

    def __init__(
        self,
        searched: SearchedHead,
        carriers: np.ndarray,
        bias: np.ndarray | None = None,
        shrunk: float = 0.0,
    ) -> None:
        get = searched.backend.get
        self.searched, self.carriers = searched, carriers
        self.all_rows = np.asarray(get(searched.rows), dtype=np.float64)  # (C, m)
        self.all_bias = np.asarray(get(searched.bias) if bias is None else bias, dtype=np.float64)
        self.rows, self.bias = self.all_rows[carriers], self.all_bias[carriers]
        spread = float(np.ptp(self.bias)) if len(carriers) else 0.0
        length = float(np.median(np.linalg.norm(self.rows, axis=1))) or 1.0
        far = _FAR * (1 + spread / length)
        lower, upper = searched.lower.copy(), searched.upper.copy()
        if np.isfinite(searched.radius):
            lower, upper = (
                np.full(searched.width, -searched.radius),
                np.full(searched.width, searched.radius),
            )
        self.radius = searched.radius * (1 - shrunk)
        near = np.clip(0.0, lower, upper)  # a box may lie away from 0, all of it
        lower, upper = np.maximum(lower, near - far), np.minimum(upper, near + far)
        # Half the width; where that is infinite, inputs that change logits by their range.
        endless = ~np.isfinite(searched.upper - searched.lower) & ~np.isfinite(searched.radius)
        self.room = np.where(endless, np.minimum(1 + spread / length, far), (upper - lower) / 2)
        self.shrunk = shrunk
        pull = shrunk * self.room
        self.lower, self.upper = lower + pull, upper - pull
        reach = np.minimum(np.maximum(np.abs(self.lower), np.abs(self.upper)), 100.0)
        self.size = spread + length * float(np.linalg.norm(reach)) / max(1, len(reach)) + 1e-300
        self.close = _CLOSE * self.size
        # What HiGHS is given is divided by this: it takes 1e20 for infinite and 1e-9 for nothing.
        self.unit = 2.0 ** np.round(np.log2(max(length, spread)))

    def heights(self, u: np.ndarray) -> np.ndarray:
        """z of the carriers at u: (…, m) → (…, n)."""
        return u @ self.rows.T + self.bias

    def contains(self, u: np.ndarray) -> np.ndarray:
        """Whether each u (n, m) lies in the (shrunk) set, up to rounding."""
        close = 1e-9 * (self.upper - self.lower)
        inside = ((u >= self.lower - close) & (u <= self.upper + close)).all(axis=1)
        return inside & (np.linalg.norm(u, axis=1) <= self.radius * (1 + 1e-9))

    def inside(self, u: np.ndarray) -> np.ndarray:
        """The nearest point of the set, as nearly as needed: (m,) → (m,)."""
        u = np.clip(u, self.lower, self.upper)
        norm = float(np.linalg.norm(u))
        return u * (self.radius / norm) if norm > self.radius else u


def depths(
    surface: Surface,
    classes: np.ndarray,
    jobs: int = 1,
    progress: Progress | None = None,
    stop: Callable[[], bool] = bool,
    gap: float | None = None,
    above: bool = False,
) -> Depths:
    """How far each class lies below the surface; `stop` ends early. Whether a class that stands
    above it does so by more than it shows at u = 0 is looked for only where `above` asks for it.

    With a `gap` only the deepest classes are solved for, until no raise exceeds the largest that is
    needed by more than that share. The others are raised to the surface at the best of the inputs
    that the deepest ones led to: that may be more than they need, but no plane so raised stands
    above the surface at any of these inputs.
    """
    n = len(classes)
    found = Depths.unknown(classes, surface.searched.width)
    bar = progress or Progress()
    if not n or (not above and _flat(surface, found)):
        bar.advance(n)
        return found
    search = _Search(surface, found, gap, bar, stop)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            search.run()
        except BaseException as error:
            failures.append(error)
            search.over = True

    threads = [threading.Thread(target=work) for _ in range(min(jobs, n) - 1)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return found


class _Search:
    """What the threads share: which class is next, and what is known of all."""

    def __init__(
        self, surface: Surface, found: Depths, gap: float | None, bar: Progress,
        stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.surface, self.found, self.gap = surface, found, gap
        self.bar, self.stop = bar, stop
        self.rows = surface.all_rows[found.classes]  # (n, m)
        self.bias = surface.all_bias[found.classes]
        # Begin where classes crowd, and go outwards: neighbours have neighbouring optima.
        self.away = ((self.rows - np.median(self.rows, axis=0)) ** 2).sum(axis=1)
        self.taken = np.zeros(len(found.classes), dtype=bool)
        self.lock = threading.Lock()
        self.needed = -np.inf
        self.over = False

    def run(self) -> None:
        programme = Programme(self.surface)
        while (k := self._next()) is not None:
            solved = programme.solve(self.rows[k], float(self.bias[k]))
            with self.lock:
                self._note(k, solved)

    def _next(self) -> int | None:
        with self.lock:
            left = np.flatnonzero(~self.taken & ~self.found.exact)
            if self.over or not len(left) or self.stop():
                return None
            if self.gap is None or not np.isfinite(self.needed):
                k = int(left[np.argmin(self.away[left])])
            else:
                k = int(left[np.argmax(self.found.depth[left])])
                if self.found.depth[k] <= (1 + self.gap) * self.needed + self.surface.close:
                    return None
            self.taken[k] = True
            return k

    def _note(self, k: int, solved: Solved) -> None:
        """A solution; the classes left that the same basis solves; what it means for the rest."""
        found, u = self.found, solved.input
        raised = solved.top - self.rows @ u - self.bias
        better = raised < found.depth
        better[k] |= not np.isfinite(found.depth[k])
        found.depth[better], found.inputs[better] = raised[better], u
        done = [k, *self._same_basis(solved)]
        found.mixtures[k] = solved.mixture
        found.exact[done] = True
        self.needed = max(self.needed, solved.raised)
        self.bar.advance(len(done))

    def _same_basis(self, solved: Solved) -> list[int]:
        left = np.flatnonzero(~self.taken & ~self.found.exact)
        if solved.basic is None or not len(left):
            return []
        right = np.column_stack([self.rows[left] / self.surface.unit, np.ones(len(left))])
        try:
            weights = np.linalg.solve(solved.basic, right.T).T  # (n, m + 1)
        except np.linalg.LinAlgError:
            return []
        good = np.flatnonzero(weights.min(axis=1) >= _FEASIBLE)
        named = solved.ids >= 0
        for row, k in zip(good.tolist(), left[good].tolist(), strict=True):
            positive = np.maximum(weights[row][named], 0.0)
            self.found.mixtures[k] = Mixture(solved.ids[named], positive)
        return left[good].tolist()


def _flat(surface: Surface, found: Depths) -> bool:
    """Where all biases are equal and u = 0 can arrive, every class touches there."""
    zero = np.zeros((1, surface.searched.width))
    biases = np.append(surface.bias, surface.all_bias[found.classes])
    if len(biases) and np.ptp(biases) == 0 and surface.contains(zero)[0]:
        found.depth[:], found.inputs[:], found.exact[:] = 0.0, 0.0, True
        return True
    return False


@dataclass
class Solved:
    raised: float
    input: np.ndarray
    top: float  # the surface's height at the input
    basic: np.ndarray | None  # (m + 1, m + 1): the basis, where it is all columns
    ids: np.ndarray  # (m + 1,): the class of each of its columns, −1 for sides
    mixture: Mixture | None


def proven_leads(
    certifier: Certifier, surface: Surface, proposals: list[tuple[int, Mixture]]
) -> list[tuple[tuple[int, Mixture], float]]:
    """For each class and mixture what the certifier proves of its lead, NaN where nothing.

    On an infinite domain rows must balance exactly, which takes a share of all classes: there the
    mixture is another one, solved for with that share.
    """
    leads = certifier.mixtures([t for t, _ in proposals], [m for _, m in proposals])
    result = list(zip(proposals, leads.tolist(), strict=True))
    programme = None
    for share in _BULK:
        for k, ((t, _), lead) in enumerate(result):
            if np.isfinite(lead):
                continue
            programme = Programme(surface) if programme is None else programme
            own, bias = surface.all_rows[t] * (1 + share), float(surface.all_bias[t])
            mixture = programme.solve(own, bias).mixture
            if mixture is not None:
                mixture = replace(mixture, bulk=share * float(mixture.weights.sum()))
                result[k] = (t, mixture), certifier.mixture(t, mixture)
    return result


class Programme:
    """One HiGHS with the columns met so far."""

    def __init__(self, surface: Surface) -> None:
        import highspy

        self.surface, self.infinity = surface, highspy.kHighsInf
        self.width = surface.searched.width
        self.solver = solver = highspy.Highs()
        for name, value in (
            ("output_flag", False), ("threads", 1), ("primal_feasibility_tolerance", 1e-10),
            ("dual_feasibility_tolerance", 1e-10),
        ):  # fmt: skip
            solver.setOptionValue(name, value)
        nothing = np.empty(0, dtype=np.int32), np.empty(0)
        for _ in range(self.width):
            solver.addRow(0.0, 0.0, 0, *nothing)
        solver.addRow(1.0, 1.0, 0, *nothing)
        self.columns: list[np.ndarray] = []
        self.ids: list[int] = []
        eye = np.eye(self.width)
        # r_j > 0 costs its upper side, r_j < 0 its lower one.
        self._add(np.vstack([eye, -eye]), np.append(surface.upper, -surface.lower), sides=True)
        self.present = np.zeros(len(surface.carriers), dtype=bool)
        if len(surface.carriers) <= _SMALL:
            self._add_classes(np.arange(len(surface.carriers)))
        else:
            longest = np.argsort(-(surface.rows**2).sum(axis=1))[: 4 * self.width]
            self._add_classes(longest)

    def _add(self, rows: np.ndarray, costs: np.ndarray, *, sides: bool) -> None:
        count, height = len(rows), self.width + 1
        full = np.column_stack([rows, np.full(count, 0.0 if sides else 1.0)])
        self.solver.addCols(
            count, costs, np.zeros(count), np.full(count, self.infinity), count * height,
            np.arange(0, count * height, height, dtype=np.int32),
            np.tile(np.arange(height, dtype=np.int32), count), full.ravel(),
        )  # fmt: skip
        self.columns.extend(full)

    def _add_classes(self, which: np.ndarray) -> None:
        """Carriers, by their place among them."""
        if not len(which):
            return
        unit = self.surface.unit
        self._add(self.surface.rows[which] / unit, -self.surface.bias[which] / unit, sides=False)
        self.present[which] = True
        if not self.ids:
            self.ids = [-1] * (len(self.columns) - len(which))
        self.ids.extend(self.surface.carriers[which].tolist())

    def solve(self, own: np.ndarray, bias: float) -> Solved:
        """How far the plane of that row (m,) and bias lies below the surface."""
        surface, solver = self.surface, self.solver
        for j, value in enumerate((own / surface.unit).tolist()):
            solver.changeRowBounds(j, value, value)
        best, at, top = np.inf, surface.inside(np.zeros(self.width)), np.nan
        for _ in range(_ROUNDS):
            solver.run()
            duals = np.array(solver.getSolution().row_dual)
            if len(duals) != self.width + 1 or not np.isfinite(duals).all():
                break
            reached = solver.getInfo().objective_function_value * surface.unit
            met = duals[:-1]
            u = surface.inside(met)
            z = surface.heights(u)
            highest = float(z.max())
            raised = highest - float(own @ u) - bias
            if raised < best:
                best, at, top = raised, u, highest
            if best - (-reached - bias) <= surface.close:
                break
            if not self._extend(met, z):
                break
        result = self._result(best, at, top)
        self._purge(z)
        return result

    def _purge(self, z: np.ndarray) -> None:
        """Drop the columns of classes far below the surface: each costs time in every step."""
        most = _COLUMNS * (self.width + 1)
        if len(self.columns) - 2 * self.width <= max(most, _SMALL):
            return
        ids = np.array(self.ids)
        place = np.full(self.surface.searched.classes, -1)
        place[self.surface.carriers] = np.arange(len(self.surface.carriers))
        height = np.where(ids >= 0, z[place[ids]], np.inf)
        height[_basic(self.solver)] = np.inf
        gone = np.sort(np.argsort(height)[: len(ids) - most]).astype(np.int32)
        gone = gone[np.isfinite(height[gone])]
        self.solver.deleteCols(len(gone), gone)
        self.present[place[ids[gone]]] = False
        stays = np.ones(len(ids), dtype=bool)
        stays[gone] = False
        self.ids = ids[stays].tolist()
        self.columns = [c for c, k in zip(self.columns, stays.tolist(), strict=True) if k]

    def _extend(self, met: np.ndarray, z: np.ndarray) -> bool:
        """Classes above the programme's own surface, and the tangent of a ball that was left."""
        level = float(z[self.present].max(initial=-np.inf))
        others = np.where(self.present, -np.inf, z)
        count = min(_ADDED, len(others))
        worst = np.argpartition(-others, count - 1)[:count]
        worst = worst[others[worst] > level]
        self._add_classes(worst)
        norm = float(np.linalg.norm(met))
        if norm <= self.surface.radius * (1 + 1e-9):
            return bool(len(worst))
        self._add(met[None] / norm, np.array([self.surface.radius]), sides=True)
        self.ids.append(-1)
        return True

    def _result(self, best: float, at: np.ndarray, top: float) -> Solved:
        weights = np.array(self.solver.getSolution().col_value)
        ids = np.array(self.ids)
        if len(weights) != len(ids):  # the solver gave up
            return Solved(best, at, top, None, ids[:0], None)
        used = np.flatnonzero((weights[: len(ids)] > 0) & (ids >= 0))
        mixture = Mixture(ids[used], weights[used]) if len(used) else None
        basic = _basic(self.solver)
        matrix = None
        if len(basic) == self.width + 1 and (basic >= 0).all():
            matrix = np.array([self.columns[int(k)] for k in basic]).T
        names = ids[basic] if matrix is not None else ids[:0]
        return Solved(best, at, top, matrix, names, mixture)


def _basic(solver: Any) -> np.ndarray:
    """The basic columns; a negative number stands for a row."""
    status, basic = solver.getBasicVariables()
    return np.asarray(basic, dtype=np.int64) if "Ok" in str(status) else np.empty(0, np.int64)
