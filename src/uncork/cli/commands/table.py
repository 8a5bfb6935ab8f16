"""`uncork table`: the paper's tables from a store."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from uncork.cli import options
from uncork.cli.help import OUTPUT


def table(
    store: options.StoreToRead = None,
    name: options.StoredName = None,
    group: options.StoredGroup = None,
    form: options.Format = "text",
    summary: Annotated[
        bool,
        typer.Option(
            "--summary",
            help="One row per group (the paper's Table 1) instead of one per model.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
) -> None:
    """Print the paper's tables from a store, one row per model.

    The counts of potentially unargmaxable and unargmaxable classes; for a model that could not be
    audited, why. Example: uncork table --store results.db --format latex
    """
    from uncork.report.tables import group_rows, model_rows, render
    from uncork.store import Store

    with Store(options.chosen_store(store), create=False) as opened:
        audits = opened.audits(name=name, group=group)
        failures = opened.failures(name=name, group=group)
    rows = group_rows(audits, failures) if summary else model_rows(audits, failures)
    sys.stdout.write(render(rows, form, summary=summary))
