"""`uncork draw`: regions, hull and braid arrangement of a small head, as a figure."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from uncork.cli import options
from uncork.cli.files import Reads, Writes
from uncork.cli.output import console, print_doubts
from uncork.cli.random import Init
from uncork.core.errors import UncorkError
from uncork.core.text import printable


class What(str, Enum):
    """What to draw."""

    both = "both"
    regions = "regions"
    hull = "hull"
    braid = "braid"


def draw(
    output: Annotated[
        str,
        typer.Option("-o", "--output", help="File: .png, .svg or .pdf.", metavar="FILE"),
        Writes("--output"),
    ],
    source: Annotated[
        str | None,
        typer.Argument(help="Model file with a head of 2 or 3 features.", metavar="SOURCE"),
        Reads("the model"),
    ] = None,
    what: Annotated[
        What | None,
        typer.Option(
            help="regions: which class wins where; hull: the rows and their convex hull; both; "
            "braid: the braid arrangement of 3 or 4 classes, cut by what the head reaches.",
            show_default="both; what --figure shows",
        ),
    ] = None,
    random: Annotated[
        bool, typer.Option("--random", help="Draw a random head: -C, -d, --init, --seed.")
    ] = False,
    figure: Annotated[
        int | None,
        typer.Option(help="A head after this figure of the paper: 1, 2, 3, 7 or 8.", metavar="N"),
    ] = None,
    classes: Annotated[
        int | None, typer.Option("-C", "--classes", help="With --random: number of classes.")
    ] = None,
    features: Annotated[
        int | None, typer.Option("-d", "--features", help="With --random: 2 or 3 (braid: 1 too).")
    ] = None,
    init: Annotated[Init, typer.Option(help="With --random: N(0, 1) or U(−1, 1).")] = Init.normal,
    bias: Annotated[
        bool, typer.Option("--bias", help="With --random or --figure: with a bias.")
    ] = False,
    seed: Annotated[int, typer.Option(help="With --random: same seed, same head.")] = 0,
    base: options.Base = None,
    weight: options.Weight = None,
    bias_name: Annotated[
        str | None, typer.Option("--bias-name", help="Name of the bias tensor.", metavar="NAME")
    ] = None,
    transpose: options.Transpose = False,
    drop_bias: options.DropBias = False,
    labels: options.Labels = None,
    domain: Annotated[
        str,
        typer.Option(help="Inputs that can arrive: box:R, box:LO,HI or unbounded."),
        Reads("the domain"),
    ] = "unbounded",
    extent: Annotated[
        float | None,
        typer.Option(
            help="Show inputs within ±R.", show_default="what there is to see", metavar="R"
        ),
    ] = None,
    title: Annotated[bool, typer.Option(help="Say above the picture what it shows.")] = True,
) -> None:
    """Draw a head of 2 or 3 features: who wins where, and who can never win.

    Examples: uncork draw --figure 1 -o figure.pdf;
    uncork draw --random -C 8 -d 3 --what regions -o regions.png
    """
    from uncork.core.head import Head
    from uncork.domain import parse_domain
    from uncork.draw import EXAMPLES, example
    from uncork.draw import draw as draw_to
    from uncork.draw.picture import check
    from uncork.report.drawing import check_figure
    from uncork.theory.random_heads import random_head

    if (source is not None) + random + (figure is not None) != 1:
        raise UncorkError("what is to be drawn? give one of SOURCE, --random or --figure")
    if source is None and (base or weight or bias_name or transpose or drop_bias or labels):
        raise UncorkError(
            "--base, --weight, --bias-name, --transpose, --drop-bias and --labels go with a SOURCE"
        )
    if not random and (classes is not None or features is not None):
        raise UncorkError("-C and -d go with --random")
    check_figure(output)
    inputs = parse_domain(domain)
    if source is not None:
        if bias:
            raise UncorkError("--bias goes with --random or --figure; a SOURCE has its own")
        from uncork.loading import load

        head = load(source, weight=weight, bias=bias_name, transpose=transpose,
                    drop_bias=drop_bias, labels=labels, domain=inputs, base=base)  # fmt: skip
    elif random:
        if classes is None or features is None:
            raise UncorkError("how many classes and features? give -C and -d")
        head = random_head(classes, features, init.value, bias, seed, inputs)
    else:
        assert figure is not None
        shown = example(figure, bias=bias)
        head = Head(shown.weight, shown.bias, domain=inputs, source=shown.source)
    chosen = what.value if what is not None else EXAMPLES[figure].what if figure else "both"
    check(head, chosen)
    draw_to(head, output, chosen, extent=extent, title=title)
    print_doubts(console(), head.reading)
    console().print(f"drawn to {printable(output)}", soft_wrap=True)
