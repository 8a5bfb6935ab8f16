"""What infeasible label sets cost on data: proven bounds on any classifier with this head.

An example whose label set is infeasible is never predicted exactly, whatever comes before the head.
Its F1 is below one too: of the sets that are left, the best has one label more (F1 of
2m/(2m + 1) for m labels) or, where only k labels may be predicted and m is k, one less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.labels.result import LabelAudit, SetVerdict


@dataclass(frozen=True)
class Price:
    """What the head rules out of the data that the sets were read from."""

    sets: int
    infeasible_sets: int
    examples: int
    infeasible_examples: int
    undecided_examples: int
    exact_match: float  # no classifier with this head gets more of these examples exactly right
    f1: float  # nor a higher mean F1 of an example
    at: int | None = None
    f1_at: float | None = None  # nor this, predicting at most `at` labels of each

    def to_dict(self) -> dict[str, Any]:
        described: dict[str, Any] = {
            "sets": self.sets, "infeasible_sets": self.infeasible_sets, "examples": self.examples,
            "infeasible_examples": self.infeasible_examples,
            "undecided_examples": self.undecided_examples,
            "exact_match_at_most": self.exact_match, "f1_at_most": self.f1,
        }  # fmt: skip
        if self.at is not None:
            described |= {"k": self.at, "f1_at_k_at_most": self.f1_at}
        return described


def price(audit: LabelAudit, at: int | None = None) -> Price:
    """The price on the data whose label sets were decided, `at` most labels predicted for F1@k."""
    if at is not None and at < 1:
        raise UncorkError(f"F1@{at}: expected k of one or more")
    sets, verdicts = audit.sets, audit.verdicts
    if sets.partial.any():
        raise UncorkError("questions with free labels are not the label sets of examples")
    counts = sets.counts.astype(np.float64)
    lost = verdicts == SetVerdict.INFEASIBLE
    total = float(counts.sum())
    f1 = np.array([best_f1(m, bool(no), None) for m, no in zip(sets.sizes, lost, strict=True)])
    f1_at = None
    if at is not None:
        best = [best_f1(m, bool(no), at) for m, no in zip(sets.sizes, lost, strict=True)]
        f1_at = _mean(best, counts)
    return Price(
        len(sets), int(lost.sum()), int(total), int(counts[lost].sum()),
        int(counts[verdicts == SetVerdict.UNDECIDED].sum()),
        float(counts[~lost].sum() / total), _mean(f1, counts), at, f1_at,
    )  # fmt: skip


def best_f1(size: int, infeasible: bool, at: int | None) -> float:
    """The highest F1 of an example with so many labels, predicting at most `at` labels."""
    m = int(size)
    if at is not None and m > at:
        return 2 * at / (at + m)  # the set itself is out of reach anyway
    if not infeasible:
        return 1.0
    if m == 0:  # whatever is predicted is wrong
        return 0.0
    if at is None or m < at:
        return 2 * m / (2 * m + 1)
    return 2 * (m - 1) / (2 * m - 1)


def _mean(values: Any, counts: np.ndarray) -> float:
    return float(np.asarray(values, dtype=np.float64) @ counts / counts.sum())


def wilson(found: int, of: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """The 95 % confidence interval of a share seen in a sample (Wilson's score interval)."""
    if of < 1:
        return 0.0, 1.0
    share, square = found / of, z * z / of
    middle = (share + square / 2) / (1 + square)
    half = z * math.sqrt(share * (1 - share) / of + square / (4 * of)) / (1 + square)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return (0.0 if found == 0 else low), (1.0 if found == of else high)


def conflicts(audit: LabelAudit, most: int = 10, looked_at: int = 2000) -> list[dict[str, Any]]:
    """Labels that weigh most in the proofs of infeasible sets: each with its mean share of a
    proof's weight and the number of sets it is part of, over at most `looked_at` sets."""
    shares: dict[int, float] = {}
    within: dict[int, int] = {}
    chosen = audit.infeasible[:looked_at]
    for k in chosen.tolist():
        found = audit.mixture(int(k))
        if found is None:
            continue
        for i, share in zip(found[0].tolist(), found[1].tolist(), strict=True):
            shares[i] = shares.get(i, 0.0) + share
            within[i] = within.get(i, 0) + 1
    order = sorted(shares, key=lambda i: -shares[i])[:most]
    return [
        {
            "label": i, "name": audit.label(i), "share": shares[i] / max(1, len(chosen)),
            "sets": within[i],
        }
        for i in order
    ]  # fmt: skip
