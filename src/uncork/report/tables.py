"""The paper's tables from a store: one row a model, or one a group of models."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from uncork.core.errors import UncorkError
from uncork.core.reading import Reading
from uncork.core.text import printable
from uncork.store import StoredAudit

FORMATS = ("text", "markdown", "csv", "latex", "json")
_MODEL_COLUMNS: tuple[str, ...] = (
    "group", "model", "classes", "features", "bias", "domain", "potentially", "unargmaxable",
    "tied", "undecided", "weight", "careful", "notes", "failed",
)  # fmt: skip
# What else was read, where a row may be as long as it likes: CSV and JSON.
_MORE_COLUMNS = ("bias tensor", "folded in", "labels from", "preceded by", "domain from")
_GROUP_COLUMNS: tuple[str, ...] = (
    "group", "models", "with unargmaxable", "unargmaxable", "most in one model", "doubtful",
    "failed",
)  # fmt: skip
_HEADINGS = {"potentially": "potentially unargmaxable"}
# What was read, which is empty for random heads, and why a model could not be audited.
_SAID_COLUMNS = {"weight", "careful", "notes", "failed"}
_TEXT_COLUMNS = {"group", "model", "bias", "domain"}
Rows = list[dict[str, Any]]


def model_rows(audits: Sequence[StoredAudit], failures: Sequence[Mapping[str, Any]] = ()) -> Rows:
    """Tables 4 to 8: how many classes the approximate algorithm gives up on, and how many are
    unargmaxable. The first is empty where its iterations were not counted. The last ones say which
    tensors it is about, what is doubtful of that, all else that was read, and why a model could not
    be audited."""
    rows = [
        {
            "group": audit.group,
            "model": audit.name,
            "classes": audit.classes,
            "features": audit.features,
            "bias": "yes" if audit.has_bias else "no",
            "domain": audit.domain,
            "potentially": audit.undecided if audit.approximate else audit.potentially,
            "unargmaxable": None if audit.approximate else audit.unargmaxable,
            "tied": audit.tied,
            "undecided": None if audit.approximate else audit.undecided,
            **_read(audit.reading),
            "failed": None,
        }
        for audit in sorted(audits, key=lambda audit: audit.id)
    ]
    for failure in failures:
        asked = failure["options"].get("domain")
        known = {"group": failure["group"], "model": failure["name"], "domain": asked}
        rows.append(
            {
                **dict.fromkeys((*_MODEL_COLUMNS, *_MORE_COLUMNS)),
                **known,
                "failed": failure["error"],
            }
        )
    return sorted(rows, key=lambda row: (row["group"], row["model"]))


def _read(reading: Reading | None) -> dict[str, str | None]:
    if reading is None:
        return dict.fromkeys(("weight", "careful", "notes", *_MORE_COLUMNS))
    return {
        "weight": reading.weight,
        "careful": "; ".join(reading.doubts) or None,
        "notes": "; ".join(reading.notes) or None,
        "bias tensor": reading.bias or None,
        "folded in": "; ".join(reading.folded) or None,
        "labels from": reading.labels_from or None,
        "preceded by": reading.preceded_by or None,
        "domain from": reading.domain_from or None,
    }


def group_rows(audits: Sequence[StoredAudit], failures: Sequence[Mapping[str, Any]] = ()) -> Rows:
    """Table 1: for each group of models how many of them have unargmaxable classes, and how many
    could not be audited."""
    groups: dict[str, list[StoredAudit]] = {failure["group"]: [] for failure in failures}
    for audit in audits:
        if not audit.approximate:
            groups.setdefault(audit.group, []).append(audit)
    return [
        {
            "group": name,
            "models": len(members),
            "with unargmaxable": sum(audit.unargmaxable > 0 for audit in members),
            "unargmaxable": sum(audit.unargmaxable for audit in members),
            "most in one model": max((audit.unargmaxable for audit in members), default=None),
            "doubtful": sum(bool(audit.reading and audit.reading.doubts) for audit in members),
            "failed": sum(failure["group"] == name for failure in failures),
        }
        for name, members in sorted(groups.items())
    ]


def render(rows: Rows, form: str, *, summary: bool = False) -> str:
    """The rows under a header, as text, Markdown, CSV, LaTeX or JSON."""
    columns = _GROUP_COLUMNS if summary else _MODEL_COLUMNS
    if form == "json":
        return json.dumps(rows, indent=2, ensure_ascii=False) + "\n"
    if form == "csv":
        columns = columns if summary else (*columns, *_MORE_COLUMNS)
    else:  # for people: no column of nothing but dashes
        empty = {name for name in _SAID_COLUMNS if not any(row.get(name) for row in rows)}
        columns = tuple(name for name in columns if name not in empty)
    header = [_HEADINGS.get(name, name) for name in columns]
    if form == "csv":
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(
            [_safe_cell("" if row[name] is None else row[name]) for name in columns] for row in rows
        )
        return buffer.getvalue()
    left = _TEXT_COLUMNS if summary else _TEXT_COLUMNS | _SAID_COLUMNS
    right = [name not in left for name in columns]
    cells = [[_cell(row[name]) for name in columns] for row in rows]
    if form == "text":
        return _text(header, cells, right)
    if form == "markdown":
        return _markdown(header, cells, right)
    if form == "latex":
        return _latex(header, cells, right)
    raise UncorkError(f"format {form!r}: expected {', '.join(FORMATS)}")


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "–"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def _safe_cell(value: Any) -> Any:
    """A spreadsheet takes text that begins like a formula for one."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value


def _text(header: list[str], cells: list[list[str]], right: list[bool]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [header, ["-" * width for width in widths], *cells]
    return "".join(
        "  ".join(
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(line, widths, right, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )


def _markdown(header: list[str], cells: list[list[str]], right: list[bool]) -> str:
    rule = ["---:" if at_right else "---" for at_right in right]
    escaped = [[cell.replace("\\", "\\\\").replace("|", "\\|") for cell in row] for row in cells]
    return "".join("| " + " | ".join(line) + " |\n" for line in [header, rule, *escaped])


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "–": "--",
}  # fmt: skip


def _latex(header: list[str], cells: list[list[str]], right: list[bool]) -> str:
    def line(row: list[str]) -> str:
        return " & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in row) + r" \\"

    shape = "".join("r" if at_right else "l" for at_right in right)
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{shape}}}", r"\toprule", line(header), r"\midrule",
            *(line(row) for row in cells), r"\bottomrule", r"\end{tabular}", "",
        ]
    )  # fmt: skip
