"""`uncork count`: how many rankings of its classes a head can produce."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

import typer

from uncork import __version__
from uncork.cli import options
from uncork.cli.help import INPUT
from uncork.cli.output import emit_json, shown
from uncork.cli.parameters import Reads, Was
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.reading import doubt_lines, json_keys
from uncork.report.formats import Result, Sheet, written
from uncork.theory import counting
from uncork.theory import label_sets as cover
from uncork.theory.braid import Rankings
from uncork.theory.walls import Explanation

_EXACT_STEPS = 4_000_000  # big-integer steps that take about a second
_MOST_CELLS = 10_000
_TABLE = 10  # classes and features of the paper's tables
_LN10 = math.log(10)
_JSON_DIGITS = 4000  # longer integers are refused by Python's own JSON reader
_SHOWN_RANKINGS = 50
_COUNT = "What to count"


def count(
    source: Annotated[
        str | None,
        typer.Argument(
            help="Small head: list its rankings, and explain which are missing.", metavar="SOURCE"
        ),
        Reads("the model"),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(
            "-C",
            "--number-of-classes",
            help="Number of classes.",
            metavar="N",
            rich_help_panel=INPUT,
        ),
        Was("--classes"),
    ] = None,
    features: Annotated[
        int | None,
        typer.Option(
            "-d", "--features", help="Number of features.", metavar="D", rich_help_panel=INPUT
        ),
    ] = None,
    bias: Annotated[
        bool | None,
        typer.Option(
            help="Heads with a bias, or without.",
            show_default="without; tables: both",
            rich_help_panel=INPUT,
        ),
    ] = None,
    bounded: Annotated[
        bool,
        typer.Option("--bounded", help="Count the bounded regions only.", rich_help_panel=_COUNT),
    ] = False,
    table: Annotated[
        bool,
        typer.Option(
            "--table",
            help="The paper's Tables 2 and 3, up to -C classes and -d features (10 and 10).",
            rich_help_panel=_COUNT,
        ),
    ] = False,
    label_sets: Annotated[
        bool,
        typer.Option(
            "--label-sets",
            help="Count label sets of a multi-label head of -C labels instead (Cover's count).",
            rich_help_panel=_COUNT,
        ),
    ] = False,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Print all digits, however long that takes.", rich_help_panel=_COUNT
        ),
    ] = False,
    form: options.Format = "text",
    json_file: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Count the rankings that a head of a given size can produce.

    For rows in general position. Very large counts are given as a logarithm. With --label-sets:
    how many label sets a multi-label head can. Example: uncork count -C 10 -d 5 --bias
    """
    result: Result
    if label_sets:
        if source is not None or table or bounded:
            raise UncorkError("--label-sets counts by size: give only -C, -d and --bias with it")
        if classes is None or features is None:
            raise UncorkError("how many labels and features? give -C and -d")
        result = LabelSetFacts(classes, features, bool(bias))
    elif source is not None:
        if table or bounded or classes is not None or features is not None or bias is not None:
            raise UncorkError("SOURCE is a head of its own: -C, -d, --bias and --table do not go "
                              "with it")  # fmt: skip
        result = _enumerated(source)
    elif table:
        most = _TABLE if classes is None else classes, _TABLE if features is None else features
        result = _tables(*most, bias, bounded)
    else:
        if classes is None or features is None:
            raise UncorkError("how many classes and features? give -C and -d, or --table")
        quick = classes * min(features, classes) <= _EXACT_STEPS
        result = facts(classes, features, bool(bias), exact or quick, bounded)
    plain = {"uncork": __version__, **result.as_dict()}
    if json_file is not None:
        emit_json(plain, json_file)
    if json_file == "-":
        return  # everything has gone to stdout
    if form == "json":
        emit_json(plain, "-")
    else:
        sys.stdout.write(written(result, form))


