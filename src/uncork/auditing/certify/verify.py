"""Verifying: every proof of an audit, checked again from nothing but the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from uncork.auditing.backend import Backend, choose_backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.certify.guesses import Guesses, coordinates_of
from uncork.auditing.certify.own_rows import failed_claims
from uncork.auditing.proofs.formula import Formula
from uncork.auditing.proofs.proofs import Proofs
from uncork.auditing.proofs.verdict import Mixture, Verdict
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.items import METRICS, Items
from uncork.core.rigour import check_arithmetic

if TYPE_CHECKING:
    from uncork.auditing.result import Audit


_WIDTHS = 12  # what measuring costs, in classes for each feature
_MIXTURES = 256  # mixtures checked in one go by a thread


@dataclass
class Verification:
    """How many proofs of each kind hold, and which do not: class → what is wrong."""

    held: dict[str, int] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    altered: bool = False  # the file is not the one that was written, whatever it now proves

    @property
    def ok(self) -> bool:
        return not self.failed and not self.altered


def verify(
    audit: Audit,
    head: Head | Items,
    *,
    device: str = "cpu",
    jobs: int | None = None,
    tick: Callable[[int], None] = lambda n: None,
) -> Verification:
    """Check every verdict of an audit against a head; `.ok` is the answer, `.failed` names why not.

    The margins a file claims are replaced by those proven here, and `audit.proven` says whether
    everything held. Raises `UncorkError` where the audit is of other weights: then no proof means
    anything. Items take the place of the head where they are compared by another metric.
    """
    if isinstance(head, Items):
        if head.metric != "inner":
            return verify_items(audit, head, tick)
        head = head.head(audit.domain)
    if audit.fingerprint != head.fingerprint:
        raise UncorkError(
            f"these certificates are for the weights {audit.fingerprint[:19]}…, "
            f"but the head is {head.fingerprint[:19]}…: they prove nothing about it"
        )
    if (audit.classes, audit.features) != (head.classes, head.features):
        raise UncorkError("the certificates are for a head of another shape")
    audit.domain.check(head.features)
    backend = choose_backend(device, jobs)
    result = verify_proofs(Certifier(head, audit.domain, backend), audit.proofs, backend, tick)
    result.altered = audit.altered
    audit.proven = result.ok
    return result


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
    # A group's first class stands for it; an argmaxable class has to beat its equals too.
    tied = [t for t in {int(g[0]) for g in groups.values()} if proofs.verdicts[t] == Verdict.TIED]
    leads = _witness_leads(certifier, proofs, backend, {t: groups[t] for t in tied}, tick)
    behind = _mixture_leads(certifier, proofs, backend, tick)
    good = np.zeros(len(proofs.verdicts), dtype=bool)
    for t in proofs.ids(Verdict.ARGMAXABLE).tolist():
        good[t], proofs.margins[t] = leads[t] > 0, leads[t]
    for t in proofs.ids(Verdict.UNARGMAXABLE).tolist():
        good[t], proofs.margins[t] = behind[t] >= 0, -behind[t]
    for t in proofs.ids(Verdict.TIED).tolist():
        lead = leads[int(groups[t][0])] if t in groups and int(groups[t][0]) in tied else np.nan
        good[t], proofs.margins[t] = lead > 0, lead
    for t in np.flatnonzero((proofs.verdicts != Verdict.UNDECIDED) & ~good).tolist():
        claim = Verdict(int(proofs.verdicts[t]))
        result.failed.setdefault(t, f"the proof that it is {claim} does not hold")
    for verdict in (Verdict.ARGMAXABLE, Verdict.UNARGMAXABLE, Verdict.TIED):
        result.held[str(verdict)] = int(((proofs.verdicts == verdict) & good).sum())
    return result


def _witness_leads(
    certifier: Certifier,
    proofs: Proofs,
    backend: Backend,
    groups: dict[int, np.ndarray],
    tick: Callable[[int], None],
) -> np.ndarray:
    """What the witness of each argmaxable class, and of each tied group's first, proves: (C,)."""
    leads = np.full(len(proofs.verdicts), np.nan)
    wanted = np.union1d(proofs.ids(Verdict.ARGMAXABLE), np.array(list(groups), dtype=np.int64))

    def check(classes: np.ndarray) -> np.ndarray:
        latent = certifier.latent.width
        inputs = proofs.stored_inputs(certifier.head, classes, latent, backend)
        return certifier.witnesses(classes, inputs, groups)

    _lead_together(certifier, proofs, backend, groups, wanted, leads, tick)
    stored = wanted[proofs.has_input(wanted) & ~(leads[wanted] > 0)]
    step = backend.inputs
    parts = [stored[start : start + step] for start in range(0, len(stored), step)]
    with backend.threads() as over:
        for part, found in zip(parts, over(check, parts), strict=True):
            leads[part] = found
            tick(len(part))
    for t in wanted.tolist():
        if t in proofs.exact:
            leads[t] = certifier.exact_witness(t, proofs.exact[t], groups)
    return leads


