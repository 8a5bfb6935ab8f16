"""Rows far longer or shorter than all others."""

from __future__ import annotations

import numpy as np

from uncork.check import words
from uncork.check.protocol import MOST, Check, Concerned, Condition, Finding, not_applicable
from uncork.check.subject import Subject

_BLOCK = 8192
_FEW = 10  # rows among which nothing is an outlier
_LEAST_SPREAD = 0.05  # of log₂ length: rows of equal length have none


def find_row_length(subject: Subject, condition: Condition) -> Finding:
    """By log₂ of the length, against the median, in units of the median deviation (robust: half of
    the rows may be odd)."""
    head = subject.head
    if head.classes < _FEW:
        return not_applicable(f"among {head.classes} rows nothing is far out")
    lengths = np.concatenate([_lengths(block) for _, block in head.blocks(_BLOCK)])
    there = lengths > 0
    if not there.any():
        return not_applicable("every row is zero")
    octaves = np.log2(lengths, where=there, out=np.full(len(lengths), np.nan))
    middle = float(np.nanmedian(octaves))
    spread = max(1.4826 * float(np.nanmedian(np.abs(octaves - middle))), _LEAST_SPREAD)
    away = np.abs(octaves - middle) / spread
    ids = condition.left(head, np.flatnonzero(away > condition["far"]).tolist())
    ids.sort(key=lambda t: -away[t])
    if not ids:
        low, high = float(lengths[there].min()), float(lengths.max())
        return Finding(f"rows are {low:.3g} to {high:.3g} long, none far from the median")
    worst = 2.0 ** float(octaves[ids[0]] - middle)
    return Finding(
        f"{words.count(len(ids), 'row')} far from the median length {2.0**middle:.3g}; the "
        f"farthest is {worst:.2g} times as long",
        tuple(Concerned(t, f"length {lengths[t]:.3g}") for t in ids),
    )


def _lengths(block: np.ndarray) -> np.ndarray:
    """Euclidean lengths, with no square that over- or underflows: (n, d) → (n,)."""
    largest = np.abs(block).max(axis=1)
    scaled = block / np.where(largest > 0, largest, 1.0)[:, None]
    return np.asarray(np.linalg.norm(scaled, axis=1) * largest)


ROW_LENGTH = Check(
    "row-length",
    "No row is far longer or shorter than the others.",
    "Very long rows win at most inputs and crowd others out; very short ones were not trained.",
    find_row_length,
    limits={MOST: 0, "far": 12},
)
