"""Regressions: classes that became unargmaxable since an earlier audit."""

from __future__ import annotations

from uncork.check import words
from uncork.check.baseline import failing
from uncork.check.protocol import Check, Concerned, Condition, Finding, not_applicable
from uncork.check.protocol import Severity as How
from uncork.check.subject import Subject


def find_regressions(subject: Subject, condition: Condition) -> Finding:
    baseline = subject.given.baseline
    if baseline is None:
        return not_applicable("no earlier audit is given (--baseline)")
    ids = condition.left(subject.head, failing(subject.audit, baseline).tolist())
    if not ids:
        return Finding(f"no class became unargmaxable since {baseline.path}")
    return Finding(
        f"{words.classes(len(ids))} became unargmaxable since {baseline.path}",
        tuple(map(Concerned, ids)),
    )


REGRESSIONS = Check(
    "regressions",
    "No class became unargmaxable since the baseline.",
    "Compare both models (uncork audit --json), and repair or retrain.",
    find_regressions,
    How.FAIL,
)
