"""What `uncork reach` prints and writes as JSON."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from rich.table import Table

from uncork import __version__
from uncork.cli.output import console, print_doubts, shown
from uncork.core.head import Head
from uncork.core.reading import json_keys
from uncork.core.text import printable
from uncork.reach.certificates import Certificates
from uncork.reach.probability.search import HighestProbability
from uncork.reach.rank.search import BestRank
from uncork.reach.sparse.search import SparseProbability

LISTED = 20
_ANSWER = {1: True, 0: False, -1: None}
_SAID = {1: "yes", 0: "never", -1: "open"}


def described(
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


def print_result(
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
    out.print(
        f"{printable(source)}: {head.classes:,} classes × {head.features:,} features; "
        f"inputs in {printable(str(head.domain))}",
        soft_wrap=True,
    )
    print_doubts(out, head.reading)
    if not len(asked):
        out.print("no class is unargmaxable: every one can be first (--classes asks about others)")
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
    for k in _order(p, result.rank, len(asked))[:LISTED].tolist():
        cells = [f"{int(asked[k])}", shown(head.label(int(asked[k])))]
        if p is not None:
            cells.append(_probability(p, k))
        if result.sparse is not None:
            sparse = result.sparse
            cells += [_SAID[int(sparse.support[k])], _SAID[int(sparse.whole[k])]]
        if result.rank is not None:
            cells.append(_rank(result.rank, k, top))
        table.add_row(*cells)
    out.print(table)
    if len(asked) > LISTED:
        out.print(f"and {len(asked) - LISTED:,} more (--json lists them all)")
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
        out.print(f"proofs in {printable(certificates)}; check them: uncork reach … --check")
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
    """How near the bounds are, and how many classes have no lower one to compare with."""
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
