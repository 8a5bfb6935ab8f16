"""`uncork prevent`: a head on which every class is argmaxable, by construction and then proven."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from uncork import __version__
from uncork.auditing import Audit, audit
from uncork.auditing.run import check_time_limit
from uncork.cli import options
from uncork.cli.changed_copy import drafted, put_in_place, read_back
from uncork.cli.help import INPUT, OUTPUT
from uncork.cli.output import console, emit_json, print_doubts, some_labels, watched
from uncork.cli.parameters import Reads, Was, Writes
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.reading import json_keys
from uncork.core.text import printable
from uncork.core.whole_file import whole_file
from uncork.loading.source import Found, open_source
from uncork.repair.prevention import (
    METRICS,
    Prevention,
    audit_prevented,
    made_equal,
    prevent_as_stored,
    row_norms,
)
from uncork.save import check_format, write_head

_CHANGE = "What to change"
_EMBEDDINGS = ("embed", "wte", "Wemb", "shared")  # in names of weights that inputs use too


def metric_file(metric: str | None) -> list[str]:
    """The file that --metric names, if it is not the name of a metric."""
    return [] if metric is None or metric in METRICS else [metric]


class How(str, Enum):
    """Equal norms without a bias, or a bias that compensates for the norms."""

    norm = "norm"
    bias = "bias"


def prevent(
    *,
    source: Annotated[
        str | None,
        typer.Argument(help="Model file to change a copy of.", metavar="SOURCE"),
        Reads("the model"),
    ] = None,
    tensors: options.HeadTensors,
    run: options.LimitedRun,
    random: Annotated[
        bool,
        typer.Option(
            "--random",
            help="A random head in place of SOURCE: give -C and -d.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    made_up: options.RandomHead,
    domain: options.Domain = None,
    how: Annotated[
        How,
        typer.Option(
            help="norm: rows of equal length, no bias. bias: b = −½ wᵀMw.",
            rich_help_panel=_CHANGE,
        ),
    ] = How.norm,
    metric: Annotated[
        str,
        typer.Option(
            help="M up to its scale: identity, covariance (the inverse covariance of the rows), or "
            "an .npy file.",
            metavar="M",
            rich_help_panel=_CHANGE,
        ),
        Reads("the metric", metric_file),
    ] = "identity",
    scale: Annotated[
        float | None,
        typer.Option(
            help="norm: the length of the rows. bias: the factor c of M.",
            show_default="norm: the rows' mean length; bias: 1, or what keeps x in the domain",
            metavar="NUMBER",
            rich_help_panel=_CHANGE,
        ),
    ] = None,
    least: Annotated[
        bool,
        typer.Option(
            "--least",
            help="bias: choose the scale and centre that change the present bias least.",
            rich_help_panel=_CHANGE,
        ),
    ] = False,
    do_not_prevent: Annotated[
        bool,
        typer.Option(
            "--do-not-prevent",
            help="Change nothing: show the unargmaxable classes.",
            rich_help_panel=_CHANGE,
        ),
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            help="The changed copy: same format as SOURCE, or .npz for the head alone.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
        Writes("-o"),
        Was("--out"),
    ] = None,
    json_file: options.Json = None,
) -> None:
    """Make every class argmaxable by construction, and prove it.

    Writes the changed copy. Exit status 1, and nothing written, if some class is not proven
    argmaxable or tied. Examples: uncork prevent model.onnx -o fixed.onnx --how bias;
    uncork prevent --random -C 500 -d 10 --do-not-prevent
    """
    options.check_domain(domain)
    check_time_limit(run.time_limit)
    working: dict[str, Any] = {**run.on(), "progress": watched(run.quiet)}
    sized = made_up.classes is not None or made_up.features is not None
    found: Found | None = None
    if random:
        if source is not None or made_up.classes is None or made_up.features is None:
            raise UncorkError("--random takes the place of SOURCE and needs -C and -d")
        drawn = how is How.bias and do_not_prevent
        head = made_up.draw(drawn, domain or options.DEFAULT_DOMAIN)
    else:
        if source is None or sized:
            raise UncorkError("which head? give SOURCE, or --random with -C and -d")
        found = tensors.find(source, domain=domain)
        head = found.head
    if do_not_prevent:
        if out is not None:
            raise UncorkError("--do-not-prevent changes nothing: there is nothing to write to -o")
        _report(json_file, head, None, audit(head, **working), None)
        return
    if out is None and found is not None:
        raise UncorkError("name the changed copy with -o")
    if found is not None and out is not None:
        check_format(found, out, needs_bias=how is How.bias)
    elif out is not None and Path(out).suffix != ".npz":
        raise UncorkError(f"{out}: a random head is written as .npz")
    made = prevent_as_stored(
        head, how.value, metric=_metric(metric), scale=scale, least=least, **run.on()
    )
    if found is not None and how is How.norm and _is_tied(found, out):
        told = f"{found.weight_name} is also the input embedding: its rows change there too"
        made = replace(made, notes=(*made.notes, told))
    working["time_limit"] = run.time_limit
    result, changed = _write_and_prove(found, head, made, out, working)
    _report(json_file, head, made, result, out, changed)
    if not _is_proven(head, result):
        raise typer.Exit(1)


def _is_proven(before: Head, result: Audit) -> bool:
    """Whether every class is argmaxable, or ties with classes that it equalled before."""
    lost = len(result.unargmaxable) or len(result.undecided)
    return not lost and not len(made_equal(before, result))


def _is_tied(found: Found, out: str | None) -> bool:
    """Whether the written weight also serves the inputs; a graph's new weight never does."""
    separate = found.contents.format == "onnx" or str(out).endswith(".npz")
    return not separate and any(part in found.weight_name for part in _EMBEDDINGS)


