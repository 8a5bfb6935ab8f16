"""Ids that several items share: an id is found wherever one of its vectors is.

With a the highest score of an id's vectors at x and c the highest of all others, let a > c at some
x of the domain, and no vector of the id be first alone anywhere. Then two of its vectors are level
at x. If the domain has inner points, x may be moved a little, so that a > c still and only vectors
that are equal everywhere stay level: those are tied, and their group is first. So where each vector
of an id is unargmaxable, the id is never first by any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing.proofs.verdict import Verdict
from uncork.auditing.result import Audit


@dataclass(frozen=True)
class SharedIds:
    """How many ids there are, how many of them have several vectors, and which are never first."""

    count: int
    shared: int
    never: tuple[str, ...]
    undecided: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "count": self.count, "shared": self.shared, "never_retrieved": list(self.never),
            "undecided": self.undecided,
        }  # fmt: skip


def shared_ids(audit: Audit) -> SharedIds | None:
    """What the audit of all items says of their ids; None where each item has its own, or where
    the domain is such that nothing follows."""
    labels = audit.labels
    if labels is None or audit.asked is not None or not _has_inner_points(audit):
        return None
    numbers: dict[str, int] = {}
    owner = np.array([numbers.setdefault(name, len(numbers)) for name in labels])
    if len(numbers) == len(labels):
        return None
    verdicts = audit.proofs.verdicts
    found = np.zeros(len(numbers), dtype=bool)
    found[owner[np.isin(verdicts, (Verdict.ARGMAXABLE, Verdict.TIED))]] = True
    open_ = np.zeros(len(numbers), dtype=bool)
    open_[owner[verdicts == Verdict.UNDECIDED]] = True
    names = list(numbers)
    return SharedIds(
        len(names),
        int((np.bincount(owner) > 1).sum()),
        tuple(names[k] for k in np.flatnonzero(~found & ~open_).tolist()),
        int((open_ & ~found).sum()),
    )


def _has_inner_points(audit: Audit) -> bool:
    """Whether the domain is known to: a box with no flat side, a ball, or everything."""
    outline = audit.domain.outline(audit.features)
    if not outline.exact or (outline.is_round and outline.has_sides):
        return False
    return outline.radius > 0 and bool((outline.lower < outline.upper).all())
