"""Labels that are not text: empty, control characters, damaged on their way through an encoding."""

from __future__ import annotations

import unicodedata

from uncork.check import words
from uncork.check.protocol import Check, Concerned, Condition, Finding, not_applicable
from uncork.check.subject import Subject

_REPLACED = "\ufffd"  # what decoders put in place of bytes they cannot read
_BYTES = {"\t", "\n", "\r"}  # controls that texts are made of
_WRONG = ("cp1252", "latin-1")  # what UTF-8 is taken for by mistake


def find_label_text(subject: Subject, condition: Condition) -> Finding:
    head = subject.head
    if head.labels is None:
        return not_applicable("there are no labels")
    # A tokenizer of bytes has a token for every byte, controls and halves of characters included.
    by_bytes = subject.found.vocabulary.tokens is not None
    ordinary = [t for t in range(head.classes) if not subject.aside[t]]
    notes = {}
    for t in condition.left(head, ordinary):
        problem = _problem(head.labels[t], by_bytes)
        if problem:
            notes[t] = problem
    if not notes:
        return Finding("every label of an ordinary class is readable text")
    kinds = sorted({note.partition(":")[0] for note in notes.values()})
    return Finding(
        f"{words.count(len(notes), 'label')} {'is' if len(notes) == 1 else 'are'} no readable text "
        f"({', '.join(kinds)})",
        tuple(Concerned(t, note) for t, note in notes.items()),
    )


def _problem(label: str, by_bytes: bool) -> str:
    if not label:
        return "empty"
    if by_bytes:
        return ""
    if _REPLACED in label and label != _REPLACED:
        return "mis-encoded: holds U+FFFD"
    if label == _REPLACED:
        return "mis-encoded: is U+FFFD"
    for character in label:
        category = unicodedata.category(character)
        if category == "Cs":
            return f"mis-encoded: half of a pair, U+{ord(character):04X}"
        if category == "Cc" and character not in _BYTES:
            return f"control character: U+{ord(character):04X}"
    meant = mended(label)
    return f"mis-encoded: {meant} read as another encoding" if meant else ""


def mended(label: str) -> str | None:
    """The text that was written as UTF-8 and read as something else; None where that is not so.

    "Ã©" is "é". Two characters beyond ASCII that happen to be UTF-8's bytes are rare in any
    language, and what they decode to must be letters or punctuation.
    """
    if label.isascii():
        return None
    for encoding in _WRONG:
        try:
            text = label.encode(encoding).decode("utf-8")
        except (UnicodeEncodeError, UnicodeDecodeError):
            continue
        if text != label and all(unicodedata.category(c)[0] in "LMNPS" for c in text.strip()):
            return text
    return None


LABEL_TEXT = Check(
    "label-text",
    "Every label is readable text.",
    "Write the dictionary again as UTF-8.",
    find_label_text,
)
