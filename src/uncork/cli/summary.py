"""What `uncork audit` prints: the head, the counts, the classes that are lost, and to whom."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

from uncork.auditing import Audit
from uncork.cli.output import print_doubts, shown
from uncork.core.reading import CAREFUL
from uncork.core.text import printable
from uncork.loading.odd_rows import OddRows

_MOST_CLASSES = 10
_MOST_THIEVES = 3
_ALL = "all classes together"  # a mixture that names none of them
_STAGES = ("load", "prepare", "screen", "decide", "certify")


def print_summary(out: Console, audit: Audit, odd: OddRows | None = None) -> None:
    out.print(printable(audit.source) or "head", soft_wrap=True)
    print_doubts(out, audit.reading)
    bias = "with bias" if audit.has_bias else "no bias"
    out.print(
        f"{audit.classes:,} classes × {audit.features:,} features, {audit.dtype}, {bias}; "
        f"inputs in {audit.domain}"
    )
    _print_reading(out, audit)
    if audit.asked is not None:
        out.print(f"asked about {len(audit.asked):,} of the classes")
    out.print()
    _print_counts(out, audit)
    _print_lost(out, audit)
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
    """Which matrix this is about, and what is to be known of it; doubts stand further up."""
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
        label = unknown if name == "undecided" else name
        style = "bold" if count and name in ("unargmaxable", "undecided") else None
        table.add_row(label, f"{count:,}", f"{count / total:.1%}" if total else "", style=style)
    out.print(table)
    out.print()


def _print_lost(out: Console, audit: Audit) -> None:
    lost = audit.unargmaxable.tolist()
    if not lost:
        return
    rest = len(lost) > _MOST_CLASSES
    which = f" (the first {_MOST_CLASSES} of {len(lost):,})" if rest else ""
    out.print(f"Never the argmax, whatever the input{which}:")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("class", justify="right", no_wrap=True)
    if audit.labels is not None:
        table.add_column("label", no_wrap=True)
    table.add_column("slack", justify="right", no_wrap=True)
    table.add_column("stolen by")
    for t in lost[:_MOST_CLASSES]:
        thieves = [
            f"{shown(thief['label'])} {thief['weight']:.0%}"
            for thief in audit.stolen_by(t, _MOST_THIEVES)
        ]
        label = [] if audit.labels is None else [shown(audit.label(t))]
        table.add_row(str(t), *label, f"{abs(audit.margin(t)):.3g}", ", ".join(thieves) or _ALL)
    out.print(table)
    out.print()


def _print_tied(out: Console, audit: Audit) -> None:
    tied = set(audit.tied.tolist())
    if not tied:
        return
    groups = [group.tolist() for group in audit.proofs.groups if int(group[0]) in tied]
    out.print("Equal to one another, so that none of a group is ever first alone:")
    for group in groups[:_MOST_CLASSES]:
        names = (f"{i} {shown(audit.label(i))}" if audit.labels else str(i) for i in group[:6])
        out.print("  " + ", ".join(names) + (", …" if len(group) > 6 else ""))
    if len(groups) > _MOST_CLASSES:
        out.print(f"  and {len(groups) - _MOST_CLASSES:,} groups more")
    out.print()


def _print_undecided(out: Console, audit: Audit) -> None:
    open_ = audit.undecided.tolist()
    if not open_:
        return
    ids = ", ".join(map(str, open_[:_MOST_CLASSES])) + (" …" if len(open_) > _MOST_CLASSES else "")
    if audit.approximate:
        out.print(f"Potentially unargmaxable, no witness found and nothing proven: {ids}")
    else:
        why = audit.proofs.reasons.get(open_[0], "no reason is known")
        out.print(f"Undecided: {ids}")
        out.print(f"  because {printable(why)}")
    out.print()


def _print_odd(out: Console, audit: Audit, odd: OddRows | None) -> None:
    """Rows that explain a lost class, or are no loss: how many of each kind can never be first."""
    if odd is None:
        return
    lost = set(audit.unargmaxable.tolist())
    asked = set(range(audit.classes)) if audit.asked is None else set(audit.asked.tolist())
    kinds = [(name, [t for t in ids if t in asked]) for name, ids in odd.kinds()]
    for name, ids in kinds:
        if ids:
            gone = len(lost.intersection(ids))
            out.print(
                f"{name}: {len(ids):,}" + (f", {gone:,} of them never the argmax" if gone else "")
            )
    if any(ids for _, ids in kinds):
        out.print()
