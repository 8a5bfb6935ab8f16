"""`uncork audit`: decide every class of a head."""

from __future__ import annotations

import sys
import time
from enum import Enum
from typing import Annotated

import typer

from uncork.audit import Audit, Interrupted
from uncork.audit import audit as decide
from uncork.audit.low_precision import is_quick
from uncork.audit.run import Options
from uncork.cli import options
from uncork.cli.classes import chosen_classes
from uncork.cli.output import check_outputs, console, emit_json, note
from uncork.cli.partial import Partial
from uncork.cli.summary import print_summary
from uncork.errors import UncorkError
from uncork.load import load
from uncork.load.contents import printable


class Algorithm(str, Enum):
    """Ours, or the paper's as it is written."""

    fast = "fast"
    reference = "reference"


def audit(
    source: options.Source,
    weight: options.Weight = None,
    bias: options.Bias = None,
    transpose: options.Transpose = False,
    drop_bias: options.DropBias = False,
    labels: options.Labels = None,
    domain: options.Domain = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Ask about some classes only: 0-99,500, @FILE or script:CYRILLIC.",
            metavar="WHICH",
        ),
    ] = None,
    approximate: Annotated[
        bool,
        typer.Option(
            "--approximate",
            help="Screen only; what it leaves is reported as potentially unargmaxable.",
        ),
    ] = False,
    patience: Annotated[
        int | None, typer.Option(help="Reflections before screening gives up.", metavar="N")
    ] = None,
    algorithm: Annotated[
        Algorithm, typer.Option(help="fast, or reference: the paper's, class by class.")
    ] = Algorithm.fast,
    device: options.OnDevice = options.Device.auto,
    jobs: options.Jobs = None,
    low_precision: Annotated[
        bool | None,
        typer.Option(
            help="Also count the witnesses that only tie or lose in the model's own type; "
            "by default where that takes a moment.",
        ),
    ] = None,
    report: Annotated[
        str | None, typer.Option(help="Write a page to read in a browser.", metavar="FILE.html")
    ] = None,
    certificates: Annotated[
        str | None, typer.Option(help="Write the proofs, for uncork verify.", metavar="FILE")
    ] = None,
    json_file: options.Json = None,
    fail_if_unargmaxable: Annotated[
        bool,
        typer.Option(
            "--fail-if-unargmaxable",
            help="Exit with status 1 unless every class is proven argmaxable or tied.",
        ),
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option(help="Leave the rest undecided after that.", metavar="SECONDS")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue after Ctrl-C or a time limit.")
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Decide for every class whether some input makes it the argmax, and prove it.

    Example: uncork audit model.onnx --report audit.html --certificates proofs.npz
    """
    check_outputs(
        {"--report": report, "--certificates": certificates, "--json": json_file},
        {"the model": source, "the labels": labels},
    )
    options.checked_domain(domain)
    # Says what is wrong with the options, if anything, before a large file is read.
    Options(approximate=approximate, patience=patience, time_limit=time_limit)
    began = time.perf_counter()
    head = load(source, weight=weight, bias=bias, transpose=transpose, labels=labels, domain=domain)
    if drop_bias:
        head = head.replace(bias=None)
    asked = None if classes is None else chosen_classes(classes, head)
    partial = Partial(head)
    earlier = _earlier(partial, resume, quiet)
    loading = time.perf_counter() - began
    try:
        result = decide(
            head,
            classes=asked,
            approximate=approximate,
            patience=patience,
            algorithm=algorithm.value,
            device=device.value,
            jobs=jobs,
            time_limit=time_limit,
            low_precision=is_quick(head) if low_precision is None else low_precision,
            progress=not quiet and sys.stderr.isatty(),
            resume=earlier,
        )
    except Interrupted as interrupted:
        _keep(partial, interrupted.audit, "interrupted")
        raise typer.Exit(130) from None
    result.seconds["load"] = loading
    result.seconds["total"] += loading
    unfinished = bool(len(result.undecided)) and time_limit is not None
    if unfinished:
        _keep(partial, result, f"the time limit of {time_limit:g} s was reached")
    try:
        _write_files(result, report, certificates, json_file)
    except (UncorkError, OSError):
        if not unfinished:
            _keep(partial, result, "a result could not be written")
        raise
    if not unfinished and (earlier is not None or not len(result.undecided)):
        partial.remove()
    if json_file == "-":
        emit_json(result.to_dict(), json_file)
    else:
        out = console()
        print_summary(out, result)
        for what, path in (("report", report), ("certificates", certificates), ("JSON", json_file)):
            if path is not None:
                out.print(f"{what} written to {printable(path)}", soft_wrap=True)
    if fail_if_unargmaxable and (len(result.unargmaxable) or len(result.undecided)):
        raise typer.Exit(1)


def _earlier(partial: Partial, resume: bool, quiet: bool) -> Audit | None:
    if resume:
        earlier = partial.load()
        if earlier is None and not quiet:
            note("there is no unfinished audit of this head and domain: starting anew")
        return earlier
    if partial.exists() and not quiet:
        note("there is an unfinished audit of this head and domain: --resume continues it")
    return None


def _keep(partial: Partial, audit: Audit, why: str) -> None:
    """Save what was decided for `--resume`, and say so."""
    decided = int((audit.proofs.verdicts != 0).sum())
    try:
        partial.save(audit)
    except UncorkError as error:
        note(f"{why}; what was decided is lost: {error}")
        return
    note(
        f"{why}: {decided:,} classes decided, {len(audit.undecided):,} not; "
        "the same command with --resume continues"
    )


def _write_files(
    audit: Audit, report: str | None, certificates: str | None, json_file: str | None
) -> None:
    if certificates is not None:
        audit.save(certificates)
    if report is not None:
        from uncork.report.page import write_report

        write_report(audit, report)
    if json_file is not None and json_file != "-":
        emit_json(audit.to_dict(), json_file)