@dataclass(frozen=True)
class Facts(Result):
    """What is known of one size; the integers are None where only logarithms were computed."""

    classes: int
    features: int
    bias: bool
    rankings: int | None
    bounded: int | None
    log_rankings: float  # natural
    log_bounded: float
    error: float  # of the logarithms
    bounded_first: bool = False  # the bounded regions were asked for

    @property
    def unbounded(self) -> int | None:
        if self.rankings is None or self.bounded is None:
            return None
        return self.rankings - self.bounded

    @property
    def log_share(self) -> float:
        return min(0.0, self.log_rankings - counting.log_factorial(self.classes))

    @property
    def everything(self) -> bool:
        return self.features >= self.classes - 1

    def as_dict(self) -> dict[str, Any]:
        def number(value: int | None) -> int | None:
            too_long = value is not None and value.bit_length() > _JSON_DIGITS * 3.32
            return None if too_long else value

        return {
            "classes": self.classes, "features": self.features, "bias": self.bias,
            "rankings": number(self.rankings), "bounded": number(self.bounded),
            "unbounded": number(self.unbounded),
            "log10_rankings": self.log_rankings / _LN10,
            "log10_bounded": self.log_bounded / _LN10,  # −∞, no bounded region, becomes null
            "log10_share": 0.0 if self.everything else self.log_share / _LN10,
            "share": 1.0 if self.everything else math.exp(self.log_share),
        }  # fmt: skip

    def data(self) -> Sheet:
        described = self.as_dict()
        for name, value in (
            ("rankings", self.rankings), ("bounded", self.bounded), ("unbounded", self.unbounded)
        ):  # fmt: skip
            described[name] = "" if value is None else digits(value, "")
        return Sheet(list(described), [list(described.values())])

    def text(self) -> str:
        kind = "with bias" if self.bias else "no bias"
        lines = [f"{self.classes:,} classes, {self.features:,} features, {kind}"]
        e = self.error
        regions = [
            ("bounded regions", _number(self.bounded, self.log_bounded, e)),
            ("unbounded regions", "" if self.unbounded is None else digits(self.unbounded)),
        ]
        rows = [regions[0]] if self.bounded_first else []
        rows.append(("feasible rankings", _number(self.rankings, self.log_rankings, e)))
        if self.bias and not self.bounded_first:
            rows += [row for row in regions if row[1]]
        if self.classes <= 20:
            rows.append((f"all {self.classes}! rankings", digits(math.factorial(self.classes))))
        else:
            log = counting.log_factorial(self.classes)
            rows.append((f"all {self.classes:,}! rankings", f"10^{log / _LN10:,.2f}"))
        rows.append(("feasible share", _share(self)))
        width = max(len(name) for name, _ in rows) + 2
        lines += [f"{name:<{width}}{value}" for name, value in rows]
        if self.rankings is None:
            lines.append(f"(logarithms, correct to {e / _LN10:.0e}; --exact gives every digit)")
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        value, log = (
            (self.bounded, self.log_bounded)
            if self.bounded_first
            else (self.rankings, self.log_rankings)
        )
        if value is None and log > -math.inf:
            power = _logarithm(log, self.error).replace(",", "{,}")
            return f"$10^{{{power}}}$\n"
        return f"${digits(value or 0, '{,}')}$\n"


@dataclass(frozen=True)
class LabelSetFacts(Result):
    """How many label sets a multi-label head of one size can produce."""

    labels: int
    features: int
    bias: bool

    def as_dict(self) -> dict[str, Any]:
        count = cover.label_sets(self.labels, self.features, bias=self.bias)
        log = cover.log10_label_sets(self.labels, self.features, bias=self.bias)
        return {
            "labels": self.labels, "features": self.features, "bias": self.bias,
            "label_sets": count if count.bit_length() <= _JSON_DIGITS * 3.32 else None,
            "log10_label_sets": log, "log10_share": log - self.labels * math.log10(2),
            "share": 10 ** (log - self.labels * math.log10(2)),
        }  # fmt: skip

    def data(self) -> Sheet:
        described = self.as_dict()
        return Sheet(list(described), [list(described.values())])

    def text(self) -> str:
        found = self.as_dict()
        count, log = found["label_sets"], found["log10_label_sets"]
        few = count is not None and count < 10**40
        every = (
            digits(2**self.labels)
            if self.labels <= 100
            else f"10^{self.labels * math.log10(2):,.2f}"
        )
        share = found["log10_share"]
        rows = [
            ("feasible label sets", digits(count) if few else f"10^{log:,.4f}"),
            (f"all 2^{self.labels:,} label sets", every),
            ("feasible share", f"{found['share']:.4g}" if share > -300 else f"10^{share:,.2f}"),
        ]
        width = max(len(name) for name, _ in rows) + 2
        kind = "with bias" if self.bias else "no bias"
        lines = [f"{self.labels:,} labels, {self.features:,} features, {kind}"]
        return "\n".join([*lines, *(f"{name:<{width}}{value}" for name, value in rows)]) + "\n"


