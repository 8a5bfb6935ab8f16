"""`uncork reach`: the highest probability and the best rank of classes, both bounds proven.

Or one question about the order of classes (--above, --top-set, --prefix), with its proof.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from uncork import __version__
from uncork.auditing import audit as run_audit
from uncork.cli import options
from uncork.cli.help import DECIDE, OUTPUT
from uncork.cli.output import console, emit_json, print_doubts, print_head, shown, watched
from uncork.cli.parameters import Reads, Was, Writes
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.reading import json_keys
from uncork.core.text import printable
from uncork.loading.chosen_classes import HELP as CLASSES_HELP
from uncork.loading.chosen_classes import chosen_classes
from uncork.reach.certificates import (
    Certificates,
    Checked,
    check_certificates,
    read_certificates,
    write_certificates,
)
from uncork.reach.outlooks import Outlook
from uncork.reach.probability import HighestProbability, highest_probability
from uncork.reach.rank import BestRank, best_rank
from uncork.reach.sets import Arrangement, can_be_top, can_lead, can_rank_above
from uncork.reach.sparse import SparseProbability, sparse_probability

_LISTED = 20
_LISTED_LEADS = 12
_ANSWER = {1: True, 0: False, -1: None}
_ANSWER_TEXT = {1: "yes", 0: "never", -1: "open"}


class Transform(str, Enum):
    """What turns logits into probabilities."""

    softmax = "softmax"
    sparsemax = "sparsemax"
    entmax = "entmax"


def reach(
    source: options.Source,
    tensors: options.Tensors,
    run: options.Run,
    real: options.Queries,
    labels: options.Labels = None,
    domain: options.Domain = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help=CLASSES_HELP,
            show_default="the unargmaxable ones",
            metavar="WHICH",
            rich_help_panel=DECIDE,
        ),
        Reads("the classes"),
    ] = None,
    transform: Annotated[
        Transform,
        typer.Option(help="What turns logits into probabilities.", rich_help_panel=DECIDE),
        Was("--output"),
    ] = Transform.softmax,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="α of entmax: 2 is sparsemax, towards 1 softmax.",
            show_default="1.5",
            metavar="ALPHA",
            rich_help_panel=DECIDE,
        ),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(help="Divide the logits by this first.", metavar="T", rich_help_panel=DECIDE),
    ] = 1.0,
    probability: Annotated[
        bool,
        typer.Option(
            "--probability/--no-probability",
            help="Bound the highest probability.",
            rich_help_panel=DECIDE,
        ),
    ] = True,
    rank: Annotated[
        bool,
        typer.Option("--rank/--no-rank", help="Bound the best rank.", rich_help_panel=DECIDE),
    ] = True,
    top: Annotated[
        int | None,
        typer.Option(
            help="Ask only whether classes can ever be in the top K, which is quicker.",
            metavar="K",
            rich_help_panel=DECIDE,
        ),
    ] = None,
    above: Annotated[
        str | None,
        typer.Option(
            help="Ask instead: can class A ever rank above class B?",
            metavar="A,B",
            rich_help_panel=DECIDE,
        ),
    ] = None,
    top_set: Annotated[
        str | None,
        typer.Option(
            help="Ask instead: can exactly these classes be the top ones, in any order?",
            metavar="A,B,…",
            rich_help_panel=DECIDE,
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            help="Ask instead: can these classes lead, in this order?",
            metavar="A,B,…",
            rich_help_panel=DECIDE,
        ),
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(
            help="Search for nothing: check the bounds in a file that --certificates wrote.",
            metavar="FILE",
            rich_help_panel=DECIDE,
        ),
        Reads("the certificates"),
        Was("--check"),
    ] = None,
    certificates: Annotated[
        str | None,
        typer.Option(
            help="Write the proofs to this file, for uncork reach --verify.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
        Writes("--certificates"),
    ] = None,
    outlook: Annotated[
        str | None,
        typer.Option(
            help="Write the bounds, for a report of the head (Audit.report(…, outlook=…)).",
            metavar="FILE.json",
            rich_help_panel=OUTPUT,
        ),
        Writes("--outlook"),
    ] = None,
    json_file: options.Json = None,
) -> None:
    """Bound how near classes come: highest probability, best rank.

    Any input of the domain counts. Both are bounded from above and below, and every bound is
    proven. Without --classes the head is audited first, to ask about its unargmaxable classes.
    With --verify: exit status 1 if a bound in the file is not proven. With --above, --top-set or
    --prefix: an answer with its proof; exit status 1 if there is no proof either way. Examples:
    uncork reach model.onnx --classes 17,99 --certificates bounds.npz;
    uncork reach model.onnx --verify bounds.npz
    """
    options.check_domain(domain)
    real.check(domain)
    if top is not None and top < 1:
        raise UncorkError(f"--top {top}: expected one or more")
    if not (probability or rank):
        raise UncorkError("--no-probability and --no-rank leave nothing to do")
    if outlook is not None and (not probability or temperature != 1.0 or transform != "softmax"):
        raise UncorkError("--outlook holds softmax probabilities at temperature 1: ask for them")
    if alpha is not None and transform != "entmax":
        raise UncorkError(
            f"--alpha {alpha:g} means nothing for {transform.value}: add --transform entmax"
        )
    question = Question.of(above, top_set, prefix)
    if question is not None and (certificates or outlook or verify or classes or top):
        raise UncorkError(
            f"{question.option} asks for one answer: leave --classes, --top, --verify, "
            "--certificates and --outlook out"
        )
    began = time.perf_counter()
    found = tensors.find(source, labels=labels, domain=domain)
    head = real.bounding(found.head)
    if verify is not None:
        checked = check_certificates(read_certificates(verify, head), head, **run.on())
        _report_check(checked, verify, head, source, json_file, began)
        return
    if question is not None:
        if not answer(question, head, source, json_file, began):
            raise typer.Exit(1)
        return
    bar = watched(run.quiet)
    if classes is None:
        audited = run_audit(head, **run.on(), progress=bar)
        asked = audited.unargmaxable
    else:
        asked = chosen_classes(classes, head, found.vocabulary)
        audited = run_audit(head, classes=asked, **run.on(), progress=bar)
    result = Certificates(head.fingerprint, head.domain)
    if len(asked):
        if probability and transform != "softmax":
            result.sparse = sparse_probability(
                head, asked, 2.0 if transform == "sparsemax" else 1.5 if alpha is None else alpha,
                temperature=temperature, audit=audited, **run.on(), progress=bar,
            )  # fmt: skip
        elif probability:
            result.probability = highest_probability(
                head, asked, temperature=temperature, audit=audited, **run.on(), progress=bar
            )
        if rank:
            same = temperature == 1.0 and result.probability is not None
            result.rank = best_rank(
                head, asked, top=top, audit=audited, jobs=run.jobs, progress=bar,
                hints=result.probability.inputs if same and result.probability else None,
            )  # fmt: skip
    if certificates is not None:
        write_certificates(result, certificates)
    if outlook is not None:
        _write_outlook(head, result, outlook)
    plain = _bounds(head, source, asked, result, top, temperature, began)
    if json_file is not None:
        emit_json(plain, json_file)
    if json_file != "-":
        _print_bounds(head, source, asked, result, top, certificates, plain["seconds"])


def _write_outlook(head: Head, result: Certificates, path: str) -> None:
    none = np.empty(0)
    if result.probability is None:
        found = Outlook(none, none, none, fingerprint=head.fingerprint, domain=str(head.domain))
    else:
        found = Outlook.of_bounds(head, result.probability, result.rank)
    found.save(path)


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
        for t, why in checked.failed[:_LISTED]:
            out.print(f"    class {t}: {why}", soft_wrap=True)
        verdict = "every bound holds" if checked.ok else f"NOT PROVEN: {len(checked.failed):,}"
        out.print(f"{verdict} ({seconds:.2f} s)")
    if not checked.ok:
        raise typer.Exit(1)


def _bounds(
    head: Head,
    source: str,
    asked: np.ndarray,
    result: Certificates,
    top: int | None,
    temperature: float,
    began: float,
) -> dict[str, Any]:
    """The result as JSON holds it."""
    rows: list[dict[str, Any]] = [
        {"class": int(t), "label": head.label(int(t))} for t in asked.tolist()
    ]
    p: HighestProbability | SparseProbability | None = result.probability or result.sparse
    if p is not None:
        for row, low, high in zip(rows, p.lower.tolist(), p.upper.tolist(), strict=True):
            row["probability"] = {"lower": low, "upper": high}
    if result.sparse is not None:
        sparse = result.sparse
        for k, row in enumerate(rows):
            row["in_support"] = _ANSWER[int(sparse.support[k])]
            row["whole_support"] = _ANSWER[int(sparse.whole[k])]
    if result.rank is not None:
        r = result.rank
        for row, low, high in zip(rows, r.lower.tolist(), r.upper.tolist(), strict=True):
            row["best_rank"] = {"lower": low, "upper": high}
    return {
        "uncork": __version__, "source": source, "fingerprint": head.fingerprint,
        "domain": str(head.domain), "reading": json_keys(head.reading), "temperature": temperature,
        "alpha": 1.0 if result.sparse is None else result.sparse.alpha, "top": top, "reach": rows,
        "seconds": round(time.perf_counter() - began, 6),
    }  # fmt: skip


def _print_bounds(
    head: Head,
    source: str,
    asked: np.ndarray,
    result: Certificates,
    top: int | None,
    certificates: str | None,
    seconds: float,
) -> None:
    """A table of the classes that come nearest, and what holds for all."""
    out = console()
    print_head(out, source, head)
    if not len(asked):
        out.print("no class is unargmaxable: each can be first (--classes asks about some of them)")
        return
    p: HighestProbability | SparseProbability | None = result.probability or result.sparse
    table = Table()
    table.add_column("class", justify="right")
    table.add_column("label")
    if p is not None:
        table.add_column("highest probability", justify="right")
    if result.sparse is not None:
        table.add_column("in the support")
        table.add_column("the whole support")
    if result.rank is not None:
        table.add_column("best rank", justify="right")
    for k in _order(p, result.rank, len(asked))[:_LISTED].tolist():
        cells = [f"{int(asked[k])}", shown(head.label(int(asked[k])))]
        if p is not None:
            cells.append(_probability(p, k))
        if result.sparse is not None:
            sparse = result.sparse
            cells += [_ANSWER_TEXT[int(sparse.support[k])], _ANSWER_TEXT[int(sparse.whole[k])]]
        if result.rank is not None:
            cells.append(_rank(result.rank, k, top))
        table.add_row(*cells)
    out.print(table)
    if len(asked) > _LISTED:
        out.print(f"and {len(asked) - _LISTED:,} more (--json lists them all)")
    if p is not None:
        out.print(
            f"highest probability: {p.lower.min():.3g} to {p.upper.max():.3g}, median "
            f"{np.median(p.lower):.3g}; {_agreement(p)}"
        )
    if result.sparse is not None:
        sparse = result.sparse
        out.print(
            f"{sparse.alpha:g}-entmax: {int((sparse.support == 0).sum()):,} of {len(asked):,} "
            f"never in the support, {int((sparse.whole == 1).sum()):,} can be all of it"
        )
    r = result.rank
    if r is not None and top is not None:
        never = len(r.never_in_top(top))
        ever = int((r.upper <= top).sum())
        out.print(
            f"top {top}: {never:,} proven never in it, {ever:,} proven to reach it, "
            f"{len(asked) - never - ever:,} open"
        )
    elif r is not None:
        out.print(
            f"best rank: bounds equal for {int((r.lower == r.upper).sum()):,} of {len(asked):,}; "
            f"median ratio of upper to lower {np.median(r.upper / r.lower):.3g}"
        )
    if certificates is not None:
        out.print(f"proofs in {printable(certificates)}; check them with uncork reach … --verify")
    out.print(f"every bound is proven ({seconds:.1f} s)")


def _order(
    p: HighestProbability | SparseProbability | None, rank: BestRank | None, count: int
) -> np.ndarray:
    if p is not None:
        return np.argsort(-p.lower, kind="stable")
    if rank is not None:
        return np.argsort(rank.upper, kind="stable")
    return np.arange(count)


def _probability(p: HighestProbability | SparseProbability, k: int) -> str:
    low, high = float(p.lower[k]), float(p.upper[k])
    return f"{low:.6g}" if high - low <= 2e-6 * low else f"{low:.6g} to {high:.6g}"


def _agreement(p: HighestProbability | SparseProbability) -> str:
    """How close the bounds are, and how many classes have no lower one to compare with."""
    known = np.isfinite(p.gap)
    text = [f"bounds agree to {float(p.gap[known].max()):.1g}"] if known.any() else []
    if not known.all():
        text.append(f"no lower bound above 0 for {int((~known).sum()):,} of {len(known):,}")
    return "; ".join(text)


def _rank(r: BestRank, k: int, top: int | None) -> str:
    low, high = int(r.lower[k]), int(r.upper[k])
    if top is not None and low > top:
        return f"never in the top {top}"
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


@dataclass(frozen=True)
class Question:
    """Which option was given, and the classes it names, in its order."""

    option: str
    text: str

    @classmethod
    def of(cls, above: str | None, top_set: str | None, prefix: str | None) -> Question | None:
        given = {"--above": above, "--top-set": top_set, "--prefix": prefix}
        asked = [cls(option, text) for option, text in given.items() if text is not None]
        if len(asked) > 1:
            raise UncorkError(f"{asked[0].option} and {asked[1].option}: one question at a time")
        if asked:
            asked[0].classes()  # says what is wrong before a file is read
        return asked[0] if asked else None

    def classes(self) -> list[int]:
        parts = [part.strip() for part in self.text.split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) < 18 for part in parts):
            raise UncorkError(
                f"{self.option} {printable(self.text[:40])}: expected class numbers, such as 3,17"
            )
        if self.option == "--above" and len(parts) != 2:
            raise UncorkError(f"{self.option} {printable(self.text[:40])}: expected two classes")
        return [int(part) for part in parts]


def answer(
    question: Question, head: Head, source: str, json_file: str | None, began: float
) -> bool:
    """Answer the question; False where there is no proof either way."""
    classes = question.classes()
    if question.option == "--above":
        found = can_rank_above(head, classes[0], classes[1])
    elif question.option == "--top-set":
        found = can_be_top(head, classes)
    else:
        found = can_lead(head, classes)
    seconds = round(time.perf_counter() - began, 6)
    if json_file is not None:
        emit_json(_answer_as_dict(question, classes, found, head, source, seconds), json_file)
    if json_file != "-":
        _print_answer(question, classes, found, head, source, seconds)
    return found.possible is not None


def _answer_as_dict(
    question: Question, classes: list[int], found: Arrangement, head: Head, source: str,
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """The answer with its proof: weights are fractions, as some balance only exactly."""
    proof: dict[str, Any] | None = None
    if found.input is not None:
        proof = {"input": found.input.tolist()}
    elif found.pairs is not None:
        proof = {"pairs": found.pairs.tolist(), "weights": [str(w) for w in found.weights]}
    return {
        "uncork": __version__, "source": source, "fingerprint": head.fingerprint,
        "domain": str(head.domain), "reading": json_keys(head.reading),
        "asked": question.option.lstrip("-"), "classes": classes,
        "possible": found.possible, "proof": proof, "seconds": seconds,
    }  # fmt: skip


def _print_answer(
    question: Question, classes: list[int], found: Arrangement, head: Head, source: str,
    seconds: float,
) -> None:  # fmt: skip
    out = console()
    print_head(out, source, head)
    names = [_name(head, t) for t in classes]
    asked = {
        "--above": f"{names[0]} above {names[-1]}",
        "--top-set": "exactly {} at the top".format(", ".join(names)),
        "--prefix": "{} first, in this order".format(", ".join(names)),
    }[question.option]
    if found.possible is None:
        out.print(f"{asked}: not proven either way ({seconds:.2f} s)", soft_wrap=True)
    elif found.possible:
        out.print(f"{asked}: possible", soft_wrap=True)
        assert found.input is not None
        size = np.abs(found.input).max(initial=0.0)
        out.print(
            f"proof: an input with entries up to ±{size:.4g} (--json has it) ({seconds:.2f} s)"
        )
    else:
        out.print(f"{asked}: impossible", soft_wrap=True)
        assert found.pairs is not None
        heaviest = sorted(zip(found.weights, found.pairs.tolist(), strict=True), reverse=True)
        total = sum(found.weights, Fraction(0))
        out.print("proof: at every input the weighted sum of these leads is zero or less")
        for weight, (i, j) in heaviest[:_LISTED_LEADS]:
            text = f"{float(weight / total):8.4f}  {_name(head, i)}"
            out.print(f"    {text}  over  {_name(head, j)}", soft_wrap=True)
        if len(heaviest) > _LISTED_LEADS:
            out.print(f"    and {len(heaviest) - _LISTED_LEADS:,} more (--json has them)")
        out.print(f"({seconds:.2f} s)")


def _name(head: Head, t: int) -> str:
    return f"{t}" if head.labels is None else f"{t} {shown(head.label(t))}"
