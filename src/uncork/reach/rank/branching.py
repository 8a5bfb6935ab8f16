"""Best ranks of small heads, exactly: mixtures for every case, or an input that shows otherwise.

At every input some class of a mixture is at or above t. Whichever it is, leave it out and ask
again: if t still has a mixture among the rest, two classes are at or above it. So mixtures for all
cases of classes left out, k levels deep, prove that t is never in the top k. Their number grows as
(features + 1)ᵏ at worst, so this is for heads of few features; there it closes the gap that
disjoint mixtures leave.
"""

from __future__ import annotations

import numpy as np

from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Mixture
from uncork.reach.rank.own_classes import holds, proven
from uncork.reach.rank.packing import Dealer

_NODES = 1500

Cases = dict[frozenset[int], Mixture]  # classes left out → a mixture of others


class _TooLarge(Exception):
    pass


class _Search:
    def __init__(self, dealer: Dealer, certifier: Certifier, points: np.ndarray, t: int) -> None:
        self.dealer, self.certifier, self.points, self.t = dealer, certifier, points, t
        self.known: Cases = {}
        self.deep: dict[frozenset[int], int] = {}
        self.unproven = False

    def grow(self, left_out: frozenset[int], depth: int) -> np.ndarray | None:
        """Find mixtures for all cases from here on; or a direction at which only classes left out
        are above t."""
        if self.deep.get(left_out, 0) >= depth:
            return None
        if left_out not in self.known:
            if len(self.known) >= _NODES:
                raise _TooLarge
            found = vertex(self.dealer, left_out)
            if isinstance(found, np.ndarray):
                return found
            held = None if found is None else proven(self.certifier, self.points, self.t, found)
            if held is None:
                raise _TooLarge
            self.known[left_out] = held
        if depth > 1:
            for i in self.known[left_out].classes.tolist():
                direction = self.grow(left_out | {i}, depth - 1)
                if direction is not None:
                    return direction
        self.deep[left_out] = depth
        return None


class Branching:
    """One class's cases, kept from one depth to the next."""

    def __init__(self, dealer: Dealer, certifier: Certifier, points: np.ndarray, t: int) -> None:
        self._search = _Search(dealer, certifier, points, t)

    def prove(self, depth: int) -> Cases | np.ndarray | None:
        """Cases that prove `depth` classes at or above t everywhere; or a direction (width,) at
        which fewer are; or None where neither was found within the limit."""
        try:
            direction = self._search.grow(frozenset(), depth)
        except _TooLarge:
            return None
        return dict(self._search.known) if direction is None else direction


def vertex(dealer: Dealer, left_out: frozenset[int]) -> Mixture | np.ndarray | None:
    """A mixture of few classes other than those left out, or a direction that separates t.

    max r   s.t.   a_k·y + r ≤ 0,   sides·y ≤ 0,   −1 ≤ y ≤ 1,   r ≤ 1
    """
    from scipy.optimize import linprog

    kept = np.flatnonzero(~np.isin(dealer.others, list(left_out)))
    for i in dealer.same.tolist():
        if i not in left_out:
            return Mixture(np.array([i]), np.ones(1))
    rows = np.concatenate([dealer.unit[kept], dealer.extra])
    slack = np.ones(len(rows))
    slack[len(kept) : len(kept) + len(dealer.sides)] = 0.0
    width = rows.shape[1]
    solved = linprog(
        np.append(np.zeros(width), -1.0), A_ub=np.column_stack([rows, slack]),
        b_ub=np.zeros(len(rows)), bounds=[(-1, 1)] * width + [(None, 1)], method="highs-ds",
    )  # fmt: skip
    if solved.status != 0:
        return None
    if solved.x[-1] > 1e-10:
        return np.asarray(solved.x[:-1])
    duals = np.maximum(-solved.ineqlin.marginals, 0.0)[: len(kept)]
    chosen = np.flatnonzero(duals > 1e-12)
    if not len(chosen):
        return None
    shares = duals[chosen] / dealer.lengths[kept[chosen]]
    order = np.argsort(dealer.others[kept[chosen]])
    return Mixture(dealer.others[kept[chosen]][order], (shares / shares.sum())[order])


def cases_bound(certifier: Certifier, t: int, cases: Cases) -> int:
    """Proven: so many classes are at or above t at every input."""
    known: dict[frozenset[int], int] = {}

    def bound(left_out: frozenset[int]) -> int:
        if left_out in known:
            return known[left_out]
        mixture, result = cases.get(left_out), 0
        if mixture is not None:
            members = set(mixture.classes.tolist())
            if members and not left_out & members and holds(certifier, t, mixture):
                result = 1 + min(bound(left_out | {i}) for i in members)
        known[left_out] = result
        return result

    return bound(frozenset())