def facts(classes: int, features: int, bias: bool, exact: bool, bounded: bool = False) -> Facts:
    size = classes, features, bias
    if exact:
        every = counting.rankings(classes, features, bias=bias)
        inside = counting.bounded_rankings(classes, features, bias=bias)
        logs = math.log(every), math.log(inside) if inside else -math.inf
        return Facts(*size, every, inside, *logs, abs(logs[0]) * 2.0**-51, bounded)
    log_all = counting.log_rankings(classes, features, bias=bias)
    log_bounded = counting.log_rankings(classes, features, bias=bias, bounded=True)
    error = counting.log_error(classes, log_all)
    return Facts(*size, None, None, log_all, log_bounded, error, bounded)


def digits(value: int, separator: str = ",") -> str:
    """An integer of any length (str() refuses beyond 4,300 digits), thousands apart."""
    return f"{Decimal(value):,f}".replace(",", separator)


def _number(value: int | None, log: float, error: float) -> str:
    if value is not None:
        return digits(value)
    return "0" if log == -math.inf else f"10^{_logarithm(log, error)}"


def _logarithm(log: float, error: float) -> str:
    """log₁₀ with the digits that are certain, four at least where they are."""
    places = max(0, min(9, math.floor(-math.log10(max(error / _LN10, 1e-12))) - 1))
    return f"{log / _LN10:,.{places}f}"


def _share(facts: Facts) -> str:
    if facts.everything:
        return "1: every ranking"
    share = math.exp(facts.log_share)
    if share >= 1e-4:
        return f"{share:.6%}" if share > 0.9999995 else f"{share:.4%}"
    power = facts.log_share / _LN10
    if power > -300:
        return f"{share:.4g}"
    return f"10^{_logarithm(facts.log_share, facts.error + abs(facts.log_share) * 2e-16)}"


@dataclass(frozen=True)
class CountTable:
    """Counts for C = 1 … and d = 1 …"""

    bias: bool
    bounded: bool
    rows: list[list[int]]

    @classmethod
    def make(cls, bias: bool, bounded: bool, classes: int, features: int) -> CountTable:
        if not bounded:
            return cls(bias, bounded, counting.table(bias, classes, features))
        rows = [
            [counting.bounded_rankings(c, d, bias=bias) for d in range(1, features + 1)]
            for c in range(1, classes + 1)
        ]
        return cls(bias, bounded, rows)

    @property
    def title(self) -> str:
        what = "bounded regions" if self.bounded else "feasible rankings"
        return f"{what}, {'with' if self.bias else 'no'} bias"

    @property
    def name(self) -> str:
        if self.bounded:
            return ""
        return "Table 3: " if self.bias else "Table 2: "


@dataclass(frozen=True)
class CountTables(Result):
    """One table, or that without a bias and that with one."""

    tables: list[CountTable]

    def as_dict(self) -> dict[str, Any]:
        return {
            "tables": [{"bias": t.bias, "bounded": t.bounded, "rows": t.rows} for t in self.tables]
        }

    def data(self) -> Sheet:
        columns = ["bias", "classes", *map(str, range(1, len(self.tables[0].rows[0]) + 1))]
        return Sheet(columns, [
            [int(table.bias), c, *(digits(v, "") for v in row)]
            for table in self.tables
            for c, row in enumerate(table.rows, start=1)
        ])  # fmt: skip

    def text(self) -> str:
        return "\n".join(map(_table_text, self.tables))

    def latex(self) -> str:
        return "\n".join(map(_table_latex, self.tables))


