"""`uncork audit`: decide every class of a head."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from uncork.activations.data import named_and_matched
from uncork.auditing import Audit, Interrupted
from uncork.auditing import audit as decide
from uncork.auditing.low_precision import is_quick
from uncork.auditing.own_rows import WHY
from uncork.auditing.run import Options
from uncork.check.baseline import Baseline, failing, read_baseline
from uncork.cli import options
from uncork.cli.audits.behaviour import BehaviourCheck
from uncork.cli.audits.beside import RealQueries, numbers_of, print_places
from uncork.cli.audits.gate import write_junit
from uncork.cli.audits.items import (
    Walked,
    audit_found,
    ids_in_json,
    refuse_for_items,
    said_of_ids,
)
from uncork.cli.audits.keeping import Keeping
from uncork.cli.audits.shared_audit import decide_on_workers
from uncork.cli.audits.unfinished import Unfinished, earlier_audit, keep
from uncork.cli.help import DECIDE, OUTPUT
from uncork.cli.output import console, emit_json, print_doubts, shown, watched
from uncork.cli.parameters import Reads, Writes
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.items import METRICS
from uncork.core.reading import CAREFUL, words_of
from uncork.core.text import printable
from uncork.loading import Found
from uncork.loading.chosen_classes import chosen_classes
from uncork.loading.odd_rows import OddRows, odd_items, odd_rows
from uncork.loading.vectors.items import FoundItems
from uncork.reach.first_places import first_places
from uncork.report.rows import takers
from uncork.report.wording import Asked

if TYPE_CHECKING:
    from uncork.reach.outlooks import Outlook

_MOST_CLASSES = 10
_MOST_IN_MIXTURE = 3
_ALL = "all classes together"  # a mixture that names none of them
_STAGES = ("load", "prepare", "screen", "decide", "certify")


@dataclass(frozen=True)
class Files:
    """The files that an audit can be written to."""

    report: Annotated[
        str | None,
        typer.Option(
            help="Write a page to read in a browser.", metavar="FILE.html", rich_help_panel=OUTPUT
        ),
        Writes("--report"),
    ] = None
    certificates: options.Certificates = None
    json_file: options.Json = None
    junit: Annotated[
        str | None,
        typer.Option(
            help="Write JUnit XML, which build systems read.",
            metavar="FILE.xml",
            rich_help_panel=OUTPUT,
        ),
        Writes("--junit"),
    ] = None

    def print_written(self, out: Console) -> None:
        written = {
            "report": self.report, "certificates": self.certificates, "JSON": self.json_file,
            "XML": self.junit,
        }  # fmt: skip
        for what, path in written.items():
            if path is not None:
                out.print(f"{what} written to {printable(path)}", soft_wrap=True)


def audit(
    source: options.Source,
    tensors: options.Tensors,
    search: options.Search,
    run: options.LimitedRun,
    files: Files,
    cluster: options.Cluster,
    real: options.Queries,
    drop_bias: options.DropBias = False,
    labels: options.Labels = None,
    domain: options.Domain = None,
    classes: options.Classes = None,
    low_precision: Annotated[
        bool | None,
        typer.Option(
            help="Also count the witnesses that only tie or lose in the model's own type; by "
            "default where this is quick.",
            rich_help_panel=DECIDE,
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="On a GPU, prove first guesses in float64: nothing is taken for granted about how "
            "tensor cores add. Verifying always does.",
            rich_help_panel=DECIDE,
        ),
    ] = False,
    reach: Annotated[
        bool,
        typer.Option(
            "--reach",
            help="Also bound how near each unargmaxable class comes (highest probability, best "
            "rank), for the report and --json. Takes longer than the audit.",
            rich_help_panel=DECIDE,
        ),
    ] = False,
    top: Annotated[
        str | None,
        typer.Option(
            help="Also say which classes are never among the first K, proven: numbers with commas "
            "between.",
            metavar="N,…",
            rich_help_panel=DECIDE,
        ),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            help="Afterwards run this model (.onnx or transformers folder) over --data: does it "
            "ever predict a class that was proven unargmaxable?",
            metavar="MODEL",
            rich_help_panel=DECIDE,
        ),
        Reads("the model of --check"),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Data for --check: file, folder or pattern; repeatable.",
            metavar="FILE",
            rich_help_panel=DECIDE,
        ),
        Reads("the data", named_and_matched),
    ] = None,
    fail_if_unargmaxable: Annotated[
        bool,
        typer.Option(
            "--fail-if-unargmaxable",
            help="Exit with status 1 unless every class is proven argmaxable or tied.",
            rich_help_panel=DECIDE,
        ),
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="An earlier audit (written by --json or --certificates): exit with status 1 only "
            "if a class became unargmaxable since.",
            metavar="AUDIT",
            rich_help_panel=DECIDE,
        ),
        Reads("the baseline"),
    ] = None,
    save: Annotated[
        bool,
        typer.Option(
            "--save", help="Keep the result in the store (see --store).", rich_help_panel=OUTPUT
        ),
    ] = False,
    store: options.StoreToWrite = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="What to call the model in the store.",
            show_default="SOURCE",
            metavar="NAME",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="The model's group in the store.", metavar="GROUP", rich_help_panel=OUTPUT
        ),
    ] = None,
    iterations: Annotated[
        bool,
        typer.Option(
            "--iterations",
            help="Also store the iterations of the paper's approximate algorithm for every class, "
            "for uncork table and figure.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    resume: options.Resume = False,
) -> None:
    """Decide which classes can be the argmax, and prove it.

    A class is argmaxable if some input of the domain makes it the argmax. Every verdict is checked
    by a certifier that does not trust the search.
    Example: uncork audit model.onnx --report audit.html --certificates proofs.npz
    """
    options.check_domain(domain)
    real.check(domain)
    places = numbers_of(top)
    known = None if baseline is None else read_baseline(baseline)
    keeping = Keeping(
        save, store, name, group, iterations, search.patience,
        {
            "weight": tensors.weight, "bias": tensors.bias, "transpose": tensors.transpose,
            "drop_bias": drop_bias, "labels": _full(labels),
            "metric": tensors.as_dict()["metric"],
            "domain": domain, "classes": classes, "approximate": search.approximate,
            "time_limit": run.time_limit,
        },
    )  # fmt: skip
    checking = BehaviourCheck(check, data)
    # Says what is wrong with the options, if anything, before a large file is read.
    how_far = Options(
        **search.as_dict(), time_limit=run.time_limit, low_precision=bool(low_precision),
        strict=strict,
    )  # fmt: skip
    cluster.check()
    began = time.perf_counter()
    contents = tensors.open(source)
    items = tensors.items(contents, labels)
    if items is not None:
        asked_for = {
            "--reach": reach, "--check": check, "--iterations": iterations,
            "--queries-as": real.queries_as, "--top": top,
            "--approximate": search.approximate, "--engine": cluster.engine,
        }  # fmt: skip
        refuse_for_items(items.items, [option for option, given in asked_for.items() if given])
        result = audit_found(items, domain, classes, run.quiet, began)
        how = Asked(tensors.given(), domain)
        queried = RealQueries.of_items(real, items.items)
        gate = fail_if_unargmaxable
        _finish_items(result, items, files, known, gate, keeping, how, queried, run.quiet)
        return
    reading = {"drop_bias": drop_bias, "labels": labels, "domain": domain}
    found = tensors.find(source, **reading, contents=contents)
    head = real.bounding(found.head)
    if known is not None:
        known.check(head)
    asked = None if classes is None else chosen_classes(classes, head, found.vocabulary)
    checking.prepare(head)
    walked = Walked.of(contents)  # now: a damaged graph is to be said before a long search
    origin = _origin(domain, found) or real.origin()
    unfinished = Unfinished(head, asked)
    earlier = earlier_audit(unfinished, resume, run.quiet)
    loading = time.perf_counter() - began
    if low_precision is None:
        how_far = replace(how_far, low_precision=is_quick(head))
    try:
        if cluster.engine is not None:
            read = source, {**tensors.as_dict(), **reading, "labels": _full(labels)}
            result = decide_on_workers(
                head, asked, cluster, run, how_far, read, unfinished.ranges, earlier
            )
        else:
            result = decide(
                head,
                classes=asked,
                **search.as_dict(),
                **run.on(),
                time_limit=run.time_limit,
                low_precision=how_far.low_precision,
                strict=strict,
                progress=watched(run.quiet),
                resume=earlier,
            )
    except Interrupted as interrupted:
        keep(unfinished, interrupted.audit, "interrupted")
        raise typer.Exit(130) from None
    result.seconds["load"] = loading
    result.seconds["total"] += loading
    stopped = bool(len(result.undecided)) and run.time_limit is not None
    if stopped:
        keep(unfinished, result, _why_left(result))
    try:
        odd = odd_rows(head, found.vocabulary)
        checking.run(result, head, run.quiet)
        near = _outlook(head, result, run) if reach else None
    except KeyboardInterrupt:
        keep(unfinished, result, "interrupted")
        raise typer.Exit(130) from None
    gated = failing(result, known)
    plain = {**result.to_dict(), "odd": odd.as_dict(), "domain_from": origin, **checking.extra()}
    queried = RealQueries.of(real, head)
    plain |= walked.as_dict(result) | queried.as_dict() | ids_in_json(result)
    beside = [*said_of_ids(result), *walked.said(result), *queried.said(result)]
    ranked = None
    if places:
        ranked = first_places(
            head, result, places, jobs=run.jobs, time_limit=_time_left(run, began),
            progress=watched(run.quiet),
        )  # fmt: skip
        plain["first_places"] = ranked.as_dict()
        plain["first_places_notes"] = list(ranked.notes)
    if near is not None:
        plain["reach"] = [{"class": t, **(near.of(t) or {})} for t in near.classes.tolist()]
    known_of_them = near if ranked is None else ranked.outlook(head, result.domain, near)
    try:
        if files.certificates is not None:
            result.save(files.certificates)
        if files.report is not None:
            from uncork.report.page import write_report

            how = Asked(tensors.given(), domain, origin)
            write_report(result, files.report, odd, known_of_them, how, beside)
        if files.json_file is not None and files.json_file != "-":
            emit_json(plain, files.json_file)
        kept = keeping.keep(result, files.certificates, run.quiet, known_of_them)
        if files.junit is not None:
            write_junit(result, gated.tolist(), result.undecided.tolist(), files.junit)
    except (UncorkError, OSError):
        if not stopped:
            keep(unfinished, result, "a result could not be written")
        raise
    except KeyboardInterrupt:
        keep(unfinished, result, "interrupted")
        raise typer.Exit(130) from None
    if not stopped and (earlier is not None or not len(result.undecided)):
        unfinished.remove()
    if files.json_file == "-":
        emit_json(plain, "-")
    else:
        out = console()
        print_summary(out, result, odd)
        for name, text in beside:
            out.print(f"{name}: {text}", soft_wrap=True)
        if ranked is not None:
            print_places(out, ranked)
        files.print_written(out)
        if near is not None and len(near):
            out.print(near.summary(), soft_wrap=True)
        if kept:
            out.print(kept, soft_wrap=True)
        if known is not None:
            became = words_of(head.reading).say(f"{len(gated):,} classes became unargmaxable")
            out.print(f"{became} since {printable(known.path)}")
        checking.print(out)
    if ranked is not None and ranked.interrupted:
        raise typer.Exit(130)
    failed = fail_if_unargmaxable and (len(gated) or len(result.undecided))
    if checking.failed or failed or (known is not None and len(gated)):
        raise typer.Exit(1)


def _full(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(path)


def _finish_items(
    result: Audit,
    found: FoundItems,
    files: Files,
    known: Baseline | None,
    gate: bool,
    keeping: Keeping,
    how: Asked,
    queried: RealQueries,
    quiet: bool,
) -> None:
    """Print and write an audit of items that are not compared by inner products."""
    gated = failing(result, known)
    walked = Walked.of(found.contents)
    plain = {**result.to_dict(), "reason": WHY[result.metric], **walked.as_dict(result)}
    plain |= ids_in_json(result) | queried.as_dict()
    beside = [*said_of_ids(result), *walked.said(result), *queried.said(result)]
    if files.certificates is not None:
        result.save(files.certificates)
    if files.report is not None:
        from uncork.report.page import write_report

        odd = odd_items(found.items, found.vocabulary)
        write_report(result, files.report, odd, asked=how, beside=beside)
    if files.json_file is not None and files.json_file != "-":
        emit_json(plain, files.json_file)
    kept = keeping.keep(result, files.certificates, quiet)
    if files.junit is not None:
        write_junit(result, gated.tolist(), result.undecided.tolist(), files.junit)
    if files.json_file == "-":
        emit_json(plain, "-")
    else:
        out = console()
        print_summary(out, result)
        for name, text in beside:
            out.print(f"{name}: {text}", soft_wrap=True)
        files.print_written(out)
        if kept:
            out.print(kept, soft_wrap=True)
    if (gate and (len(gated) or len(result.undecided))) or (known is not None and len(gated)):
        raise typer.Exit(1)


def _origin(domain: str | None, found: Found) -> str:
    """Where a domain comes from that was not given as text, and what it assumes."""
    text = (domain or "").strip()
    if text == "auto":
        assumed = found.shown_domain.assumed if found.shown_domain is not None else ""
        return found.domain_from + (f"; assumed: {assumed}" if assumed else "")
    if text.startswith("@"):
        from uncork.domain.file import read_domain

        said = read_domain(text[1:])[1].get("assumption", "")
        return f"from {text[1:]}" + (f", {said}" if isinstance(said, str) and said else "")
    return ""


def _why_left(audit: Audit) -> str:
    """Why classes are undecided: the time limit, where it was that for any of them."""
    reasons = [audit.proofs.reasons.get(int(t), "") for t in audit.undecided]
    limit = [why for why in reasons if why.startswith("the time limit")]
    return (limit or reasons)[0].partition(" before anything")[0]


def _time_left(run: options.LimitedRun, began: float) -> float | None:
    if run.time_limit is None:
        return None
    return max(run.time_limit - (time.perf_counter() - began), 1e-3)


def _outlook(head: Head, audit: Audit, run: options.Run) -> Outlook:
    from uncork.reach.outlooks import outlook

    return outlook(head, audit, **run.on(), progress=watched(run.quiet))


def print_summary(out: Console, audit: Audit, odd: OddRows | None = None) -> None:
    """The head, the counts, the unargmaxable classes with their mixtures, and what else is odd."""
    out.print(printable(audit.source) or "head", soft_wrap=True)
    print_doubts(out, audit.reading)
    say = words_of(audit.reading).say
    bias = "with bias" if audit.has_bias else "no bias"
    if audit.metric != "inner":
        bias = f"compared by {METRICS[audit.metric]}"
    out.print(
        say(f"{audit.classes:,} classes × {audit.features:,} features, {audit.dtype}, {bias}; ")
        + say(f"inputs in {audit.domain}")
    )
    _print_reading(out, audit)
    if audit.asked is not None:
        out.print(say(f"asked about {len(audit.asked):,} of the classes"))
    out.print()
    _print_counts(out, audit)
    if audit.metric in WHY:
        out.print(f"why: {WHY[audit.metric]}\n", soft_wrap=True)
    _print_unargmaxable(out, audit)
    _print_tied(out, audit)
    _print_undecided(out, audit)
    _print_odd(out, audit, odd)
    low = audit.low_precision
    if low is not None:
        out.print(
            f"with logits computed in {low['dtype']}: {low['wins']:,} witnesses still win, "
            f"{low['ties']:,} only tie, {low['loses']:,} lose"
        )
    stages = [f"{name} {audit.seconds[name]:.2f} s" for name in _STAGES if name in audit.seconds]
    total = audit.seconds.get("total", 0.0)
    out.print(f"{total:.2f} s on {audit.device}: {', '.join(stages)}")
    decided = audit.classes - len(np.flatnonzero(audit.proofs.verdicts == 0))
    if audit.proven and decided:
        out.print(f"proven: each of the {decided:,} verdicts passed the certifier")


def _print_reading(out: Console, audit: Audit) -> None:
    """Which matrix this is about, and notes on it; doubts are printed further up."""
    for name, text in () if audit.reading is None else audit.reading.rows():
        if name != CAREFUL:
            out.print(f"{name}: {text}", soft_wrap=True)


def _print_counts(out: Console, audit: Audit) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    counts = audit.counts
    total = sum(counts.values())
    unknown = "potentially unargmaxable" if audit.approximate else "undecided"
    for name, count in counts.items():
        label = words_of(audit.reading).say(unknown if name == "undecided" else name)
        style = "bold" if count and name in ("unargmaxable", "undecided") else None
        table.add_row(label, f"{count:,}", f"{count / total:.1%}" if total else "", style=style)
    out.print(table)
    out.print()


def _print_unargmaxable(out: Console, audit: Audit) -> None:
    classes = audit.unargmaxable.tolist()
    if not classes:
        return
    rest = len(classes) > _MOST_CLASSES
    which = f" (the first {_MOST_CLASSES} of {len(classes):,})" if rest else ""
    say = words_of(audit.reading).say
    out.print(say(f"Never the argmax, whatever the input{which}:"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(say("class"), justify="right", no_wrap=True)
    if audit.labels is not None:
        table.add_column("label", no_wrap=True)
    table.add_column("margin", justify="right", no_wrap=True)
    table.add_column("mixture that beats it")
    for t in classes[:_MOST_CLASSES]:
        mixture = [
            f"{shown(part['label'])} {part['weight']:.0%}"
            for part in audit.stolen_by(t, _MOST_IN_MIXTURE)
        ]
        label = [] if audit.labels is None else [shown(audit.label(t))]
        taken = ", ".join(mixture) or say(_ALL)
        table.add_row(str(t), *label, f"{audit.margin(t) + 0.0:.3g}", taken)
    out.print(table)
    out.print()
    _print_takers(out, audit)


def _print_takers(out: Console, audit: Audit) -> None:
    """Who takes their place, where many have the same ones."""
    found = [taker for taker in takers(audit, _MOST_IN_MIXTURE) if taker[2] > 1]
    if not found:
        return
    say = words_of(audit.reading).say
    names = [f"{shown(audit.label(i))} ({count:,}×)" for i, _, count in found]
    out.print(say("The largest shares in their mixtures: ") + ", ".join(names), soft_wrap=True)
    out.print()


def _print_tied(out: Console, audit: Audit) -> None:
    tied = set(audit.tied.tolist())
    if not tied:
        return
    groups = [group.tolist() for group in audit.proofs.groups if int(group[0]) in tied]
    level = "Equal to one another" if audit.metric != "cosine" else "Of one direction"
    out.print(f"{level}, so none of a group is ever first alone:")
    for group in groups[:_MOST_CLASSES]:
        names = (f"{i} {shown(audit.label(i))}" if audit.labels else str(i) for i in group[:6])
        out.print("  " + ", ".join(names) + (", …" if len(group) > 6 else ""))
    if len(groups) > _MOST_CLASSES:
        out.print(f"  and {len(groups) - _MOST_CLASSES:,} more groups")
    out.print()


def _print_undecided(out: Console, audit: Audit) -> None:
    open_ = audit.undecided.tolist()
    if not open_:
        return
    ids = ", ".join(map(str, open_[:_MOST_CLASSES])) + (" …" if len(open_) > _MOST_CLASSES else "")
    if audit.approximate:
        say = words_of(audit.reading).say
        out.print(say(f"Potentially unargmaxable, no witness found and nothing proven: {ids}"))
    else:
        why = audit.proofs.reasons.get(open_[0], "no reason is known")
        out.print(f"Undecided: {ids}")
        out.print(f"  because {printable(why)}")
    out.print()


def _print_odd(out: Console, audit: Audit, odd: OddRows | None) -> None:
    """Kinds of rows that explain an unargmaxable class, and how many of each are unargmaxable."""
    if odd is None:
        return
    unargmaxable = set(audit.unargmaxable.tolist())
    asked = set(range(audit.classes)) if audit.asked is None else set(audit.asked.tolist())
    kinds = [(name, [t for t in ids if t in asked]) for name, ids in odd.kinds()]
    for name, ids in kinds:
        if ids:
            count = len(unargmaxable.intersection(ids))
            lost = words_of(audit.reading).say("unargmaxable")
            more = f", {count:,} of them {lost}" if count else ""
            out.print(f"{name}: {len(ids):,}{more}")
    if any(ids for _, ids in kinds):
        out.print()
