"""Pairs, sets and prefixes: can t rank above s, can a set be the top k, can an order lead?

Each asks for an input with z_i > z_j for certain pairs (i, j). Either there is one, and it is the
witness; or some weights μ ≥ 0 on the pairs have Σ μ (z_i − z_j) ≤ 0 at every input, and they are
the proof that there is none. Pairs are generated as needed: a linear programme over a few, all
pairs looked at where it ends, the worst violated ones added.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from uncork.auditing.backend import Backend
from uncork.auditing.certify.balance import balance_of
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.certify.support import upper_bound
from uncork.auditing.search.exact import Limit, alternative
from uncork.auditing.search.mixtures import balanced
from uncork.auditing.search.space import Space
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.rigour import row_norms
from uncork.domain import Domain
from uncork.reach.limits import check_sizes

_ROUNDS = 200
_ADDED = 64
_LOWEST = 8
_OPEN = 2000  # pairs settled exactly at one input
_SECONDS = 30.0


@dataclass(frozen=True)
class Arrangement:
    """What was asked, and its proof: an input (latent,), or weights on pairs (i, j) of classes.

    `possible` is None where neither was proven.
    """

    possible: bool | None
    input: np.ndarray | None = None
    pairs: np.ndarray | None = None  # (n, 2)
    weights: tuple[Fraction, ...] = ()


def can_rank_above(head: Head, t: int, s: int, domain: Domain | None = None) -> Arrangement:
    """Whether some input puts class t strictly above class s."""
    return _decide(head, domain, [t, s], [([t], [s])])


def can_be_top(head: Head, classes: Sequence[int], domain: Domain | None = None) -> Arrangement:
    """Whether some input puts exactly these classes, in whatever order, before all others."""
    inside = [int(i) for i in classes]
    outside = np.setdiff1d(np.arange(head.classes), inside)
    return _decide(head, domain, inside, [(inside, outside)])


def can_lead(head: Head, classes: Sequence[int], domain: Domain | None = None) -> Arrangement:
    """Whether some input puts these classes first, in this order, before all others."""
    order = [int(i) for i in classes]
    outside = np.setdiff1d(np.arange(head.classes), order)
    steps: list[Block] = [([i], [j]) for i, j in itertools.pairwise(order)]
    return _decide(head, domain, order, [*steps, (order[-1:], outside)])


# Each class of the first above each of the second.
Block = tuple[Sequence[int] | np.ndarray, Sequence[int] | np.ndarray]


def _decide(
    head: Head, domain: Domain | None, named: Sequence[int], blocks: Sequence[Block]
) -> Arrangement:
    if not named or len(set(named)) != len(named):
        raise UncorkError("name at least one class, and each once")
    wrong = [i for i in named if not 0 <= i < head.classes]
    if wrong:
        raise UncorkError(f"class {wrong[0]} does not exist: the head has {head.classes} classes")
    kept = [(np.asarray(a), np.asarray(b)) for a, b in blocks if len(a) and len(b)]
    if not kept:
        raise UncorkError("every class is named: leave some out")
    check_sizes(head, small=False)
    domain = head.domain if domain is None else domain
    with np.errstate(all="ignore"):
        return _Programme(head, domain, kept).run()


class _Programme:
    def __init__(
        self, head: Head, domain: Domain, blocks: list[tuple[np.ndarray, np.ndarray]]
    ) -> None:
        self.space = Space(head, domain, Backend(1, np.float64))
        self.points = self.space.precise(np.arange(head.classes))
        self.certifier = Certifier(head, domain)
        self.blocks = blocks
        self.pairs: list[tuple[int, int]] = []

    def run(self) -> Arrangement:
        from scipy.optimize import linprog

        space, width = self.space, self.space.width
        extra = [space.sides()]
        if space.lifted:
            extra.append(np.append(np.zeros(width - 1), -1.0)[None])
        fixed = np.concatenate(extra)
        fixed_slack = np.zeros(len(fixed))
        if space.lifted:
            fixed_slack[-1] = 1.0
        y = np.zeros(width)
        if space.lifted:
            y[-1] = 1.0
        self._add(y)
        for _ in range(_ROUNDS):
            first, second = np.array(self.pairs).T
            rows = self.points[second] - self.points[first]
            lengths = np.linalg.norm(rows, axis=1)
            rows = rows / np.where(lengths > 0, lengths, 1.0)[:, None]
            both = np.column_stack(
                [np.concatenate([rows, fixed]), np.append(np.ones(len(rows)), fixed_slack)]
            )
            solved = linprog(
                np.append(np.zeros(width), -1.0), A_ub=both, b_ub=np.zeros(len(both)),
                bounds=[(-1, 1)] * width + [(None, 1)], method="highs-ds",
            )  # fmt: skip
            if solved.status != 0:
                break
            if not solved.x[-1] > 1e-11:
                duals = self._clearly(rows, fixed)
                if duals is None:
                    duals = -solved.ineqlin.marginals
                return self._impossible(np.concatenate([rows, fixed]), duals)
            if not self._add(solved.x[:-1]):
                return self._possible(solved.x[:-1])
        return Arrangement(None)

    def _add(self, y: np.ndarray) -> bool:
        """Take in the worst pairs at y that are not in order; False if there are none."""
        known, z = set(self.pairs), self.points @ y
        found = []
        for inside, outside in self.blocks:
            low = inside[np.argsort(z[inside])[:_LOWEST]]
            high = outside[np.argsort(-z[outside])[:_ADDED]]
            found += [(float(z[j] - z[i]), int(i), int(j)) for i in low for j in high]
        found = sorted(found, reverse=True)
        new = [(i, j) for lead, i, j in found if lead >= 0 and (i, j) not in known][:_ADDED]
        if not self.pairs and not new:
            new = [(i, j) for _, i, j in found[:_ADDED]]
        self.pairs += new
        return bool(new)

    def _possible(self, y: np.ndarray) -> Arrangement:
        space = self.space
        x = space.sharp_inputs(y[None])
        x = space.clip(space.with_fixed(x)) if space.lifted else space.enter(x)
        u = np.asarray(space.proposed(x), dtype=np.float64)[0]
        return Arrangement(True, u) if self.holds(u) else Arrangement(None)

    def holds(self, u: np.ndarray) -> bool:
        """Proven: at this input every pair asked for is in order."""
        certifier, products = self.certifier, self.certifier.products
        x, drift, inside = certifier.seen(u[None])
        if not inside[0]:
            return False
        reach = float(row_norms(x)[0])
        z = np.concatenate([block @ x[0] for _, block in certifier.head.blocks(4096)])
        z += certifier.offsets
        size = reach * products.norms + np.abs(certifier.offsets)
        error = float((products.kappa * size + products.slop).max()) * 1.01
        error += 1.05 * float(drift[0]) * float(products.norms.max())
        exact = [Fraction(v) for v in u.tolist()]
        for inside, outside in self.blocks:
            # Classes clear of all on the other side need no second look.
            low = inside[~(z[inside] > z[outside].max() + 2 * error)]
            high = outside[~(z[outside] < z[inside].min() - 2 * error)]
            if len(low) * len(high) > _OPEN:
                return False
            if not all(certifier.exact_lead(i, exact, j) > 0 for i in low for j in high):
                return False
        return True

    def _clearly(self, rows: np.ndarray, fixed: np.ndarray) -> np.ndarray | None:
        """Duals of the pairs and fixed rows that leave as much room as there is; None where no
        length matters. The programme above ends at zero, and any of its duals will do for it."""
        from scipy.optimize import linprog

        if not self.space.lifted:
            return None
        both, sides = np.concatenate([rows, fixed[:-1]]), len(fixed) - 1
        slack = np.append(np.ones(len(rows)), np.zeros(sides))
        solved = linprog(
            np.append(np.zeros(rows.shape[1] - 1), -1.0),
            A_ub=np.column_stack([both[:, :-1], slack]), b_ub=-both[:, -1],
            bounds=[(None, None)] * rows.shape[1], method="highs-ds",
        )  # fmt: skip
        if solved.status != 0:
            return None
        duals = np.maximum(-solved.ineqlin.marginals, 0.0)
        return np.append(duals, max(float(duals @ both[:, -1]), 0.0))

    def _impossible(self, rows: np.ndarray, duals: np.ndarray) -> Arrangement:
        pairs = np.array(self.pairs)
        lengths = np.linalg.norm(self.points[pairs[:, 1]] - self.points[pairs[:, 0]], axis=1)
        # The programme's tolerance is seen from far out in the domain; rounding alone is not.
        duals = np.maximum(duals, 0.0)
        moved, good = balanced(self.space.backend, rows[None], duals[None])
        duals = (moved[0] if good[0] else duals)[: len(pairs)]
        weights = duals / np.where(lengths > 0, lengths, 1.0)
        kept = np.flatnonzero(weights > 1e-12 * weights.max(initial=0.0))
        if not len(kept):
            return Arrangement(None)
        pairs, weights = pairs[kept], weights[kept] / weights[kept].sum()
        if self.never(pairs, weights):
            return Arrangement(False, None, pairs, tuple(Fraction(w) for w in weights.tolist()))
        exact = self._exactly(pairs)
        if exact is None or not self.never_exactly(pairs, exact):
            return Arrangement(None)
        return Arrangement(False, None, pairs, exact)

    def never(self, pairs: np.ndarray, weights: np.ndarray) -> bool:
        """Proven in floats: Σ μ (z_i − z_j) ≤ 0 at every input."""
        certifier = self.certifier
        head = certifier.head
        away = head.take(pairs[:, 0]) - head.take(pairs[:, 1])
        bias = certifier.offsets[pairs[:, 0]] - certifier.offsets[pairs[:, 1]]
        seen = balance_of(away, bias, weights).seen_through(certifier.latent)
        linear, constant = (seen.residual, seen.error), (seen.constant, seen.constant_error)
        return bool(upper_bound(certifier.base, *linear, *constant) <= 0)

    def never_exactly(self, pairs: np.ndarray, weights: Sequence[Fraction]) -> bool:
        """As `never`, in fractions."""
        if any(w < 0 for w in weights) or not any(weights):
            return False
        total = [Fraction(0)] * (self.certifier.head.features + 1)
        for row, weight in zip(self._rows(pairs), weights, strict=True):
            total = [a - weight * b for a, b in zip(total, row, strict=True)]
        seen, shift = self.certifier.latent.back_exactly(total[:-1])
        upper = self.certifier.base.upper_bound_exactly(seen, total[-1] + shift)
        return upper is not None and upper <= 0

    def _rows(self, pairs: np.ndarray) -> list[list[Fraction]]:
        """(w_j − w_i, b_j − b_i) for each pair."""
        head, offsets = self.certifier.head, self.certifier.offsets
        rows = []
        for i, j in pairs.tolist():
            own, other = head.take(np.array([i, j])).tolist()
            row = [Fraction(b) - Fraction(a) for a, b in zip(own, other, strict=True)]
            rows.append([*row, Fraction(offsets[j]) - Fraction(offsets[i])])
        return rows

    def _exactly(self, pairs: np.ndarray) -> tuple[Fraction, ...] | None:
        """Weights on these pairs in whole numbers, where x is u and the domain is flat-sided."""
        certifier = self.certifier
        if not certifier.latent.is_identity:
            return None
        head, base = certifier.head, certifier.base
        rows = self._rows(pairs)
        height = [Fraction(0)] * head.features + [Fraction(-1)]
        sides = base.outline(head.features).sides_exactly()
        try:
            kind, values = alternative([*rows, height], sides, time.monotonic() + _SECONDS)
        except Limit:
            return None
        if kind != "mixture":
            return None
        found = tuple(Fraction(v) for v in values[: len(rows)])
        return found if sum(found) > 0 else None
