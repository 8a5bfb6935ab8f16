"""Reading: which matrix of a source a head is, and what is to be known of it.

It goes with the head into every result, and this is the one place that makes its lines for people
and its keys for JSON. Nothing here is part of a proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.core.words import BY_NAME, CLASSES, Words

CAREFUL = "careful"  # what a doubt's line begins with
_LONGEST = 2000  # characters of one text: a tensor's name may be as long as its author likes
_MOST = 200  # texts of a kind


@dataclass(frozen=True)
class Reading:
    """What a head was made of. Every text is printable, whatever the file held.

    `doubts` are what the reader of a result must know first, because the source does not settle
    it; `folded` is what was worked into the weight ("dequantised: …"); `notes` is all the rest.
    """

    weight: str
    bias: str | None = None  # "" for one that has no name of its own
    why: str = ""
    folded: tuple[str, ...] = ()
    labels_from: str = ""
    preceded_by: str = ""  # what the source shows before the head, and what of it is assumed
    domain_from: str = ""
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    words: str = CLASSES.name  # which of `core.words` to speak of it in: an index has items

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str):
                object.__setattr__(self, field.name, _clean(value))
            elif value is not None:
                once = tuple(dict.fromkeys(map(_clean, value[:_MOST])))
                object.__setattr__(self, field.name, once)

    def with_bias(self, there: bool) -> Reading:
        """The same of a head that has a bias now, or has none."""
        return replace(self, bias=(self.bias or "") if there else None)

    def rows(self) -> list[tuple[str, str]]:
        """What to say, doubts first: (what it is about, the text)."""
        bias = "none" if self.bias is None else self.bias or "yes, under no name of its own"
        found = [
            *((CAREFUL, text) for text in self.doubts),
            ("weight", f"{self.weight} ({self.why})" if self.why else self.weight),
            ("bias", bias),
            *(("folded in", text) for text in self.folded),
            ("labels from", self.labels_from or words_of(self).say("none; classes are numbered")),
        ]
        for name, text in (("preceded by", self.preceded_by), ("domain from", self.domain_from)):
            if text:
                found.append((name, text))
        return found + [("note", text) for text in self.notes]

    def lines(self) -> list[str]:
        """The same as lines of text."""
        return [f"{name}: {text}" for name, text in self.rows()]

    def as_dict(self) -> dict[str, Any]:
        """As plain values, which `reading_from` reads back."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def words_of(reading: Reading | None) -> Words:
    """What to call the classes and inputs of what was read."""
    return CLASSES if reading is None else BY_NAME.get(reading.words, CLASSES)


def doubt_lines(reading: Reading | None) -> list[str]:
    """The lines that stand first under any result."""
    return [] if reading is None else [f"{CAREFUL}: {text}" for text in reading.doubts]


def json_keys(reading: Reading | None) -> dict[str, Any]:
    """What JSON says of it; the same keys, and nothing in them, for a head built by hand."""
    found = Reading("") if reading is None else reading
    return {
        "weight": found.weight or None,
        "bias_tensor": found.bias or None,
        "why": found.why,
        "folded": list(found.folded),
        "labels_from": found.labels_from or None,
        "preceded_by": found.preceded_by or None,
        "doubts": list(found.doubts),
        "notes": [*found.doubts, *found.folded, *found.notes],
    }


def reading_from(values: Any) -> Reading | None:
    """What `as_dict` made, from a file that may hold anything; None where nothing was written."""
    if values is None:
        return None
    if not isinstance(values, Mapping) or not isinstance(values.get("weight"), str):
        raise UncorkError("what is said of the head's tensors is damaged")
    known: dict[str, Any] = {}
    for field in fields(Reading):
        value = values.get(field.name, field.default)
        if field.name in ("folded", "doubts", "notes"):
            good = isinstance(value, Sequence) and all(isinstance(one, str) for one in value)
            good = good and not isinstance(value, str)
        else:
            good = isinstance(value, str) or (field.name == "bias" and value is None)
        if not good:
            raise UncorkError(f"what is said of the head's tensors is damaged: {field.name}")
        known[field.name] = value if isinstance(value, str) or value is None else tuple(value)
    return Reading(**known)


def _clean(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
