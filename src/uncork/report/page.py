"""The report of an audit: one HTML file that needs nothing else, to read in any browser.

Style and script are the files of `assets/`, put into the page; a policy in the page lets exactly
these run and nothing else. The web pages of `uncork serve` link the same files.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from uncork.auditing.result import Audit
from uncork.core.items import METRICS
from uncork.core.reading import CAREFUL, Reading
from uncork.core.text import printable
from uncork.core.whole_file import whole_file
from uncork.loading.odd_rows import OddRows
from uncork.report.data import embedded, report_data
from uncork.report.rows import Summary, shown_audit
from uncork.report.wording import FORMULAS, Asked, meanings

STYLES = ("theme.css", "report.css")
# Each may use what stands before it.
SCRIPTS = (
    "theme.js", "address.js", "text.js", "data.js", "table.js", "scales.js", "charts.js",
    "parts.js", "detail.js", "report.js",
)  # fmt: skip
_IMPORT = re.compile(r"^import [^;]*;\n", re.M)
_EXPORT = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.M)


def write_report(
    audit: Audit,
    path: str | os.PathLike[str],
    odd: OddRows | None = None,
    outlook: Any = None,
    asked: Asked | None = None,
    beside: Sequence[tuple[str, str]] = (),
) -> None:
    """Write the page to a file, whole or not at all."""
    page = report_page(audit, odd, outlook, asked, beside)
    with whole_file(path) as target:
        target.write_text(page, encoding="utf-8")


def report_page(
    audit: Audit,
    odd: OddRows | None = None,
    outlook: Any = None,
    asked: Asked | None = None,
    beside: Sequence[tuple[str, str]] = (),
) -> str:
    """The page as text; `outlook` (`uncork.reach.outlook`) adds how near lost classes come, `asked`
    what the commands that check it must say, `beside` further lines (what it is about, text)."""
    style = "\n".join(asset(name) for name in STYLES)
    script = one_script(asset(name) for name in SCRIPTS)
    policy = (
        f"default-src 'none'; style-src 'sha256-{_digest(style)}'; "
        f"script-src 'sha256-{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    start = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    )
    shown = shown_audit(audit, odd, outlook, asked)
    shown.beside = tuple(beside)
    return filled(shown, report_data(shown), start, f"<script>{script}</script>")


def filled(
    shown: Summary, data: Any, start: str, end: str, navigation: str = "", downloads: str = ""
) -> str:
    """The template with an audit in it. `data` is what the script reads, `start` and `end` bring
    style and script, `navigation` is markup above the title, `downloads` markup below the way to
    check it."""
    facts = shown.facts
    undecided = shown.counts["undecided"]
    words = shown.words
    parts = {name: words.say_in_markup(text) for name, text in meanings(shown.metric).items()} | {
        "start": start,
        "end": end,
        "navigation": navigation,
        "downloads": downloads,
        "name": escaped(shown.name),
        "answer": escaped(shown.answer),
        "head": escaped(
            words.say(f"{facts['classes']:,} classes × {facts['features']:,} features, ")
            + f"{facts['dtype']}, "
            + _compared(shown)
        ),
        "doubts": doubts(shown.reading),
        "read": _read(shown.reading, shown.beside),
        "assumed": escaped(words.say(facts["assumed"])),
        "scores": FORMULAS.get(shown.metric, "z = Wx + b" if facts["bias"] else "z = Wx"),
        "domain": escaped(_short(facts["domain"])),
        "origin": _origin(facts.get("origin", "")),
        "check": "\n".join(escaped(line) for line in facts["check"].split("\n")),
        "fingerprint": escaped(facts["fingerprint"]),
        "made": escaped(facts["made"]),
        "certified": escaped(_certified(facts, undecided)),
        "data": embedded(data),
    }
    template = files("uncork.report").joinpath("page.html").read_text(encoding="utf-8")
    template = words.say_in_markup(template)  # before anything from the model is in it
    # One pass, so that nothing from the model is looked at for markers of its own.
    return re.sub(r"\{\{(\w+)\}\}", lambda marker: parts[marker[1]], template)


def _compared(shown: Summary) -> str:
    """How scores come about, in two words."""
    if shown.metric != "inner":
        return f"compared by {METRICS[shown.metric]}"
    return "with bias" if shown.facts["bias"] else "no bias"


def asset(name: str) -> str:
    """A file of style or script."""
    return files("uncork.report").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


def one_script(modules: Iterable[str]) -> str:
    """Modules, each of which may use what stands before it, as one script that imports nothing: a
    page opened from a file may load no modules."""
    return '"use strict";\n' + "\n".join(map(_scoped, modules))


def _scoped(module: str) -> str:
    """A module as part of one script: a scope of its own, of which only the exports are seen."""
    names = ", ".join(_EXPORT.findall(module))
    body = _IMPORT.sub("", re.sub("^export ", "", module, flags=re.M))
    return f"const {{ {names} }} = (() => {{\n{body}return {{ {names} }};\n}})();"


def escaped(text: str) -> str:
    """Text for markup, with what would not show written as escapes."""
    return html.escape(printable(text))


def doubts(reading: Reading | None) -> str:
    """What is doubtful about the head: markup to stand above everything else."""
    texts = () if reading is None else reading.doubts
    return "\n".join(
        f'<p class="careful"><b>{CAREFUL.title()}:</b> <bdi>{escaped(text)}</bdi></p>'
        for text in texts
    )


def _read(reading: Reading | None, beside: Sequence[tuple[str, str]]) -> str:
    """Which tensors of the source it is about, what is to be known of them, and further lines."""
    rows = [] if reading is None else [row for row in reading.rows() if row[0] != CAREFUL]
    rows += beside
    lines = "\n".join(
        f"    <dt>{name}</dt><dd><bdi>{escaped(text)}</bdi></dd>" for name, text in rows
    )
    return f'<dl class="facts read" id="read">\n{lines}\n  </dl>' if rows else ""


def _origin(text: str) -> str:
    """Where the domain comes from, in a sentence after it."""
    where = escaped(text.removeprefix("from "))
    return f"\n  Where that comes from: {where}." if where else ""


def _short(domain: str) -> str:
    return domain if len(domain) <= 200 else domain[:200] + "…"


def _certified(facts: dict[str, Any], undecided: int) -> str:
    if "checked" in facts:
        return str(facts["checked"])
    if not facts["proven"]:
        return "The proofs were not checked when this page was made: run the commands below."
    rest = " but those left undecided" if undecided else ""
    return f"In this audit every verdict{rest} passed the certifier."


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
