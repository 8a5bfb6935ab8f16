"""`uncork reach`: the highest probability and the best rank of classes, both bounds proven."""

from __future__ import annotations

import sys
import time
from enum import Enum
from typing import Annotated

import numpy as np
import typer

from uncork import __version__
from uncork.auditing import audit as run_audit
from uncork.cli import options
from uncork.cli.files import Reads, Writes
from uncork.cli.output import console, emit_json, print_doubts
from uncork.cli.reach_output import LISTED, described, print_result
from uncork.cli.reach_sets import Question, answer
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.reading import json_keys
from uncork.loading import chosen_classes as class_choice
from uncork.loading.source import find
from uncork.reach.certificates import (
    Certificates,
    Checked,
    check_certificates,
    read_certificates,
    write_certificates,
)
from uncork.reach.outlook import Outlook
from uncork.reach.probability.search import highest_probability
from uncork.reach.rank.search import best_rank
from uncork.reach.sparse.search import sparse_probability


class Output(str, Enum):
    """What turns logits into probabilities."""

    softmax = "softmax"
    sparsemax = "sparsemax"
    entmax = "entmax"


def reach(
    source: options.Source,
    base: options.Base = None,
    weight: options.Weight = None,
    bias: options.Bias = None,
    transpose: options.Transpose = False,
    labels: options.Labels = None,
    domain: options.Domain = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help=class_choice.HELP, show_default="the unargmaxable ones", metavar="CLASSES"
        ),
        Reads("the classes"),
    ] = None,
    output: Annotated[
        Output, typer.Option(help="What turns logits into probabilities.")
    ] = Output.softmax,
    alpha: Annotated[
        float | None,
        typer.Option(help="Of entmax: 2 is sparsemax, towards 1 softmax.", show_default="1.5"),
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Divides the logits before that.", metavar="T")
    ] = 1.0,
    probability: Annotated[
        bool, typer.Option("--probability/--no-probability", help="Bound the probability.")
    ] = True,
    rank: Annotated[bool, typer.Option("--rank/--no-rank", help="Bound the best rank.")] = True,
    top: Annotated[
        int | None,
        typer.Option(
            help="Ask only whether classes can ever be in the top K: quicker.", metavar="K"
        ),
    ] = None,
    above: Annotated[
        str | None,
        typer.Option(help="Ask instead: can class A ever rank above class B?", metavar="A,B"),
    ] = None,
    top_set: Annotated[
        str | None,
        typer.Option(
            help="Ask instead: can exactly these classes be the top ones, in whatever order?",
            metavar="A,B,…",
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(help="Ask instead: can these classes lead, in this order?", metavar="A,B,…"),
    ] = None,
    certificates: Annotated[
        str | None,
        typer.Option(help="Write the proofs of all bounds to this file.", metavar="FILE"),
        Writes("--certificates"),
    ] = None,
    outlook: Annotated[
        str | None,
        typer.Option(
            help="Write the bounds, for a report of the head (Audit.report(…, outlook=…)).",
            metavar="FILE.json",
        ),
        Writes("--outlook"),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            help="Prove nothing new: check a file that --certificates wrote.", metavar="FILE"
        ),
        Reads("the certificates"),
    ] = None,
    device: options.OnDevice = options.Device.auto,
    jobs: options.Jobs = None,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """How near classes can come: the highest probability and the best rank any input gives them.

    Both are bounded from both sides, and every bound is proven. Without --classes the head is
    audited first, and the unargmaxable classes are asked about. With --check: exit status 1 if any
    bound in the file is not proven. With --above, --top-set or --prefix: an answer with its proof;
    exit status 1 if there is no proof either way. Examples:
    uncork reach model.onnx --classes 17,99 --certificates bounds.npz;
    uncork reach model.onnx --check bounds.npz
    """
    options.checked_domain(domain)
    if top is not None and top < 1:
        raise UncorkError(f"--top {top}: expected one or more")
    if not (probability or rank):
        raise UncorkError("--no-probability and --no-rank leave nothing to do")
    if outlook is not None and (not probability or temperature != 1.0 or output != "softmax"):
        raise UncorkError("--outlook holds softmax probabilities at temperature 1: ask for them")
    if alpha is not None and output != "entmax":
        raise UncorkError(f"--alpha {alpha:g} means nothing for {output.value}: --output entmax")
    question = Question.of(above, top_set, prefix)
    if question is not None and (certificates or outlook or check or classes or top):
        raise UncorkError(
            f"{question.option} asks for one answer: leave --classes, --top, --check, "
            "--certificates and --outlook out"
        )
    began = time.perf_counter()
    found = find(
        source, weight=weight, bias=bias, transpose=transpose, labels=labels, domain=domain,
        base=base,
    )  # fmt: skip
    head = found.head
    if check is not None:
        checked = _checked(check, head, device.value, jobs)
        _report_check(checked, check, head, source, json_file, began)
        return
    if question is not None:
        if not answer(question, head, source, json_file, began):
            raise typer.Exit(1)
        return
    bar = not quiet and sys.stderr.isatty()
    audited = None
    if classes is None:
        audited = run_audit(head, device=device.value, jobs=jobs, progress=bar)
        asked = audited.unargmaxable
    else:
        asked = class_choice.chosen_classes(classes, head, found.vocabulary)
        audited = run_audit(head, classes=asked, device=device.value, jobs=jobs, progress=bar)
    result = Certificates(head.fingerprint, head.domain)
    if len(asked):
        if probability and output != "softmax":
            result.sparse = sparse_probability(
                head, asked, 2.0 if output == "sparsemax" else 1.5 if alpha is None else alpha,
                temperature=temperature, audit=audited, device=device.value, jobs=jobs,
                progress=bar,
            )  # fmt: skip
        elif probability:
            result.probability = highest_probability(
                head, asked, temperature=temperature, audit=audited, device=device.value,
                jobs=jobs, progress=bar,
            )  # fmt: skip
        if rank:
            same = temperature == 1.0 and result.probability is not None
            result.rank = best_rank(
                head, asked, top=top, audit=audited, jobs=jobs, progress=bar,
                hints=result.probability.inputs if same and result.probability else None,
            )  # fmt: skip
    if certificates is not None:
        write_certificates(result, certificates)
    if outlook is not None:
        _write_outlook(head, result, outlook)
    plain = described(head, source, asked, result, top, temperature, began)
    if json_file is not None:
        emit_json(plain, json_file)
    if json_file != "-":
        print_result(head, source, asked, result, top, certificates, plain["seconds"])


