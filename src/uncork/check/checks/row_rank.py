"""The rank of the head: rows that do not use all features lose more classes than they need to."""

from __future__ import annotations

from uncork.check.protocol import Check, Condition, Finding, not_applicable
from uncork.check.subject import Subject
from uncork.theory.outputs import centred_spectrum

_MOST_WORK = 2e12  # multiplications


def find_row_rank(subject: Subject, condition: Condition) -> Finding:
    """Of the rows less their mean: a common part of all rows changes no order."""
    head = subject.head
    if head.classes * head.features**2 > _MOST_WORK:
        return not_applicable("to factor a head of this size takes minutes (uncork rank)")
    full = min(head.features, head.classes - 1)
    rank = centred_spectrum(head).rank
    text = f"the rows, less their mean, have rank {rank:,} of {full:,}"
    return Finding(text, broken=rank < full)


ROW_RANK = Check(
    "row-rank",
    "The rows have the rank that their width allows.",
    "Features are wasted: fewer would do the same, or a fuller rank would lose fewer classes.",
    find_row_rank,
    limits={},
)
