"""`uncork table`: the paper's tables from a store."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated

import typer

from uncork.cli import options
from uncork.cli.saving import chosen_store


class TableFormat(str, Enum):
    """What the table is written as."""

    text = "text"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    json = "json"


def table(
    store: options.StoreUrl = None,
    form: Annotated[TableFormat, typer.Option("--format", help="How to print it.")] = (
        TableFormat.text
    ),
    summary: Annotated[
        bool, typer.Option("--summary", help="One row a group (Table 1), not one a model.")
    ] = False,
    name: options.StoredName = None,
    group: options.StoredGroup = None,
) -> None:
    """Print a header and one row a model: potentially unargmaxable, and unargmaxable classes; of a
    model that could not be audited, why.

    Example: uncork table --store results.db --format latex
    """
    from uncork.report.tables import group_rows, model_rows, render
    from uncork.store import Store

    with Store(chosen_store(store), create=False) as opened:
        audits = opened.audits(name=name, group=group)
        failures = opened.failures(name=name, group=group)
    rows = group_rows(audits, failures) if summary else model_rows(audits, failures)
    sys.stdout.write(render(rows, form.value, summary=summary))
