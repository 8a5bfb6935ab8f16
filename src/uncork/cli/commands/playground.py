"""`uncork playground`: a page to try heads of two features on, as one file."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from uncork.cli import options
from uncork.cli.help import OUTPUT
from uncork.cli.output import console, print_doubts
from uncork.cli.parameters import Reads, Writes
from uncork.core.text import printable


def playground(
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            help="The page to write (- for stdout).",
            metavar="FILE.html",
            rich_help_panel=OUTPUT,
        ),
        Writes("--output"),
    ],
    tensors: options.Tensors,
    source: Annotated[
        str | None,
        typer.Argument(
            help="Open the page on this head of 2 features and at most 10 classes.",
            metavar="SOURCE",
        ),
        Reads("the model"),
    ] = None,
    labels: options.Labels = None,
    domain: options.DomainOfPictures = "unbounded",
) -> None:
    """Write a page to try heads of two features on, in a browser.

    Drag the classes' vectors and see which inputs each class wins, and which class can never win.
    The page works offline and sends nothing anywhere.
    Example: uncork playground -o playground.html
    """
    from uncork.core.errors import UncorkError
    from uncork.core.whole_file import whole_file
    from uncork.web.playground import standalone

    head = None
    if source is not None:
        head = tensors.find(source, labels=labels, domain=domain).head
    elif tensors.given() or labels:
        raise UncorkError("--base, --weight, --bias, --transpose and --labels need a SOURCE")
    page = standalone(head)
    if output == "-":
        sys.stdout.write(page)
        return
    with whole_file(output) as target:
        target.write_text(page, encoding="utf-8")
    print_doubts(console(), None if head is None else head.reading)
    console().print(f"written to {printable(output)}: open it in a browser", soft_wrap=True)
