"""`uncork reach`: the highest probability and the best rank of classes, both bounds proven."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from uncork import __version__
from uncork import chosen_classes as class_choice
from uncork.audit import audit as run_audit
from uncork.cli import options
from uncork.cli.output import check_outputs, console, emit_json, shown
from uncork.errors import UncorkError
from uncork.head import Head
from uncork.load.contents import printable
from uncork.load.source import find
from uncork.reach.certificates import (
    Certificates,
    Checked,
    check_certificates,
    read_certificates,
    write_certificates,
)
from uncork.reach.probability import HighestProbability, highest_probability
from uncork.reach.rank import BestRank, best_rank

_LISTED = 20


def reach(
    source: options.Source,
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
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Divides the logits before the softmax.", metavar="T")
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
    certificates: Annotated[
        str | None,
        typer.Option(help="Write the proofs of all bounds to this file.", metavar="FILE"),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            help="Prove nothing new: check a file that --certificates wrote.", metavar="FILE"
        ),
    ] = None,
    device: options.OnDevice = options.Device.auto,
    jobs: options.Jobs = None,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """How near classes can come: the highest probability and the best rank any input gives them.

    Both are bounded from both sides, and every bound is proven. Without --classes the head is
    audited first, and the unargmaxable classes are asked about. With --check: exit status 1 if any
    bound in the file is not proven. Examples:
    uncork reach model.onnx --classes 17,99 --certificates bounds.npz;
    uncork reach model.onnx --check bounds.npz
    """
    check_outputs(
        {"--json": json_file, "--certificates": certificates},
        {"the model": source, "the labels": labels, "the certificates": check},
    )
    options.checked_domain(domain)
    if top is not None and top < 1:
        raise UncorkError(f"--top {top}: expected one or more")
    if not (probability or rank):
        raise UncorkError("--no-probability and --no-rank leave nothing to do")
    began = time.perf_counter()
    found = find(
        source, weight=weight, bias=bias, transpose=transpose, labels=labels, domain=domain
    )
    head = found.head
    if check is not None:
        _report_check(_checked(check, head, device.value, jobs), check, source, json_file, began)
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
        if probability:
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
    described = _described(head, source, asked, result, top, temperature, began)
    if json_file is not None:
        emit_json(described, json_file)
    if json_file != "-":
        _print(head, source, asked, result, top, certificates, described["seconds"])


def _checked(path: str, head: Head, device: str, jobs: int | None) -> Checked:
    return check_certificates(read_certificates(path, head), head, device=device, jobs=jobs)


def _report_check(
    checked: Checked, path: str, source: str, json_file: str | None, began: float
) -> None:
    seconds = round(time.perf_counter() - began, 6)
    described = {
        "uncork": __version__, "certificates": path, "source": source, "ok": checked.ok,
        "held": checked.held,
        "failed": [{"class": t, "reason": why} for t, why in checked.failed], "seconds": seconds,
    }  # fmt: skip
    if json_file is not None:
        emit_json(described, json_file)
    if json_file != "-":
        out = console()
        for what, count in checked.held.items():
            out.print(f"{count:>9,} classes: both bounds on the {what} hold")
        for t, why in checked.failed[:_LISTED]:
            out.print(f"    class {t}: {why}", soft_wrap=True)
        verdict = "every bound holds" if checked.ok else f"NOT PROVEN: {len(checked.failed):,}"
        out.print(f"{verdict} ({seconds:.2f} s)")
    if not checked.ok:
        raise typer.Exit(1)


def _described(
    head: Head,
    source: str,
    asked: np.ndarray,
    result: Certificates,
    top: int | None,
    temperature: float,
    began: float,
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {"class": int(t), "label": head.label(int(t))} for t in asked.tolist()
    ]
    if result.probability is not None:
        p = result.probability
        for row, low, high in zip(rows, p.lower.tolist(), p.upper.tolist(), strict=True):
            row["probability"] = {"lower": low, "upper": high}
    if result.rank is not None:
        r = result.rank
        for row, low, high in zip(rows, r.lower.tolist(), r.upper.tolist(), strict=True):
            row["best_rank"] = {"lower": low, "upper": high}
    return {
        "uncork": __version__, "source": source, "fingerprint": head.fingerprint,
        "domain": str(head.domain), "temperature": temperature, "top": top, "reach": rows,
        "seconds": round(time.perf_counter() - began, 6),
    }  # fmt: skip


def _print(
    head: Head,
    source: str,
    asked: np.ndarray,
    result: Certificates,
    top: int | None,
    certificates: str | None,
    seconds: float,
) -> None:
    out = console()
    out.print(
        f"{printable(source)}: {head.classes:,} classes × {head.features:,} features; "
        f"inputs in {printable(str(head.domain))}",
        soft_wrap=True,
    )
    if not len(asked):
        out.print("no class is unargmaxable: every one can be first (--classes asks about others)")
        return
    table = Table()
    table.add_column("class", justify="right")
    table.add_column("label")
    if result.probability is not None:
        table.add_column("highest probability", justify="right")
    if result.rank is not None:
        table.add_column("best rank", justify="right")
    for k in _order(result, len(asked))[:_LISTED].tolist():
        cells = [f"{int(asked[k])}", shown(head.label(int(asked[k])))]
        if result.probability is not None:
            cells.append(_probability(result.probability, k))
        if result.rank is not None:
            cells.append(_rank(result.rank, k, top))
        table.add_row(*cells)
    out.print(table)
    if len(asked) > _LISTED:
        out.print(f"and {len(asked) - _LISTED:,} more (--json lists them all)")
    p, r = result.probability, result.rank
    if p is not None:
        out.print(
            f"highest probability: {p.lower.min():.3g} to {p.upper.max():.3g}, median "
            f"{np.median(p.lower):.3g}; bounds agree to {float(p.gap.max()):.1g}"
        )
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
        out.print(f"proofs in {printable(certificates)}; check them: uncork reach … --check")
    out.print(f"every bound is proven ({seconds:.1f} s)")


def _order(result: Certificates, count: int) -> np.ndarray:
    if result.probability is not None:
        return np.argsort(-result.probability.lower, kind="stable")
    if result.rank is not None:
        return np.argsort(result.rank.upper, kind="stable")
    return np.arange(count)


def _probability(p: HighestProbability, k: int) -> str:
    low, high = float(p.lower[k]), float(p.upper[k])
    return f"{low:.6g}" if high - low <= 2e-6 * low else f"{low:.6g} to {high:.6g}"


def _rank(r: BestRank, k: int, top: int | None) -> str:
    low, high = int(r.lower[k]), int(r.upper[k])
    if top is not None and low > top:
        return f"never in the top {top}"
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
