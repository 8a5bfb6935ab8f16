"""`uncork count`: how many rankings of its classes a head can produce."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated, Any

import typer

from uncork import __version__
from uncork.cli import count_output as output
from uncork.cli import options
from uncork.cli.files import Reads
from uncork.cli.output import emit_json
from uncork.core.errors import UncorkError
from uncork.core.reading import json_keys

_EXACT_STEPS = 4_000_000  # big-integer steps that take about a second
_MOST_CELLS = 10_000
_TABLE = 10  # classes and features of the paper's tables


class Format(str, Enum):
    """How results are written."""

    text = "text"
    csv = "csv"
    latex = "latex"
    json = "json"


def count(
    source: Annotated[
        str | None,
        typer.Argument(
            help="Enumerate the rankings of this small head instead, and explain what it lacks.",
            metavar="SOURCE",
        ),
        Reads("the model"),
    ] = None,
    classes: Annotated[
        int | None, typer.Option("-C", "--classes", help="Number of classes.")
    ] = None,
    features: Annotated[
        int | None, typer.Option("-d", "--features", help="Number of features.")
    ] = None,
    bias: Annotated[
        bool | None,
        typer.Option(help="Heads with a bias, or without.", show_default="without; tables: both"),
    ] = None,
    bounded: Annotated[
        bool, typer.Option("--bounded", help="Count the bounded regions only.")
    ] = False,
    table: Annotated[
        bool,
        typer.Option("--table", help="The paper's Tables 2 and 3, up to -C and -d (10 and 10)."),
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="All digits, however long that takes.")
    ] = False,
    format: Annotated[Format, typer.Option(help="How to write the result.")] = Format.text,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Count the rankings that a head of that size can produce, in general position.

    Very large counts are given as a logarithm. Example: uncork count -C 10 -d 5 --bias
    """
    if source is not None:
        if table or bounded or classes is not None or features is not None or bias is not None:
            raise UncorkError("SOURCE is a head of its own: -C, -d, --bias and --table do not go "
                              "with it")  # fmt: skip
        result, written = _enumerated(source, format)
    elif table:
        most = _TABLE if classes is None else classes, _TABLE if features is None else features
        result, written = _table(*most, bias, bounded, format)
    else:
        if classes is None or features is None:
            raise UncorkError("how many classes and features? give -C and -d, or --table")
        result, written = _single(classes, features, bool(bias), bounded, exact, format)
    result = {"uncork": __version__, **result}
    if json_file is not None:
        emit_json(result, json_file)
    if json_file == "-":
        return  # what goes to stdout has gone there
    if format is Format.json:
        emit_json(result, "-")
    else:
        sys.stdout.write(written)


def _single(
    classes: int, features: int, bias: bool, bounded: bool, exact: bool, format: Format
) -> tuple[dict[str, Any], str]:
    quick = classes * min(features, classes) <= _EXACT_STEPS
    facts = output.facts(classes, features, bias, exact=exact or quick)
    if format is Format.csv:
        return facts.as_dict(), output.single_csv(facts)
    if format is Format.latex:
        return facts.as_dict(), output.single_latex(facts, bounded)
    return facts.as_dict(), output.single_text(facts, bounded)


def _table(
    classes: int, features: int, bias: bool | None, bounded: bool, format: Format
) -> tuple[dict[str, Any], str]:
    if classes < 1 or features < 1 or classes * features > _MOST_CELLS:
        raise UncorkError(f"a table of {classes} × {features}: 1 to {_MOST_CELLS:,} entries")
    kinds = (False, True) if bias is None else (bias,)
    tables = [output.CountTable.make(b, bounded, classes, features) for b in kinds]
    described = {"tables": [t.as_dict() for t in tables]}
    if format is Format.csv:
        return described, output.table_csv(tables)
    if format is Format.latex:
        return described, "\n".join(output.table_latex(t) for t in tables)
    return described, "\n".join(output.table_text(t) for t in tables)


def _enumerated(source: str, format: Format) -> tuple[dict[str, Any], str]:
    from uncork.loading import load
    from uncork.theory.braid import rankings
    from uncork.theory.walls import explain

    head = load(source)
    found = rankings(head)
    why = explain(head)
    described = {
        "source": source, "fingerprint": head.fingerprint,
        "classes": head.classes, "features": head.features, "bias": head.bias is not None,
        "domain": "unbounded", "rankings": len(found), "bounded": found.bounded,
        "reading": json_keys(head.reading),
        "in_general_position": why.expected,
        "coincidences": [
            {"kind": c.kind, "classes": [list(g) for g in c.classes], "text": c.text}
            for c in why.coincidences
        ],
        "ties": [list(group) for group in found.groups],
        "feasible": [
            {"order": list(r.order), "bounded": r.bounded, "witness": [str(v) for v in r.witness]}
            for r in found
        ],
        "adjacent": [[n.first, n.second] for n in found.neighbours()],
    }  # fmt: skip
    if format is Format.latex:
        raise UncorkError("the rankings of a head are written as text, csv or json")
    if format is Format.csv:
        return described, output.rankings_csv(head, found)
    return described, output.rankings_text(head, found, why)
