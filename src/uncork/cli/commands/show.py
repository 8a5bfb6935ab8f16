"""`uncork show`: what a file holds, and which of its tensors are the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from uncork.cli import options
from uncork.cli.help import OUTPUT
from uncork.cli.output import console, emit_json, shown
from uncork.core.items import METRICS
from uncork.core.reading import words_of
from uncork.core.text import printable
from uncork.loading import Description, describe
from uncork.loading.odd_rows import some

_MOST_TENSORS = 30


def show(
    source: options.Source,
    tensors: options.Tensors,
    labels: options.Labels = None,
    domain: options.Domain = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="List every tensor, not only possible weights.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Show what a file holds, and which of its tensors are the head.

    Tensors, head, bias, labels, domain and odd rows, and why each was chosen. Decides nothing.
    Example: uncork show model.onnx
    """
    options.check_domain(domain)
    found = describe(source, labels=labels, domain=domain, **tensors.as_dict())
    if json_file is not None:
        emit_json(found.as_dict(), json_file)
    if json_file != "-":
        _print(console(), found, every)


def _print(out: Console, found: Description, every: bool) -> None:
    name = printable(found.source)
    out.print(f"{name} ({found.format}, {len(found.tensors)} tensors)\n", soft_wrap=True)
    _print_tensors(out, found, every)
    if found.items is not None:
        _print_items(out, found)
        return
    if found.head is None:
        out.print(f"no head chosen: {printable(found.problem)}")
        return
    head = found.head
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    read = [] if head.reading is None else head.reading.rows()
    _add(facts, read, "careful")
    say = words_of(head.reading).say
    facts.add_row(
        "head", say(f"{head.classes:,} classes × {head.features:,} features, {head.dtype}")
    )
    _add(facts, read, "weight", "bias", "folded in")
    for name, value in (*_labels(found), *_domain(found)):
        facts.add_row(name, value)
    facts.add_row("fingerprint", head.fingerprint)
    for name, value in _odd(found):
        facts.add_row(name, value)
    _add(facts, read, "note")
    out.print(facts)


def _print_items(out: Console, found: Description) -> None:
    """The vectors of an index that does not compare by inner products."""
    items = found.items
    assert items is not None
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    read = [] if items.reading is None else items.reading.rows()
    _add(facts, read, "careful")
    facts.add_row("items", f"{len(items):,} items × {items.features:,} features, {items.dtype}")
    unsaid = "its file does not say which; give --metric inner, cosine or euclidean to audit it"
    facts.add_row("metric", METRICS[found.metric] if found.metric else unsaid)
    _add(facts, read, "weight", "folded in", "labels from")
    if items.labels is not None:
        facts.add_row("labels", "  ".join(map(shown, items.labels[:6])))
    if found.metric:
        facts.add_row("fingerprint", items.fingerprint)
    _add(facts, read, "note")
    out.print(facts)


def _add(facts: Table, read: list[tuple[str, str]], *kinds: str) -> None:
    """The lines that audit prints about the head too, of these kinds."""
    for name, text in read:
        if name in kinds:
            facts.add_row(name, text)


def _labels(found: Description) -> list[tuple[str, str]]:
    head, vocabulary = found.head, found.vocabulary
    if head is None or head.labels is None:
        return [("labels", "none; give them with --labels")]
    aside = {*vocabulary.padding}
    named = [label for k, label in enumerate(head.labels) if k not in aside]
    ends = [*named[:4], "…", *named[-2:]] if len(named) > 6 else named
    examples = "  ".join(label if label == "…" else shown(label) for label in ends)
    where = printable(found.labels_from)
    lines = [("labels", f"{len(named):,} from {where}: {examples}")]
    for name, ids in (
        ("special", vocabulary.special),
        ("unused", vocabulary.unused),
        ("padding", vocabulary.padding),
    ):
        if ids:
            what = "" if name == "padding" else "  " + _few([head.labels[k] for k in ids])
            lines.append((f"{name} rows", f"{len(ids):,}: {some(ids)}{what}"))
    return lines


def _few(labels: Sequence[str]) -> str:
    return "(" + "  ".join(map(shown, labels[:4])) + (" …)" if len(labels) > 4 else ")")


def _domain(found: Description) -> list[tuple[str, str]]:
    """The domain and where it comes from; and what the model shows, where that is not used."""
    assert found.head is not None
    source, seen = found.domain_from, found.shown_domain
    hint = "; give another with --domain" if source == "assumed" and seen is None else ""
    lines = [("domain", f"{found.head.domain} ({printable(source)}{hint})")]
    if seen is not None and seen.why != source:
        lines.append(("", f"--domain auto would use {seen.domain}: {printable(seen.why)}"))
    if seen is not None and seen.assumed:
        lines.append(("", f"this assumes, without having seen it: {printable(seen.assumed)}"))
    return lines


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
    out.print(f"and {rest} more, unlikely to be the weight (--all lists them)\n" if rest else "")


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
    if odd.near_rows:
        near = sum(map(len, odd.near_rows))
        text = f"{near} in {len(odd.near_rows)} groups: {_groups(odd.near_rows)}"
        lines.append(("rows within rounding", f"{text} (2⁻⁸ of their length)"))
    if odd.constant_columns:
        text = f"{_some(odd.constant_columns)}: no influence on the argmax"
        lines.append(("constant features", text))
    if odd.near_constant_columns:
        lines.append(("near-constant features", _some(odd.near_constant_columns)))
    return lines


def _some(ids: Sequence[int]) -> str:
    if not ids:
        return "none"
    return f"{len(ids)}: {some(ids)}"


def _groups(groups: Sequence[Sequence[int]]) -> str:
    if not groups:
        return "none"
    texts = [
        "{" + ", ".join(map(str, group[:4])) + (", …" if len(group) > 4 else "") + "}"
        for group in groups[:4]
    ]
    return " ".join(texts) + (" …" if len(groups) > 4 else "")
