"""Tied classes, which share first place at best, and undecided ones."""

from __future__ import annotations

from uncork.check import words
from uncork.check.protocol import Check, Concerned, Condition, Finding
from uncork.check.protocol import Severity as How
from uncork.check.subject import Subject


def find_tied(subject: Subject, condition: Condition) -> Finding:
    """In a group of equals an argmax that takes the lowest number returns only the first."""
    audit, head = subject.audit, subject.head
    ids = condition.left(head, audit.tied.tolist())
    if not ids:
        return Finding("no class is equal to another and first only together with it")
    notes = {}
    for t in ids:
        group = audit.proofs.group_of(t)
        notes[t] = "" if group is None else f"equal to {words.others_of(head, group, t)}"
    return Finding(
        f"{words.classes(len(ids))} can be first only together with an equal one",
        tuple(Concerned(t, notes[t]) for t in ids),
    )


def find_undecided(subject: Subject, condition: Condition) -> Finding:
    audit = subject.audit
    ids = condition.left(subject.head, audit.undecided.tolist())
    if not ids:
        return Finding(f"all {audit.classes:,} classes are decided, each with a proof")
    reasons = audit.proofs.reasons
    return Finding(
        f"{words.classes(len(ids))} could not be decided: {reasons.get(ids[0], 'no reason known')}",
        tuple(Concerned(t, reasons.get(t, "")) for t in ids),
    )


TIED = Check(
    "tied",
    "No two classes are the same function.",
    "Merge the labels of equal rows, or train them apart.",
    find_tied,
)
UNDECIDED = Check(
    "undecided",
    "Every class is decided.",
    "Give the search more time (--time-limit), or look at the classes one by one (--classes).",
    find_undecided,
    How.FAIL,
)
