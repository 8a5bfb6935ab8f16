"""How many label sets a multi-label head can produce: Cover's count, exact integers.

Inputs that give the same labels form a region, and the walls z_i = θ_i are one hyperplane a label.
In general position L hyperplanes cut d dimensions into Σ_{k≤d} C(L, k) regions; through one point
(no bias and no threshold) into 2 Σ_{k<d} C(L−1, k) (Schläfli; Cover 1965, Theorem 1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from uncork.core.errors import UncorkError

_MOST_STEPS = 4_000_000


def label_sets(labels: int, features: int, *, bias: bool = False) -> int:
    """The number of feasible label sets of a head in general position, exactly."""
    _check(labels, features)
    if features >= labels:
        return 2**labels
    if bias:
        return sum(_binomials(labels, features))
    return 2 * sum(_binomials(labels - 1, features - 1))


def log10_label_sets(labels: int, features: int, *, bias: bool = False) -> float:
    """The decimal logarithm of the count."""
    count = label_sets(labels, features, bias=bias)
    shift = max(0, count.bit_length() - 1000)
    return math.log10(count >> shift) + shift * math.log10(2)


def _binomials(n: int, most: int) -> Iterable[int]:
    """C(n, 0), …, C(n, most)."""
    steps = range(1, min(most, n) + 1)
    return itertools.accumulate(steps, lambda c, k: c * (n - k + 1) // k, initial=1)


def _check(labels: int, features: int) -> None:
    if labels < 1 or features < 1:
        raise UncorkError(f"{labels} labels and {features} features: expected one or more of each")
    if labels * min(features, labels) > _MOST_STEPS * 100 or labels > _MOST_STEPS:
        raise UncorkError(f"{labels:,} labels are too many to count with")
