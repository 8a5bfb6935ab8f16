"""Classes that are the same function: equal rows and equal bias."""

from __future__ import annotations

import numpy as np

from uncork.head import Head

_ROWS = 4096


def equal_classes(head: Head) -> list[np.ndarray]:
    """Groups of two or more classes with equal row and bias, ids ascending; −0 equals 0."""
    keys = row_keys(head)
    order = np.argsort(keys, kind="stable")
    edges = np.flatnonzero(np.diff(keys[order])) + 1
    groups = []
    for candidates in np.split(order, edges):
        if len(candidates) > 1:
            groups.extend(_split(head, candidates))
    return sorted(groups, key=lambda group: int(group[0]))


def row_keys(head: Head) -> np.ndarray:
    """A 64-bit number a class, equal for equal classes: (C,).

    Whole-number arithmetic, so that it depends on the values alone and not on where a row lies.
    """
    multipliers = np.random.default_rng(0).integers(
        0, 2**64, size=head.features + 1, dtype=np.uint64, endpoint=False
    ) | np.uint64(1)
    keys = np.empty(head.classes, dtype=np.uint64)
    for start, block in head.blocks(_ROWS):
        stop = start + len(block)
        bits = (block + 0.0).view(np.uint64)  # −0 + 0 is +0
        bias = (head.offsets[start:stop] + 0.0).view(np.uint64)
        mixed = bits ^ (bits >> np.uint64(29))  # low bits of a float are often all zero
        keys[start:stop] = mixed @ multipliers[:-1] + bias * multipliers[-1]
    return keys


def _split(head: Head, candidates: np.ndarray) -> list[np.ndarray]:
    """Candidates that share a key, told apart by their values."""
    rows = np.column_stack([head.take(candidates), head.offsets[candidates]]) + 0.0
    _, which = np.unique(rows, axis=0, return_inverse=True)
    which = which.reshape(-1)
    return [
        np.sort(candidates[which == k]) for k in range(which.max() + 1) if (which == k).sum() > 1
    ]