def _tables(classes: int, features: int, bias: bool | None, bounded: bool) -> CountTables:
    if classes < 1 or features < 1 or classes * features > _MOST_CELLS:
        raise UncorkError(f"a table of {classes} × {features}: 1 to {_MOST_CELLS:,} entries")
    kinds = (False, True) if bias is None else (bias,)
    return CountTables([CountTable.make(b, bounded, classes, features) for b in kinds])


def _table_text(table: CountTable) -> str:
    header = ["C \\ d", *(str(d + 1) for d in range(len(table.rows[0])))]
    body = [[str(c + 1), *map(digits, row)] for c, row in enumerate(table.rows)]
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
    lines = [f"{table.name}{table.title}"]
    for row in (header, *body):
        lines.append("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)))
    return "\n".join(lines) + "\n"


def _table_latex(table: CountTable) -> str:
    columns = len(table.rows[0])
    numbers = " & ".join(str(d) for d in range(1, columns + 1))
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{r{'r' * columns}}}",
        r"\toprule",
        rf" & \multicolumn{{{columns}}}{{c}}{{features $d$}} \\",
        rf"classes $|C|$ & {numbers} \\",
        r"\midrule",
    ]
    for c, row in enumerate(table.rows, start=1):
        lines.append(f"{c} & {' & '.join(digits(v, '') for v in row)} \\\\")
    what = "bounded regions" if table.bounded else "feasible rankings"
    kind = "with a bias" if table.bias else "without a bias"
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{Number of {what} of $|C|$ classes for a head of $d$ features {kind}.}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Enumeration(Result):
    """The rankings of one small head, and what its rows have in common."""

    head: Head
    source: str
    found: Rankings
    why: Explanation

    def as_dict(self) -> dict[str, Any]:
        head, found = self.head, self.found
        return {
            "source": self.source, "fingerprint": head.fingerprint,
            "classes": head.classes, "features": head.features, "bias": head.bias is not None,
            "domain": "unbounded", "rankings": len(found), "bounded": found.bounded,
            "reading": json_keys(head.reading),
            "in_general_position": self.why.expected,
            "coincidences": [
                {"kind": c.kind, "classes": [list(g) for g in c.classes], "text": c.text}
                for c in self.why.coincidences
            ],
            "ties": [list(group) for group in found.groups],
            "feasible": [
                {"order": list(r.order), "bounded": r.bounded,
                 "witness": [str(v) for v in r.witness]}
                for r in found
            ],
            "adjacent": [[n.first, n.second] for n in found.neighbours()],
        }  # fmt: skip

    def data(self) -> Sheet:
        columns = ["ranking", "bounded", *(f"x{j}" for j in range(self.head.features))]
        return Sheet(
            columns,
            [[" ".join(map(str, r.order)), int(r.bounded), *r.witness] for r in self.found],
        )

    def text(self) -> str:
        head, found = self.head, self.found
        facets = sum(1 for _ in found.neighbours())
        lines = [
            f"{head.classes} classes, {head.features} features, "
            f"{'no' if head.bias is None else 'with'} bias: {len(found):,} feasible rankings, "
            f"{found.bounded:,} in bounded regions; {facets:,} pairs of regions share a facet",
            *doubt_lines(head.reading),
            f"counted from how the walls meet: {self.why}",
            "",
        ]
        for r in found[:_SHOWN_RANKINGS]:
            order = " > ".join(shown(head.label(i)) for i in r.order)
            x = ", ".join(f"{float(v):.4g}" for v in r.witness)
            lines.append(f"{order}   at x = ({x}){'' if r.bounded else ', unbounded'}")
        if len(found) > _SHOWN_RANKINGS:
            lines.append(
                f"and {len(found) - _SHOWN_RANKINGS:,} more: --format csv or json has them all"
            )
        return "\n".join(lines) + "\n"


def _enumerated(source: str) -> Enumeration:
    from uncork.loading import load
    from uncork.theory.braid import rankings
    from uncork.theory.walls import explain

    head = load(source)
    return Enumeration(head, source, rankings(head), explain(head))
