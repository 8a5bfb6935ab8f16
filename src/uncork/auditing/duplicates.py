"""Classes that are the same function: equal rows and equal bias."""

from __future__ import annotations

import numpy as np

from uncork.auditing.folded import Folded
from uncork.core.head import Head

_ROWS = 4096
_SAMPLE = 16  # features that tell most rows apart


def equal_classes(head: Head | Folded) -> list[np.ndarray]:
    """Groups of two or more classes with equal row and bias, ids ascending; −0 equals 0.

    In a folded head, equal as inputs of the domain see them, up to rounding. A key over a few
    features rules out nearly every row, a key over all features most of the rest.
    """
    rng = np.random.default_rng(0)
    some = np.sort(rng.permutation(head.features)[:_SAMPLE])
    candidates = np.arange(head.classes)
    for features in (some, np.arange(head.features)):
        keys = _row_keys(head, candidates, features)
        _, which, count = np.unique(keys, return_inverse=True, return_counts=True)
        candidates = candidates[count[which] > 1]
        keys = keys[count[which] > 1]
    groups: list[np.ndarray] = []
    for key in np.unique(keys):
        groups.extend(_split(head, candidates[keys == key]))
    return sorted(groups, key=lambda group: int(group[0]))


def _row_keys(head: Head | Folded, classes: np.ndarray, features: np.ndarray) -> np.ndarray:
    """A 64-bit number for each class, equal for classes equal in these features and the bias: (n,).

    Whole-number arithmetic, so that it depends on the values alone and not on where a row lies.
    """
    multipliers = np.random.default_rng(0).integers(
        0, 2**64, size=len(features) + 1, dtype=np.uint64, endpoint=False
    ) | np.uint64(1)
    keys = np.empty(len(classes), dtype=np.uint64)
    everything = len(features) == head.features
    for start in range(0, len(classes), _ROWS):
        part = classes[start : start + _ROWS]
        if isinstance(head, Folded):
            stored = head.take(part)[:, features]
        else:
            stored = head.weight[part] if everything else head.weight[np.ix_(part, features)]
        rows = np.ascontiguousarray(stored, dtype=np.float64) + 0.0  # −0 + 0 is +0
        bits, bias = rows.view(np.uint64), (head.offsets[part] + 0.0).view(np.uint64)
        mixed = bits ^ (bits >> np.uint64(29))  # low bits of a float are often all zero
        keys[start : start + _ROWS] = mixed @ multipliers[:-1] + bias * multipliers[-1]
    return keys


def _split(head: Head | Folded, candidates: np.ndarray) -> list[np.ndarray]:
    """Candidates that share a key, told apart by their values."""
    rows = np.column_stack([head.take(candidates), head.offsets[candidates]]) + 0.0
    _, which = np.unique(rows, axis=0, return_inverse=True)
    which = which.reshape(-1)
    return [
        np.sort(candidates[which == k]) for k in range(which.max() + 1) if (which == k).sum() > 1
    ]
