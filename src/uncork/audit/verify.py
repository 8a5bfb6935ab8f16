"""Verifying: every proof of an audit, checked again from nothing but the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from typing import TYPE_CHECKING

import numpy as np

from uncork.audit.backend import Backend, choose_backend
from uncork.audit.certify import Certifier
from uncork.audit.proofs import Proofs
from uncork.audit.verdict import Verdict
from uncork.errors import UncorkError
from uncork.head import Head

if TYPE_CHECKING:
    from uncork.audit.result import Audit


@dataclass
class Verification:
    """How many proofs of each kind hold, and which do not: class → what is wrong."""

    held: dict[str, int] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.failed


def verify(
    audit: Audit,
    head: Head,
    *,
    device: str = "cpu",
    jobs: int | None = None,
    tick: Callable[[int], None] = lambda n: None,
) -> Verification:
    """Check every verdict of an audit against a head; `.ok` is the answer, `.failed` names why not.

    Raises `UncorkError` where the audit is of other weights, since then no proof means anything.
    """
    if audit.fingerprint != head.fingerprint:
        raise UncorkError(
            f"these certificates are for the weights {audit.fingerprint[:19]}…, "
            f"but the head is {head.fingerprint[:19]}…: they prove nothing about it"
        )
    if (audit.classes, audit.features) != (head.classes, head.features):
        raise UncorkError("the certificates are for a head of another shape")
    audit.domain.check(head.features)
    backend = choose_backend(device, jobs)
    return verify_proofs(Certifier(head, audit.domain, backend), audit.proofs, backend, tick)


def verify_proofs(
    certifier: Certifier,
    proofs: Proofs,
    backend: Backend,
    tick: Callable[[int], None] = lambda n: None,
) -> Verification:
    """Check every verdict of `proofs`; an undecided class claims nothing and needs no proof."""
    with np.errstate(all="ignore"):  # what overflows is refused
        return _verify(certifier, proofs, backend, tick)


def _verify(
    certifier: Certifier, proofs: Proofs, backend: Backend, tick: Callable[[int], None]
) -> Verification:
    result = Verification()
    groups = _checked_groups(certifier, proofs, result)
    first = np.array([int(g[0]) for g in groups.values()], dtype=np.int64)
    wanted = np.flatnonzero(proofs.verdicts == Verdict.ARGMAXABLE)
    wanted = np.union1d(wanted, first[proofs.verdicts[first] == Verdict.TIED]).astype(np.int64)
    good = np.zeros(len(proofs.verdicts), dtype=bool)


    def witnessed(classes: np.ndarray) -> np.ndarray:
        return certifier.witnesses(classes, proofs.stored_inputs(certifier.head, classes), groups)

    stored = wanted[proofs.has_input(wanted)]
    parts = [stored[start : start + backend.inputs] for start in range(0, len(stored), backend.inputs)]
    with backend.threads() as over:
        for part, margins in zip(parts, over(witnessed, parts), strict=True):
            good[part] = margins > 0
            tick(len(part))
    for t, witness in proofs.exact.items():
        good[t] = certifier.exact_witness(t, witness, groups) > 0

    def beaten(t: int) -> bool:
        mixture = proofs.mixtures.get(t)
        return mixture is not None and certifier.mixture(t, mixture) >= 0

    lost = proofs.ids(Verdict.UNARGMAXABLE).tolist()
    if lost:
        _ = certifier.bulk  # once, before the threads ask for it
    with backend.threads() as over:
        for t, holds in zip(lost, over(beaten, lost), strict=True):
            good[t] = holds
            tick(1)
    for t in proofs.ids(Verdict.TIED).tolist():
        good[t] = t in groups and good[int(groups[t][0])]
    for t in np.flatnonzero((proofs.verdicts != Verdict.UNDECIDED) & ~good).tolist():
        verdict = str(Verdict(int(proofs.verdicts[t])))
        result.failed.setdefault(t, f"the proof that it is {verdict} does not hold")
    for verdict in (Verdict.ARGMAXABLE, Verdict.UNARGMAXABLE, Verdict.TIED):
        result.held[str(verdict)] = int(((proofs.verdicts == verdict) & good).sum())
    return result


def _checked_groups(
    certifier: Certifier, proofs: Proofs, result: Verification
) -> dict[int, np.ndarray]:
    """Class → its group, for the groups whose members really are equal."""
    groups: dict[int, np.ndarray] = {}
    for group in proofs.groups:
        ids = group.tolist()
        unequal = [i for i in ids[1:] if not certifier.equal(i, ids[0])]
        if unequal or len(ids) < 2:
            result.failed.update(dict.fromkeys(unequal or ids, "it does not equal its group"))
        else:
            groups.update(dict.fromkeys(ids, group))
    return groups
