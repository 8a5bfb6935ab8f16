"""Rows that must never be said, and can be first: padding, reserved, special, and a user's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from uncork.check import words
from uncork.check.protocol import MOST, Check, Concerned, Condition, Finding, not_applicable
from uncork.check.protocol import Severity as How
from uncork.check.subject import Subject

_ASKED = 32  # classes whose highest probability is looked for
# Control tokens that a model has to say: the end of a text or a turn, a blank between characters.
_NEEDED = re.compile(
    r"</s>|\[(?:SEP|EOS|BLANK)\]|<(?:eos|eod|blank|ctc_blank|end_of_turn|turn\|)>|<\|.*end.*\|>"
    r"|<\|(?:eot|eos|eom|return|call)(?:_id)?\|>",
    re.IGNORECASE,
)

Rows = Callable[[Subject], Sequence[int]]


def _find(rows: Rows, what: str, none: str) -> Callable[[Subject, Condition], Finding]:
    def find(subject: Subject, condition: Condition) -> Finding:
        chosen = condition.left(subject.head, rows(subject))
        if not chosen:
            return not_applicable(none)
        undecided = set(subject.audit.undecided.tolist())
        open_ = [t for t in chosen if t in undecided]
        ids = [t for t in chosen if subject.can_be_first[t]]
        unsure = f"; {len(open_):,} undecided" if open_ else ""
        if not ids:
            return Finding(
                f"none of the {len(chosen):,} {what} can be first{unsure}", broken=bool(open_)
            )
        return _said(subject, ids, f"{len(ids):,} of {len(chosen):,} {what} can be first{unsure}")

    return find


def _said(subject: Subject, ids: list[int], text: str) -> Finding:
    """What the model can be made to say, with how probable it can become; all have a witness."""
    asked = np.array(ids[: subject.affordable(_ASKED)], dtype=np.int64)
    if not len(asked):
        return Finding(text, tuple(Concerned(t, _led(subject, t)) for t in ids))
    bounds = subject.highest_probability(asked)
    most = int(np.argmax(bounds.lower))
    some = "" if len(ids) == len(asked) else f" among the first {len(asked)}"
    said = [_highest(*pair) for pair in zip(bounds.lower, bounds.upper, strict=True)]
    text += (
        f", with a probability of {said[most]}{some} "
        f"(class {words.name_of(subject.head, int(asked[most]))})"
    )
    notes = {t: f"probability {one}" for t, one in zip(asked.tolist(), said, strict=True)}
    return Finding(
        text,
        tuple(
            Concerned(t, _led(subject, t) + (f"; {notes[t]}" if t in notes else "")) for t in ids
        ),
    )


def _led(subject: Subject, t: int) -> str:
    return f"leads by {subject.audit.margin(t):.3g} at its witness"


def _highest(lower: float, upper: float) -> str:
    """The highest probability; where proven bounds do not meet, that it is no less than one."""
    percent = f"{lower:.1%}" if lower < 0.9995 else "100%"
    return f"up to {percent}" if upper - lower < 0.001 else f"{percent} or more"


def _special(subject: Subject) -> Sequence[int]:
    labels = subject.written
    ids = subject.found.vocabulary.special
    return [t for t in ids if labels is None or not _NEEDED.fullmatch(labels[t])]


_SILENCE = "Lower their biases, proven (uncork repair --silence {}), or mask them when decoding."
PADDING = Check(
    "padding",
    "No row past the vocabulary's end can be first.",
    _SILENCE.format("padding"),
    _find(
        lambda subject: subject.found.vocabulary.padding,
        "rows past the vocabulary's end",
        "no row is known to lie past the vocabulary's end",
    ),
    How.FAIL,
)
RESERVED = Check(
    "reserved",
    "No reserved or unused token can be first.",
    _SILENCE.format("reserved"),
    _find(
        lambda subject: subject.found.vocabulary.unused,
        "reserved or unused tokens",
        "no token is known to be reserved or unused",
    ),
)
SPECIAL = Check(
    "special",
    "No special token can be first but those that end a text or stand for a blank.",
    _SILENCE.format("special"),
    _find(
        _special, "special tokens that end nothing", "no special token but those that end a text"
    ),
)
FORBIDDEN = Check(
    "forbidden",
    "No class of the list given can be first.",
    _SILENCE.format("@FILE"),
    _find(
        lambda subject: subject.given.must_not or (),
        "classes of the list",
        "no list of classes is given (--must-not)",
    ),
    How.FAIL,
    {MOST: 0},
)
