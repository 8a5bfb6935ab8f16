"""`uncork activations`: what arrives at a model's head on real data."""

from __future__ import annotations

import hashlib
import os
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from uncork import __version__
from uncork.activations import Runner, State, Statistics, Stopped, open_runner, record
from uncork.activations.data import named_and_matched
from uncork.activations.statistics import QUANTILES
from uncork.cli import options
from uncork.cli.files import Reads, Writes
from uncork.cli.output import console, emit_json, note, print_doubts, shown
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress, ProgressBar
from uncork.core.reading import json_keys
from uncork.core.text import printable
from uncork.core.whole_file import whole_file
from uncork.domain import Ball, Box, Domain
from uncork.domain.file import write_domain

_MOST_CLASSES = 10
_MOST_FEATURES = 5
ASSUMPTION = "observed on data, not proven: other inputs may leave it"


class Kind(str, Enum):
    """The shape of the domain that is saved."""

    box = "box"
    ball = "ball"


def activations(
    model: Annotated[
        str,
        typer.Argument(help="ONNX file, or folder of a transformers model.", metavar="MODEL"),
        Reads("the model"),
    ],
    more: Annotated[
        list[str] | None, typer.Argument(hidden=True), Reads("the data", named_and_matched)
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Text files, one text a line, for transformers; .npz, .npy or pictures of text "
            "lines for ONNX. Files, folders or patterns.",
            metavar="FILE…",
        ),
        Reads("the data", named_and_matched),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Save the ranges, for --domain @FILE.", metavar="FILE"),
        Writes("-o"),
    ] = None,
    kind: Annotated[Kind, typer.Option(help="box: a range a feature; ball: a length.")] = Kind.box,
    margin: Annotated[
        float, typer.Option(help="Widen the domain by this share of its size.", metavar="SHARE")
    ] = 0.0,
    weight: options.Weight = None,
    batch_size: Annotated[int, typer.Option(help="Items in one pass.", metavar="N")] = 16,
    limit: Annotated[int | None, typer.Option(help="Use the first N items.", metavar="N")] = None,
    max_length: Annotated[
        int, typer.Option(help="Tokens of a text that are used.", metavar="N")
    ] = 512,
    max_new_tokens: Annotated[
        int, typer.Option(help="Tokens an encoder-decoder writes for a text.", metavar="N")
    ] = 64,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after Ctrl-C.")] = False,
    sample: Annotated[
        str | None,
        typer.Option(
            help="Save the inputs that the quantiles are of, for uncork repair: .npz.",
            metavar="FILE",
        ),
        Writes("--sample"),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(help="Draw the ranges: .png, .svg or .pdf.", metavar="FILE"),
        Writes("--plot"),
    ] = None,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Run a model over data and record what arrives at its head, feature by feature.

    Minimum and maximum are exact; quantiles are of a uniform sample of 16,384 inputs (fewer for
    very wide heads). Pictures are scaled to the model's height (48 where it is open) and to ±1, as
    PP-OCR does. Example: uncork activations model.onnx --data lines/*.png -o seen.npz
    """
    files = [*(data or []), *(more or [])]
    if not files:
        raise UncorkError("no data: name files with --data")
    if not 0 <= margin < float("inf"):
        raise UncorkError(f"--margin {margin}: expected a share such as 0.1")
    if sample is not None and not sample.endswith(".npz"):  # NumPy would add it
        raise UncorkError(f"--sample {sample}: expected a name that ends in .npz")
    if plot is not None:
        from uncork.report.drawing import check_figure

        check_figure(plot)
    runner = open_runner(
        model, files, weight=weight, batch_size=batch_size, max_length=max_length,
        max_new_tokens=max_new_tokens,
    )  # fmt: skip
    state = State(_state_path(output, runner))
    if state.path.exists() and not resume and not quiet:
        note("there is an unfinished recording: --resume continues it")
    elif resume and not state.path.exists() and not quiet:
        note("there is no unfinished recording: starting anew")
    bar: Progress = Progress() if quiet or not sys.stderr.isatty() else ProgressBar()
    try:
        with bar:
            statistics = record(runner, limit=limit, state=state, resume=resume, progress=bar)
    except Stopped as stopped:
        note(
            f"interrupted: {stopped.done:,} of {runner.total:,} items done; the same command with "
            "--resume continues"
        )
        raise typer.Exit(130) from None
    items = runner.total if limit is None else min(limit, runner.total)
    domain = observed(statistics, kind.value, margin)
    provenance = {
        "how": "uncork activations", "uncork": __version__, "model": model, "data": files,
        "items": items, "inputs": statistics.count, "margin": margin, "assumption": ASSUMPTION,
        "fingerprint": runner.head.fingerprint,
    }  # fmt: skip
    if output is not None:
        write_domain(output, domain, provenance)
    if sample is not None:
        with whole_file(sample) as target, target.open("wb") as file:
            np.savez(file, inputs=statistics.sample)
    if plot is not None:
        from uncork.activations.figure import write_figure

        write_figure(statistics, plot, printable(Path(model).name))
    state.remove()
    result = {
        **provenance,
        "reading": json_keys(runner.head.reading),
        **statistics.as_dict(),
        "domain": str(domain),
        "domain_file": output,
    }
    if json_file is not None:
        emit_json(result, json_file)
    if json_file != "-":
        _print(console(), runner, statistics, domain, items)
        for what, path in (
            ("domain", output),
            ("sample", sample),
            ("figure", plot),
            ("JSON", json_file),
        ):
            if path is not None:
                use = f"; use it with --domain @{printable(path)}" if what == "domain" else ""
                console().print(f"{what} written to {printable(path)}{use}", soft_wrap=True)


def observed(statistics: Statistics, kind: str = "box", margin: float = 0.0) -> Domain:
    """The domain of what was seen, widened by a share of its size on either side."""
    if kind == "ball":
        radius = np.nextafter(statistics.norm_upper * (1 + margin) * (1 + 2.0**-40), np.inf)
        return Ball(float(max(radius, np.finfo(float).tiny)))
    width = (statistics.upper - statistics.lower) * margin
    return Box(statistics.lower - width, statistics.upper + width)


def _state_path(output: str | None, runner: Runner) -> Path:
    """Beside the output, or in the cache where there is none."""
    if output is not None:
        return Path(output).with_name(Path(output).name + ".unfinished")
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = cache if cache.is_absolute() else Path.home() / ".cache"
    name = hashlib.sha256(runner.identity.encode()).hexdigest()[:24]
    return folder / "uncork" / "activations" / f"{name}.npz"


def _print(
    out: Console, runner: Runner, statistics: Statistics, domain: Domain, items: int
) -> None:
    head: Head = runner.head
    out.print(printable(runner.name), soft_wrap=True)
    print_doubts(out, head.reading)
    out.print(
        f"{head.classes:,} classes × {head.features:,} features; {items:,} items, "
        f"{statistics.count:,} inputs of the head\n"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for title in ("lowest feature", "median feature", "highest feature", "length ‖x‖₂"):
        table.add_column(title, justify="right", no_wrap=True)
    quantiles, norms = statistics.quantiles(), statistics.norm_quantiles()
    rows = [("minimum", statistics.lower, statistics.norm_lower)]
    rows += [(_percent(q), quantiles[q], norms[q]) for q in QUANTILES]
    rows += [("maximum", statistics.upper, statistics.norm_upper),
             ("mean", statistics.mean, statistics.norm_mean)]  # fmt: skip
    for name, values, norm in rows:
        ends = (values.min(), np.median(values), values.max(), norm)
        table.add_row(name, *(f"{value:.4g}" for value in ends))
    out.print(table)
    out.print()
    width = statistics.upper - statistics.lower
    widest = np.argsort(-width, kind="stable")[:_MOST_FEATURES].tolist()
    ranges = (f"{k} [{statistics.lower[k]:.4g}, {statistics.upper[k]:.4g}]" for k in widest)
    out.print(f"widest features: {', '.join(ranges)}", soft_wrap=True)
    seen = int((statistics.first > 0).sum())
    out.print(f"{seen:,} of {head.classes:,} classes ever came first; most often:")
    for k in np.argsort(-statistics.first, kind="stable")[: min(seen, _MOST_CLASSES)].tolist():
        label = f" {shown(head.label(k))}" if head.labels is not None else ""
        out.print(f"  {statistics.first[k]:>9,}  class {k}{label}")
    if statistics.shared:
        out.print(
            f"{statistics.shared:,} times several classes shared first place, in the rounding of "
            "the model's own logits"
        )
    out.print(f"\ndomain: {domain}, {ASSUMPTION}", soft_wrap=True)


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
