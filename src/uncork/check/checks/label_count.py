"""Labels and rows that do not fit one another in number."""

from __future__ import annotations

from uncork.check.protocol import Check, Condition, Finding, not_applicable
from uncork.check.protocol import Severity as How
from uncork.check.subject import Subject


def find_label_count(subject: Subject, condition: Condition) -> Finding:
    vocabulary, head = subject.found.vocabulary, subject.head
    if subject.given.labels_refused:
        return Finding(subject.given.labels_refused, broken=True)
    if vocabulary.labels is None:
        if not vocabulary.source:
            return not_applicable("the source has no labels (--labels gives them)")
        return Finding(f"no labels fit: {vocabulary.source}", broken=True)
    beyond = [note for note in vocabulary.notes if "beyond the head's last row" in note]
    if beyond:
        return Finding(f"more labels than rows: {beyond[0]}", broken=True)
    named = head.classes - len(vocabulary.padding)
    spare = f", {len(vocabulary.padding):,} rows past the end" if vocabulary.padding else ""
    return Finding(f"{named:,} labels for {head.classes:,} rows{spare}", broken=False)


LABEL_COUNT = Check(
    "label-count",
    "There is a row for each label.",
    "Give the dictionary that the model was trained with (--labels).",
    find_label_count,
    How.FAIL,
    {},
)
