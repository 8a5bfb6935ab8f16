"""Raising biases: what each class needs, proven from both sides, and a change that frees them all.

How far a class lies below the surface of the others is proven from below by a mixture, and from
above by an input at which that much is enough: `bias_needed` for a user, and the smallest ∞-norm of
a change for `repair`. Where the 1-norm is to be small, `smallest_change` finds what to raise and
lower. From touching the surface to leading is for `margin`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing import Audit, Verdict
from uncork.auditing.backend import Backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Mixture
from uncork.core.class_ids import class_ids
from uncork.core.head import Head
from uncork.core.progress import Progress, progress_bar
from uncork.domain import Domain
from uncork.reach.limits import check_sizes
from uncork.reach.searched_head import SearchedHead
from uncork.reach.surface import Depths, Surface, depths, proven_leads
from uncork.repair.job import Repair, RepairJob, audit_of, change_size
from uncork.repair.margin import FACTORS, MODEST, Leading, Touching, make_lead, parted
from uncork.repair.proven import come_first, replace_bias
from uncork.repair.smallest_change import smallest_change

_GAP = 0.01  # raises may exceed the largest that is needed by this share
_SHRUNK = 1e-3  # of the domain: left free for witnesses to move in
_AGAIN = 8  # times that classes buried by rounding are raised anew
_PARTED = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # hundredths of the raise, or of a row's move
_CERTIFIED = 16  # of the deepest classes, whose depth is proven


@dataclass(frozen=True)
class BiasNeeded:
    """For each class, proven: its bias alone has to be raised by `lower` at least; by any more than
    `upper` it is argmaxable, at `inputs`. Zero for classes that are argmaxable already.

    As an array it is `upper`.
    """

    classes: np.ndarray  # (n,)
    lower: np.ndarray  # (n,)
    upper: np.ndarray  # (n,)
    inputs: np.ndarray  # (n, latent)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.upper, dtype=dtype)


def bias_needed(
    head: Head,
    classes: Sequence[int] | np.ndarray,
    *,
    audit: Audit | None = None,
    domain: Domain | None = None,
    jobs: int | None = None,
    progress: bool | Progress = False,
    stop: Callable[[], bool] = bool,
) -> BiasNeeded:
    """The least raise of each class's own bias, the others as they are, that makes it argmaxable.

    An `audit` of the head is made unless given. `stop` is asked between classes: those not solved
    for by then have a `lower` of 0, and an `upper` that is infinite or larger than it need be.
    """
    head = head if domain is None else head.replace(domain=domain)
    asked = class_ids(head.classes, classes)
    check_sizes(head)
    known = audit_of(head, audit, jobs)
    backend = Backend(jobs)
    searched = SearchedHead(head, head.domain, backend)
    verdicts = known.proofs.verdicts
    below = asked[(verdicts[asked] == Verdict.UNARGMAXABLE) | (verdicts[asked] == 0)]
    carriers = np.flatnonzero((verdicts != Verdict.UNARGMAXABLE) & (verdicts != 0))
    with progress_bar(progress) as bar, np.errstate(all="ignore"):
        bar.stage("repair", len(below))
        surface = Surface(searched, carriers)
        found = depths(surface, np.unique(below), backend.jobs, bar, stop)
        lower = certified_depths(head, surface, found, np.arange(len(found.classes)), backend)
        upper = _certified_raises(head, found, backend)
    place = {int(t): k for k, t in enumerate(found.classes)}
    inputs = np.full((len(asked), searched.width), np.nan)
    result = BiasNeeded(asked, np.zeros(len(asked)), np.zeros(len(asked)), inputs)
    for k, t in enumerate(asked.tolist()):
        if t in place:
            at = place[t]
            result.lower[k], result.upper[k] = lower[at], upper[at]
            result.inputs[k] = found.inputs[at]
    return result


def certified_depths(
    head: Head, surface: Surface, found: Depths, which: np.ndarray, backend: Backend
) -> np.ndarray:
    """Proven lower bounds on the depth of some of the classes: (n,), 0 where nothing is proven."""
    lower = np.zeros(len(which))
    places, proposals = [], []
    for place, k in enumerate(which.tolist()):
        mixture = found.mixtures[k]
        if mixture is not None and found.depth[k] > surface.close:
            places.append(place)
            proposals.append((int(found.classes[k]), mixture))
    proven = proven_leads(Certifier(head, head.domain, backend), surface, proposals)
    lower[places] = [lead if lead > 0 else 0.0 for _, lead in proven]
    return lower


def _certified_raises(head: Head, found: Depths, backend: Backend) -> np.ndarray:
    """Proven upper bounds on the raise that lets each class touch at its input: (n,), infinite
    where there is none. All classes are looked at there, not those of the surface alone."""
    certifier = Certifier(head, head.domain, backend)
    upper = np.full(len(found.classes), np.inf)
    step = backend.inputs
    for start in range(0, len(upper), step):
        part = slice(start, start + step)
        x, drift, inside = certifier.seen(backend.put(found.inputs[part]))
        own, rivals = certifier.products.own_and_rivals(found.classes[part], x, drift, {}, False)
        missing = np.maximum((rivals - own) * (1 + 2.0**-50), 0.0)
        upper[part] = np.where(inside & ~np.isnan(missing), missing, np.inf)
    return upper


def raise_biases(job: RepairJob) -> Repair:
    """The repair by biases: raised until all that is wanted leads, and raised again where that, or
    rounding, buried others."""
    current, verdicts, needed = job.head, job.before, 0.0
    best: tuple[int, Head, Audit] | None = None
    for attempt in range(_AGAIN):
        below = job.wanted & ~come_first(verdicts)
        if not below.any():
            break
        # What the first change buried is raised, whatever the norm: little is missing.
        norm = job.options.norm if attempt == 0 else "inf"
        raising = _Raising(job, current, verdicts, np.flatnonzero(below), norm)
        current = raising.run()
        if attempt == 0:
            needed, job.touching = raising.needed, raising.touching
        result = job.prove(current)
        verdicts = result.proofs.verdicts
        left = int((job.wanted & ~come_first(verdicts)).sum())
        if best is not None and left >= best[0] and attempt > 2:
            break  # some bury one another whatever is done
        if best is None or left < best[0]:
            best = left, current, result
        if left:
            job.notes.append(f"{left:,} were buried by others or by rounding, and raised too")
    if best is None:
        return job.result(job.head, None, needed)
    return job.result(best[1], best[2], needed)


class _Raising:
    """One round: a head in which the classes `below` lead somewhere."""

    needed: float  # proven
    touching: float  # the size of the change at which they touch

    def __init__(
        self, job: RepairJob, head: Head, verdicts: np.ndarray, below: np.ndarray, norm: str
    ) -> None:
        self.job, self.head, self.below, self.norm = job, head, below, norm
        self.backend, self.equals = job.backend, job.equals
        self.winners = come_first(verdicts)
        # Where all tie at the top everywhere none of them wins, and any may be the surface.
        self.carriers = (
            np.flatnonzero(self.winners) if self.winners.any() else np.arange(head.classes)
        )
        self.searched = SearchedHead(head, head.domain, self.backend)

    def run(self) -> Head:
        # A row equal to a carrier's can only be made to tie with it; of other equals one speaks.
        apart = [t for t in self.below.tolist() if not self._has_winning_equal(t)]
        raised = self._representatives(np.array(apart, dtype=np.int64))
        surface, touching = (
            self._least_sum(raised) if self.norm == "1" else self._least_maximum(raised)
        )
        bias = self._shared_by_equals(self.head.offsets + (touching.base - surface.all_bias))
        self.touching = change_size(bias - self.head.offsets, self.norm)
        if not len(touching.classes):
            return replace_bias(self.head, self._shared_by_equals(self.head.offsets.copy()))
        made = self._lead(surface, touching)
        self.job.inputs[touching.classes] = made.inputs
        self.job.faint[touching.classes] = ~made.clear
        return replace_bias(made.head, self._shared_by_equals(made.bias))

    def _least_sum(self, raised: np.ndarray) -> tuple[Surface, Touching]:
        """Where classes touch after a change of small 1-norm."""
        job = self.job
        wanted = job.wanted.copy()
        wanted[np.setdiff1d(self.below, raised)] = False
        surface = Surface(self.searched, self.carriers, shrunk=_SHRUNK)
        found = smallest_change(job, self.head, surface, raised, wanted)
        self.needed, job.inputs = found.needed, found.witnesses
        return surface, Touching(found.touching, found.inputs, found.base, found.size)

    def _least_maximum(self, raised: np.ndarray) -> tuple[Surface, Touching]:
        """Where classes touch when each is raised by what it needs."""
        self.job.progress.stage("repair", len(raised))
        surface = Surface(self.searched, self.carriers)
        found = self._depths(surface, raised)
        self.needed = self._proven_need(surface, found, np.setdiff1d(self.below, raised)) / 2
        shrunk = Surface(self.searched, self.carriers, shrunk=_SHRUNK)
        if len(raised) and not shrunk.contains(found.inputs).all():
            surface = shrunk
            found = self._depths(surface, raised)
        base = surface.all_bias.copy()
        base[found.classes] += np.maximum(found.depth, 0.0)
        return surface, Touching(found.classes, found.inputs, base)

    def _lead(self, surface: Surface, touching: Touching) -> Leading:
        """From touching to leading by the margin: by biases alone where that takes little more,
        otherwise with rows that crowd moved apart, in steps that weigh as much as the biases'."""
        head, margin = self.head, self.job.options.margin
        largest = float((touching.base - surface.all_bias)[touching.classes].max())

        def lead(now: Surface, base: np.ndarray, factors: Sequence[float]) -> Leading:
            return make_lead(now, touching.at(base), self.equals, largest, margin, factors)

        best = lead(surface, touching.base, MODEST if margin is None else FACTORS)
        crowd = np.flatnonzero(~best.clear)
        if not len(crowd) or margin == 0 or head.weight.dtype.kind in "iub":
            return best
        affine = head.domain.affine(head.features)
        x = (affine.image(touching.inputs) if affine.steps else touching.inputs)[crowd]
        classes = touching.classes[crowd]
        length = float(np.median(np.linalg.norm(surface.rows, axis=1))) or 1.0
        whole = np.full(
            len(crowd), length
        )  # a move that frees a class by itself, or a row's length
        if largest > surface.close:
            whole = np.minimum(whole, largest / np.linalg.norm(x, axis=1).clip(1e-300))
        wanted_equals = np.where(self.job.wanted, self.equals, -1)
        for share in _PARTED:
            moved = parted(head, classes, x, 0.01 * share * whole, wanted_equals)
            now = Surface(
                SearchedHead(moved, moved.domain, self.backend), surface.carriers,
                shrunk=surface.shrunk,
            )  # fmt: skip
            change = touching.base - surface.all_bias
            change[classes] -= ((moved.take(classes) - head.take(classes)) * x).sum(axis=1)
            made = lead(now, now.all_bias + change, (share,))
            if made.better(best):
                best = made
            if made.clear.all():
                break
        return best

    def _depths(self, surface: Surface, raised: np.ndarray) -> Depths:
        """Raises of which none exceeds the largest that is needed by much. Equals of a class follow
        it from further below, so one that speaks for others is raised by no more than it needs."""
        equals = self.equals[raised]
        found = depths(surface, raised, self.backend.jobs, self.job.progress, gap=_GAP)
        followed = self.equals[np.setdiff1d(self.below, raised)]
        speaks = (equals >= 0) & np.isin(equals, followed) & ~found.exact
        if speaks.any():
            found.take(np.flatnonzero(speaks), depths(surface, raised[speaks], self.backend.jobs))
        return found

    def _proven_need(self, surface: Surface, found: Depths, followers: np.ndarray) -> float:
        """The largest raise that is proven to be needed, of the classes solved for and of
        `followers`, whose row is that of another: of one that wins, or of one solved for."""
        head = self.head
        deepest = np.argsort(-np.where(found.exact, found.depth, -np.inf))[:_CERTIFIED]
        proven = certified_depths(head, surface, found, deepest, self.backend)
        proposals: list[tuple[float, int, Mixture]] = []
        place = {int(self.equals[t]): k for k, t in enumerate(found.classes.tolist())}
        for t in followers.tolist():
            winning = np.flatnonzero(self.winners & (self.equals == self.equals[t]))
            if len(winning):
                s = int(winning[np.argmax(head.offsets[winning])])
                mixture: Mixture | None = Mixture(np.array([s]), np.ones(1))
                raised = 0.0
            else:
                k = place[int(self.equals[t])]
                s, mixture, raised = int(found.classes[k]), found.mixtures[k], found.depth[k]
            if mixture is not None:
                proposals.append((raised + head.offsets[s] - head.offsets[t], t, mixture))
        proposals = sorted(proposals, key=lambda one: -one[0])[:_CERTIFIED]
        certifier = Certifier(head, head.domain, self.backend)
        named = [(t, mixture) for _, t, mixture in proposals]
        leads = [lead for _, lead in proven_leads(certifier, surface, named)] if named else []
        return float(np.nanmax([*proven, *leads], initial=0.0))

    def _has_winning_equal(self, t: int) -> bool:
        equals = self.equals
        return equals[t] >= 0 and bool((self.winners & (equals == equals[t])).any())

    def _representatives(self, classes: np.ndarray) -> np.ndarray:
        """Of classes with equal rows the one of largest bias, and all others."""
        chosen = []
        for t in classes.tolist():
            group = classes[self.equals[classes] == self.equals[t]] if self.equals[t] >= 0 else None
            if group is None or t == group[np.argmax(self.head.offsets[group])]:
                chosen.append(t)
        return np.array(chosen, dtype=np.int64)

    def _shared_by_equals(self, bias: np.ndarray) -> np.ndarray:
        """Equal rows get one bias, where one of them is asked for: then they tie."""
        for key in np.unique(self.equals[self.equals >= 0]):
            group = np.flatnonzero(self.equals == key)
            if self.job.asked[group].any():
                bias[group[self.job.wanted[group]]] = bias[group].max()
        return bias
