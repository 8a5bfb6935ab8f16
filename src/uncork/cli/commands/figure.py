"""`uncork figure`: the paper's figures from a store."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from uncork.cli import options
from uncork.cli.output import console
from uncork.core.text import printable


class Kind(str, Enum):
    """What to draw."""

    unargmaxable = "unargmaxable"
    iterations = "iterations"


def figure(
    kind: Annotated[
        Kind,
        typer.Argument(
            help="unargmaxable: how many classes of each model (the paper's Figure 6); iterations: "
            "how many the approximate algorithm needs (Figures 10 to 12).",
            metavar="unargmaxable|iterations",
        ),
    ],
    output: options.Picture,
    store: options.StoreToRead = None,
    name: options.StoredName = None,
    group: options.StoredGroup = None,
) -> None:
    """Draw the paper's figures from a store.

    Example: uncork figure unargmaxable --store results.db -o unargmaxable.png
    """
    from uncork.report.drawing import check_figure
    from uncork.report.fleet_plots import plot_iterations, plot_unargmaxable
    from uncork.store import Store

    url = options.chosen_store(store)
    check_figure(output)
    with Store(url, create=False) as opened:
        audits = opened.audits(name=name, group=group)
        if kind is Kind.unargmaxable:
            plot_unargmaxable(audits, output)
        else:
            plot_iterations(opened, audits, output)
    console().print(f"drawn to {printable(output)}", soft_wrap=True)
