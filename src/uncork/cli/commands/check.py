"""`uncork check`: named checks of one model that pass, warn or fail."""

from __future__ import annotations

import hashlib
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from uncork.auditing import Interrupted
from uncork.auditing import audit as decide
from uncork.auditing.low_precision import is_quick
from uncork.auditing.run import Options
from uncork.check import (
    Checked,
    Given,
    Outcome,
    Subject,
    Suite,
    read_baseline,
    read_suite,
    run_checks,
)
from uncork.check.card import (
    RESULTS,
    Card,
    check_repository,
    evaluation,
    push,
    read_card,
)
from uncork.check.formats import FORMATS
from uncork.check.formats import text as plain_text
from uncork.check.formats.json import as_dict
from uncork.check.lists import read_frequency, read_must_not
from uncork.check.run import Kept
from uncork.check.subject import Computing
from uncork.cli import options
from uncork.cli.audits.unfinished import Unfinished, earlier_audit, keep
from uncork.cli.help import DECIDE, INPUT, OUTPUT
from uncork.cli.output import console, emit_json, note, progress_bar
from uncork.cli.parameters import Reads, Writes
from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.core.whole_file import whole_file
from uncork.loading import Found
from uncork.loading.contents import LabelCountError
from uncork.report.wording import Asked

_STYLES = {Outcome.FAIL: "bold red", Outcome.WARN: "yellow", Outcome.PASS: "green",
           Outcome.NOT_APPLICABLE: "dim"}  # fmt: skip


def _known_format(name: str) -> str:
    if name not in FORMATS:
        raise typer.BadParameter(f"{name!r}: expected {', '.join(FORMATS)}")
    return name


def _pairs(values: list[str] | None) -> dict[str, str]:
    """What --write was given: format → file."""
    pairs: dict[str, str] = {}
    for value in values or ():
        name, equals, path = value.partition("=")
        if not equals or name not in FORMATS or not path:
            raise UncorkError(
                f"--write {printable(value)}: expected FORMAT=FILE, FORMAT one of "
                + ", ".join(FORMATS)
            )
        if name in pairs:
            raise UncorkError(f"--write {name}=… is given twice")
        if path in pairs.values():
            raise UncorkError(f"--write {printable(value)} would overwrite what another one writes")
        pairs[name] = path
    return pairs


def _paths(values: list[str] | None) -> list[str]:
    return list(_pairs(values).values())


@dataclass(frozen=True)
class Conditions:
    """What is asked of the model, beside the model itself."""

    config: Annotated[
        str | None,
        typer.Option(
            help="Conditions and severities: a TOML file with [check], or a pyproject.toml with "
            "[tool.uncork.check].",
            show_default="uncork.toml or pyproject.toml here, if there is one",
            metavar="FILE",
            rich_help_panel=DECIDE,
        ),
        Reads("the configuration"),
    ] = None
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Warnings fail as well.", rich_help_panel=DECIDE),
    ] = False
    baseline: Annotated[
        str | None,
        typer.Option(
            help="An earlier check or audit (written by --json or --certificates): fail if a class "
            "became unargmaxable since.",
            metavar="AUDIT",
            rich_help_panel=DECIDE,
        ),
        Reads("the baseline"),
    ] = None
    frequency: Annotated[
        str | None,
        typer.Option(
            help="How frequent labels are: a label and its count on each line, or labels alone, "
            "the most frequent first.",
            metavar="FILE",
            rich_help_panel=INPUT,
        ),
        Reads("the frequencies"),
    ] = None
    must_not: Annotated[
        str | None,
        typer.Option(
            help="Classes that must never be first: a label, number or range on each line.",
            metavar="FILE",
            rich_help_panel=INPUT,
        ),
        Reads("the classes that must not be first"),
    ] = None