def _metric(text: str) -> str | np.ndarray:
    if text in METRICS:
        return text
    path = Path(text)
    if path.suffix != ".npy":
        raise UncorkError(f"--metric {text!r}: expected {', '.join(METRICS)} or an .npy file")
    return np.asarray(open_source(path).tensors["array"].read())


def _write_and_prove(
    found: Found | None, head: Head, made: Prevention, out: str | None, working: dict[str, Any]
) -> tuple[Audit, Head]:
    """Audits what a reader of the written file finds; the file stays only if that is proven."""
    if found is None:
        changed = Head(made.weight, made.bias, domain=head.domain, source=head.source)
        result = audit_prevented(changed, made, **working)
        if out is not None and _is_proven(head, result):
            arrays = {"weight": made.weight} | ({} if made.bias is None else {"bias": made.bias})
            with whole_file(out) as target, target.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        return result, changed
    assert out is not None
    with drafted(out, "unproven") as draft:
        write_head(found, np.asarray(made.weight), made.bias, draft)
        changed = read_back(found, made, draft)
        result = audit_prevented(changed, made, **working)
        if _is_proven(head, result):
            put_in_place(draft, out)
    return result, changed


def _report(
    json_file: str | None,
    before: Head,
    made: Prevention | None,
    result: Audit,
    out: str | None,
    changed: Head | None = None,
) -> None:
    norms = {"before": _range(row_norms(before))}
    offsets = {"before": _range(before.offsets)}
    if changed is not None:
        norms["after"], offsets["after"] = _range(row_norms(changed)), _range(changed.offsets)
    merged = made_equal(before, result)
    proven = _is_proven(before, result)
    described = {
        "uncork": __version__, "source": before.source, "fingerprint": result.fingerprint,
        "classes": before.classes, "features": before.features, "dtype": before.dtype,
        "domain": str(before.domain), "prevented": made is not None,
        "how": None if made is None else made.how, "scale": None if made is None else made.scale,
        "norms": norms, "bias": offsets, "notes": [] if made is None else list(made.notes),
        "counts": {name: int(count) for name, count in result.counts.items()},
        "unargmaxable": [int(t) for t in result.unargmaxable],
        "tied": [int(t) for t in result.tied], "made_equal": [int(t) for t in merged],
        "undecided": [int(t) for t in result.undecided],
        "written": out if proven and made is not None else None,
        "reading": json_keys(before.reading),
        "seconds": {name: float(s) for name, s in result.seconds.items()},
    }  # fmt: skip
    if json_file is not None:
        emit_json(described, json_file)
    if json_file != "-":
        _print(before, made, norms, offsets, result, out, merged)


def _range(values: np.ndarray) -> list[float]:
    low, middle, high = np.quantile(values, [0, 0.5, 1])
    return [float(low), float(middle), float(high)]


def _print(
    head: Head,
    made: Prevention | None,
    norms: dict[str, list[float]],
    offsets: dict[str, list[float]],
    result: Audit,
    out: str | None,
    merged: np.ndarray,
) -> None:
    to = console()
    to.print(
        f"{printable(head.source)}: {head.classes:,} classes × {head.features} features, "
        f"{head.dtype}; inputs in {head.domain}",
        soft_wrap=True,
    )
    print_doubts(to, head.reading)
    if made is not None:
        what = f"rows of length {made.scale:.6g}, no bias" if made.how == "norm" else (
            f"b = −½ wᵀMw, scale of M {made.scale:.6g}"
        )  # fmt: skip
        to.print(what)
    table = Table()
    table.add_column("")
    for name in ("", "smallest", "median", "largest"):
        table.add_column(name, justify="right")
    for what, values in (("row norms", norms), ("bias", offsets)):
        for when, numbers in values.items():
            table.add_row(what, when, *(f"{v:.5g}" for v in numbers))
    to.print(table)
    for line in () if made is None else made.notes:
        to.print(f"note: {line}", soft_wrap=True)
    counts = ", ".join(f"{int(n):,} {name}" for name, n in result.counts.items() if n)
    when = "as it is" if made is None else "afterwards"
    to.print(f"{when}, proven: {counts} ({result.seconds['total']:.1f} s)")
    if len(result.unargmaxable):
        to.print(f"unargmaxable: {some_labels(head, result.unargmaxable)}", soft_wrap=True)
    if made is None:
        return
    if len(np.setdiff1d(result.tied, merged)):
        to.print("tied classes have equal rows, which no bias or norm can tell apart")
    if _is_proven(head, result):
        written = "" if out is None else f"; written to {printable(out)}"
        to.print(f"every class argmaxable or tied{written}", soft_wrap=True)
    elif len(merged):
        to.print(
            f"different rows have become equal, those of {some_labels(head, merged)}: at equal "
            "length rows of one direction cannot be told apart, or rounding made them equal. "
            "Nothing was written; try --how bias",
            soft_wrap=True,
        )
    else:
        to.print(
            f"rounding to {head.dtype} undid it, or it was not proven in time. Nothing was "
            "written; try --how bias, or store the head in a wider type",
            soft_wrap=True,
        )
