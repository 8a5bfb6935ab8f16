"""Items compared by cosine or Euclidean distance: each is first at its own vector, by a theorem."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from uncork.auditing.certify.own_rows import alike, in_domain, zero_items
from uncork.auditing.proofs.proofs import Proofs
from uncork.auditing.proofs.verdict import Verdict
from uncork.auditing.result import Audit
from uncork.core.class_ids import class_ids
from uncork.core.errors import UncorkError
from uncork.core.items import Items
from uncork.core.progress import Progress, progress_bar
from uncork.core.rigour import check_arithmetic
from uncork.domain import Domain, Unbounded

WHY = {
    "cosine": "an item is first when the query is its own vector, by Cauchy and Schwarz, unless "
    "another has the same direction",
    "euclidean": "an item is first when the query is its own vector, at distance zero, unless "
    "another has the same vector",
}
_ZERO = "its vector is zero and has no direction: its cosine is not defined"
_OUTSIDE = (
    "its own vector is not in the domain: whether another query finds it was not asked (uncork "
    "retrieve --every 1 does)"
)
_HALVINGS = 64  # how often a vector is halved to fit into a domain, under cosine


def audit_items(
    items: Items,
    domain: Domain | None = None,
    classes: Sequence[int] | np.ndarray | None = None,
    progress: bool | Progress = False,
) -> Audit:
    """Say of every item compared by cosine or Euclidean distance whether a query finds it first.

    The answer is a theorem (`certify.own_rows`): argmaxable with its own vector as witness, or tied
    with those that the metric does not tell apart. Undecided are vectors of zeros under cosine, and
    items whose own vector is not in the domain.
    """
    if items.metric == "inner":
        raise UncorkError("items compared by inner product are a head: audit items.head(domain)")
    began = time.perf_counter()
    domain = Unbounded() if domain is None else domain
    if domain.affine(items.features).steps:
        raise UncorkError(
            f"domain {domain}: for items compared by {items.metric_in_words} only plain domains "
            "are decided (unbounded, ball, box)"
        )
    check_arithmetic()
    with progress_bar(progress) as bar:
        bar.stage("comparing", len(items))
        proofs = _proofs(items, domain, bar.advance)
    seconds = time.perf_counter() - began
    return Audit(
        proofs, items.fingerprint, domain, items.features, items.dtype, False,
        labels=items.labels, source=items.source, algorithm="own vectors",
        asked=None if classes is None else np.unique(class_ids(len(items), classes)),
        seconds={"decide": seconds, "total": seconds}, proven=True,
        reading=items.reading, metric=items.metric, items=items,
    )  # fmt: skip


def _proofs(items: Items, domain: Domain, tick: Callable[[int], None]) -> Proofs:
    """Made by the trusted code alone, which `uncork verify` runs again."""
    proofs = Proofs.empty(len(items))
    proofs.groups = alike(items, tick)
    proofs.scales = _scales(items, domain)
    inside = proofs.scales > 0
    proofs.reasons = dict.fromkeys(np.flatnonzero(~inside).tolist(), _OUTSIDE)
    proofs.verdicts[inside] = Verdict.ARGMAXABLE
    if items.metric == "cosine":
        zero = zero_items(items)
        proofs.verdicts[zero] = Verdict.UNDECIDED
        proofs.reasons |= dict.fromkeys(zero.tolist(), _ZERO)
    for group in proofs.groups:
        # What puts one of a group first puts all of it there.
        if inside[group].any():
            proofs.verdicts[group] = Verdict.TIED
            proofs.scales[group] = np.where(inside[group], proofs.scales[group], 0)
            for t in group.tolist():
                proofs.reasons.pop(t, None)
    return proofs


def _scales(items: Items, domain: Domain) -> np.ndarray:
    """A power of two for each item that takes its vector into the domain, 0 where none was found;
    under Euclidean distance only 1 will do: (n,)."""
    scales = np.ones(len(items), dtype=np.float32)
    left = np.arange(len(items))
    for _ in range(_HALVINGS if items.metric == "cosine" else 1):
        left = left[~in_domain(items, domain, left, scales[left])]
        if not len(left):
            return scales
        scales[left] /= 2
    scales[left] = 0
    return scales