@dataclass(frozen=True)
class Files:
    """Where results go."""

    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="How to write the result.",
            metavar="|".join(FORMATS),
            callback=_known_format,
            autocompletion=lambda: list(FORMATS),
            rich_help_panel=OUTPUT,
        ),
    ] = "text"
    write: Annotated[
        list[str] | None,
        typer.Option(
            help="Write the result to a file as well: sarif=check.sarif; repeatable.",
            metavar="FORMAT=FILE",
            rich_help_panel=OUTPUT,
        ),
        Writes("--write", _paths),
    ] = None
    report: Annotated[
        str | None,
        typer.Option(
            help="Write the audit's page, which results link to.",
            metavar="FILE.html",
            rich_help_panel=OUTPUT,
        ),
        Writes("--report"),
    ] = None
    certificates: options.Certificates = None
    json_file: options.Json = None


@dataclass(frozen=True)
class Publishing:
    """The model card, and a pull request on the hub."""

    card: Annotated[
        str | None,
        typer.Option(
            help="Add or replace this check's section of a model card.",
            metavar="README.md",
            rich_help_panel=OUTPUT,
        ),
        Writes("--card"),
    ] = None
    eval_results: Annotated[
        str | None,
        typer.Option(
            help=f"Also write {RESULTS} beside the card, as a result of this benchmark of the hub.",
            metavar="OWNER/NAME",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    push: Annotated[
        str | None,
        typer.Option(
            help="Open a pull request with the card (and certificates) at this model of the hub.",
            metavar="OWNER/NAME",
            rich_help_panel=OUTPUT,
        ),
    ] = None

    def prepare(self) -> Card | None:
        """The card, before any work; raises where something is missing or wrong."""
        for option, value in (("--eval-results", self.eval_results), ("--push", self.push)):
            if value is not None:
                check_repository(value, option)
                if self.card is None:
                    raise UncorkError(f"{option} goes with --card: give the model card's file")
        return None if self.card is None else read_card(self.card, self.push)

    def write(self, checked: Checked, card: Card) -> list[str]:
        """Write the card and what goes with it; lines that say what was written."""
        card.save(checked)
        said = [f"card written to {printable(str(card.path))}"]
        if self.eval_results is not None:
            place = card.path.parent / RESULTS
            place.parent.mkdir(exist_ok=True)
            with whole_file(place) as target:
                target.write_text(evaluation(checked, self.eval_results), encoding="utf-8")
            said.append(f"evaluation result written to {printable(str(place))}")
        return said

    def send(self, checked: Checked, card: Card) -> None:
        """Open the pull request, if one is asked for, and say where it is."""
        if self.push is None:
            return
        files = {"README.md": card.path.read_bytes()}
        if self.eval_results is not None:
            files[RESULTS] = (card.path.parent / RESULTS).read_bytes()
        if checked.certificates is not None:
            kept = Path(checked.certificates.path)
            files[kept.name] = kept.read_bytes()
        note(f"pull request opened: {push(self.push, files)}")


def check(
    source: options.Source,
    tensors: options.Tensors,
    conditions: Conditions,
    files: Files,
    publishing: Publishing,
    run: options.LimitedRun,
    labels: options.Labels = None,
    domain: options.Domain = None,
    resume: options.Resume = False,
) -> None:
    """May this head be shipped? Named checks that pass, warn or fail.

    Looks for classes that can never be first, rows that must never be, fragile classes, labels and
    rows that are not what they should be, and regressions. Exit status 1 if a check fails.
    `uncork help checks` lists them with their conditions.
    Examples: uncork check model.onnx; uncork check model.onnx --strict --format github --write
    sarif=check.sarif
    """
    suite = read_suite(conditions.config).with_strict(conditions.strict)
    labels, domain = labels or suite.option("labels"), domain or suite.option("domain")
    options.check_domain(domain)
    Options(time_limit=run.time_limit)
    lists = _Lists.read(conditions, suite)
    pairs, card = _pairs(files.write), publishing.prepare()
    began = time.perf_counter()
    found, refused = _found(tensors, source, labels, domain)
    given = lists.given(found, refused)
    unfinished = Unfinished(found.head)
    earlier = earlier_audit(unfinished, resume, run.quiet)
    loading = time.perf_counter() - began
    computing = Computing(run.device.value, run.jobs, run.time_limit)
    with progress_bar(run.quiet) as bar:
        try:
            audit = decide(
                found.head, **run.on(), time_limit=run.time_limit, progress=bar,
                low_precision=is_quick(found.head), resume=earlier,
            )  # fmt: skip
        except Interrupted as interrupted:  # a check of half a model answers nothing
            keep(unfinished, interrupted.audit, "interrupted")
            raise typer.Exit(130) from None
        audit.seconds["load"] = loading
        audit.seconds["total"] += loading
        subject = Subject(found, audit, given, computing, bar)
        try:
            checked = run_checks(subject, suite)
        except KeyboardInterrupt:
            keep(unfinished, audit, "interrupted")
            raise typer.Exit(130) from None
    if not len(audit.undecided):
        unfinished.remove()
    elif run.time_limit is not None:
        keep(unfinished, audit, "the time limit was reached")
    checked = _written(checked, subject, files, pairs, Asked(tensors.given(), domain))
    said = [] if card is None else publishing.write(checked, card)
    _print(checked, files, [*said, *(f"{name} written to {path}" for name, path in pairs.items())])
    if card is not None:  # last: whatever the hub says, the result has been shown
        publishing.send(checked, card)
    if checked.failed:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Lists:
    """The files of a user, of which one needs the head to be understood."""

    given_: Given
    must_not: str | None

    @classmethod
    def read(cls, conditions: Conditions, suite: Suite) -> _Lists:
        baseline = conditions.baseline or suite.option("baseline")
        frequency = conditions.frequency or suite.option("frequency")
        return cls(
            Given(
                None if baseline is None else read_baseline(baseline),
                None if frequency is None else read_frequency(frequency),
            ),
            conditions.must_not or suite.option("must-not"),
        )

    def given(self, found: Found, refused: str) -> Given:
        if self.given_.baseline is not None:
            self.given_.baseline.check(found.head)
        chosen = None if self.must_not is None else read_must_not(self.must_not, found.head)
        return replace(self.given_, must_not=chosen, labels_refused=refused)


def _found(
    tensors: options.Tensors, source: str, labels: str | None, domain: str | None
) -> tuple[Found, str]:
    """The head; and why the labels that were given could not be used, which is for a check."""
    try:
        return tensors.find(source, labels=labels, domain=domain), ""
    except LabelCountError as error:
        return tensors.find(source, domain=domain), str(error)


def _written(
    checked: Checked, subject: Subject, files: Files, pairs: dict[str, str], asked: Asked
) -> Checked:
    """Write what was asked for; the result with where its page and proofs are."""
    if files.certificates is not None:
        checked.audit.save(files.certificates)
        digest = hashlib.sha256(Path(files.certificates).read_bytes()).hexdigest()
        checked = replace(checked, certificates=Kept(files.certificates, digest))
    if files.report is not None:
        from uncork.report.page import write_report

        write_report(checked.audit, files.report, subject.odd, asked=asked)
        checked = replace(checked, report=files.report)
    for name, path in pairs.items():
        with whole_file(path) as target:
            target.write_text(FORMATS[name](checked), encoding="utf-8")
    if files.json_file is not None and files.json_file != "-":
        emit_json(as_dict(checked), files.json_file)
    return checked


def _print(checked: Checked, files: Files, said: list[str]) -> None:
    if files.json_file == "-":
        emit_json(as_dict(checked), "-")
        return
    if files.format_ != "text":
        sys.stdout.write(FORMATS[files.format_](checked))
        return
    out = console()
    for line, outcome in plain_text.lines(checked):
        out.print(line, style=None if outcome is None else _STYLES[outcome], soft_wrap=True)
    for line in said:
        out.print(line, soft_wrap=True)
