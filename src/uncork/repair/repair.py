"""The smallest edit of a trained head that makes every class argmaxable, or those chosen.

A class is argmaxable iff its plane z_t stands above all others at some input, so the biases at
which every class touches the surface max_i z_i are those of a convex function of the rows:
−b_i = φ(w_i), with the inputs as slopes. The smallest change of the bias is a convex regression,
and all of its constraints are linear in biases and inputs together.

    ∞-norm   Raise each lost class by its own δ_t (`surface`) and nobody else: no class stands above
             the surface, so nobody is buried. A common constant is free, and with it the largest
             change is max δ_t/2. No change does with less: at the mixture that proves δ_t, class t
             must gain δ_t on an average of others, so somebody moves by half of it.
    1-norm   Lowering one class may free hundreds. `least` begins with one input for all lost
             classes, then alternates between a linear programme over the mixtures met so far, a
             lower bound, and raising what still lies below, an upper one.

Both are infima: touching is not yet leading. A little more makes every class with a row of its own
first somewhere (`strict`), by more than the model's own type rounds away unless another margin is
asked for (`margin`). Where rows lie so near to one another that no modest bias does that, they are
moved a little as well. Equal rows tie whatever is done. Every class is proven anew on the weights
and biases as they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uncork.auditing import Audit, Verdict
from uncork.auditing.backend import Backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.duplicates import equal_classes
from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.run import check_time_limit
from uncork.core.class_ids import class_ids
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress
from uncork.reach.limits import check_sizes
from uncork.reach.searched_head import View
from uncork.repair.bias_increases import BiasNeeded, audit_of, bar, bias_needed, certified_depths
from uncork.repair.margin import check_margin
from uncork.repair.prove_repaired import audit_repaired, witnesses_of
from uncork.repair.separation import FACTORS, MODEST, Strict, make_strict, parted
from uncork.repair.surface import Depths, Surface, depths, proven_leads

HOW = ("bias", "row")
NORMS = ("inf", "1")
_GAP = 0.01  # raises may exceed the largest that is needed by this share
_SHRUNK = 1e-3  # of the domain: kept free for witnesses to move in
_ROWS = 8192
_AGAIN = 8  # times that classes buried by rounding are raised anew
_PARTED = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # hundredths of the raise, or of a row's move
_CERTIFIED = 16  # of the deepest classes, whose depth is proven


@dataclass(frozen=True)
class Repair:
    """A new weight and bias, what they are, and why less would not do."""

    weight: np.ndarray  # (C, d) in the head's own type
    bias: np.ndarray | None  # (C,) float64, exact in the type that is stored
    how: str
    norm: str
    margin: float | None  # what was asked for; None: what the head's own type resolves
    freed: np.ndarray  # (n,) classes that were lost and are not
    tied: np.ndarray  # classes whose row equals another's: nothing tells them apart
    left: np.ndarray  # classes asked for that are still lost or undecided
    inputs: np.ndarray  # (C, latent): where each class should win; NaN where that is not known
    size: float  # of the change in its norm, after the best common constant
    needed: float  # proven, with any margin: no smaller change of the bias, or of one row, does
    touching: float  # the size at which classes come to share first place: the margin adds the rest
    faint: np.ndarray  # classes raised or moved whose lead is within the margin
    parted: float  # how="bias": the longest move of a row that biases alone did not tell apart
    audit: Audit  # of the repaired head, in memory
    notes: tuple[str, ...] = ()

    def head(self, like: Head) -> Head:
        """The repaired head, with labels and domain of the one it came from."""
        stored = like.weight if like.bias is None else like.bias
        bias = self.bias
        if bias is not None and stored.dtype.kind not in "iub":
            bias = bias.astype(stored.dtype)
        return like.replace(weight=self.weight, bias=bias)


def repair(
    head: Head,
    classes: Sequence[int] | np.ndarray | None = None,
    *,
    how: str = "bias",
    norm: str = "inf",
    margin: float | None = None,
    audit: Audit | None = None,
    device: str = "auto",
    jobs: int | None = None,
    progress: bool | Progress = False,
    time_limit: float | None = None,
) -> Repair:
    """The smallest edit found that makes all classes argmaxable, or those named, and loses none.

    how         "bias": biases change. "row": rows of lost classes move, nothing else
    norm        "inf" or "1": what of the bias's change is to be small
    margin      by how much freed classes are to lead, in logits; None: by what the head's own type
                resolves, for which rows that crowd are moved a little; 0: by anything at all
    audit       of this head, if there is one: it saves making it
    time_limit  seconds for the search; what it left is in `left`
    """
    if how not in HOW:
        raise UncorkError(f"how {how!r} is not known: expected {' or '.join(HOW)}")
    if norm not in NORMS:
        raise UncorkError(f"norm {norm!r} is not known: expected {' or '.join(NORMS)}")
    check_margin(margin)
    check_time_limit(time_limit)
    check_sizes(head)
    with bar(progress) as shown, np.errstate(all="ignore"):
        known = audit_of(head, audit, jobs, device, shown)
        job = Repairing(head, known, classes, how, norm, margin, device, jobs, shown, time_limit)
        if how == "row":
            from uncork.repair.rows import move_rows

            return move_rows(job)
        return job.run()


class Repairing:
    """A head under repair: biases, witnesses and verdicts so far."""

    def __init__(
        self,
        head: Head,
        known: Audit,
        classes: Sequence[int] | np.ndarray | None,
        how: str,
        norm: str,
        margin: float | None,
        device: str,
        jobs: int | None,
        shown: Progress,
        time_limit: float | None,
    ) -> None:
        self.head, self.how, self.norm, self.shown = head, how, norm, shown
        self.margin = margin
        self.faint = np.zeros(head.classes, dtype=bool)
        self.touching = 0.0
        self.device, self.jobs, self.time_limit = device, jobs, time_limit
        self.backend = Backend(jobs)
        self.before = known.proofs.verdicts
        self.asked = np.ones(head.classes, dtype=bool)
        if classes is not None:
            self.asked[:] = False
            self.asked[class_ids(head.classes, classes)] = True
        good = (self.before == Verdict.ARGMAXABLE) | (self.before == Verdict.TIED)
        self.wanted = self.asked | good  # what is argmaxable stays so, asked for or not
        self.equals = _equal_rows(head)
        self.inputs = witnesses_of(known, head)
        self.notes: list[str] = []
        self._check_room()

    def _check_room(self) -> None:
        """Raise where no edit can do it: at a single input one class comes first, and no other."""
        rows = np.where(self.equals >= 0, self.equals, -1 - np.arange(self.head.classes))
        several = len(np.unique(rows[self.wanted]))
        if several > 1 and self.head.domain.affine(self.head.features).is_point:
            raise UncorkError(
                f"inputs of {self.head.domain} are a single point, where only one class can come "
                f"first: no edit makes {several:,} classes argmaxable; give a domain of more inputs"
            )

    def run(self) -> Repair:
        head = self.head
        stored = head.weight if head.bias is None else head.bias
        dtype = stored.dtype if stored.dtype.kind not in "iub" else np.dtype(np.float64)
        current, verdicts, needed = head, self.before, 0.0
        best: tuple[int, Head, Audit] | None = None
        for attempt in range(_AGAIN):
            lost = self.wanted & (verdicts != Verdict.ARGMAXABLE) & (verdicts != Verdict.TIED)
            if not lost.any():
                break
            # What the first change buried is raised, whatever the norm: little is missing.
            norm = self.norm if attempt == 0 else "inf"
            current, proven, touching = self._raise(
                current, verdicts, np.flatnonzero(lost), dtype, norm
            )
            if attempt == 0:
                needed, self.touching = proven, touching
            result = self.prove(current)
            verdicts = result.proofs.verdicts
            good = (verdicts == Verdict.ARGMAXABLE) | (verdicts == Verdict.TIED)
            left = int((self.wanted & ~good).sum())
            if best is not None and left >= best[0] and attempt > 2:
                break  # some bury one another whatever is done
            if best is None or left < best[0]:
                best = left, current, result
            if left:
                self.notes.append(f"{left:,} were buried by others or by rounding, and raised too")
        if best is None:
            return self.result(head, None, needed)
        return self.result(best[1], best[2], needed)

    def _raise(
        self, head: Head, verdicts: np.ndarray, lost: np.ndarray, dtype: np.dtype, norm: str
    ) -> tuple[Head, float, float]:
        """A head in which the lost classes lead somewhere, what is proven to be needed, and the
        size of the change at which they touch."""
        total = None
        view = View(head, head.domain, self.backend)
        rises = (verdicts == Verdict.ARGMAXABLE) | (verdicts == Verdict.TIED)
        # Where all tie at the top everywhere nobody rises, and any of them may be the surface.
        carriers = np.flatnonzero(rises) if rises.any() else np.arange(head.classes)
        surface = Surface(view, carriers)
        offset = head.offsets - np.asarray(self.backend.get(view.bias))  # of an image: w·x₀ too
        # A row equal to a carrier's can only be made to tie with it; of other equals one speaks.
        alone = np.array([not self._twin(t, rises) for t in lost.tolist()], dtype=bool)
        free = self._speakers(lost[alone], head)
        if norm == "1":
            from uncork.repair.smallest_change import least_change

            others = self.wanted.copy()
            others[np.setdiff1d(lost, free)] = False
            surface = Surface(view, carriers, shrunk=_SHRUNK)
            least = least_change(
                Certifier(head, head.domain, self.backend), surface, free, others,
                self.inputs, self.equals, self.backend.jobs, self.time_limit, self.shown,
            )  # fmt: skip
            total = least.size
            base, touching, inputs = least.base, least.touching, least.inputs
            needed, self.inputs = least.needed, least.witnesses
        else:
            self.shown.stage("repair", len(free))
            found = self._depths(surface, free, lost)
            needed = self._needed(head, surface, found, np.setdiff1d(lost, free), rises) / 2
            shrunk = Surface(view, carriers, shrunk=_SHRUNK)
            if len(free) and not shrunk.contains(found.inputs).all():
                surface = shrunk
                found = self._depths(surface, free, lost)
            touching, inputs = found.classes, found.inputs
            base = surface.all_bias.copy()
            base[touching] += np.maximum(found.raises, 0.0)
        touch = self._copy_twins(head.offsets + (base - surface.all_bias), rises)
        size = change_size(touch - head.offsets, norm)
        if not len(touching):
            return replace_bias(head, self._copy_twins(head.offsets.copy(), rises)), needed, size
        largest = float((base - surface.all_bias)[touching].max())
        made = self._lead(surface, touching, inputs, base, offset, dtype, largest, total)
        self.inputs[touching] = made.inputs
        self.faint[touching] = ~made.clear
        return replace_bias(made.head, self._copy_twins(made.bias, rises)), needed, size

    def _lead(
        self, surface: Surface, touching: np.ndarray, inputs: np.ndarray, base: np.ndarray,
        offset: np.ndarray, dtype: np.dtype, largest: float, total: float | None,
    ) -> Strict:  # fmt: skip
        """From touching to leading by the margin: by biases alone where that takes little more,
        otherwise with rows that crowd moved apart, in steps that weigh as much as the biases'."""
        head = surface.view.head

        def strict(
            now: Surface, base: np.ndarray, offset: np.ndarray, factors: Sequence[float]
        ) -> Strict:
            return make_strict(
                now, touching, inputs, base, now.view.head.offsets, offset, dtype, self.equals,
                largest, total, self.margin, factors,
            )  # fmt: skip

        best = strict(surface, base, offset, MODEST if self.margin is None else FACTORS)
        crowd = np.flatnonzero(~best.clear)
        if not len(crowd) or self.margin == 0 or head.weight.dtype.kind in "iub":
            return best
        affine = head.domain.affine(head.features)
        x = (affine.image(inputs) if affine.steps else inputs)[crowd]
        classes = touching[crowd]
        length = float(np.median(np.linalg.norm(surface.rows, axis=1))) or 1.0
        whole = np.full(
            len(crowd), length
        )  # a move that frees a class by itself, or a row's length
        if largest > surface.close:
            whole = np.minimum(whole, largest / np.linalg.norm(x, axis=1).clip(1e-300))
        for share in _PARTED:
            moved = parted(head, classes, x, 0.01 * share * whole, self._wanted_equals())
            view = View(moved, moved.domain, self.backend)
            now = Surface(view, surface.carriers, shrunk=surface.shrunk)
            change = base - surface.all_bias
            change[classes] -= ((moved.take(classes) - head.take(classes)) * x).sum(axis=1)
            offset = moved.offsets - now.all_bias
            made = strict(now, now.all_bias + change, offset, (share,))
            if made.better(best):
                best = made
            if made.clear.all():
                break
        return best

    def _wanted_equals(self) -> np.ndarray:
        """The numbers of equal rows, without classes that nobody asked for."""
        return np.where(self.wanted, self.equals, -1)

    def _depths(self, surface: Surface, free: np.ndarray, lost: np.ndarray) -> Depths:
        """Raises of which none exceeds the largest that is needed by much. Equals of a class follow
        it from further below, so one that speaks for others is raised by no more than it needs."""
        found = depths(surface, free, self.backend.jobs, self.shown, gap=_GAP)
        followed = self.equals[np.setdiff1d(lost, free)]
        speaks = (self.equals[free] >= 0) & np.isin(self.equals[free], followed) & ~found.exact
        if speaks.any():
            own = depths(surface, free[speaks], self.backend.jobs)
            found.raises[speaks], found.inputs[speaks] = own.raises, own.inputs
            found.exact[speaks] = own.exact
            for k, mixture in zip(np.flatnonzero(speaks).tolist(), own.mixtures, strict=True):
                found.mixtures[k] = mixture
        return found

    def _needed(
        self, head: Head, surface: Surface, found: Depths, twins: np.ndarray, rises: np.ndarray
    ) -> float:
        """The largest raise that is proven to be needed, of the classes solved for and of `twins`,
        whose row is that of another: of one that wins, or of one that was solved for."""
        deepest = np.argsort(-np.where(found.exact, found.raises, -np.inf))[:_CERTIFIED]
        proven = certified_depths(head, surface, found, deepest, self.backend)
        below: list[tuple[float, int, Mixture]] = []
        speaker = {int(self.equals[t]): k for k, t in enumerate(found.classes.tolist())}
        for t in twins.tolist():
            winning = np.flatnonzero(rises & (self.equals == self.equals[t]))
            if len(winning):
                s = int(winning[np.argmax(head.offsets[winning])])
                mixture: Mixture | None = Mixture(np.array([s]), np.ones(1))
                raised = 0.0
            else:
                k = speaker[int(self.equals[t])]
                s, mixture, raised = int(found.classes[k]), found.mixtures[k], found.raises[k]
            if mixture is not None:
                below.append((raised + head.offsets[s] - head.offsets[t], t, mixture))
        below = sorted(below, key=lambda one: -one[0])[:_CERTIFIED]
        certifier = Certifier(head, head.domain, self.backend)
        named = [(t, mixture) for _, t, mixture in below]
        leads = [lead for _, lead in proven_leads(certifier, surface, named)] if named else []
        return float(np.nanmax([*proven, *leads], initial=0.0))

    def _twin(self, t: int, rises: np.ndarray) -> bool:
        return self.equals[t] >= 0 and bool((rises & (self.equals == self.equals[t])).any())

    def _speakers(self, lost: np.ndarray, head: Head) -> np.ndarray:
        """Of lost classes with equal rows the one of largest bias, and all others."""
        kept = []
        for t in lost.tolist():
            group = lost[self.equals[lost] == self.equals[t]] if self.equals[t] >= 0 else None
            if group is None or t == group[np.argmax(head.offsets[group])]:
                kept.append(t)
        return np.array(kept, dtype=np.int64)

    def _copy_twins(self, bias: np.ndarray, rises: np.ndarray) -> np.ndarray:
        """Equal rows get one bias, where one of them is asked for: then they tie."""
        for key in np.unique(self.equals[self.equals >= 0]):
            group = np.flatnonzero(self.equals == key)
            if self.asked[group].any():
                bias[group[self.wanted[group]]] = bias[group].max()
        return bias

    def prove(self, head: Head) -> Audit:
        return audit_repaired(
            head, self.inputs, wanted=self.wanted, device=self.device, jobs=self.jobs,
            progress=self.shown, time_limit=self.time_limit,
        )  # fmt: skip

    def result(self, current: Head, proven: Audit | None, needed: float) -> Repair:
        """What became of the head; `proven` is None where there was nothing to do."""
        proven = self.prove(current) if proven is None else proven
        verdicts = proven.proofs.verdicts
        good = (verdicts == Verdict.ARGMAXABLE) | (verdicts == Verdict.TIED)
        was = (self.before == Verdict.ARGMAXABLE) | (self.before == Verdict.TIED)
        longest = 0.0
        if current.weight is not self.head.weight:
            longest = max(
                float(np.linalg.norm(current.rows(start, start + len(block)) - block, axis=1).max())
                for start, block in self.head.blocks(_ROWS)
            )
        size = longest
        if self.how == "bias":
            size = change_size(current.offsets - self.head.offsets, self.norm)
        new = witnesses_of(proven, current)
        inputs = np.where(np.isfinite(new), new, self.inputs)
        return Repair(
            current.weight, None if current.bias is None else current.offsets, self.how,
            self.norm, self.margin, np.flatnonzero(good & ~was),
            np.flatnonzero(verdicts == Verdict.TIED),
            np.flatnonzero(self.wanted & ~good), inputs, size, needed, self.touching,
            np.flatnonzero(self.faint), longest if self.how == "bias" else 0.0, proven,
            tuple(self.notes),
        )  # fmt: skip


def change_size(change: np.ndarray, norm: str) -> float:
    """The ∞-norm or 1-norm of a change of biases, after the common constant that makes it least."""
    if norm == "inf":
        return float(np.ptp(change)) / 2
    return float(np.abs(change - np.median(change)).sum())


def replace_bias(head: Head, bias: np.ndarray) -> Head:
    """The head with other biases, in the type that biases (or else weights) are stored in."""
    stored = head.weight if head.bias is None else head.bias
    dtype = np.dtype(np.float64) if stored.dtype.kind in "iub" else stored.dtype
    return head.replace(bias=bias.astype(dtype))


def _equal_rows(head: Head) -> np.ndarray:
    """One number for each group of classes with equal rows, −1 for the others: (C,)."""
    keys = np.full(head.classes, -1)
    for k, group in enumerate(equal_classes(head.replace(bias=None))):
        keys[group] = k
    return keys


__all__ = ["BiasNeeded", "Repair", "bias_needed", "repair"]
