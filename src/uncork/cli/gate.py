"""The gate for pipelines: which classes an audit fails on, compared with an earlier one or not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from uncork.auditing import Audit
from uncork.cli.output import shown
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.reading import doubt_lines
from uncork.core.text import printable
from uncork.core.whole_file import whole_file

_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Baseline:
    """The unargmaxable classes of an earlier audit, by number and, if it had labels, by label."""

    path: str
    classes: int
    unargmaxable: frozenset[int]
    labels: frozenset[str] | None

    def check(self, head: Head) -> None:
        """Raise if it cannot tell which classes of the head were unargmaxable then.

        A vocabulary that changed its size has moved its numbers: there only labels tell.
        """
        labelled = self.labels is not None and head.labels is not None
        if self.unargmaxable and self.classes != head.classes and not labelled:
            raise UncorkError(
                f"baseline {self.path} has {self.classes} classes and this head {head.classes}: "
                "without labels in both they cannot be compared"
            )

    def knows(self, audit: Audit, t: int) -> bool:
        """Whether class t was unargmaxable then already."""
        if self.classes == audit.classes:
            return t in self.unargmaxable
        return audit.label(t) in (self.labels or ())


def read_baseline(path: str) -> Baseline:
    """An earlier audit: a certificate file, or what --json wrote."""
    file = Path(path)
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise UncorkError(f"baseline {path} is too large for an audit")
        with file.open("rb") as opened:
            start = opened.read(2)
    except OSError as error:
        raise UncorkError(f"baseline {path} cannot be read: {error.strerror}") from None
    if start == b"PK":
        audit = Audit.load(file)
        return Baseline(path, audit.classes, frozenset(audit.unargmaxable.tolist()), None)
    try:
        content = json.loads(file.read_text("utf-8"))
        lost = content["unargmaxable"]
        ids = frozenset(int(entry["class"]) for entry in lost)
        # Without labels the JSON names a class by its number.
        named = all(entry["label"] != str(entry["class"]) for entry in lost)
        labels = frozenset(str(entry["label"]) for entry in lost) if named else None
        return Baseline(path, int(content["classes"]), ids, labels)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UncorkError(
            f"baseline {path} is no audit: give what --json or --certificates wrote"
        ) from None


def failing(audit: Audit, baseline: Baseline | None) -> np.ndarray:
    """Classes the gate fails on: unargmaxable, and not known to be so from the baseline."""
    lost = audit.unargmaxable
    if baseline is None:
        return lost
    return np.array([t for t in lost.tolist() if not baseline.knows(audit, t)], dtype=np.int64)


def write_junit(audit: Audit, failed: Iterable[int], undecided: Iterable[int], path: str) -> None:
    """JUnit's XML: a failure for each class that fails, an error for each that is undecided, and
    one test for all the others."""
    failed, undecided = list(failed), list(undecided)
    suite = ElementTree.Element(
        "testsuite",
        name="uncork audit",
        tests=str(len(failed) + len(undecided) + 1),
        failures=str(len(failed)),
        errors=str(len(undecided)),
        skipped="0",
        time=f"{audit.seconds.get('total', 0.0):.3f}",
    )
    _add_reading(suite, audit)
    rest = sum(audit.counts.values()) - len(failed) - len(undecided)
    source = printable(audit.source)
    ElementTree.SubElement(
        suite, "testcase", classname=source, name=f"{rest} other classes, nothing to report"
    )
    for t in failed:
        case = ElementTree.SubElement(suite, "testcase", classname=source, name=_name(audit, t))
        thieves = ", ".join(
            f"{shown(thief['label'])} {thief['weight']:.0%}" for thief in audit.stolen_by(t, 3)
        )
        text = f"proven: no input in {printable(str(audit.domain))} makes it the argmax"
        failure = ElementTree.SubElement(case, "failure", type="unargmaxable", message=text)
        taken = [f"its place is taken by {thieves}"] if thieves else []
        failure.text = "\n".join([*doubt_lines(audit.reading), *taken]) or None
    for t in undecided:
        case = ElementTree.SubElement(suite, "testcase", classname=source, name=_name(audit, t))
        why = printable(audit.proofs.reasons.get(t, ""))
        ElementTree.SubElement(case, "error", type="undecided", message=why)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    text = ElementTree.tostring(suites, encoding="unicode")
    with whole_file(path) as target:
        target.write_text(f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n', encoding="utf-8")


def _add_reading(suite: ElementTree.Element, audit: Audit) -> None:
    """Which matrix this is about, as properties of the suite, in the order of audit's lines."""
    if audit.reading is None:
        return
    properties = ElementTree.SubElement(suite, "properties")
    for name, text in audit.reading.rows():
        ElementTree.SubElement(properties, "property", name=name, value=text)


def _name(audit: Audit, t: int) -> str:
    label = "" if audit.labels is None else f" {shown(audit.label(t))}"
    return f"class {t}{label}"