def _write_outlook(head: Head, result: Certificates, path: str) -> None:
    none = np.empty(0)
    if result.probability is None:
        found = Outlook(none, none, none, fingerprint=head.fingerprint, domain=str(head.domain))
    else:
        found = Outlook.of_bounds(head, result.probability, result.rank)
    found.save(path)


def _checked(path: str, head: Head, device: str, jobs: int | None) -> Checked:
    return check_certificates(read_certificates(path, head), head, device=device, jobs=jobs)


def _report_check(
    checked: Checked, path: str, head: Head, source: str, json_file: str | None, began: float
) -> None:
    seconds = round(time.perf_counter() - began, 6)
    described = {
        "uncork": __version__, "certificates": path, "source": source, "ok": checked.ok,
        "held": checked.held, "reading": json_keys(head.reading),
        "failed": [{"class": t, "reason": why} for t, why in checked.failed], "seconds": seconds,
    }  # fmt: skip
    if json_file is not None:
        emit_json(described, json_file)
    if json_file != "-":
        out = console()
        print_doubts(out, head.reading)
        for what, count in checked.held.items():
            out.print(f"{count:>9,} classes: both bounds on the {what} hold")
        for t, why in checked.failed[:LISTED]:
            out.print(f"    class {t}: {why}", soft_wrap=True)
        verdict = "every bound holds" if checked.ok else f"NOT PROVEN: {len(checked.failed):,}"
        out.print(f"{verdict} ({seconds:.2f} s)")
    if not checked.ok:
        raise typer.Exit(1)
