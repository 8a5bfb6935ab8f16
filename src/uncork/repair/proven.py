"""A changed head as it would be stored, and its proof: proposed witnesses certified, the rest
decided."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from uncork.auditing import Audit, Verdict, audit
from uncork.auditing.backend import Backend, choose_backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.certify.products import Device
from uncork.auditing.duplicates import equal_classes
from uncork.auditing.recorder import Recorder
from uncork.auditing.run import STAGES
from uncork.core.head import Head
from uncork.core.progress import Progress

_BLOCK = 4096

Proposals = Callable[[np.ndarray], np.ndarray]  # classes (n,) → where they should win (n, latent)


def audit_repaired(
    head: Head,
    inputs: np.ndarray,
    *,
    wanted: np.ndarray | None = None,
    device: str = "auto",
    jobs: int | None = None,
    progress: bool | Progress = False,
    time_limit: float | None = None,
) -> Audit:
    """As `uncork.audit`, quicker where `inputs` (C, latent; NaN where there is none) are witnesses.

    Nothing is taken on trust: proposals go through the certifier, and what it refuses is decided in
    the ordinary way. `wanted` (C,) of bool names the classes to be decided: all unless given.
    """
    return audit_proposed(
        head, lambda classes: inputs[classes], np.isfinite(inputs).all(axis=1), wanted=wanted,
        device=device, jobs=jobs, progress=progress, time_limit=time_limit,
    )  # fmt: skip


def audit_proposed(
    head: Head,
    proposals: Proposals,
    proposed: np.ndarray,
    *,
    wanted: np.ndarray | None = None,
    device: str = "auto",
    jobs: int | None = None,
    progress: bool | Progress = False,
    time_limit: float | None = None,
) -> Audit:
    """As `audit_repaired`, with a function that proposes inputs for the classes in `proposed`, (C,)
    of bool."""
    backend = choose_backend(device, jobs)
    begun = time.perf_counter()
    recorder = certified(head, proposals, proposed, backend)
    proofs = recorder.proofs
    asked = np.ones(head.classes, dtype=bool) if wanted is None else wanted
    left = bool((proofs.verdicts[first_of_equals(recorder) & asked] == Verdict.UNDECIDED).any())
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
    classes = None if wanted is None else np.flatnonzero(wanted)
    result = audit(
        head, classes=classes, device=device, jobs=jobs, progress=progress, time_limit=time_limit,
        resume=result,
    )  # fmt: skip
    result.seconds["total"] += seconds["total"]
    return result


def certified(head: Head, proposals: Proposals, proposed: np.ndarray, backend: Backend) -> Recorder:
    """What the certifier makes of the proposals, one for each group of equal classes."""
    recorder = Recorder(Certifier(head, head.domain, backend), backend)
    recorder.proofs.groups = equal_classes(head)
    recorder.groups = {int(i): g for g in recorder.proofs.groups for i in g.tolist()}
    classes = np.flatnonzero(first_of_equals(recorder) & proposed)
    with np.errstate(all="ignore"):
        for start in range(0, len(classes), _BLOCK):
            some = classes[start : start + _BLOCK]
            recorder.propose(some, proposals(some))
        recorder.flush()
    return recorder


def first_of_equals(recorder: Recorder) -> np.ndarray:
    """One class of each group of equals, and all others: (C,) of bool."""
    first = np.ones(recorder.head.classes, dtype=bool)
    for group in recorder.proofs.groups:
        first[group[1:]] = False
    return first


def come_first(verdicts: np.ndarray) -> np.ndarray:
    """Which classes are argmaxable or tied: (C,) of bool."""
    return np.asarray((verdicts == Verdict.ARGMAXABLE) | (verdicts == Verdict.TIED))


def witnesses_of(found: Audit, head: Head) -> np.ndarray:
    """The witnesses in floats that an audit holds: (C, latent), NaN where it has none."""
    latent = head.domain.affine(head.features).latent
    inputs = np.full((head.classes, latent), np.nan)
    won = np.flatnonzero(come_first(found.proofs.verdicts))
    won = won[found.proofs.has_input(won)]
    if len(won):
        inputs[won] = np.asarray(found.proofs.stored_inputs(head, won, latent, Device()))
    return inputs


def bias_type(head: Head) -> np.dtype:
    """The type that biases, or else weights, are stored in; float64 if these are whole numbers."""
    stored = head.weight if head.bias is None else head.bias
    return np.dtype(np.float64) if stored.dtype.kind in "iub" else stored.dtype


def replace_bias(head: Head, bias: np.ndarray) -> Head:
    """The head with other biases, in the type that they are stored in."""
    return head.replace(bias=bias.astype(bias_type(head)))
