"""A head under repair: what was asked for, what is known so far, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uncork.auditing import Audit, Verdict
from uncork.auditing import audit as make_audit
from uncork.auditing.backend import Backend
from uncork.auditing.duplicates import equal_classes
from uncork.core.class_ids import class_ids
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress
from uncork.repair.proven import audit_repaired, bias_type, come_first, witnesses_of

_ROWS = 8192


@dataclass(frozen=True)
class Repair:
    """A new weight and bias, what they are, and why less would not do."""

    weight: np.ndarray  # (C, d) in the head's own type
    bias: np.ndarray | None  # (C,) float64, exact in the type that is stored
    how: str
    norm: str
    margin: float | None  # what was asked for; None: what the head's own type resolves
    freed: np.ndarray  # (n,) classes that were unargmaxable and no longer are
    tied: np.ndarray  # classes whose row equals another's: nothing tells them apart
    left: np.ndarray  # classes asked for that are still unargmaxable or undecided
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
        bias = None if self.bias is None else self.bias.astype(bias_type(like))
        return like.replace(weight=self.weight, bias=bias)


@dataclass(frozen=True)
class Options:
    """What `repair` was asked to do."""

    how: str
    norm: str
    margin: float | None
    device: str
    jobs: int | None
    time_limit: float | None


class RepairJob:
    """Biases, witnesses and verdicts so far."""

    def __init__(
        self,
        head: Head,
        known: Audit,
        classes: Sequence[int] | np.ndarray | None,
        options: Options,
        progress: Progress,
    ) -> None:
        self.head, self.options, self.progress = head, options, progress
        self.backend = Backend(options.jobs)
        self.before = known.proofs.verdicts
        self.asked = np.ones(head.classes, dtype=bool)
        if classes is not None:
            self.asked[:] = False
            self.asked[class_ids(head.classes, classes)] = True
        # What is argmaxable stays so, asked for or not.
        self.wanted = self.asked | come_first(self.before)
        self.equals = _equal_rows(head)
        self.inputs = witnesses_of(known, head)
        self.faint = np.zeros(head.classes, dtype=bool)
        self.touching = 0.0
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

    def prove(self, head: Head) -> Audit:
        """The changed head audited, from the witnesses known so far."""
        options = self.options
        return audit_repaired(
            head, self.inputs, wanted=self.wanted, device=options.device, jobs=options.jobs,
            progress=self.progress, time_limit=options.time_limit,
        )  # fmt: skip

    def result(self, current: Head, proven: Audit | None, needed: float) -> Repair:
        """What became of the head; `proven` is None where there was nothing to do."""
        proven = self.prove(current) if proven is None else proven
        verdicts, options = proven.proofs.verdicts, self.options
        good = come_first(verdicts)
        longest = 0.0
        if current.weight is not self.head.weight:
            longest = max(
                float(np.linalg.norm(current.rows(start, start + len(block)) - block, axis=1).max())
                for start, block in self.head.blocks(_ROWS)
            )
        size = longest
        if options.how == "bias":
            size = change_size(current.offsets - self.head.offsets, options.norm)
        new = witnesses_of(proven, current)
        inputs = np.where(np.isfinite(new), new, self.inputs)
        return Repair(
            current.weight, None if current.bias is None else current.offsets, options.how,
            options.norm, options.margin, np.flatnonzero(good & ~come_first(self.before)),
            np.flatnonzero(verdicts == Verdict.TIED),
            np.flatnonzero(self.wanted & ~good), inputs, size, needed, self.touching,
            np.flatnonzero(self.faint), longest if options.how == "bias" else 0.0, proven,
            tuple(self.notes),
        )  # fmt: skip


def audit_of(
    head: Head,
    known: Audit | None,
    jobs: int | None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Audit:
    """The audit given, if it is of all classes of this head; otherwise a new one."""
    if known is None:
        return make_audit(head, device=device, jobs=jobs, progress=progress or False)
    if known.fingerprint != head.fingerprint or known.domain != head.domain:
        raise UncorkError("the audit is of another head or another domain: make one of this head")
    if known.asked is not None and len(known.asked) < head.classes:
        # Classes that were not asked about may carry the surface that others have to reach.
        raise UncorkError("the audit is of some classes only: make one of all of them")
    return known


def change_size(change: np.ndarray, norm: str) -> float:
    """The ∞-norm or 1-norm of a change of biases, after the common constant that makes it least."""
    if norm == "inf":
        return float(np.ptp(change)) / 2
    return float(np.abs(change - np.median(change)).sum())


def _equal_rows(head: Head) -> np.ndarray:
    """One number for each group of classes with equal rows, −1 for the others: (C,)."""
    keys = np.full(head.classes, -1)
    for k, group in enumerate(equal_classes(head.replace(bias=None))):
        keys[group] = k
    return keys
