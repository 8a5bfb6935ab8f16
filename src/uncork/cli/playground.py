"""`uncork playground`: the page on which heads of two features can be played with, as one file."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from uncork.cli import options
from uncork.cli.files import Reads, Writes
from uncork.cli.output import console, print_doubts
from uncork.core.text import printable


def playground(
    output: Annotated[
        str,
        typer.Option("-o", "--output", help="The page: FILE.html (- for stdout).", metavar="FILE"),
        Writes("--output"),
    ],
    source: Annotated[
        str | None,
        typer.Argument(
            help="Open the page on this head of 2 features and at most 10 classes.",
            metavar="SOURCE",
        ),
        Reads("the model"),
    ] = None,
    base: options.Base = None,
    weight: options.Weight = None,
    bias: options.Bias = None,
    transpose: options.Transpose = False,
    labels: options.Labels = None,
    domain: Annotated[
        str,
        typer.Option(help="Inputs that can arrive: box:R or unbounded.", metavar="SPEC"),
        Reads("the domain"),
    ] = "unbounded",
) -> None:
    """Write the playground: one page that works offline and sends nothing anywhere.

    Drag class vectors and see which inputs each class wins, and which class can never win.
    Example: uncork playground -o playground.html
    """
    from uncork.core.errors import UncorkError
    from uncork.core.whole_file import whole_file
    from uncork.domain import parse_domain
    from uncork.loading import load
    from uncork.web.playground import standalone

    head = None
    if source is not None:
        head = load(
            source,
            weight=weight, bias=bias, transpose=transpose, labels=labels,
            domain=parse_domain(domain), base=base,
        )  # fmt: skip
    elif base or weight or bias or transpose or labels:
        raise UncorkError("--base, --weight, --bias, --transpose and --labels need a SOURCE")
    page = standalone(head)
    if output == "-":
        sys.stdout.write(page)
        return
    with whole_file(output) as target:
        target.write_text(page, encoding="utf-8")
    print_doubts(console(), None if head is None else head.reading)
    console().print(f"written to {printable(output)}: open it in a browser", soft_wrap=True)