def _lead_together(
    certifier: Certifier,
    proofs: Proofs,
    backend: Backend,
    groups: dict[int, np.ndarray],
    wanted: np.ndarray,
    leads: np.ndarray,
    tick: Callable[[int], None],
) -> None:
    """Fill in what the first guesses of all classes prove together, where most are by formula."""
    if proofs.formula is None or not _fits(proofs.formula, certifier):
        return
    by_formula = proofs.scales > 0
    by_formula[list(proofs.inputs)] = False
    by_formula &= np.isin(np.arange(len(leads)), wanted)
    # Half a product instead of one, and three of the width of the head, in float64, besides.
    if 2 * by_formula.sum() < len(leads) + _WIDTHS * certifier.latent.width:
        return
    coordinates = coordinates_of(proofs.formula, certifier)
    if coordinates is None:
        return
    guesses = Guesses(
        certifier, backend, proofs.formula, coordinates, list(groups.values()),
        scales=np.where(by_formula, proofs.scales, 0), strict=True,
    )  # fmt: skip
    for found in guesses.run():
        good = by_formula[found.classes] & (found.margins > 0)
        leads[found.classes[good]] = found.margins[good]
        tick(int(good.sum()))


def _fits(formula: Formula, certifier: Certifier) -> bool:
    features, latent = certifier.head.features, certifier.latent.width
    return formula.transform.shape == (features, latent) and formula.centre.shape == (features,)


def _mixture_leads(
    certifier: Certifier, proofs: Proofs, backend: Backend, tick: Callable[[int], None]
) -> np.ndarray:
    """What the mixture of each unargmaxable class proves: (C,)."""
    leads = np.full(len(proofs.verdicts), np.nan)
    beaten = [t for t in proofs.ids(Verdict.UNARGMAXABLE).tolist() if t in proofs.mixtures]
    leads[beaten] = mixture_leads(
        certifier, [(t, proofs.mixtures[t]) for t in beaten], backend, tick
    )
    return leads


def mixture_leads(
    certifier: Certifier,
    claims: list[tuple[int, Mixture]],
    backend: Backend,
    tick: Callable[[int], None] = lambda n: None,
) -> np.ndarray:
    """`Certifier.mixtures` of classes and their mixtures, on the backend's threads: (n,)."""
    if any(mixture.bulk for _, mixture in claims):
        _ = certifier.bulk, certifier.latent.shifts and certifier.bulk_of_rows  # once for all
    step = _MIXTURES if backend.jobs > 1 else max(_MIXTURES, len(claims))
    parts = [claims[start : start + step] for start in range(0, len(claims), step)]

    def check(part: list[tuple[int, Mixture]]) -> np.ndarray:
        return certifier.mixtures([t for t, _ in part], [mixture for _, mixture in part])

    leads = [np.empty(0)]
    with backend.threads(len(parts)) as over:
        for part, found in zip(parts, over(check, parts), strict=True):
            leads.append(found)
            tick(len(part))
    return np.concatenate(leads)


def _checked_groups(
    certifier: Certifier, proofs: Proofs, result: Verification
) -> dict[int, np.ndarray]:
    """Class → its group, for the groups whose members really are equal."""
    groups: dict[int, np.ndarray] = {}
    for group in proofs.groups:
        ids = group.tolist()
        unequal = [i for i in ids[1:] if not certifier.equal(i, ids[0]) or i in groups]
        if unequal or len(set(ids)) < max(2, len(ids)) or ids[0] in groups:
            result.failed.update(dict.fromkeys(unequal or ids, "it does not equal its group"))
        else:
            groups.update(dict.fromkeys(ids, group))
    return groups


def verify_items(
    audit: Audit, items: Items, tick: Callable[[int], None] = lambda n: None
) -> Verification:
    """Check every verdict of such an audit from nothing but the vectors."""
    if audit.fingerprint != items.fingerprint or audit.metric != items.metric:
        raise UncorkError(
            f"these certificates are for the vectors {audit.fingerprint[:19]}… compared by "
            f"{METRICS[audit.metric]}, and these are {items.fingerprint[:19]}…, compared by "
            f"{items.metric_in_words}: they prove nothing about them"
        )
    check_arithmetic()
    failed = failed_claims(items, audit.domain, audit.proofs, tick)
    result = Verification(failed=failed, altered=audit.altered)
    good = np.ones(len(items), dtype=bool)
    good[list(failed)] = False
    for verdict in (Verdict.ARGMAXABLE, Verdict.UNARGMAXABLE, Verdict.TIED):
        result.held[str(verdict)] = int(((audit.proofs.verdicts == verdict) & good).sum())
    audit.proven = result.ok
    return result
