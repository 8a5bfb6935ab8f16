"""`uncork show`: what a file holds and what of it is the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from uncork.cli.output import check_writable, console, emit_json
from uncork.load import Description, describe
from uncork.load.contents import printable

_MOST_TENSORS = 30
_MOST_CLASSES = 8


def show(
    source: Annotated[str, typer.Argument(help="Model file: .npz, .npy, .safetensors or .onnx.")],
    weight: Annotated[str | None, typer.Option(help="Name of the weight tensor.")] = None,
    bias: Annotated[str | None, typer.Option(help="Name of the bias tensor.")] = None,
    transpose: Annotated[
        bool, typer.Option("--transpose", help="Classes are the weight's columns.")
    ] = False,
    labels: Annotated[
        str | None, typer.Option(help="File with one label a line, or JSON.", metavar="FILE")
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option(
            help="Inputs that can arrive: box:R, box:LO,HI, ball:R or unbounded.",
            show_default="box:100",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="List every tensor, not only possible weights.")
    ] = False,
    json_file: Annotated[
        str | None,
        typer.Option("--json", help="Write the findings as JSON (- for stdout).", metavar="FILE"),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="No progress on stderr (there is none to begin with).")
    ] = False,
) -> None:
    """Show what was found in a model file: tensors, head, bias, labels, domain, odd rows.

    Decides nothing. Example: uncork show model.onnx
    """
    check_writable(json_file, "--json")
    found = describe(
        source, weight=weight, bias=bias, transpose=transpose, labels=labels, domain=domain
    )
    if json_file is not None:
        emit_json(found.as_dict(), json_file)
    if json_file != "-":
        _print(console(), found, every)


def _print(out: Console, found: Description, every: bool) -> None:
    out.print(f"{found.source} ({found.format}, {len(found.tensors)} tensors)\n")
    _print_tensors(out, found, every)
    if found.head is None:
        out.print(f"no head chosen: {found.problem}")
        return
    head = found.head
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    facts.add_row("head", f"{head.classes:,} classes × {head.features:,} features, {head.dtype}")
    facts.add_row("weight", f"{printable(found.weight or '')} ({found.why})")
    if found.bias:
        facts.add_row("bias", printable(found.bias))
    else:
        facts.add_row("bias", "none" if head.bias is None else "yes")
    if head.labels is None:
        facts.add_row("labels", "none; give them with --labels")
    else:
        ends = [*head.labels[:4], "…", *head.labels[-2:]] if head.classes > 6 else head.labels
        shown = " ".join(printable(label) if label.strip() else repr(label) for label in ends)
        facts.add_row("labels", f"{len(head.labels):,} from {found.labels_from}: {shown}")
    assumed = "; give another with --domain" if found.domain_from == "assumed" else ""
    facts.add_row("domain", f"{head.domain} ({found.domain_from}{assumed})")
    facts.add_row("fingerprint", head.fingerprint)
    for name, value in _odd(found):
        facts.add_row(name, value)
    for note in found.notes:
        facts.add_row("note", printable(note))
    out.print(facts)


def _print_tensors(out: Console, found: Description, every: bool) -> None:
    rows = [t for t in found.tensors if every or t.role or len(t.shape) == 2]
    if not every and len(rows) > _MOST_TENSORS:
        # The chosen ones and the largest of the others, in the order of the file.
        order = sorted(rows, key=lambda t: (not t.role, -max(t.shape, default=0)))[:_MOST_TENSORS]
        rows = [t for t in rows if t in order]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tensor", overflow="fold")
    table.add_column("shape", justify="right", no_wrap=True)
    table.add_column("type", no_wrap=True)
    table.add_column("", no_wrap=True)
    for tensor in rows:
        shape = " × ".join(f"{n:,}" for n in tensor.shape) or "1"
        table.add_row(printable(tensor.name), shape, tensor.dtype, tensor.role)
    out.print(table)
    rest = len(found.tensors) - len(rows)
    out.print(f"and {rest} more that are no likely weight (--all lists them)\n" if rest else "")


def _odd(found: Description) -> list[tuple[str, str]]:
    odd = found.odd
    equal = sum(map(len, odd.equal_rows))
    lines = [
        ("zero rows", _some(odd.zero_rows)),
        (
            "equal rows",
            f"{equal} in {len(odd.equal_rows)} groups: {_groups(odd.equal_rows)}"
            if equal
            else "none",
        ),
    ]
    if found.head is not None and found.head.bias is not None and equal:
        lines.append(("tied rows", f"{_groups(odd.tied_rows)} (equal in bias too)"))
    if odd.constant_columns:
        text = f"{_some(odd.constant_columns)}: no say in the argmax"
        lines.append(("constant features", text))
    if odd.near_constant_columns:
        lines.append(("near-constant features", _some(odd.near_constant_columns)))
    return lines


def _some(ids: Sequence[int]) -> str:
    if not ids:
        return "none"
    rest = len(ids) - _MOST_CLASSES
    text = ", ".join(map(str, ids[:_MOST_CLASSES]))
    return f"{len(ids)}: {text}" + (" …" if rest > 0 else "")


def _groups(groups: Sequence[Sequence[int]]) -> str:
    if not groups:
        return "none"
    texts = [
        "{" + ", ".join(map(str, group[:4])) + (", …" if len(group) > 4 else "") + "}"
        for group in groups[:4]
    ]
    return " ".join(texts) + (" …" if len(groups) > 4 else "")
