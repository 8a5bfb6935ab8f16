"""`uncork export`: a store's rows as CSV, JSON lines or Parquet."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from uncork.auditing.proofs.verdict import Verdict
from uncork.cli import options
from uncork.cli.files import Writes
from uncork.cli.output import console
from uncork.cli.saving import chosen_store
from uncork.core.text import printable


class Kept(str, Enum):
    """Which classes to keep."""

    argmaxable = "argmaxable"
    unargmaxable = "unargmaxable"
    tied = "tied"
    undecided = "undecided"


def export(
    output: Annotated[
        str, typer.Argument(help="File: .csv, .jsonl or .parquet.", metavar="FILE"), Writes("FILE")
    ],
    store: options.StoreUrl = None,
    verdict: Annotated[Kept | None, typer.Option(help="Only classes with that verdict.")] = None,
    name: options.StoredName = None,
) -> None:
    """Write every class of every audit of a store, one row each.

    Example: uncork export lost.csv --store results.db --verdict unargmaxable
    """
    from uncork.store import Store
    from uncork.store.export import check_export
    from uncork.store.export import export as write

    url = chosen_store(store)
    check_export(output)
    wanted = None if verdict is None else Verdict[verdict.value.upper()]
    with Store(url, create=False) as opened:
        count = write(opened.rows(name=name, verdict=wanted), output)
    console().print(f"{count:,} rows written to {printable(output)}", soft_wrap=True)
