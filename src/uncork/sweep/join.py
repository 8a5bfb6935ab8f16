"""The ranges of a model put together again, for the store."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from uncork.auditing.proofs.proofs import Proofs
from uncork.auditing.proofs.verdict import Verdict
from uncork.auditing.result import Audit
from uncork.sweep.unit import Decided


def join(parts: Sequence[Decided], whole: bool) -> tuple[Audit, np.ndarray | None]:
    """One audit with the verdicts, margins and mixtures of all ranges, and the iterations.

    Witnesses stay in the ranges' own certificate files: what is joined here is for the store.
    `whole` says that the ranges together are every class of the head.
    """
    audits = [_audit(part) for part in parts]
    first = audits[0]
    proofs = Proofs.empty(first.classes)
    asked = []
    iterations = None if parts[0].iterations is None else np.full(first.classes, -1, np.int64)
    for audit, part in zip(audits, parts, strict=True):
        ids = np.arange(audit.classes) if audit.asked is None else audit.asked
        asked.append(ids)
        proofs.verdicts[ids] = audit.proofs.verdicts[ids]
        proofs.margins[ids] = audit.proofs.margins[ids]
        wanted = set(ids.tolist())
        proofs.mixtures.update({t: m for t, m in audit.proofs.mixtures.items() if t in wanted})
        proofs.reasons.update({t: r for t, r in audit.proofs.reasons.items() if t in wanted})
        if iterations is not None and part.iterations is not None:
            iterations[ids] = part.iterations
    proofs.groups = first.proofs.groups
    seconds: dict[str, float] = {}
    for part in parts:
        for stage, value in part.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + value
    joined = Audit(
        proofs,
        first.fingerprint,
        first.domain,
        first.features,
        first.dtype,
        first.has_bias,
        labels=parts[0].labels,
        source=parts[0].source,
        asked=None if whole else np.unique(np.concatenate(asked)),
        approximate=first.approximate,
        algorithm=first.algorithm,
        device=parts[0].device,
        seconds=seconds,
        proven=bool((proofs.verdicts != Verdict.UNDECIDED).any()),
        reading=first.reading,
    )
    return joined, iterations


def _audit(part: Decided) -> Audit:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "unit.npz"
        file.write_bytes(part.certificates)
        return Audit.load(file)
