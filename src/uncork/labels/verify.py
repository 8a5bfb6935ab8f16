"""Checking a label audit: every proof in it once more, with no solver."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from uncork.auditing.certify.products import Device
from uncork.core.head import Head
from uncork.labels.certify import LabelCertifier
from uncork.labels.result import LabelAudit, SetVerdict

_SETS = 1024  # looked at together
_WEAKER = 1e-6  # another machine rounds sums in another order: its margin may be a hair smaller


@dataclass
class Checked:
    """How many verdicts were proven again, and what was wrong with the others."""

    held: dict[str, int] = field(default_factory=lambda: {"feasible": 0, "infeasible": 0})
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.failed


def verify_sets(
    audit: LabelAudit | str | os.PathLike[str],
    head: Head,
    *,
    device: Device | None = None,
    tick: Callable[[int], None] | None = None,
) -> Checked:
    """Prove every verdict of the audit again, from its stored proofs and these weights alone."""
    claimed = audit if isinstance(audit, LabelAudit) else LabelAudit.load(audit, head)
    checked = Checked()
    if claimed.fingerprint != head.fingerprint:
        checked.failed = {
            int(k): "it is about other weights"
            for k in np.flatnonzero(claimed.verdicts != SetVerdict.UNDECIDED)
        }
        return checked
    certifier = LabelCertifier(head, claimed.thresholds, claimed.domain, device)
    decided = np.flatnonzero(claimed.verdicts != SetVerdict.UNDECIDED)
    for start in range(0, len(decided), _SETS):
        part = decided[start : start + _SETS]
        proven = proven_margins(certifier, claimed, part)
        for k, margin in zip(part.tolist(), proven.tolist(), strict=True):
            feasible = claimed.verdicts[k] == SetVerdict.FEASIBLE
            least = float(claimed.margins[k])
            if not (margin > 0 if feasible else margin >= 0):
                checked.failed[k] = "the proof does not hold"
            elif not margin >= least - _WEAKER * abs(least):
                checked.failed[k] = f"its margin is {margin:.3g}, not {least:.3g}"
            else:
                checked.held["feasible" if feasible else "infeasible"] += 1
        if tick is not None:
            tick(len(part))
    return checked


def proven_margins(certifier: LabelCertifier, claimed: LabelAudit, part: np.ndarray) -> np.ndarray:
    """The margins that the stored proofs of these sets give: (n,), NaN where there is no proof."""
    signs = claimed.sets.signs(part)
    margins = np.full(len(part), np.nan)
    inputs: dict[bool, list[int]] = {True: [], False: []}
    for row, k in enumerate(part.tolist()):
        proof = claimed.proofs[k]
        if proof is None:
            continue
        feasible = claimed.verdicts[k] == SetVerdict.FEASIBLE
        if feasible and proof.exact is not None:
            margins[row] = certifier.exact_witness(signs[row], proof.exact)
        elif proof.u is not None:
            inputs[bool(feasible)].append(row)
        elif not feasible and proof.labels is not None and proof.weights is not None:
            margins[row] = certifier.mixture(signs[row], proof.labels, proof.weights, proof.whole)
    for feasible, rows in inputs.items():
        if not rows:
            continue
        proofs = [claimed.proofs[int(part[row])] for row in rows]
        u = np.array([np.asarray(p.u, dtype=np.float64) for p in proofs if p is not None])
        targets = np.array([p.target for p in proofs if p is not None])
        if feasible:
            margins[rows] = certifier.witnesses(signs[rows], u)
        else:
            margins[rows] = certifier.tilted(signs[rows], u, targets)
    return margins
