"""The gate of `uncork audit`: JUnit's file of the classes that make it fail."""

from __future__ import annotations

from collections.abc import Iterable

from uncork.auditing import Audit
from uncork.check.formats.junit import Case, document
from uncork.cli.output import shown
from uncork.core.reading import doubt_lines
from uncork.core.text import printable
from uncork.core.whole_file import whole_file


def write_junit(audit: Audit, failed: Iterable[int], undecided: Iterable[int], path: str) -> None:
    """JUnit's XML: a failure for each class that fails, an error for each that is undecided, and
    one test for all the others."""
    failed, undecided = list(failed), list(undecided)
    rest = sum(audit.counts.values()) - len(failed) - len(undecided)
    cases = [
        Case(f"{rest} other classes, nothing to report"),
        *(_lost(audit, t) for t in failed),
        *(
            Case(_name(audit, t), "error", "undecided", printable(audit.proofs.reasons.get(t, "")))
            for t in undecided
        ),
    ]
    text = document("uncork audit", audit, cases)
    with whole_file(path) as target:
        target.write_text(text, encoding="utf-8")


def _lost(audit: Audit, t: int) -> Case:
    mixture = ", ".join(
        f"{shown(part['label'])} {part['weight']:.0%}" for part in audit.stolen_by(t, 3)
    )
    message = f"proven: no input in {printable(str(audit.domain))} makes it the argmax"
    beaten = [f"beaten everywhere by the mixture {mixture}"] if mixture else []
    text = "\n".join([*doubt_lines(audit.reading), *beaten])
    return Case(_name(audit, t), "failure", "unargmaxable", message, text)


def _name(audit: Audit, t: int) -> str:
    label = "" if audit.labels is None else f" {shown(audit.label(t))}"
    return f"class {t}{label}"
