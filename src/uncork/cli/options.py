"""Options that several commands take, said once."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from uncork.cli.files import Reads, Writes, stores
from uncork.core.progress import silence
from uncork.domain import parse_domain


class Device(str, Enum):
    """Where the products are computed."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


Source = Annotated[
    str,
    typer.Argument(help="Model file, Hugging Face folder, or hf:owner/name.", metavar="SOURCE"),
    Reads("the model"),
]
Base = Annotated[
    str | None,
    typer.Option(
        help="Model that an adapter (LoRA …) is merged into: folder or hf:owner/name.",
        metavar="SOURCE",
    ),
    Reads("the base model"),
]
Weight = Annotated[str | None, typer.Option(help="Name of the weight tensor.", metavar="NAME")]
Bias = Annotated[str | None, typer.Option(help="Name of the bias tensor.", metavar="NAME")]
Transpose = Annotated[bool, typer.Option("--transpose", help="Classes are the weight's columns.")]
DropBias = Annotated[bool, typer.Option("--drop-bias", help="Leave the bias out: z = W x alone.")]
Labels = Annotated[
    str | None,
    typer.Option(help="File with one label a line, or JSON.", metavar="FILE"),
    Reads("the labels"),
]
Domain = Annotated[
    str | None,
    typer.Option(
        help="Inputs that can arrive: box:R, box:LO,HI, ball:R, unbounded, @FILE, or auto: what "
        "the source shows of what precedes the head.",
        show_default="box:100",
        metavar="SPEC",
    ),
    Reads("the domain"),
]
Json = Annotated[
    str | None,
    typer.Option("--json", help="Write the result as JSON (- for stdout).", metavar="FILE"),
    Writes("--json"),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.", callback=silence)]
OnDevice = Annotated[Device, typer.Option(help="Where to compute; auto: the GPU if there is one.")]
Jobs = Annotated[
    int | None, typer.Option(help="Threads to use.", show_default="every core", metavar="N")
]

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="File or postgresql:// URL that results are kept in.",
        show_default="$UNCORK_STORE, or a file in your data folder",
        metavar="URL",
    ),
    Reads("the store", stores),
]
StoredName = Annotated[
    str | None, typer.Option(help="Only audits with this in their name.", metavar="TEXT")
]
StoredGroup = Annotated[str | None, typer.Option(help="Only this group.", metavar="GROUP")]


def checked_domain(text: str | None) -> None:
    """Raise before a file is opened if the domain's text means nothing."""
    if text is not None and text.strip() != "auto":
        parse_domain(text)
