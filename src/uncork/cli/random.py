"""`uncork random`: audit a random head and compare with Qhull."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from uncork import __version__
from uncork.cli.files import Reads, Writes
from uncork.cli.output import console, emit_json
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.text import printable
from uncork.domain import parse_domain
from uncork.theory.random_heads import MOST_HULL_DIMENSIONS, exact_classes, random_head

_STORE = "uncork.db"


class Init(str, Enum):
    """How the weights are drawn."""

    normal = "normal"
    uniform = "uniform"


def random(
    classes: Annotated[int, typer.Option("-C", "--classes", help="Number of classes.")],
    features: Annotated[
        int | None,
        typer.Option("-d", "--features", help="Number of features (with --sweep: many)."),
    ] = None,
    init: Annotated[Init, typer.Option(help="N(0, 1) or U(−1, 1).")] = Init.normal,
    bias: Annotated[bool, typer.Option("--bias", help="Draw a bias as well.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same head.")] = 0,
    domain: Annotated[
        str,
        typer.Option(help="Inputs that can arrive: box:R, box:LO,HI, ball:R or unbounded."),
        Reads("the domain"),
    ] = "box:100",
    plot: Annotated[
        str | None,
        typer.Option(help="Draw the hull of 2 or 3 features (.png, .pdf, .svg).", metavar="FILE"),
        Writes("--plot"),
    ] = None,
    qhull: Annotated[
        bool,
        typer.Option(
            help="Compare with Qhull, which takes minutes for 9 features and 500 classes."
        ),
    ] = True,
    json_file: Annotated[
        str | None,
        typer.Option("--json", help="Write the result as JSON (- for stdout).", metavar="FILE"),
        Writes("--json"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep",
            help="The paper's study: both initialisations, with bias, 2 to 50 features, each with "
            "the approximate algorithm's iterations, into a store; --plot draws Figure 10.",
        ),
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(
            help="With --sweep: file or URL that results go to.",
            show_default=_STORE,
            metavar="URL",
        ),
        Reads("the store", lambda store: [_STORE if store is None else store]),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="With --sweep: continue after a stop.")
    ] = False,
) -> None:
    """Audit a random head; up to 9 features, compare with the convex hull that Qhull finds.

    With a bias the comparison needs --domain unbounded. Exit status 1 if Qhull contradicts a
    verdict. Example: uncork random -C 300 -d 8 --seed 3
    """
    if not sweep and (store is not None or resume):
        option = "--resume" if store is None else "--store"
        raise UncorkError(f"{option} goes with --sweep: one random head is not kept")
    into = None if not sweep else _STORE if store is None else store
    if into is not None:
        if features is not None:
            raise UncorkError("-d does not go with --sweep, which takes 2 to 50 features")
        from uncork.cli.random_sweep import run_study

        run_study(classes, seed, domain, into, plot, json_file, quiet, resume)
        return
    if features is None:
        raise UncorkError("the number of features is missing: give -d, or --sweep")
    head = random_head(classes, features, init.value, bias, seed, parse_domain(domain))
    if plot is not None:
        from uncork.report import check_plot

        check_plot(features, plot)

    from uncork.auditing import audit

    watched = not quiet and sys.stderr.isatty()
    result = audit(head, progress=watched)
    truth = None
    if qhull:
        with Console(stderr=True, quiet=not watched).status("comparing with Qhull"):
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
            "classes": classes,
            "features": features,
            "init": init.value,
            "bias": bias,
            "seed": seed,
            "domain": str(head.domain),
            "counts": {name: int(count) for name, count in result.counts.items()},
            "unargmaxable": [int(t) for t in result.unargmaxable],
            "tied": [int(t) for t in result.tied],
            "undecided": [int(t) for t in result.undecided],
            "qhull": comparison,
            "seconds": {name: float(s) for name, s in result.seconds.items()},
        }
        emit_json(described, json_file)
    if json_file != "-":
        why_not = "not asked to" if not qhull else _why_not(head)
        _print(console(), head, init.value, seed, result, comparison, why_not)
        if plot is not None:
            console().print(f"hull drawn to {printable(plot)}", soft_wrap=True)
    if comparison is not None and comparison["contradicted"]:
        raise typer.Exit(1)


def compare(result: Any, truth: np.ndarray, classes: int) -> dict[str, Any]:
    """Precision and recall of "unargmaxable" against Qhull, and the classes they differ on.

    A tied class is never strictly first, so Qhull's side counts it as lost too; an undecided one
    counts as not found, but contradicts nothing.
    """
    lost = np.setdiff1d(np.arange(classes), truth)
    found = np.union1d(result.unargmaxable, result.tied)
    right = np.intersect1d(found, lost)
    wrong = np.union1d(np.setdiff1d(found, lost), np.intersect1d(result.argmaxable, lost))
    return {
        "vertices": len(truth),
        "unargmaxable": len(lost),
        "precision": len(right) / len(found) if len(found) else 1.0,
        "recall": len(right) / len(lost) if len(lost) else 1.0,
        "contradicted": [int(t) for t in wrong],
    }


def _print(
    out: Console,
    head: Head,
    init: str,
    seed: int,
    result: Any,
    comparison: dict[str, Any] | None,
    why_not: str,
) -> None:
    out.print(
        f"{head.classes:,} classes × {head.features} features, {init}"
        f"{', with bias' if head.bias is not None else ''}, seed {seed}, {head.domain}"
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
    for name in ("argmaxable", "unargmaxable", "tied", "undecided"):
        count = int(result.counts.get(name, 0))
        row = [name, f"{count:,}", f"{count / head.classes:.1%}"]
        table.add_row(*row, *([hull.get(name, "")] if hull else []))
    out.print(table)
    if comparison is None:
        out.print(f"not compared with Qhull: {why_not}")
    else:
        out.print(
            f"unargmaxable against Qhull: precision {comparison['precision']:.1%}, "
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
        return f"{dimensions} dimensions{extra}, it is asked up to {MOST_HULL_DIMENSIONS}"
    if head.classes < dimensions + 1:
        return f"{head.classes} points span no hull in {dimensions} dimensions"
    if head.bias is not None and not head.domain.is_everything:
        return "with a bias that needs --domain unbounded"
    return f"domain {head.domain} does not surround 0"
