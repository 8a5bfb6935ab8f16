"""A check: a name, the condition it asks for, and a function that finds what breaks it.

A check says what it found, never how bad that is: the condition it is given (from the defaults, or
from a user's file) says how much is too much, and whether that warns or fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from uncork.core.head import Head

if TYPE_CHECKING:
    from uncork.check.subject import Subject

MOST = "most"  # the limit that nearly every check has: how many classes may break its condition


class Outcome(str, Enum):
    """What came of a check."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"

    def __str__(self) -> str:
        return self.value


class Severity(str, Enum):
    """What a broken condition comes to."""

    FAIL = "fail"
    WARN = "warn"
    OFF = "off"


@dataclass(frozen=True)
class Concerned:
    """A class that breaks a condition, and a few words on how."""

    class_id: int
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """What a check found: one sentence, and the classes that break its condition.

    `broken` says whether the condition is broken where that is not a matter of how many classes
    there are; `applies` is false where there was nothing to look at, and `why` says what is
    missing.
    """

    why: str
    classes: tuple[Concerned, ...] = ()
    broken: bool | None = None
    applies: bool = True


def not_applicable(why: str) -> Finding:
    """There is nothing to look at, because …"""
    return Finding(why, applies=False)


@dataclass(frozen=True)
class Condition:
    """How much of what a check finds is too much, and what that comes to.

    `allow` names classes that may break the condition: numbers, or labels.
    """

    severity: Severity
    limits: Mapping[str, float] = field(default_factory=dict)
    allow: frozenset[int | str] = frozenset()

    def __getitem__(self, limit: str) -> float:
        return self.limits[limit]

    def left(self, head: Head, classes: Iterable[int]) -> list[int]:
        """The classes that are not allowed to break the condition."""
        ids = [int(t) for t in classes]
        if not self.allow:
            return ids
        named = head.labels is not None
        return [
            t for t in ids if t not in self.allow and not (named and head.label(t) in self.allow)
        ]


@dataclass(frozen=True)
class Check:
    """One check.

    name      as users write it: lost, label-count
    asks      what holds where it passes, as a sentence: "Every ordinary class can be first"
    advice    what to do where it does not, as a sentence
    find      looks at the subject under a condition
    severity  what a broken condition comes to unless the user says otherwise
    limits    numbers that a user can set, with their defaults
    """

    name: str
    asks: str
    advice: str
    find: Callable[[Subject, Condition], Finding]
    severity: Severity = Severity.WARN
    limits: Mapping[str, float] = field(default_factory=lambda: {MOST: 0})

    @property
    def condition(self) -> Condition:
        """The condition unless the user says otherwise."""
        return Condition(self.severity, dict(self.limits))

    def run(self, subject: Subject, condition: Condition) -> Result:
        """What came of it."""
        found = self.find(subject, condition)
        if not found.applies:
            return Result(self, Outcome.NOT_APPLICABLE, found.why)
        broken = found.broken
        if broken is None:
            broken = len(found.classes) > condition.limits.get(MOST, 0)
        outcome = Outcome(condition.severity.value) if broken else Outcome.PASS
        return Result(self, outcome, found.why, found.classes)


@dataclass(frozen=True)
class Result:
    """What came of one check: pass, warn, fail or not applicable, and why in one sentence."""

    check: Check
    outcome: Outcome
    why: str
    classes: tuple[Concerned, ...] = ()

    @property
    def name(self) -> str:
        return self.check.name

    @property
    def bad(self) -> bool:
        return self.outcome in (Outcome.WARN, Outcome.FAIL)

    def link(self, report: str | None) -> str | None:
        """Where a report shows this: at the first of its classes."""
        if report is None:
            return None
        return f"{report}#class={self.classes[0].class_id}" if self.classes else report
