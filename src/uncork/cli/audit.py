"""`uncork audit`: decide every class of a head."""

from __future__ import annotations

import os
import sys
import time
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uncork.activations.data import named_and_matched
from uncork.auditing import Audit, Interrupted
from uncork.auditing import audit as decide
from uncork.auditing.low_precision import is_quick
from uncork.auditing.run import Options
from uncork.cli import options, saving
from uncork.cli.checking import Checking
from uncork.cli.files import Reads, Writes
from uncork.cli.gate import failing, read_baseline, write_junit
from uncork.cli.output import console, emit_json, note
from uncork.cli.partial import Partial, decided
from uncork.cli.summary import print_summary
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.text import printable
from uncork.loading import Found, find
from uncork.loading.chosen_classes import HELP as CLASSES_HELP
from uncork.loading.chosen_classes import chosen_classes
from uncork.loading.odd_rows import OddRows, odd_rows
from uncork.report.wording import Asked

if TYPE_CHECKING:
    from uncork.reach.outlook import Outlook


class Algorithm(str, Enum):
    """Ours, or the paper's as it is written."""

    fast = "fast"
    reference = "reference"


def audit(
    source: options.Source,
    base: options.Base = None,
    weight: options.Weight = None,
    bias: options.Bias = None,
    transpose: options.Transpose = False,
    drop_bias: options.DropBias = False,
    labels: options.Labels = None,
    domain: options.Domain = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help=CLASSES_HELP,
            metavar="WHICH",
        ),
        Reads("the classes"),
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
        str | None,
        typer.Option(help="Write a page to read in a browser.", metavar="FILE.html"),
        Writes("--report"),
    ] = None,
    reach: Annotated[
        bool,
        typer.Option(
            "--reach",
            help="Also bound how near each unargmaxable class comes (its highest probability, its "
            "best rank), for the report and --json: takes longer than the audit.",
        ),
    ] = False,
    certificates: Annotated[
        str | None,
        typer.Option(help="Write the proofs, for uncork verify.", metavar="FILE"),
        Writes("--certificates"),
    ] = None,
    json_file: options.Json = None,
    fail_if_unargmaxable: Annotated[
        bool,
        typer.Option(
            "--fail-if-unargmaxable",
            help="Exit with status 1 unless every class is proven argmaxable or tied.",
        ),
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="An earlier audit (--json or --certificates): exit with status 1 only if a class "
            "became unargmaxable since.",
            metavar="AUDIT",
        ),
        Reads("the baseline"),
    ] = None,
    junit: Annotated[
        str | None,
        typer.Option(help="Write JUnit XML, which build systems read.", metavar="FILE.xml"),
        Writes("--junit"),
    ] = None,
    save: Annotated[
        bool, typer.Option("--save", help="Keep the result in the store (see --store).")
    ] = False,
    store: options.StoreUrl = None,
    name: Annotated[
        str | None,
        typer.Option(help="What to call the model in the store.", show_default="SOURCE"),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Group of models in the store that it belongs to.", metavar="GROUP"),
    ] = None,
    iterations: Annotated[
        bool,
        typer.Option(
            "--iterations",
            help="Also count the iterations of the paper's approximate algorithm for every class, "
            "for the store's tables and figures.",
        ),
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option(help="Leave the rest undecided after that.", metavar="SECONDS")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue after Ctrl-C or a time limit.")
    ] = False,
    check: Annotated[
        str | None,
        typer.Option(
            help="Afterwards run this model (.onnx or transformers folder) over --data: does it "
            "ever put a class first that was proven unargmaxable?",
            metavar="MODEL",
        ),
        Reads("the model of --check"),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Data for --check: file, folder or pattern; repeatable.", metavar="FILE"),
        Reads("the data", named_and_matched),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Decide for every class whether some input makes it the argmax, and prove it.

    Example: uncork audit model.onnx --report audit.html --certificates proofs.npz
    """
    options.checked_domain(domain)
    known = None if baseline is None else read_baseline(baseline)
    keeping = saving.Keeping(
        save, store, name, group, iterations, patience,
        {
            "weight": weight, "bias": bias, "transpose": transpose, "drop_bias": drop_bias,
            "labels": None if labels is None else os.path.abspath(labels), "domain": domain,
            "classes": classes, "approximate": approximate, "time_limit": time_limit,
        },
    )  # fmt: skip
    checking = Checking(check, data)
    # Says what is wrong with the options, if anything, before a large file is read.
    Options(approximate=approximate, patience=patience, time_limit=time_limit)
    began = time.perf_counter()
    found = find(
        source, weight=weight, bias=bias, transpose=transpose, drop_bias=drop_bias, labels=labels,
        domain=domain, base=base,
    )  # fmt: skip
    head = found.head
    if known is not None:
        known.check(head)
    asked = None if classes is None else chosen_classes(classes, head, found.vocabulary)
    checking.prepare(head)
    origin = _origin(domain, found)
    partial = Partial(head, asked)
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
        odd = odd_rows(head, found.vocabulary)
        checking.run(result, head, quiet)
        near = _outlook(head, result, device.value, jobs, quiet) if reach else None
    except KeyboardInterrupt:
        _keep(partial, result, "interrupted")
        raise typer.Exit(130) from None
    try:
        extra = {"domain_from": origin, **checking.extra()}
        if near is not None:
            extra["reach"] = [{"class": t, **(near.of(t) or {})} for t in near.classes.tolist()]
        how = Asked(_named(weight, bias, transpose), domain, origin)
        _write_files(result, odd, report, certificates, json_file, extra, near, how)
        kept = keeping.keep(result, certificates, quiet)
        gated = failing(result, known)
        if junit is not None:
            write_junit(result, gated.tolist(), result.undecided.tolist(), junit)
    except (UncorkError, OSError):
        if not unfinished:
            _keep(partial, result, "a result could not be written")
        raise
    except KeyboardInterrupt:
        _keep(partial, result, "interrupted")
        raise typer.Exit(130) from None
    if not unfinished and (earlier is not None or not len(result.undecided)):
        partial.remove()
    if json_file == "-":
        emit_json({**result.to_dict(), "odd": odd.as_dict(), **extra}, json_file)
    else:
        out = console()
        print_summary(out, result, odd)
        written = {"report": report, "certificates": certificates, "JSON": json_file, "XML": junit}
        for what, path in written.items():
            if path is not None:
                out.print(f"{what} written to {printable(path)}", soft_wrap=True)
        if near is not None and len(near):
            out.print(near.summary(), soft_wrap=True)
        if kept:
            out.print(kept, soft_wrap=True)
        if known is not None:
            out.print(f"{len(gated):,} classes became unargmaxable since {printable(known.path)}")
        checking.print(out)
    if checking.failed:
        raise typer.Exit(1)
    if fail_if_unargmaxable and (len(gated) or len(result.undecided)):
        raise typer.Exit(1)
    if known is not None and len(gated):
        raise typer.Exit(1)


def _named(weight: str | None, bias: str | None, transpose: bool) -> tuple[str, ...]:
    """The options that say which tensors are the head, as they were given."""
    named = [("--weight", weight), ("--bias", bias)]
    given = [part for option, name in named if name is not None for part in (option, name)]
    return (*given, "--transpose") if transpose else tuple(given)


def _origin(domain: str | None, found: Found) -> str:
    """Where a domain that was not simply given comes from, and what of it is assumed."""
    text = (domain or "").strip()
    if text == "auto":
        assumed = found.shown_domain.assumed if found.shown_domain is not None else ""
        return found.domain_from + (f"; assumed: {assumed}" if assumed else "")
    if text.startswith("@"):
        from uncork.domain.file import read_domain

        said = read_domain(text[1:])[1].get("assumption", "")
        return f"from {text[1:]}" + (f", {said}" if isinstance(said, str) and said else "")
    return ""


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
    try:
        kept = partial.save(audit)
    except UncorkError as error:
        note(f"{why}; what was decided is lost: {error}")
        return
    done = f"{decided(audit):,} classes decided, {len(audit.undecided):,} not"
    if kept > decided(audit):
        done += f", fewer than the {kept:,} of an earlier run, which stay kept"
    note(f"{why}: {done}; the same command with --resume continues")


def _outlook(head: Head, audit: Audit, device: str, jobs: int | None, quiet: bool) -> Outlook:
    from uncork.reach.outlook import outlook

    bar = not quiet and sys.stderr.isatty()
    return outlook(head, audit, device=device, jobs=jobs, progress=bar)


def _write_files(
    audit: Audit,
    odd: OddRows,
    report: str | None,
    certificates: str | None,
    json_file: str | None,
    extra: dict[str, Any],
    near: Outlook | None,
    how: Asked,
) -> None:
    if certificates is not None:
        audit.save(certificates)
    if report is not None:
        from uncork.report.page import write_report

        write_report(audit, report, odd, outlook=near, asked=how)
    if json_file is not None and json_file != "-":
        emit_json({**audit.to_dict(), "odd": odd.as_dict(), **extra}, json_file)
