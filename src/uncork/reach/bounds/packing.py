"""Proven: so many classes are at or above t at every input, from mixtures that may share classes.

Let B be the classes at or above t at some input; those equal to t do not count. Every mixture that
holds has a class in B. Give mixture j a share y_j ≥ 0 so that the shares of the mixtures with any
one class in them sum to one at most: a fractional packing. Then

    |B|  ≥  Σ_{i ∈ B} Σ_{j ∋ i} y_j  =  Σ_j y_j · |S_j ∩ B|  ≥  Σ_j y_j,

and |B| is a whole number. Disjoint mixtures are the packing in which every share is one.

A tree tells cases apart: a class is in B, or it is not. In a leaf some classes R are known to be in
B, and some X known not to be. There the mixtures must have none of R, the sums need hold only
outside X, and |B| ≥ |R| + ⌈Σ y_j⌉. The least of all leaves is proven.

Shares are whole numbers of 1/UNIT, and everything here is counted in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Mixture
from uncork.reach.bounds.rank import holds

UNIT = 1 << 30  # shares are multiples of 1/UNIT
MOST_NODES = 1 << 16
DEEPEST = 512  # classes that a case may tell apart
_MOST_WORK = 1 << 27  # classes looked at in all leaves


@dataclass(frozen=True)
class Tree:
    """Cases in the order in which they are met: first the class is in B, then it is not.

    A node is the class that it asks about, or −1 − n for a leaf with the next n shares.
    """

    nodes: np.ndarray  # (m,) int
    mixtures: np.ndarray  # (n,) int: which of the class's mixtures
    shares: np.ndarray  # (n,) int, of 1/UNIT


def packing_bound(certifier: Certifier, t: int, mixtures: Sequence[Mixture], tree: Tree) -> int:
    """Proven: so many classes are at or above t at every input; 0 where the tree proves nothing."""
    used = np.unique(tree.mixtures)
    if len(used) and not (used[0] >= 0 and used[-1] < len(mixtures)):
        return 0
    if not all(holds(certifier, t, mixtures[j]) for j in used.tolist()):
        return 0
    supports = {j: set(mixtures[j].classes.tolist()) for j in used.tolist()}
    least = count_of(tree, supports)
    return 0 if least is None else least


def count_of(tree: Tree, supports: dict[int, set[int]]) -> int | None:
    """What the least leaf says of mixtures on these sets of classes, each of which has a class in
    B; None where a leaf is missing, is too many, or is not a packing."""
    nodes, shares = tree.nodes.tolist(), tree.shares.tolist()
    named = tree.mixtures.tolist()
    if len(nodes) > MOST_NODES or len(shares) != len(named) or min(shares, default=0) < 0:
        return None
    if sum(len(supports[j]) for j in named) > _MOST_WORK:
        return None
    # Cases yet to be met, each with what is known in it.
    open_: list[tuple[frozenset[int], frozenset[int]]] = [(frozenset(), frozenset())]
    at, least = 0, None
    for node in nodes:
        if not open_:
            return None
        inside, outside = open_.pop()
        if node >= 0:
            known = len(inside) + len(outside)
            if node in inside or node in outside or known >= DEEPEST:
                return None
            open_ += [(inside, outside | {node}), (inside | {node}, outside)]
            continue
        stop = at + (-1 - node)
        if stop > len(shares):
            return None
        total = _packed(
            zip(named[at:stop], shares[at:stop], strict=True), supports, inside, outside
        )
        if total is None:
            return None
        proven, at = len(inside) + -(-total // UNIT), stop
        least = proven if least is None else min(least, proven)
    return least if not open_ and at == len(shares) else None


def _packed(
    shares: zip[tuple[int, int]],
    supports: dict[int, set[int]],
    inside: frozenset[int],
    outside: frozenset[int],
) -> int | None:
    """The sum of the shares, where they are a packing of this case."""
    room: dict[int, int] = {}
    total = 0
    for j, share in shares:
        if inside & supports[j]:
            return None
        total += share
        for i in supports[j] - outside:
            room[i] = room.get(i, 0) + share
    return total if max(room.values(), default=0) <= UNIT else None
