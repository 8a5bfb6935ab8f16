"""Proving a repaired head: the witnesses that the repair proposes certified, the rest decided."""

from __future__ import annotations

import time

import numpy as np

from uncork.auditing import Audit, Verdict, audit
from uncork.auditing.backend import choose_backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.certify.products import Device
from uncork.auditing.duplicates import equal_classes
from uncork.auditing.recorder import Recorder
from uncork.auditing.run import STAGES
from uncork.core.head import Head
from uncork.core.progress import Progress

_BLOCK = 4096


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
    backend = choose_backend(device, jobs)
    begun = time.perf_counter()
    recorder = Recorder(Certifier(head, head.domain, backend), backend)
    proofs = recorder.proofs
    proofs.groups = equal_classes(head)
    recorder.groups = {int(i): g for g in proofs.groups for i in g.tolist()}
    first = np.ones(head.classes, dtype=bool)
    for group in proofs.groups:
        first[group[1:]] = False
    known = np.flatnonzero(first & np.isfinite(inputs).all(axis=1))
    with np.errstate(all="ignore"):
        for start in range(0, len(known), _BLOCK):
            some = known[start : start + _BLOCK]
            recorder.propose(some, inputs[some])
        recorder.flush()
    asked = np.ones(head.classes, dtype=bool) if wanted is None else wanted
    left = bool((proofs.verdicts[first & asked] == Verdict.UNDECIDED).any())
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


def witnesses_of(found: Audit, head: Head) -> np.ndarray:
    """The witnesses in floats that an audit holds: (C, latent), NaN where it has none."""
    latent = head.domain.affine(head.features).latent
    inputs = np.full((head.classes, latent), np.nan)
    won = np.flatnonzero(
        (found.proofs.verdicts == Verdict.ARGMAXABLE) | (found.proofs.verdicts == Verdict.TIED)
    )
    won = won[found.proofs.has_input(won)]
    if len(won):
        inputs[won] = np.asarray(found.proofs.stored_inputs(head, won, latent, Device()))
    return inputs
