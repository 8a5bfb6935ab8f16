"""`uncork draw`: regions, hull and braid arrangement of a small head, as a figure."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from uncork.cli import options
from uncork.cli.help import INPUT
from uncork.cli.output import console, print_doubts
from uncork.cli.parameters import Reads, Was
from uncork.core.errors import UncorkError
from uncork.core.text import printable


class What(str, Enum):
    """What to draw."""

    both = "both"
    regions = "regions"
    hull = "hull"
    braid = "braid"


def draw(
    *,
    source: Annotated[
        str | None,
        typer.Argument(help="Model file with a head of 2 or 3 features.", metavar="SOURCE"),
        Reads("the model"),
    ] = None,
    tensors: options.Tensors,
    drop_bias: options.DropBias = False,
    labels: options.Labels = None,
    random: Annotated[
        bool,
        typer.Option(
            "--random",
            help="Draw a random head: give -C and -d (2 or 3; for a braid also 1).",
            rich_help_panel=INPUT,
        ),
    ] = False,
    made: options.RandomHead,
    figure: Annotated[
        int | None,
        typer.Option(
            help="Draw the head of this figure of the paper: 1, 2, 3, 7 or 8.",
            metavar="N",
            rich_help_panel=INPUT,
        ),
    ] = None,
    with_bias: Annotated[
        bool,
        typer.Option(
            "--with-bias", help="With --random or --figure: add a bias.", rich_help_panel=INPUT
        ),
        Was("--bias", alone=True),
    ] = False,
    domain: options.DomainOfPictures = "unbounded",
    what: Annotated[
        What | None,
        typer.Option(
            help="regions: which class wins where; hull: the rows and their convex hull; both of "
            "these; braid: the braid arrangement of 3 or 4 classes, cut by what the head reaches.",
            show_default="both; what --figure shows",
            rich_help_panel="What to draw",
        ),
    ] = None,
    extent: Annotated[
        float | None,
        typer.Option(
            help="Show inputs within ±R.",
            show_default="as far as there is something to see",
            metavar="R",
            rich_help_panel="What to draw",
        ),
    ] = None,
    title: Annotated[
        bool,
        typer.Option(help="Say above the picture what it shows.", rich_help_panel="What to draw"),
    ] = True,
    output: options.Picture,
) -> None:
    """Draw which class wins where, for a head of 2 or 3 features.

    Classes that can never win are marked. Examples: uncork draw --figure 1 -o figure.pdf;
    uncork draw --random -C 8 -d 3 --what regions -o regions.png
    """
    from uncork.core.head import Head
    from uncork.domain import parse_domain
    from uncork.draw import EXAMPLES, example
    from uncork.draw import draw as draw_to
    from uncork.draw.picture import check
    from uncork.report.drawing import check_figure

    if (source is not None) + random + (figure is not None) != 1:
        raise UncorkError("what should be drawn? give one of SOURCE, --random or --figure")
    if source is None and (tensors.given() or drop_bias or labels):
        raise UncorkError(
            "--base, --weight, --bias, --transpose, --drop-bias and --labels go with a SOURCE"
        )
    if not random and (made.classes is not None or made.features is not None):
        raise UncorkError("-C and -d go with --random")
    if source is not None and with_bias:
        raise UncorkError("--with-bias goes with --random or --figure; a SOURCE has its own")
    check_figure(output)
    if source is not None:
        head = tensors.find(source, drop_bias=drop_bias, labels=labels, domain=domain).head
    elif random:
        head = made.draw(with_bias, domain)
    else:
        assert figure is not None
        drawn = example(figure, bias=with_bias)
        head = Head(drawn.weight, drawn.bias, domain=parse_domain(domain), source=drawn.source)
    chosen = what.value if what is not None else EXAMPLES[figure].what if figure else "both"
    check(head, chosen)
    draw_to(head, output, chosen, extent=extent, title=title)
    print_doubts(console(), head.reading)
    console().print(f"drawn to {printable(output)}", soft_wrap=True)
