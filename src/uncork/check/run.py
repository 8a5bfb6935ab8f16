"""The suite: every check under its condition, and what came of all of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from uncork.auditing import Audit
from uncork.check.checks import CHECKS
from uncork.check.conditions import Suite
from uncork.check.protocol import Check, Outcome, Result, Severity
from uncork.check.subject import Subject
from uncork.check.words import name_of
from uncork.core.errors import UncorkError
from uncork.core.head import Head

_LISTED = 10  # classes of one check that people are shown


@dataclass(frozen=True)
class Kept:
    """A file of proofs, and the digest by which others know it."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Checked:
    """What came of all checks of one head."""

    head: Head
    audit: Audit
    results: tuple[Result, ...]
    strict: bool = False  # whether a warning fails as well
    report: str | None = None  # the page that results link to
    certificates: Kept | None = None

    def fails(self, result: Result) -> bool:
        """Whether this result makes the whole fail."""
        return result.outcome is Outcome.FAIL or (self.strict and result.outcome is Outcome.WARN)

    @property
    def failed(self) -> bool:
        return any(self.fails(result) for result in self.results)

    @property
    def outcome(self) -> Outcome:
        """The worst of all outcomes."""
        found = {result.outcome for result in self.results}
        return next((one for one in (Outcome.FAIL, Outcome.WARN) if one in found), Outcome.PASS)

    @property
    def counts(self) -> dict[str, int]:
        """How many checks passed, warned, failed, and did not apply."""
        found = Counter(result.outcome for result in self.results)
        return {outcome.value: found[outcome] for outcome in Outcome}

    @property
    def answer(self) -> str:
        """One sentence: may this head be shipped?"""
        counts = self.counts
        passed = f"{counts['pass']} passed, {counts['not applicable']} do not apply"
        return f"{counts['fail']} failed, {counts['warn']} warned, {passed}"

    def class_lines(self, result: Result, most: int = _LISTED) -> list[str]:
        """The classes concerned, a line each: number, label and note; and how many more."""
        lines = []
        for one in result.classes[:most]:
            note = f": {one.note}" if one.note else ""
            lines.append(f"class {name_of(self.head, one.class_id)}{note}")
        rest = len(result.classes) - most
        return [*lines, f"and {rest:,} more"] if rest > 0 else lines


def run_checks(
    subject: Subject, suite: Suite | None = None, checks: Sequence[Check] = CHECKS
) -> Checked:
    """Run every check that is not switched off."""
    suite = suite or Suite()
    results = []
    for check in checks:
        condition = suite.condition(check)
        if condition.severity is Severity.OFF:
            continue
        subject.progress.stage(f"checking {check.name}", 1)
        try:
            results.append(check.run(subject, condition))
        except UncorkError as error:
            raise UncorkError(f"check {check.name}: {error}") from error
        subject.progress.advance(1)
    return Checked(subject.head, subject.audit, tuple(results), suite.strict)
