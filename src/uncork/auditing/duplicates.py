"""Classes that are the same function: equal rows and equal bias."""

from __future__ import annotations

import numpy as np

from uncork.auditing.certify.products import Device
from uncork.auditing.folded import Folded
from uncork.core.head import Head

_SAMPLE = 16  # features that tell most rows apart
_BYTES = 64 << 20  # of rows looked at in one go


def equal_classes(head: Head | Folded, device: Device | None = None) -> list[np.ndarray]:
    """Groups of two or more classes with equal row and bias, ids ascending; −0 equals 0.

    In a folded head, equal as inputs of the domain see them, up to rounding. A key over a few
    features rules out nearly every row, a key over all features most of the rest; what shares both
    is compared.
    """
    device = device or Device()
    some = np.sort(np.random.default_rng(0).permutation(head.features)[:_SAMPLE])
    keys = _keys(device.columns(head, some), head.offsets)
    candidates = _repeated(keys)
    keys = np.empty(len(candidates), dtype=np.uint64)
    step = max(1, _BYTES // (8 * head.features))
    for start in range(0, len(candidates), step):
        part = candidates[start : start + step]
        keys[start : start + step] = _keys(_rows(head, part, device), head.offsets[part])
    repeated = _repeated(keys)
    candidates, keys = candidates[repeated], keys[repeated]
    order = np.argsort(keys, kind="stable")  # ids ascending where keys are equal
    candidates, keys = candidates[order], keys[order]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])) if len(keys) else keys[:0]
    groups: list[np.ndarray] = []
    same = _same_as_first(head, candidates, starts.astype(np.int64), device)
    for run, alike in zip(
        np.split(candidates, starts[1:].astype(np.int64)),
        np.split(same, starts[1:].astype(np.int64)),
        strict=True,
    ):
        if len(run):
            groups.extend([run] if alike.all() else _split(head, run, device))
    return sorted(groups, key=lambda group: int(group[0]))


def _keys(rows: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """A 64-bit number for each row and bias, equal for equal ones: (n, features), (n,) → (n,).

    Whole-number arithmetic, so that it depends on the values alone and not on where a row lies.
    """
    multipliers = np.random.default_rng(0).integers(
        0, 2**64, size=rows.shape[1] + 1, dtype=np.uint64, endpoint=False
    ) | np.uint64(1)
    bits = (np.ascontiguousarray(rows) + 0.0).view(np.uint64)  # −0 + 0 is +0
    mixed = bits ^ (bits >> np.uint64(29))  # low bits of a float are often all zero
    keys: np.ndarray = mixed @ multipliers[:-1] + (bias + 0.0).view(np.uint64) * multipliers[-1]
    return keys


def _repeated(keys: np.ndarray) -> np.ndarray:
    """Where a key stands that stands elsewhere too."""
    _, which, count = np.unique(keys, return_inverse=True, return_counts=True)
    return np.flatnonzero(count[which] > 1)


def _rows(head: Head | Folded, classes: np.ndarray, device: Device) -> np.ndarray:
    if head.stored is not None:
        return np.asarray(head.stored[classes], dtype=np.float64)
    return device.get(device.take(head, classes))


def _same_as_first(
    head: Head | Folded, candidates: np.ndarray, starts: np.ndarray, device: Device
) -> np.ndarray:
    """Whether each candidate equals the first of its run, which begin at `starts`: (n,)."""
    same = np.ones(len(candidates), dtype=bool)
    if not len(candidates):
        return same
    first = candidates[np.repeat(starts, np.diff(np.append(starts, len(candidates))))]
    step = max(1, _BYTES // (16 * head.features))
    for start in range(0, len(candidates), step):
        part = slice(start, start + step)
        one, other = (_rows(head, ids[part], device) for ids in (candidates, first))
        biases = head.offsets[candidates[part]] == head.offsets[first[part]]
        same[part] = (one == other).all(axis=1) & biases
    return same


def _split(head: Head | Folded, candidates: np.ndarray, device: Device) -> list[np.ndarray]:
    """Candidates that share a key, told apart by their values."""
    rows = np.column_stack([_rows(head, candidates, device), head.offsets[candidates]]) + 0.0
    _, which = np.unique(rows, axis=0, return_inverse=True)
    which = which.reshape(-1)
    return [
        np.sort(candidates[which == k]) for k in range(which.max() + 1) if (which == k).sum() > 1
    ]
