"""Rows that are zero, equal to another, or within rounding of another."""

from __future__ import annotations

from collections.abc import Sequence

from uncork.check import words
from uncork.check.protocol import Check, Concerned, Condition, Finding
from uncork.check.subject import Subject


def find_row_zero(subject: Subject, condition: Condition) -> Finding:
    ids = condition.left(subject.head, subject.odd.zero_rows)
    if not ids:
        return Finding("no row is all zero")
    text = f"{words.count(len(ids), 'row')} {'is' if len(ids) == 1 else 'are'} all zero"
    return Finding(f"{text}: {words.some_of(subject.head, ids)}", tuple(map(Concerned, ids)))


def _groups(
    subject: Subject, condition: Condition, groups: Sequence[Sequence[int]], how: str
) -> Finding:
    head = subject.head
    left = [group for group in groups if len(condition.left(head, group)) == len(group)]
    if not left:
        return Finding(f"no row is {how} another")
    ids = [t for group in left for t in group]
    return Finding(
        f"{words.count(len(ids), 'row')} are {how} another, in {words.count(len(left), 'group')}",
        tuple(
            Concerned(t, f"{how} {words.others_of(head, group, t)}")
            for group in left
            for t in group
        ),
    )


def find_row_equal(subject: Subject, condition: Condition) -> Finding:
    return _groups(subject, condition, subject.odd.equal_rows, "equal to")


def find_row_near(subject: Subject, condition: Condition) -> Finding:
    return _groups(subject, condition, subject.odd.near_rows, "within rounding of")


ROW_ZERO = Check(
    "row-zero",
    "No row is all zero.",
    "Such a class never learned: its logit is its bias, whatever the input.",
    find_row_zero,
)
ROW_EQUAL = Check(
    "row-equal",
    "No two rows are equal.",
    "Only the one with the largest bias can be first: merge the labels, or train them apart.",
    find_row_equal,
)
ROW_NEAR = Check(
    "row-near",
    "No two rows are within rounding of one another.",
    "Rows that differ by less than bfloat16 rounds away were hardly trained.",
    find_row_near,
)
