"""Making sure of prevention: rounding taken into account, and theory's witnesses certified."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from uncork.auditing import Audit, Verdict, audit
from uncork.auditing.backend import Backend, choose_backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.duplicates import equal_classes
from uncork.auditing.recorder import Recorder
from uncork.auditing.run import STAGES
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress
from uncork.repair.prevent import Prevention, prevent

_BLOCK = 4096
_CROWD = 0.01  # rows this near to one another, as a share of their norm, are a crowd


def prevent_as_stored(
    head: Head,
    how: str,
    *,
    metric: str | np.ndarray = "identity",
    scale: float | None = None,
    least: bool = False,
    device: str = "auto",
    jobs: int | None = None,
) -> Prevention:
    """As `prevent`; where rounding to the stored type spoils its bias, with a better apex.

    If theory's witnesses fail for some rows, they crowd more closely than the rounded bias can tell
    apart. The apex then goes to the largest crowd.
    """
    made = prevent(head, how, metric=metric, scale=scale, least=least)
    if how != "bias":
        return made
    backend = choose_backend(device, jobs)
    left = _refused(head, made, backend)
    if not len(left):
        return made
    crowd = _largest_crowd(head, left)
    rows = head.take(crowd)
    medoid = int(crowd[np.argmin(np.linalg.norm(rows - rows.mean(axis=0), axis=1))])
    apex = head.rows(medoid, medoid + 1)[0]
    told = (
        f"{len(crowd):,} rows lie within {_CROWD:.0%} of class {medoid}'s, too close for the "
        "rounded bias to tell apart: its bowl has its apex there"
    )
    # A centre x₀ tilts the bowl, and the tilt is rounded too: without it the apex is finest.
    for moving in (True, False) if least else (True,):
        again = prevent(
            head, how, metric=metric, scale=scale, least=least, moving=moving, apex=apex
        )
        still = _refused(head, again, backend)
        if len(still) < len(left):
            made, left = replace(again, notes=(*again.notes, told)), still
        if not len(left):
            break
    return made


def as_stored(head: Head, made: Prevention) -> Head:
    """The prevention's head in the types that the original was stored in."""
    bias = made.bias
    if bias is not None:
        stored = head.weight if head.bias is None else head.bias
        with np.errstate(over="ignore", under="ignore"):
            rounded = bias if stored.dtype.kind in "iub" else bias.astype(stored.dtype)
        if not np.isfinite(rounded).all():
            raise UncorkError(
                f"the bias at scale {made.scale:g}, as large as {np.abs(bias).max():g}, does not "
                f"fit into {stored.dtype}: choose a smaller scale, or scale the weights down first"
            )
        bias = rounded
    return head.replace(weight=made.weight, bias=bias)


def _refused(head: Head, made: Prevention, backend: Backend) -> np.ndarray:
    recorder = _certified(as_stored(head, made), made, backend)
    return np.flatnonzero(_first(recorder) & (recorder.proofs.verdicts == Verdict.UNDECIDED))


def _largest_crowd(head: Head, classes: np.ndarray) -> np.ndarray:
    best = classes[:0]
    left = classes
    for _ in range(20):
        if len(left) <= len(best):
            break
        centre = head.take(left[:1])[0]
        near = np.linalg.norm(head.take(left) - centre, axis=1) <= _CROWD * np.linalg.norm(centre)
        near[0] = True
        best = left[near] if near.sum() > len(best) else best
        left = left[~near]
    return best


def _first(recorder: Recorder) -> np.ndarray:
    """One class of each group of equals: (C,) of bool."""
    first = np.ones(recorder.head.classes, dtype=bool)
    for group in recorder.proofs.groups:
        first[group[1:]] = False
    return first


def _certified(head: Head, made: Prevention, backend: Backend) -> Recorder:
    """Theory's witness of every class through the certifier."""
    recorder = Recorder(Certifier(head, head.domain, backend), backend)
    recorder.proofs.groups = equal_classes(head)
    recorder.groups = {int(i): g for g in recorder.proofs.groups for i in g.tolist()}
    # Where the domain is an image x = F(u), witnesses are kept as u.
    if made.fold is None and head.domain.affine(head.features).steps:
        return recorder
    wanted = np.flatnonzero(_first(recorder))
    with np.errstate(all="ignore"):
        for start in range(0, len(wanted), _BLOCK):
            some = wanted[start : start + _BLOCK]
            recorder.propose(some, made.witness(head.take(some)))
        recorder.flush()
    return recorder


def made_equal(before: Head, after: Audit) -> np.ndarray:
    """Classes that tie in the audit though their rows differed before: ids, ascending.

    Rows of one direction become one at equal norms; rounding may do the same to others.
    """
    merged = [group for group in after.proofs.groups if np.ptp(before.take(group), axis=0).any()]
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *merged]))


def audit_prevented(
    head: Head,
    prevention: Prevention,
    *,
    device: str = "auto",
    jobs: int | None = None,
    progress: bool | Progress = False,
    time_limit: float | None = None,
) -> Audit:
    """As `uncork.audit`, quicker: `head` is what became of the prevention when it was stored.

    Nothing is taken on trust. The witnesses x₀ + M w_t of the rounded rows go through the
    certifier as any proposal does, and what it refuses is decided in the ordinary way.
    """
    backend = choose_backend(device, jobs)
    begun = time.perf_counter()
    recorder = _certified(head, prevention, backend)
    proofs = recorder.proofs
    left = bool((proofs.verdicts[_first(recorder)] == Verdict.UNDECIDED).any())
    if not left:
        proofs.set_tied()
    seconds = dict.fromkeys(STAGES, 0.0)
    seconds["certify"] = recorder.seconds
    seconds["total"] = time.perf_counter() - begun
    result = Audit(
        proofs, head.fingerprint, head.domain, head.features, head.dtype, head.bias is not None,
        labels=head.labels, source=head.source, head=head, device=backend.name, seconds=seconds,
        proven=True,  # nothing enters the proofs unless it passed
    )  # fmt: skip
    if not left:
        return result
    result = audit(
        head, device=device, jobs=jobs, progress=progress, time_limit=time_limit, resume=result
    )
    result.seconds["total"] += seconds["total"]
    return result
