"""Classes that differ only where no input of the domain goes: each is the other's mixture.

Where inputs are x = F(u), rows that differ as stored may be equal as u sees them (a gain of zero,
say): such classes tie everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from uncork.auditing.duplicates import equal_classes
from uncork.auditing.folded import Folded
from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.search.proposer import Mixtures, Proposal, Proposer, Search
from uncork.auditing.search.space import Space


def propose(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    if not isinstance(space.head, Folded):
        return
    undecided = set(classes.tolist())
    pairs = []
    for group in equal_classes(space.head, space.backend):
        different = np.unique(space.representative[group]).tolist()
        for t, other in zip(different, different[1:] + different[:1], strict=True):
            if t != other and t in undecided:
                pairs.append((t, Mixture(np.array([other], np.int32), np.ones(1))))
    yield Mixtures(pairs)


PROPOSER = Proposer("equals", "prepare", propose)
