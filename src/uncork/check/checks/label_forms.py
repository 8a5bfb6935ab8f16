"""Labels that are the same text in another normalisation form."""

from __future__ import annotations

import unicodedata

from uncork.check import words
from uncork.check.protocol import Check, Concerned, Condition, Finding, not_applicable
from uncork.check.subject import Subject
from uncork.core.text import visible


def find_label_forms(subject: Subject, condition: Condition) -> Finding:
    """Canonical equivalence (NFC) only: é as one character or two is the same text to everybody.
    Compatibility forms (full-width letters, say) are other characters, and may be meant."""
    head = subject.head
    if head.labels is None:
        return not_applicable("there are no labels")
    forms: dict[str, dict[str, int]] = {}
    for t, label in enumerate(head.labels):
        if not subject.aside[t] and not label.isascii():
            forms.setdefault(unicodedata.normalize("NFC", label), {}).setdefault(label, t)
    for form in list(forms):
        if form.isascii() and form in head.labels:  # K and the sign of a kelvin
            forms[form].setdefault(form, head.labels.index(form))
    concerned = [
        Concerned(t, f"the same text as class {others[0]}: {_codes(head.labels[others[0]])}")
        for same in forms.values()
        if len(same) > 1
        for t in condition.left(head, sorted(same.values())[1:])
        for others in [sorted(set(same.values()) - {t})]
    ]
    if not concerned:
        return Finding("no two labels are the same text in two forms")
    shown = ", ".join(visible(head.labels[one.class_id], 20) for one in concerned[:4])
    more = ", …" if len(concerned) > 4 else ""
    return Finding(
        f"{words.count(len(concerned), 'label')} are the same text as another in a different form: "
        f"{shown}{more}",
        tuple(concerned),
    )


def _codes(label: str) -> str:
    return " ".join(f"U+{ord(c):04X}" for c in label[:6])


LABEL_FORMS = Check(
    "label-forms",
    "No two labels are the same text in different normalisation forms.",
    "Normalise the dictionary and the training texts to NFC, and merge the rows.",
    find_label_forms,
)
