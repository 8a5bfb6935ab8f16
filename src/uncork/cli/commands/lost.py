"""`uncork lost`: how many classes of random heads are unargmaxable, by classes and features."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.table import Table

from uncork import __version__
from uncork.cli import options
from uncork.cli.help import DECIDE, OUTPUT
from uncork.cli.output import console, emit_json, progress_bar
from uncork.cli.parameters import Was, Writes
from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.core.whole_file import whole_file
from uncork.domain import parse_domain
from uncork.report.formats import Result, Sheet, written
from uncork.theory.lost_classes import (
    MOST_FEATURES_IN_CLOSED_FORM,
    LostClasses,
    expected_lost,
    simulate_lost,
)


def lost(
    classes: Annotated[
        str,
        typer.Option(
            "-C",
            "--number-of-classes",
            help="Numbers of classes, with commas.",
            metavar="N,…",
            rich_help_panel=DECIDE,
        ),
        Was("--classes"),
    ] = "10,30,100,300",
    features: Annotated[
        str,
        typer.Option(
            "-d",
            "--features",
            help="Numbers of features, with commas.",
            metavar="D,…",
            rich_help_panel=DECIDE,
        ),
    ] = "2,4,8",
    init: Annotated[
        options.Init | None,
        typer.Option(
            help="Entries from N(0, 1) or U(−1, 1).", show_default="both", rich_help_panel=DECIDE
        ),
    ] = None,
    bias: Annotated[
        bool | None,
        typer.Option(
            help="Heads with a bias, or without.", show_default="both", rich_help_panel=DECIDE
        ),
    ] = None,
    heads: Annotated[
        int,
        typer.Option(
            help="Random heads of each kind to average over.", metavar="N", rich_help_panel=DECIDE
        ),
    ] = 20,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the first head; the next ones count up from it.",
            metavar="S",
            rich_help_panel=DECIDE,
        ),
    ] = 0,
    domain: options.DomainOfPictures = "unbounded",
    plot: options.Plot = None,
    csv_file: Annotated[
        str | None,
        typer.Option(
            "--csv",
            help="Write the table as CSV (- for stdout).",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
        Writes("--csv"),
    ] = None,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Count the unargmaxable classes of random heads, on average.

    A simulation; beside it, for normal heads, the closed form.
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
    with progress_bar(quiet) as progress:
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


@dataclass(frozen=True)
class _Lost(Result):
    rows: Sequence[dict[str, Any]]

    def data(self) -> Sheet:
        return Sheet(list(self.rows[0]), [list(row.values()) for row in self.rows])


def _write_csv(rows: list[dict[str, Any]], path: str) -> None:
    text = written(_Lost(rows), "csv")
    if path == "-":
        sys.stdout.write(text)
        return
    with whole_file(path) as target:
        target.write_text(text, encoding="utf-8", newline="")


def _print(rows: list[dict[str, Any]], heads: int) -> None:
    table = Table(
        title=f"unargmaxable classes of random heads, {heads} of each", title_justify="left"
    )
    for name in ("init", "bias"):
        table.add_column(name)
    for name in ("classes", "features", "unargmaxable", "± s.e.", "share", "closed form"):
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
        console().print(f"{undecided:,} classes were left undecided and are not counted")
