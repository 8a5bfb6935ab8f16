"""`uncork lost`: how many classes random heads lose, by the number of classes and features."""

from __future__ import annotations

import csv
import sys
from typing import Annotated, Any

import typer
from rich.table import Table

from uncork import __version__
from uncork.cli import options
from uncork.cli.files import Reads, Writes
from uncork.cli.output import console, emit_json
from uncork.cli.random import Init
from uncork.core.errors import UncorkError
from uncork.core.progress import Progress, ProgressBar
from uncork.core.text import printable
from uncork.core.whole_file import whole_file
from uncork.domain import parse_domain
from uncork.theory.lost_classes import (
    MOST_FEATURES_IN_CLOSED_FORM,
    LostClasses,
    expected_lost,
    simulate_lost,
)


def lost(
    classes: Annotated[
        str, typer.Option("-C", "--classes", help="Numbers of classes, with commas.")
    ] = "10,30,100,300",
    features: Annotated[
        str, typer.Option("-d", "--features", help="Numbers of features, with commas.")
    ] = "2,4,8",
    init: Annotated[
        Init | None,
        typer.Option(help="N(0, 1) or U(−1, 1).", show_default="both"),
    ] = None,
    bias: Annotated[
        bool | None, typer.Option(help="Heads with a bias, or without.", show_default="both")
    ] = None,
    heads: Annotated[int, typer.Option(help="Random heads to average over, each time.")] = 20,
    seed: Annotated[int, typer.Option(help="The first head's seed; then one more each.")] = 0,
    domain: Annotated[
        str,
        typer.Option(help="Inputs that can arrive: unbounded, box:R, ball:R.", metavar="SPEC"),
        Reads("the domain"),
    ] = "unbounded",
    plot: Annotated[
        str | None,
        typer.Option(help="Draw it (.png, .pdf, .svg).", metavar="FILE"),
        Writes("--plot"),
    ] = None,
    csv_file: Annotated[
        str | None,
        typer.Option("--csv", help="Write a table (- for stdout).", metavar="FILE"),
        Writes("--csv"),
    ] = None,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Simulate how many classes random heads lose; beside it the closed form for normal heads.

    Example: uncork lost -C 10,100,1000 -d 2,4,8 --plot lost.png
    """
    if csv_file == json_file == "-":
        raise UncorkError("--csv - and --json - would mix on stdout: name a file for one of them")
    if plot is not None:
        from uncork.report import check_plot

        check_plot(2, plot)
    inputs = parse_domain(domain)
    many, sizes = _numbers(classes, "-C"), _numbers(features, "-d")
    kinds = [
        (i, b)
        for i in (("normal", "uniform") if init is None else (init.value,))
        for b in ((False, True) if bias is None else (bias,))
    ]
    work = [(c, d, i, b) for i, b in kinds for d in sizes for c in many]
    simulated = []
    with Progress() if quiet else ProgressBar() as progress:
        progress.stage("simulating", len(work))
        for case in work:
            simulated.append(simulate_lost(*case, heads=heads, seed=seed, domain=inputs))
            progress.advance(1)
    unbounded = inputs.is_everything
    rows = [_row(s, unbounded) for s in simulated]
    if plot is not None:
        from uncork.report.lost_plot import plot_lost

        plot_lost(simulated, plot, closed_form=unbounded)
    if json_file is not None:
        described = {"uncork": __version__, "domain": str(inputs), "seed": seed, "heads": rows}
        emit_json(described, json_file)
    if csv_file is not None:
        _write_csv(rows, csv_file)
    if "-" not in (json_file, csv_file):
        _print(rows, heads)
        if plot is not None:
            console().print(f"drawn to {printable(plot)}", soft_wrap=True)


def _numbers(text: str, option: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers:
        raise UncorkError(f"{option} {text!r} is not understood: expected numbers like 10,30,100")
    return list(dict.fromkeys(numbers))


def _row(s: LostClasses, unbounded: bool) -> dict[str, Any]:
    # Without a bias any domain around 0 gives the same classes as no bound at all.
    known = s.init == "normal" and unbounded and s.features + s.bias <= MOST_FEATURES_IN_CLOSED_FORM
    exact = expected_lost(s.classes, s.features, bias=s.bias) if known else None
    return {
        "init": s.init, "bias": s.bias, "classes": s.classes, "features": s.features,
        "simulated": s.heads, "lost": s.mean, "standard_error": s.standard_error,
        "share": s.share, "closed_form": exact, "undecided": s.undecided,
    }  # fmt: skip


def _write_csv(rows: list[dict[str, Any]], path: str) -> None:
    if path == "-":
        _csv_rows(rows, sys.stdout)
        return
    with whole_file(path) as target, target.open("w", newline="", encoding="utf-8") as file:
        _csv_rows(rows, file)


def _csv_rows(rows: list[dict[str, Any]], file: Any) -> None:
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "bias": int(row["bias"])} for row in rows)


def _print(rows: list[dict[str, Any]], heads: int) -> None:
    table = Table(
        title=f"unargmaxable classes of random heads, {heads} of each", title_justify="left"
    )
    for name in ("init", "bias"):
        table.add_column(name)
    for name in ("classes", "features", "lost", "± s.e.", "share", "closed form"):
        table.add_column(name, justify="right")
    for row in rows:
        error = row["standard_error"]
        table.add_row(
            row["init"], "yes" if row["bias"] else "no", f"{row['classes']:,}",
            str(row["features"]), f"{row['lost']:,.2f}", f"{error:.2f}" if error == error else "",
            f"{row['share']:.1%}",
            "" if row["closed_form"] is None else f"{row['closed_form']:,.2f}",
        )  # fmt: skip
    console().print(table)
    undecided = sum(row["undecided"] for row in rows)
    if undecided:
        console().print(f"{undecided:,} classes were left undecided and count as not lost")
