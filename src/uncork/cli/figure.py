"""`uncork figure`: the paper's figures from a store."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from uncork.cli import options
from uncork.cli.files import Writes
from uncork.cli.output import console
from uncork.cli.saving import chosen_store
from uncork.core.text import printable


class Kind(str, Enum):
    """What to draw."""

    unargmaxable = "unargmaxable"
    iterations = "iterations"


def figure(
    kind: Annotated[
        Kind,
        typer.Argument(
            help="unargmaxable: how many classes each model loses (Figure 6); iterations: of the "
            "approximate algorithm, by class (Figures 10 to 12)."
        ),
    ],
    output: Annotated[
        str,
        typer.Option("-o", "--output", help="File: .png, .svg or .pdf.", metavar="FILE"),
        Writes("--output"),
    ],
    store: options.StoreUrl = None,
    name: options.StoredName = None,
    group: options.StoredGroup = None,
) -> None:
    """Draw what a store holds of many models.

    Example: uncork figure unargmaxable --store results.db -o lost.png
    """
    from uncork.report.drawing import check_figure
    from uncork.report.fleet_plots import plot_iterations, plot_unargmaxable
    from uncork.store import Store

    url = chosen_store(store)
    check_figure(output)
    with Store(url, create=False) as opened:
        audits = opened.audits(name=name, group=group)
        if kind is Kind.unargmaxable:
            plot_unargmaxable(audits, output)
        else:
            plot_iterations(opened, audits, output)
    console().print(f"drawn to {printable(output)}", soft_wrap=True)
