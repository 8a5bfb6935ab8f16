"""What `uncork count` prints: single counts, tables and enumerations as text, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from uncork.cli.output import shown
from uncork.core.head import Head
from uncork.core.reading import doubt_lines
from uncork.theory import counting
from uncork.theory.braid import Rankings
from uncork.theory.walls import Explanation

_LN10 = math.log(10)
_JSON_DIGITS = 4000  # longer integers are refused by Python's own JSON reader
_SHOWN_RANKINGS = 50


@dataclass(frozen=True)
class Facts:
    """What is known of one size; the integers are None where only logarithms were computed."""

    classes: int
    features: int
    bias: bool
    rankings: int | None
    bounded: int | None
    log_rankings: float  # natural
    log_bounded: float
    error: float  # of the logarithms

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


def facts(classes: int, features: int, bias: bool, exact: bool) -> Facts:
    if exact:
        rankings = counting.rankings(classes, features, bias=bias)
        bounded = counting.bounded_rankings(classes, features, bias=bias)
        logs = math.log(rankings), math.log(bounded) if bounded else -math.inf
        return Facts(classes, features, bias, rankings, bounded, *logs, abs(logs[0]) * 2.0**-51)
    log_all = counting.log_rankings(classes, features, bias=bias)
    log_bounded = counting.log_rankings(classes, features, bias=bias, bounded=True)
    error = counting.log_error(classes, log_all)
    return Facts(classes, features, bias, None, None, log_all, log_bounded, error)


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


def single_text(facts: Facts, bounded: bool) -> str:
    kind = "with bias" if facts.bias else "no bias"
    lines = [f"{facts.classes:,} classes, {facts.features:,} features, {kind}"]
    e = facts.error
    regions = [
        ("bounded regions", _number(facts.bounded, facts.log_bounded, e)),
        ("unbounded regions", "" if facts.unbounded is None else digits(facts.unbounded)),
    ]
    rows = [regions[0]] if bounded else []
    rows.append(("feasible rankings", _number(facts.rankings, facts.log_rankings, e)))
    if facts.bias and not bounded:
        rows += [row for row in regions if row[1]]
    if facts.classes <= 20:
        rows.append((f"all {facts.classes}! rankings", digits(math.factorial(facts.classes))))
    else:
        log = counting.log_factorial(facts.classes)
        rows.append((f"all {facts.classes:,}! rankings", f"10^{log / _LN10:,.2f}"))
    rows.append(("feasible share", _share(facts)))
    width = max(len(name) for name, _ in rows) + 2
    lines += [f"{name:<{width}}{value}" for name, value in rows]
    if facts.rankings is None:
        lines.append(f"(logarithms, right to {e / _LN10:.0e}; --exact gives every digit)")
    return "\n".join(lines) + "\n"


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


def single_csv(facts: Facts) -> str:
    described = facts.as_dict()
    described["bias"] = int(facts.bias)
    for name, value in (
        ("rankings", facts.rankings), ("bounded", facts.bounded), ("unbounded", facts.unbounded)
    ):  # fmt: skip
        described[name] = "" if value is None else digits(value, "")
    return _csv([list(described), list(described.values())])


def single_latex(facts: Facts, bounded: bool) -> str:
    value, log = (
        (facts.bounded, facts.log_bounded) if bounded else (facts.rankings, facts.log_rankings)
    )
    if value is None and log > -math.inf:
        power = _logarithm(log, facts.error).replace(",", "{,}")
        return f"$10^{{{power}}}$\n"
    return f"${digits(value or 0, '{,}')}$\n"


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

    def as_dict(self) -> dict[str, Any]:
        return {"bias": self.bias, "bounded": self.bounded, "rows": self.rows}


def table_text(table: CountTable) -> str:
    header = ["C \\ d", *(str(d + 1) for d in range(len(table.rows[0])))]
    body = [[str(c + 1), *map(digits, row)] for c, row in enumerate(table.rows)]
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
    lines = [f"{table.name}{table.title}"]
    for row in (header, *body):
        lines.append("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)))
    return "\n".join(lines) + "\n"


def table_csv(tables: Sequence[CountTable]) -> str:
    rows: list[list[Any]] = [["bias", "classes", *range(1, len(tables[0].rows[0]) + 1)]]
    for table in tables:
        for c, row in enumerate(table.rows, start=1):
            rows.append([int(table.bias), c, *(digits(v, "") for v in row)])
    return _csv(rows)


def table_latex(table: CountTable) -> str:
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


def rankings_csv(head: Head, found: Rankings) -> str:
    names = [f"x{j}" for j in range(head.features)]
    rows: list[list[Any]] = [["ranking", "bounded", *names]]
    for r in found:
        rows.append([" ".join(map(str, r.order)), int(r.bounded), *map(str, r.witness)])
    return _csv(rows)


def rankings_text(head: Head, found: Rankings, why: Explanation) -> str:
    facets = sum(1 for _ in found.neighbours())
    lines = [
        f"{head.classes} classes, {head.features} features, "
        f"{'no' if head.bias is None else 'with'} bias: {len(found):,} feasible rankings, "
        f"{found.bounded:,} in bounded regions; {facets:,} pairs of regions share a facet",
        *doubt_lines(head.reading),
        f"counted from how the walls meet: {why}",
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


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
