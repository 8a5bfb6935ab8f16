"""The bias change of least 1-norm that lets every class touch the surface, bounded from both sides.

From above. The search begins with one input for all lost classes (`repair_shared`): others are
lowered that stand out there, and what is still below the surface then is raised to it, each class
at an input of its own. Raising alone is tried too where that is quick.
From below. Mixtures give inequalities that every change must satisfy; the least change under those
met so far is a linear programme, and a bound (`repair_master`, Benders' master).
In turn. The master's solution jumps about while inequalities are few, so what is tried next lies
between it and the best change known. What is tried is completed to a change that does it, and the
mixtures on the way are new inequalities. On small heads the two bounds meet.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from uncork.auditing.certify.certifier import Certifier
from uncork.core.errors import UncorkError
from uncork.core.progress import Progress
from uncork.repair.master import Master
from uncork.repair.separation import leads_at
from uncork.repair.shared_input import dealt, shared_input
from uncork.repair.surface import Depths, Surface, depths

_ROUNDS = 60
_GAP = 0.01
_FEW = 400  # lost classes that each get the best input of their own
_QUICK = 20_000  # lost classes times features: raising each by itself is tried as well
_SEPARATED = 2_000  # classes times features: what the master's solution buries is looked for
_SECONDS = 300.0
_PROVING = 60.0  # seconds for a bound, if there is none by then
_IDLE = 4  # rounds that found nothing better, after which large heads are left
_TURNS = 12
_STEPS = (0.02, 0.2, 1.0)  # of the way from the best change to the master's: least, first, most
_CROWDED = 3e-6  # of a row's length: lost rows nearer than this to their median are a crowd
_RISING = 1e-3  # of the largest raise: a lost class as far above the surface joins it


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
    progress: Progress | None = None,
) -> Least:
    """As little change as is found in the time given (five minutes unless said).

    lost       (n,) classes to be freed, one of each group of equals
    wanted     (C,) of bool: classes that must be argmaxable in the end
    witnesses  (C, latent): where classes win now; NaN where that is not known
    """
    if not len(lost):  # all that is left are equals of classes that win: they get their biases
        return Least(surface.all_bias, lost, np.empty(0), witnesses.copy(), 0.0, 0.0)
    shown = progress or Progress()
    until = time.perf_counter() + (_SECONDS if time_limit is None else time_limit)
    classes, few = surface.view.classes, len(lost) <= _FEW
    search = _Completing(surface, lost, wanted, equals, jobs, until)
    master = Master(classes)
    best = Least(surface.all_bias, lost, np.empty(0), witnesses.copy(), np.inf, 0.0)
    everyone = np.arange(classes)
    shown.stage("one input", 2)
    crowd = _crowd(surface, lost)
    around = np.setdiff1d(everyone, crowd)
    needs = shared_input(surface, crowd, around, lowering=0.0) if len(crowd) else None
    if needs is not None:
        master.add_dealt(certifier, dealt(surface, needs, crowd, around))
    shown.advance(1)
    starts: list[tuple[np.ndarray, bool]] = []
    others = np.setdiff1d(everyone, lost)
    plans = (shared_input(surface, lost, others), needs)
    shown.advance(1)
    for plan in plans:
        if plan is not None:
            search.hints.append(plan.input)
            above = surface.all_rows @ plan.input + surface.all_bias - plan.height
            change = np.zeros(classes)
            change[others] = -np.maximum(above[others], 0.0)
            starts += [(change, False), (change, True)] if few else [(change, False)]
    if not starts or len(lost) * surface.view.width <= _QUICK:
        starts.append((np.zeros(classes), True))
    shown.stage("1-norm", _ROUNDS if few else len(starts))
    step, idle = _STEPS[1], 0
    for round_ in range(_ROUNDS):
        if round_ < len(starts):
            planned, thorough = starts[round_]
        else:
            aim, needed = master.solve(max(1.0, until - time.perf_counter()))
            best.needed = max(best.needed, needed)
            if best.size <= (1 + _GAP) * best.needed or idle > _IDLE or not few:
                break
            if classes * surface.view.width <= _SEPARATED:
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
        shown.advance(1)
        new = master.add(certifier, now, found)
        better = tried.size < best.size * (1 - 1e-6)
        if better:
            tried.needed = best.needed
            best = tried
        if round_ >= len(starts):
            idle = 0 if better or (new and len(lost) * surface.view.width <= _QUICK) else idle + 1
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


def _crowd(surface: Surface, lost: np.ndarray) -> np.ndarray:
    """Lost classes whose rows lie together, so that one mixture nearly serves for all."""
    rows = surface.all_rows[lost]
    middle = rows[np.argmin(((rows - np.median(rows, axis=0)) ** 2).sum(axis=1))]
    length = float(np.median(np.linalg.norm(surface.rows, axis=1))) or 1.0
    return lost[np.linalg.norm(rows - middle, axis=1) <= _CROWDED * length]


def _norm(change: np.ndarray) -> float:
    return float(np.abs(change - np.median(change)).sum())


class _Completing:
    """From a planned change of the others to one that lets every class touch the surface."""

    def __init__(
        self, surface: Surface, lost: np.ndarray, wanted: np.ndarray, equals: np.ndarray,
        jobs: int, until: float,
    ) -> None:  # fmt: skip
        self.surface, self.wanted, self.equals = surface, wanted, equals
        self.jobs, self.until = jobs, until
        self.lost = np.zeros(len(wanted), dtype=bool)
        self.lost[lost] = True
        self.hints: list[np.ndarray] = []  # inputs that are tried for every class

    def complete(
        self, planned: np.ndarray, witnesses: np.ndarray, thorough: bool
    ) -> tuple[Least, Depths, Surface]:
        """The planned change of those that are not lost; the lost, and whom it buries, brought to
        the surface.

        `thorough`: each lost class at the best input of its own, not one that was hinted at; one
        that stands well above the surface without any change joins it.
        """
        surface = self.surface
        witnesses, planned = witnesses.copy(), np.where(self.lost, 0.0, planned)
        bias = surface.all_bias + planned
        above = ~self.lost & (~self.wanted | self._leading(witnesses, bias, ~self.lost))
        for _ in range(_TURNS):
            asked = np.flatnonzero(~above)
            if not above.any():  # nobody is left to carry a surface: this plan leads nowhere
                return self._nothing(witnesses)
            now = Surface(surface.view, np.flatnonzero(above), bias, surface.shrunk)
            found = self._depths(now, asked, thorough)
            largest = max(float(found.raises.max(initial=0.0)), 0.0)
            limit = np.where(self.lost[asked], _RISING * largest if thorough else np.inf, 0.0)
            rising = found.raises < -np.maximum(limit, surface.close)
            change = planned.copy()
            change[asked] += found.raises
            if not rising.any():
                break
            risen = asked[rising]
            witnesses[risen] = found.inputs[rising]
            above[risen] = True
            above &= ~self.wanted | self._leading(witnesses, bias, above)
        size = _norm(change) if not rising.any() and np.isfinite(change).all() else np.inf
        base = surface.all_bias + change
        return Least(base, asked, found.inputs, witnesses, size, 0.0), found, now

    def _nothing(self, witnesses: np.ndarray) -> tuple[Least, Depths, Surface]:
        """What a plan that leads nowhere comes to: no change, at an infinite price."""
        none = np.empty(0, dtype=np.int64)
        inputs = np.empty((0, self.surface.view.width))
        least = Least(self.surface.all_bias, none, inputs, witnesses, np.inf, 0.0)
        found = Depths(none, np.empty(0), inputs, [], np.empty(0, dtype=bool))
        return least, found, self.surface

    def raise_buried(
        self, change: np.ndarray, witnesses: np.ndarray
    ) -> tuple[Least, Depths, Surface]:
        """The change as it is, of the lost too; whom it leaves below the surface of all is raised
        to it, which buries nobody else."""
        bias = self.surface.all_bias + change
        everyone = np.arange(len(bias))
        now = Surface(self.surface.view, everyone, bias, self.surface.shrunk)
        leading = self._leading(witnesses, bias, np.ones(len(bias), dtype=bool))
        asked = np.flatnonzero(self.wanted & ~leading)
        found = depths(now, asked, self.jobs, stop=lambda: time.perf_counter() > self.until)
        base = bias.copy()
        base[asked] += found.raises
        size = _norm(base - self.surface.all_bias) if np.isfinite(base).all() else np.inf
        return Least(base, asked, found.inputs, witnesses.copy(), size, 0.0), found, now

    def _depths(self, now: Surface, asked: np.ndarray, thorough: bool) -> Depths:
        """How far below the surface each is, or might be taken to be: at the inputs hinted at."""
        n = len(asked)
        found = Depths(
            asked, np.full(n, np.inf), np.full((n, now.view.width), np.nan), [None] * n,
            np.zeros(n, dtype=bool),
        )  # fmt: skip
        solved = np.flatnonzero(~self.lost[asked] | thorough | (not self.hints))
        some = depths(now, asked[solved], self.jobs, stop=lambda: time.perf_counter() > self.until)
        found.raises[solved], found.inputs[solved] = some.raises, some.inputs
        found.exact[solved] = some.exact
        for k, mixture in zip(solved.tolist(), some.mixtures, strict=True):
            found.mixtures[k] = mixture
        self._hint(now, found)
        return found

    def _hint(self, now: Surface, found: Depths) -> None:
        """Raises are no larger than at the inputs that were hinted at."""
        rows, bias = now.all_rows[found.classes], now.all_bias[found.classes]
        for u in self.hints:
            raised = float(now.heights(u).max()) - rows @ u - bias
            better = raised < found.raises - now.close
            found.raises[better], found.inputs[better] = raised[better], u

    def _leading(self, witnesses: np.ndarray, bias: np.ndarray, among: np.ndarray) -> np.ndarray:
        """Which classes lead those `among` at the witness they have: (C,) of bool."""
        result = np.zeros(len(bias), dtype=bool)
        known = np.flatnonzero(np.isfinite(witnesses).all(axis=1) & among)
        low = np.where(among, bias, -np.inf)
        middle = self.surface.all_rows.mean(axis=0)
        leads = leads_at(self.surface, known, witnesses[known], low, middle, self.equals)
        result[known[leads > self.surface.close]] = True
        return result
