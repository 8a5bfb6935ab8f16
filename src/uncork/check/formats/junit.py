"""JUnit's XML, which build systems read: one test for each check, or for each class of an audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from uncork.auditing import Audit
from uncork.check.protocol import Outcome, Result
from uncork.check.run import Checked
from uncork.core.text import printable


@dataclass(frozen=True)
class Case:
    """One test: passed unless `kind` says otherwise (failure, error or skipped)."""

    name: str
    kind: str = ""
    type: str = ""
    message: str = ""
    text: str = ""
    printed: str = ""  # what a passed test has to say


def document(name: str, audit: Audit, cases: Sequence[Case]) -> str:
    """The whole file: one suite, with what was read of the model as its properties."""
    kinds = [case.kind for case in cases]
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(len(cases)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
        skipped=str(kinds.count("skipped")),
        time=f"{audit.seconds.get('total', 0.0):.3f}",
    )
    if audit.reading is not None:
        properties = ElementTree.SubElement(suite, "properties")
        for key, text in audit.reading.rows():
            ElementTree.SubElement(properties, "property", name=key, value=text)
    source = printable(audit.source)
    for case in cases:
        _add(suite, source, case)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    text = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _add(suite: ElementTree.Element, source: str, case: Case) -> None:
    element = ElementTree.SubElement(suite, "testcase", classname=source, name=case.name)
    if case.kind == "skipped":
        ElementTree.SubElement(element, "skipped", message=case.message)
    elif case.kind:
        of_type = {"type": case.type, "message": case.message}
        ElementTree.SubElement(element, case.kind, of_type).text = case.text or None
    if case.printed:
        ElementTree.SubElement(element, "system-out").text = case.printed


def write(checked: Checked) -> str:
    """A test for each check. What warns has passed, unless warnings fail, and says so."""
    return document("uncork check", checked.audit, [_case(checked, one) for one in checked.results])


def _case(checked: Checked, result: Result) -> Case:
    why, lines = printable(result.why), "\n".join(checked.class_lines(result))
    if result.outcome is Outcome.NOT_APPLICABLE:
        return Case(result.name, "skipped", message=why)
    if checked.fails(result):
        return Case(result.name, "failure", result.name, why, lines)
    return Case(result.name, printed="\n".join(filter(None, [f"{result.outcome}: {why}", lines])))
