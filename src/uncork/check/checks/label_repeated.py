"""The same label twice, and a likely neighbour that is missing.

A dictionary typed by hand lists "Ό" twice and "ό" never: the model then has two rows for one letter
and none for the other, whatever it learned.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cached_property

from uncork.check import words
from uncork.check.protocol import Check, Concerned, Condition, Finding, not_applicable
from uncork.check.protocol import Severity as How
from uncork.check.subject import Subject
from uncork.core.text import visible
from uncork.loading.vocabulary.scripts import script_of


def _repeated(subject: Subject, condition: Condition) -> dict[str, list[int]] | None:
    """The classes of each label that ordinary rows have more than once; None without labels."""
    labels = subject.written
    if labels is None:
        return None
    places: dict[str, list[int]] = {}
    for t, label in enumerate(labels):
        if not subject.aside[t]:
            places.setdefault(label, []).append(t)
    return {
        label: ids
        for label, ids in places.items()
        if len(ids) > 1 and len(condition.left(subject.head, ids)) == len(ids)
    }


def find_label_repeated(subject: Subject, condition: Condition) -> Finding:
    found = _repeated(subject, condition)
    if found is None:
        return not_applicable("there are no labels")
    if not found:
        return Finding("every label is listed once")
    ids = [t for same in found.values() for t in same[1:]]
    shown = ", ".join(visible(label, 20) for label in list(found)[:4])
    more = ", …" if len(found) > 4 else ""
    return Finding(
        f"{words.count(len(found), 'label')} stand for more than one row: {shown}{more}",
        tuple(Concerned(t, f"as class {same[0]}") for same in found.values() for t in same[1:]),
        broken=len(ids) > condition["most"],
    )


def find_label_missing(subject: Subject, condition: Condition) -> Finding:
    found = _repeated(subject, condition)
    if found is None:
        return not_applicable("there are no labels")
    labels = subject.written or ()
    there = _Listed(labels)
    concerned, texts = [], []
    for label, ids in found.items():
        likely = there.other_case(label) or there.between(label, ids)
        if likely is not None:
            concerned.append(Concerned(ids[1], f"perhaps {_name(likely)} was meant"))
            texts.append(f"{_name(label)} twice and {_name(likely)} never")
    if not texts:
        return Finding("no label is listed twice while a likely neighbour is missing")
    more = f" and {len(texts) - 3:,} more" if len(texts) > 3 else ""
    return Finding(f"the labels have {'; '.join(texts[:3])}{more}", tuple(concerned))


class _Listed:
    """What is listed, and what may have been meant by the second of two equal labels."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels, self.there = labels, set(labels)

    @cached_property
    def cased(self) -> dict[str | None, tuple[int, int]]:
        """By script: how many labels have a case, and how many have a partner in the other."""
        counts: dict[str | None, tuple[int, int]] = {}
        for label in self.there:
            other = label.swapcase()
            if other != label:
                script = script_of(label)
                cased, paired = counts.get(script, (0, 0))
                counts[script] = cased + 1, paired + (other in self.there)
        return counts

    def other_case(self, label: str) -> str | None:
        """The label in the other case, where that is missing and its script mostly has both."""
        other = label.swapcase()
        if other == label or other in self.there or other.swapcase() != label:
            return None
        cased, paired = self.cased[script_of(label)]
        return other if paired * 2 > cased - 1 else None  # but for the label itself

    def between(self, label: str, ids: Sequence[int]) -> str | None:
        """The character between neighbours in the order of code points: c of a b b d."""
        for t in ids if len(label) == 1 else ():
            before, after = (self._at(t - 1), self._at(t + 1))
            if len(before) == len(after) == 1 and ord(after) - ord(before) == 2:
                wanted = chr(ord(before) + 1)
                if wanted not in self.there and unicodedata.category(wanted)[0] in "LN":
                    return wanted
        return None

    def _at(self, t: int) -> str:
        return self.labels[t] if 0 <= t < len(self.labels) else ""


def _name(label: str) -> str:
    """A label, and for a single character its code point: Ό and Ό look alike."""
    code = f" (U+{ord(label):04X})" if len(label) == 1 else ""
    return f"{visible(label, 20)}{code}"


LABEL_REPEATED = Check(
    "label-repeated",
    "Every label stands for one row.",
    "Check the dictionary against the one that the model was trained with.",
    find_label_repeated,
)
LABEL_MISSING = Check(
    "label-missing",
    "No label is listed twice while a likely neighbour is missing.",
    "Correct the dictionary; if the model was trained with the mistake, the missing label was "
    "never learned.",
    find_label_missing,
    How.FAIL,
)
