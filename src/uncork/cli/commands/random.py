"""`uncork random`: audit a random head and compare with Qhull; or the paper's study of many."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from uncork import __version__
from uncork.cli import options
from uncork.cli.help import DECIDE, INPUT, OUTPUT
from uncork.cli.output import console, emit_json, watched
from uncork.cli.parameters import Reads
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.text import printable
from uncork.theory.random_heads import INITS, MOST_HULL_DIMENSIONS, exact_classes

_STORE = "uncork.db"
_STUDIED = (2, 4, 6, 8, 10, 15, 20, 30, 40, 50)  # the numbers of features of --sweep


def random(
    made: options.RandomHead,
    search: options.Search,
    bias: Annotated[
        bool, typer.Option("--bias", help="Draw a bias as well.", rich_help_panel=INPUT)
    ] = False,
    domain: options.Domain = None,
    qhull: Annotated[
        bool,
        typer.Option(
            help="Compare with Qhull, which takes minutes for 9 features and 500 classes.",
            rich_help_panel=DECIDE,
        ),
    ] = True,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep",
            help="The paper's study: both initialisations, with a bias, 2 to 50 features, each "
            "with the approximate algorithm's iterations, into a store; --plot draws Figure 10.",
            rich_help_panel=DECIDE,
        ),
    ] = False,
    plot: options.Plot = None,
    json_file: options.Json = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="With --sweep: file or URL of the store that results go to.",
            show_default=_STORE,
            metavar="URL",
            rich_help_panel=OUTPUT,
        ),
        Reads("the store", lambda store: [_STORE if store is None else store]),
    ] = None,
    resume: options.Resume = False,
    quiet: options.Quiet = False,
) -> None:
    """Audit a random head; compare with the convex hull of Qhull.

    Qhull is asked up to 9 features; with a bias the comparison needs --domain unbounded. It gives
    precision and recall of the unargmaxable classes, with --approximate of those that screening
    leaves over. Exit status 1 if Qhull contradicts a verdict.
    Examples: uncork random -C 300 -d 8 --seed 3;
    uncork random -C 300 -d 8 --approximate --algorithm reference --patience 100
    """
    if made.classes is None:
        raise UncorkError("the number of classes is missing: give -C (see uncork random --help)")
    domain = domain or options.DEFAULT_DOMAIN
    if not sweep and (store is not None or resume):
        option = "--resume" if store is None else "--store"
        raise UncorkError(f"{option} goes with --sweep: one random head is not stored")
    if sweep:
        if made.features is not None:
            raise UncorkError("-d does not go with --sweep, which takes 2 to 50 features")
        if search != options.Search():
            raise UncorkError("--approximate, --patience and --algorithm do not go with --sweep")
        into = _STORE if store is None else store
        _study(made.classes, made.seed, domain, into, plot, json_file, quiet, resume)
        return
    if made.features is None:
        raise UncorkError("the number of features is missing: give -d, or --sweep")
    head = made.draw(bias, domain)
    if plot is not None:
        from uncork.report import check_plot

        check_plot(made.features, plot)

    from uncork.auditing import audit

    result = audit(head, **search.as_dict(), progress=watched(quiet))
    truth = None
    if qhull:
        with Console(stderr=True, quiet=not watched(quiet)).status("comparing with Qhull"):
            truth = exact_classes(head)
    comparison = None if truth is None else compare(result, truth, head.classes)
    if plot is not None:
        from uncork.report import plot_hull

        plot_hull(head, result.unargmaxable, plot)
    if json_file is not None:
        described = {
            "uncork": __version__,
            "source": head.source,
            "fingerprint": head.fingerprint,
            "classes": head.classes,
            "features": head.features,
            "init": made.init.value,
            "bias": bias,
            "seed": made.seed,
            "domain": str(head.domain),
            **search.as_dict(),
            "counts": {name: int(count) for name, count in result.counts.items()},
            "unargmaxable": [int(t) for t in result.unargmaxable],
            "tied": [int(t) for t in result.tied],
            "undecided": [int(t) for t in result.undecided],
            "qhull": comparison,
            "seconds": {name: float(s) for name, s in result.seconds.items()},
        }
        emit_json(described, json_file)
    if json_file != "-":
        why_not = "--no-qhull was given" if not qhull else _why_not(head)
        _print(console(), head, made, result, comparison, why_not)
        if plot is not None:
            console().print(f"hull drawn to {printable(plot)}", soft_wrap=True)
    if comparison is not None and comparison["contradicted"]:
        raise typer.Exit(1)


def compare(result: Any, truth: np.ndarray, classes: int) -> dict[str, Any]:
    """Precision and recall of "unargmaxable" against Qhull, and the classes they differ on.

    `truth` holds the vertices of the hull. A tied class is never strictly first, so it is not a
    vertex and counts as unargmaxable on both sides. Undecided classes are what the approximate
    algorithm answers with, its *potentially unargmaxable* ones; a full audit has not found them.
    Either way they contradict nothing.
    """
    unargmaxable = np.setdiff1d(np.arange(classes), truth)
    proven = np.union1d(result.unargmaxable, result.tied)
    found = np.union1d(proven, result.undecided) if result.approximate else proven
    right = np.intersect1d(found, unargmaxable)
    wrong = np.union1d(
        np.setdiff1d(proven, unargmaxable), np.intersect1d(result.argmaxable, unargmaxable)
    )
    return {
        "vertices": len(truth),
        "unargmaxable": len(unargmaxable),
        "found": len(found),
        "precision": len(right) / len(found) if len(found) else 1.0,
        "recall": len(right) / len(unargmaxable) if len(unargmaxable) else 1.0,
        "contradicted": [int(t) for t in wrong],
    }


def _print(
    out: Console,
    head: Head,
    made: options.RandomHead,
    result: Any,
    comparison: dict[str, Any] | None,
    why_not: str,
) -> None:
    out.print(
        f"{head.classes:,} classes × {head.features} features, {made.init.value}"
        f"{', with bias' if head.bias is not None else ''}, seed {made.seed}, {head.domain}"
    )
    table = Table()
    table.add_column("verdict")
    table.add_column("classes", justify="right")
    table.add_column("share", justify="right")
    if comparison is not None:
        table.add_column("Qhull", justify="right")
    hull = {}
    if comparison is not None:
        hull = {
            "argmaxable": f"{comparison['vertices']:,}",
            "unargmaxable": f"{comparison['unargmaxable']:,}",
        }
    unknown = "potentially unargmaxable" if result.approximate else "undecided"
    for name in ("argmaxable", "unargmaxable", "tied", "undecided"):
        count = int(result.counts.get(name, 0))
        row = [
            unknown if name == "undecided" else name,
            f"{count:,}",
            f"{count / head.classes:.1%}",
        ]
        table.add_row(*row, *([hull.get(name, "")] if hull else []))
    out.print(table)
    if comparison is None:
        out.print(f"not compared with Qhull: {why_not}")
    else:
        what = "potentially unargmaxable" if result.approximate else "unargmaxable"
        out.print(
            f"{what} against Qhull: precision {comparison['precision']:.1%}, "
            f"recall {comparison['recall']:.1%}"
        )
        if comparison["contradicted"]:
            ids = ", ".join(map(str, comparison["contradicted"][:20]))
            out.print(f"Qhull contradicts the verdicts on classes {ids}")
    total = result.seconds.get("total")
    if total is not None:
        out.print(f"audited in {total:.2f} s")


def _why_not(head: Head) -> str:
    dimensions = head.features + (head.bias is not None)
    if dimensions > MOST_HULL_DIMENSIONS:
        extra = " (a bias is one more)" if head.bias is not None else ""
        return f"{dimensions} dimensions{extra}; it is asked up to {MOST_HULL_DIMENSIONS}"
    if head.classes < dimensions + 1:
        return f"{head.classes} points do not span a hull in {dimensions} dimensions"
    if head.bias is not None and not head.domain.is_everything:
        return "with a bias this needs --domain unbounded"
    return f"domain {head.domain} does not surround 0"


def _study(
    classes: int,
    seed: int,
    domain: str,
    store: str,
    plot: str | None,
    json_file: str | None,
    quiet: bool,
    resume: bool,
) -> None:
    """The paper's study: heads of every width and both distributions, stored and drawn."""
    from uncork.cli.commands.sweep import sweep_and_print
    from uncork.report.drawing import check_figure
    from uncork.report.fleet_plots import plot_iterations
    from uncork.store import Store
    from uncork.sweep.manifest import Task

    if plot is not None:
        check_figure(plot)
    tasks = [
        Task(
            f"random:{init},{classes}x{width},seed={seed},bias",
            f"{init}, d = {width}",
            f"random {init}",
            {"domain": domain, "iterations": True},
        )
        for init in INITS
        for width in _STUDIED
    ]
    outcomes = sweep_and_print(
        tasks, store, engine="local", address=None, workers=None, resume=resume,
        certificates=None, json_file=json_file, quiet=quiet,
    )  # fmt: skip
    if plot is not None:
        stored = [outcome.audit_id for outcome in outcomes if outcome.audit_id is not None]
        with Store(store, create=False) as opened:
            plot_iterations(opened, [opened.audit(number) for number in stored], plot)
        if json_file != "-":
            console().print(f"drawn to {printable(plot)}", soft_wrap=True)
    sys.stdout.flush()
    if not all(outcome.is_stored for outcome in outcomes):
        raise typer.Exit(1)
