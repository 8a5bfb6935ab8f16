"""Workflow commands of GitHub Actions: an annotation for each check that did not pass."""

from __future__ import annotations

from uncork.check.formats import text
from uncork.check.protocol import Result
from uncork.check.run import Checked
from uncork.core.text import printable

_CLASSES = 3


def write(checked: Checked) -> str:
    """Annotations, then the whole result as text that folds away."""
    lines = [_annotation(checked, result) for result in checked.results if result.bad]
    plain = text.write(checked).rstrip("\n")
    # A line of the text that began with :: would be a command of its own.
    quoted = [f" {line}" if line.lstrip().startswith("::") else line for line in plain.split("\n")]
    return "\n".join(
        [*lines, "::group::uncork check", *quoted, "::endgroup::", _data(checked.answer), ""]
    )


def _annotation(checked: Checked, result: Result) -> str:
    kind = "error" if checked.fails(result) else "warning"
    message = "\n".join(
        [printable(result.why), *checked.class_lines(result, _CLASSES), result.check.advice]
    )
    title = _property(f"uncork check {result.name}")
    file = _property(printable(checked.audit.source))
    where = f"file={file},line=1," if file and not file.startswith("hf") else ""
    return f"::{kind} {where}title={title}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
