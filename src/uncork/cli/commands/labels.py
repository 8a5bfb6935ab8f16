"""`uncork labels`: which label sets of a multi-label head no input can produce, proven."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from uncork.cli import options
from uncork.cli.help import DECIDE, OUTPUT, RUN
from uncork.cli.output import console, emit_json, note, print_doubts, progress_bar, shown
from uncork.cli.parameters import Reads, Writes
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.text import printable
from uncork.labels.decide import decide_sets
from uncork.labels.price import Price, conflicts, price, wilson
from uncork.labels.probability import highest_joint_probability
from uncork.labels.result import LabelAudit
from uncork.labels.set_files import LabelNames, read_sets
from uncork.labels.sets import LabelSets
from uncork.labels.thresholds import configured_thresholds, read_thresholds

_LISTED = 10
_EVERY = 250_000  # sets of one size up to which all of them are decided
_SAMPLE = 10_000  # and beyond, so many of them


class Others(str, Enum):
    """What becomes of the labels that a set does not name."""

    off = "off"
    free = "free"


def labels(
    source: options.Source,
    tensors: options.Tensors,
    run: options.LimitedRun,
    drop_bias: options.DropBias = False,
    labels: options.Labels = None,
    domain: options.Domain = None,
    sets: Annotated[
        str | None,
        typer.Option(
            help="Sets to ask about: one a line, names or numbers with commas between; or the "
            "label matrix of a data set (.npy, .npz, .svmlight).",
            metavar="FILE",
            rich_help_panel=DECIDE,
        ),
        Reads("the sets"),
    ] = None,
    active: Annotated[
        int | None,
        typer.Option(
            help="Ask about every set of K labels; about a sample where there are too many.",
            metavar="K",
            rich_help_panel=DECIDE,
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            help="With --active: ask about N sets drawn at random.",
            metavar="N",
            rich_help_panel=DECIDE,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="The same seed draws the same sample.", metavar="S", rich_help_panel=DECIDE
        ),
    ] = 0,
    containing: Annotated[
        str | None,
        typer.Option(
            help="Ask instead: can these be on together, whatever the others are?",
            metavar="A,B,…",
            rich_help_panel=DECIDE,
        ),
    ] = None,
    without: Annotated[
        str | None,
        typer.Option(
            help="And these off at the same time: with --containing, can A come without B?",
            metavar="A,B,…",
            rich_help_panel=DECIDE,
        ),
    ] = None,
    others: Annotated[
        Others,
        typer.Option(
            help="Labels that a set does not name: off, or free (sets that are infeasible then "
            "never occur together at all).",
            rich_help_panel=DECIDE,
        ),
    ] = Others.off,
    threshold: Annotated[
        str | None,
        typer.Option(
            help="A label is predicted above this probability; or @FILE with one for each label.",
            show_default="0.5, or what the model's configuration says",
            metavar="P",
            rich_help_panel=DECIDE,
        ),
        Reads("the thresholds", lambda text: [text[1:]] if text and text[0] == "@" else []),
    ] = None,
    logits: Annotated[
        bool,
        typer.Option(
            "--logits", help="Thresholds are logits, not probabilities.", rich_help_panel=DECIDE
        ),
    ] = False,
    f1_at: Annotated[
        int | None,
        typer.Option(
            help="With --sets: also bound F1 where at most K labels are predicted.",
            metavar="K",
            rich_help_panel=DECIDE,
        ),
    ] = None,
    probability: Annotated[
        int,
        typer.Option(
            help="Bound the highest joint probability of the first N infeasible sets.",
            metavar="N",
            rich_help_panel=DECIDE,
        ),
    ] = 0,
    certificates: options.Certificates = None,
    report: Annotated[
        str | None,
        typer.Option(
            help="Write a page to read in a browser.",
            metavar="FILE.html",
            rich_help_panel=OUTPUT,
        ),
        Writes("--report"),
    ] = None,
    save: Annotated[
        bool,
        typer.Option("--save", help="Keep the result in your store.", rich_help_panel=OUTPUT),
    ] = False,
    store: options.StoreToWrite = None,
    fail_if_infeasible: Annotated[
        bool,
        typer.Option(
            "--fail-if-infeasible",
            help="Exit with status 1 if a set is infeasible or undecided.",
            rich_help_panel=RUN,
        ),
    ] = False,
    json_file: options.Json = None,
) -> None:
    """Decide which label sets of a multi-label head are possible.

    A label is predicted where its sigmoid is above its threshold. A set is feasible if some input
    makes the head predict exactly its labels, and infeasible if none does; both are proven. For the
    labels of a data set (--sets) it also says which examples no classifier with this head gets
    right. Examples: uncork labels model.onnx --active 1;
    uncork labels model.onnx --sets train-labels.npz --certificates proofs.npz
    """
    options.check_domain(domain)
    asked = _Asked(sets, active, sample, seed, containing, without, others is Others.free)
    if f1_at is not None and sets is None:
        raise UncorkError("--f1-at bounds F1 on data: give its label sets with --sets")
    if f1_at is not None and others is Others.free:
        raise UncorkError("--f1-at needs whole label sets: leave --others free out")
    head = tensors.find(source, drop_bias=drop_bias, labels=labels, domain=domain).head
    configured = configured_thresholds(source, head) if threshold is None else None
    if configured is None:
        default = "0" if logits else "0.5"
        thresholds = read_thresholds(default if threshold is None else threshold, head, logits)
    else:
        thresholds, where = configured
        note(f"thresholds from {where}")
    chosen = asked.sets(head)
    with progress_bar(run.quiet) as bar:
        audit = decide_sets(
            head, chosen, thresholds=thresholds, **run.on(), time_limit=run.time_limit,
            progress=bar, keep=True if certificates else None,
        )  # fmt: skip
    cost = price(audit, f1_at) if sets is not None and others is Others.off else None
    extra = _extra(audit, asked, cost, head, probability)
    if certificates is not None:
        audit.save(certificates)
    if report is not None:
        from uncork.report.label_page import write_label_report

        write_label_report(audit, report, extra)
    stored = _kept(audit, save, store, certificates)
    if json_file is not None:
        emit_json({**audit.to_dict(), **extra}, json_file)
    if json_file != "-":
        _print(audit, asked, cost, extra, certificates, stored)
    if fail_if_infeasible and (len(audit.infeasible) or len(audit.undecided)):
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Asked:
    """Which sets: exactly one of a file, a size, or a question."""

    file: str | None
    active: int | None
    sample: int | None
    seed: int
    containing: str | None
    without: str | None
    free: bool

    def __post_init__(self) -> None:
        question = self.containing is not None or self.without is not None
        if (self.file is not None) + (self.active is not None) + question != 1:
            raise UncorkError(
                "which sets? give exactly one of --sets FILE, --active K, and a question "
                "(--containing, --without or both)"
            )
        if self.sample is not None and self.active is None:
            raise UncorkError("--sample draws sets of one size: give it with --active K")
        if self.active is not None and self.active < 0:
            raise UncorkError(f"--active {self.active}: expected zero or more labels")

    def sampled(self, labels: int) -> int | None:
        """How many sets are drawn; None where all are asked about."""
        if self.active is None:
            return None
        every = math.comb(labels, self.active)
        return self.sample or (None if every <= _EVERY else _SAMPLE)

    def sets(self, head: Head) -> LabelSets:
        count = head.classes
        if self.file is not None:
            found = read_sets(self.file, head)
        elif self.active is not None:
            number = self.sampled(count)
            found = (
                LabelSets.of_size(count, self.active)
                if number is None
                else LabelSets.sample(count, self.active, number, self.seed)
            )
        else:
            names = LabelNames(head)
            on, off = (names.several(text or "") for text in (self.containing, self.without))
            return LabelSets.question(count, on, off)
        if not self.free:
            return found
        return LabelSets(count, found.on, found.off, np.ones(len(found), dtype=bool), found.counts)


def _extra(
    audit: LabelAudit, asked: _Asked, cost: Price | None, head: Head, probability: int
) -> dict[str, Any]:
    """What is said besides the verdicts."""
    extra: dict[str, Any] = {}
    if audit.sets.sizes.max(initial=0) != audit.sets.sizes.min(initial=10**9) or cost is not None:
        extra["by_size"] = _by_size(audit)
    drawn = asked.sampled(audit.sets.labels)
    if drawn is not None and asked.active is not None:
        lost = len(audit.infeasible)
        decided = len(audit.sets) - len(audit.undecided)
        extra["sample"] = {
            "sets": len(audit.sets), "of": math.comb(audit.sets.labels, asked.active),
            "seed": asked.seed, "infeasible_share": lost / max(1, decided),
            "interval_95": list(wilson(lost, decided)),
        }  # fmt: skip
    if cost is not None:
        extra["price"] = cost.to_dict()
    if len(audit.infeasible) and audit.proofs:
        extra["conflicts"] = conflicts(audit)
    if probability and len(audit.infeasible):
        some = audit.infeasible[:probability]
        bounds = highest_joint_probability(head, audit.sets.take(some), domain=audit.domain)
        plain = not audit.thresholds.any()  # then some label's sigmoid is at most one half
        extra["joint_probability"] = [
            {
                "set": int(k), "labels": audit.sets.on[k].tolist(), "lower": float(low),
                "upper": min(float(high), 0.5) if plain else float(high),
            }
            for k, low, high in zip(some.tolist(), bounds.lower, bounds.upper, strict=True)
        ]  # fmt: skip
    return extra


def _by_size(audit: LabelAudit) -> list[dict[str, int]]:
    sizes = audit.sets.sizes
    rows = []
    for size in np.unique(sizes).tolist():
        here = sizes == size
        rows.append(
            {
                "size": size, "sets": int(here.sum()),
                "infeasible": int(here[audit.infeasible].sum()),
                "undecided": int(here[audit.undecided].sum()),
            }
        )  # fmt: skip
    return rows


def _kept(audit: LabelAudit, save: bool, store: str | None, certificates: str | None) -> str:
    if not (save or store is not None):
        return ""
    from uncork.store import Store
    from uncork.store.default import default_store

    with Store(default_store() if store is None else store) as opened:
        number = opened.save_label_audit(audit, certificates=certificates)
        return f"stored as label audit {number} in {printable(opened.name)}"


def _print(
    audit: LabelAudit,
    asked: _Asked,
    cost: Price | None,
    extra: dict[str, Any],
    certificates: str | None,
    stored: str,
) -> None:
    out = console()
    out.print(
        f"{printable(audit.source)}: {audit.sets.labels:,} labels × {audit.features:,} features; "
        f"inputs in {printable(str(audit.domain))}",
        soft_wrap=True,
    )
    print_doubts(out, audit.reading)
    counts = audit.counts
    if bool(audit.sets.partial.all()) and len(audit.sets) == 1:
        _print_answer(out, audit)
    else:
        out.print(f"{len(audit.sets):,} label sets")
        meaning = {
            "feasible": "some input gives exactly these labels",
            "infeasible": "proven: no input does",
            "undecided": "not proven either way",
        }
        if audit.sets.partial.any():
            meaning["feasible"] = "some input gives all of these labels"
        for verdict, text in meaning.items():
            if counts[verdict] or verdict != "undecided":
                out.print(f"  {counts[verdict]:>9,} {verdict:<10}  {text}")
    if "sample" in extra:
        low, high = extra["sample"]["interval_95"]
        out.print(
            f"a sample: of all {extra['sample']['of']:,} sets of {asked.active}, "
            f"{extra['sample']['infeasible_share']:.2%} infeasible "
            f"(95 % interval {low:.2%} to {high:.2%})"
        )
    if cost is not None:
        _print_price(out, cost)
    if len(audit.sets) > 1:
        _print_infeasible(out, audit)
    for row in extra.get("joint_probability", [])[:_LISTED]:
        names = ", ".join(shown(audit.label(i)) for i in row["labels"]) or "no label"
        out.print(
            f"highest joint probability of {names}: {row['lower']:.4g} to {row['upper']:.4g}",
            soft_wrap=True,
        )
    if certificates is not None:
        out.print(f"proofs in {printable(certificates)}; check them with uncork verify")
    if stored:
        out.print(stored)
    every = "every other verdict" if counts["undecided"] else "every verdict"
    out.print(f"{every} is proven ({audit.seconds['total']:.1f} s)")


def _print_answer(out: Console, audit: LabelAudit) -> None:
    on = " and ".join(shown(audit.label(int(i))) for i in audit.sets.on[0])
    off = " and ".join(shown(audit.label(int(i))) for i in audit.sets.off[0])
    question = " without ".join(part for part in (on, off) if part)
    if not on:
        question = f"an input without {off}"
    answer = {"feasible": "possible", "infeasible": "impossible", "undecided": "not proven"}
    verdict = next(name for name, count in audit.counts.items() if count)
    out.print(f"{question}: {answer[verdict]}", soft_wrap=True)
    for part in audit.conflict(0):
        state = "on" if part["on"] else "off"
        out.print(f"    {part['weight']:8.4f}  {shown(part['name'])} {state}", soft_wrap=True)


def _print_price(out: Console, cost: Price) -> None:
    out.print(
        f"{cost.infeasible_sets:,} of {cost.sets:,} sets can never be output: "
        f"{cost.infeasible_examples:,} of {cost.examples:,} examples "
        f"({cost.infeasible_examples / max(1, cost.examples):.2%})"
    )
    text = f"so exact match is at most {cost.exact_match:.4f}, mean F1 at most {cost.f1:.4f}"
    if cost.f1_at is not None:
        text += f", F1@{cost.at} at most {cost.f1_at:.4f}"
    out.print(text)


def _print_infeasible(out: Console, audit: LabelAudit) -> None:
    if not len(audit.infeasible):
        return
    order = np.argsort(-audit.sets.counts[audit.infeasible], kind="stable")
    listed = audit.infeasible[order]
    out.print("infeasible:")
    for k in listed[:_LISTED].tolist():
        names = ", ".join(shown(audit.label(int(i))) for i in audit.sets.on[k][:8]) or "no label"
        more = len(audit.sets.on[k]) - 8
        names += f" and {more} more" if more > 0 else ""
        times = f"  ({audit.sets.counts[k]:,} times)" if audit.sets.counts[k] > 1 else ""
        against = ", ".join(
            f"{shown(part['name'])} {'on' if part['on'] else 'off'}"
            for part in audit.conflict(k, 3)
        )
        out.print(f"    {names}{times}" + (f"  in conflict: {against}" if against else ""),
                  soft_wrap=True)  # fmt: skip
    if len(listed) > _LISTED:
        out.print(f"    and {len(listed) - _LISTED:,} more (--json lists them all)")
