"""The formats that results are written in: one function each, in one table.

A command describes its result as a `Result`; every format in `FORMATS` can then write it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from uncork.core.errors import UncorkError
from uncork.core.text import printable, without_infinities


@dataclass(frozen=True)
class Sheet:
    """Rows under a header. Cells are numbers, text, or None where there is nothing to say."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    left: Collection[str] = ()  # columns of text, aligned left


class Result:
    """What a command found. `text` and `latex` are for results that are more than a sheet."""

    def as_dict(self) -> Any:
        """The result as JSON holds it."""
        raise NotImplementedError

    def data(self) -> Sheet:
        """Everything, for other programs."""
        raise NotImplementedError

    def sheet(self) -> Sheet:
        """What people want to read."""
        return self.data()

    def text(self) -> str:
        return _text(self.sheet())

    def latex(self) -> str:
        return _latex(self.sheet())


def _text(sheet: Sheet) -> str:
    header, cells = list(sheet.columns), _cells(sheet)
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [header, ["-" * width for width in widths], *cells]
    return "".join(
        "  ".join(
            cell.ljust(width) if name in sheet.left else cell.rjust(width)
            for cell, width, name in zip(line, widths, header, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )


def _markdown(result: Result) -> str:
    sheet = result.sheet()
    rule = ["---" if name in sheet.left else "---:" for name in sheet.columns]
    escaped = [
        [cell.replace("\\", "\\\\").replace("|", "\\|") for cell in row] for row in _cells(sheet)
    ]
    lines = [list(sheet.columns), rule, *escaped]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _csv(result: Result) -> str:
    sheet, buffer = result.data(), io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(sheet.columns)
    writer.writerows([_csv_cell(value) for value in row] for row in sheet.rows)
    return buffer.getvalue()


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "–": "--",
}  # fmt: skip


def _latex(sheet: Sheet) -> str:
    def line(row: Sequence[str]) -> str:
        return " & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in row) + r" \\"

    shape = "".join("l" if name in sheet.left else "r" for name in sheet.columns)
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{shape}}}", r"\toprule", line(sheet.columns), r"\midrule",
            *(line(row) for row in _cells(sheet)), r"\bottomrule", r"\end{tabular}", "",
        ]
    )  # fmt: skip


def _json(result: Result) -> str:
    plain = without_infinities(result.as_dict())
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Result], str]] = {
    "text": lambda result: result.text(),
    "markdown": _markdown,
    "csv": _csv,
    "latex": lambda result: result.latex(),
    "json": _json,
}


def written(result: Result, form: str) -> str:
    """The result in the format of that name."""
    if form not in FORMATS:
        raise UncorkError(f"format {form!r}: expected {', '.join(FORMATS)}")
    return FORMATS[form](result)


def _cells(sheet: Sheet) -> list[list[str]]:
    return [[_cell(value) for value in row] for row in sheet.rows]


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def _csv_cell(value: Any) -> Any:
    """A spreadsheet takes text that begins like a formula for one."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return "" if value is None else value
