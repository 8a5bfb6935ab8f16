"""Markdown: a table for a pull request or a model card, with the classes folded away."""

from __future__ import annotations

import re
from pathlib import Path

from uncork import __version__
from uncork.check.protocol import Outcome, Result
from uncork.check.run import Checked
from uncork.check.words import short_source
from uncork.core.reading import doubt_lines
from uncork.core.text import printable

_SIGNS = {
    Outcome.PASS: "✅ pass",
    Outcome.WARN: "⚠️ warn",
    Outcome.FAIL: "❌ fail",
    Outcome.NOT_APPLICABLE: "– not applicable",
}
# What Markdown or HTML would take for its own; labels hold anything.
_MENTION = re.compile(r"(\\[@#])(?=\w)")  # of a person or an issue, which no backslash prevents
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#!|~@$])")


def escaped(text: str) -> str:
    """Text in which nothing is markup, and nobody is mentioned."""
    quoted = _SPECIAL.sub(r"\\\1", printable(text).replace("&", "&amp;"))
    return _MENTION.sub(r"\1&#8203;", quoted)


def write(checked: Checked) -> str:
    audit = checked.audit
    sign = _SIGNS[checked.outcome]
    bias = "with bias" if audit.has_bias else "no bias"
    lines = [
        f"### {sign}: {_name(checked)}",
        "",
        f"{audit.classes:,} classes × {audit.features:,} features, {audit.dtype}, {bias}; "
        f"inputs in {escaped(str(audit.domain))}. {checked.answer}.",
        "",
    ]
    for doubt in doubt_lines(audit.reading):
        lines += [f"**{escaped(doubt)}**", ""]
    lines += table(checked)
    bad = [result for result in checked.results if result.bad]
    for result in bad:
        lines += ["", *_folded(checked, result)]
    lines += ["", _foot(checked)]
    return "\n".join(lines) + "\n"


def table(checked: Checked) -> list[str]:
    """A row for each check that applies, and one for all those that do not."""
    rows = ["| check | | |", "| --- | --- | --- |"]
    apart = []
    for result in checked.results:
        if result.outcome is Outcome.NOT_APPLICABLE:
            apart.append(result.name)
            continue
        link = result.link(_seen_from_elsewhere(checked.report)) if result.bad else None
        name = f"`{result.name}`" if link is None else f"[`{result.name}`]({_address(link)})"
        rows.append(f"| {name} | {_SIGNS[result.outcome]} | {escaped(result.why)} |")
    if apart:
        names = ", ".join(f"`{name}`" for name in apart)
        rows.append(f"| {names} | {_SIGNS[Outcome.NOT_APPLICABLE]} | |")
    return rows


def _seen_from_elsewhere(report: str | None) -> str | None:
    """A page that a reader of the table can open: none on the machine that wrote it."""
    return None if report is None or Path(report).is_absolute() else report


def _folded(checked: Checked, result: Result) -> list[str]:
    """What a check asks for, and the first classes that break it."""
    lines = [
        "<details>",
        f"<summary><code>{result.name}</code>: {escaped(result.check.asks)}</summary>",
        "",
        escaped(result.check.advice),
        "",
        *(f"- {escaped(line)}" for line in checked.class_lines(result)),
        "",
        "</details>",
    ]
    return lines


def _foot(checked: Checked) -> str:
    kept = checked.certificates
    proofs = "" if kept is None else f"; certificates sha256 `{kept.sha256}`"
    return f"<sub>uncork {__version__}, weights `{checked.audit.fingerprint}`{proofs}</sub>"


def _name(checked: Checked) -> str:
    return escaped(short_source(checked.audit.source) or "head")


def _address(link: str) -> str:
    return re.sub(r"[\s()<>]", lambda found: f"%{ord(found[0]):02X}", link)
