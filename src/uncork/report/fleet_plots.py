"""The paper's figures of many models from a store: lost classes by model, iterations by class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.auditing.proofs.verdict import Verdict
from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.report.drawing import INK, LOST, MISSED, REACHED, drawn_to

if TYPE_CHECKING:
    from uncork.store import Store, StoredAudit

_MOST_BARS = 60
_MOST_PANELS = 24
_LONGEST_NAME = 34
_DWARFS = 20  # times the middle one
_LOGARITHMIC = 50  # iterations beyond which their axis is logarithmic


def plot_unargmaxable(audits: Sequence[StoredAudit], path: str | os.PathLike[str]) -> None:
    """Figure 6: the number of unargmaxable classes of each model, sorted."""
    exact = [audit for audit in audits if not audit.approximate]
    if not exact:
        raise UncorkError("there is no exact audit to draw: the store holds none that fits")
    ordered = sorted(exact, key=lambda audit: (audit.unargmaxable, audit.name))
    left_out = max(0, len(ordered) - _MOST_BARS)
    ordered = ordered[left_out:]
    counts = [audit.unargmaxable for audit in ordered]
    with drawn_to(path, (7.2, 1.4 + 0.28 * len(ordered))) as figure:
        axes = figure.add_subplot()
        axes.barh(range(len(ordered)), counts, color=LOST, height=0.7)
        for place, audit in enumerate(ordered):
            share = audit.unargmaxable / audit.asked
            text = f" {audit.unargmaxable:,}" + (f" ({share:.1%})" if audit.unargmaxable else "")
            axes.text(audit.unargmaxable, place, text, va="center", fontsize=8.5, color=INK)
        axes.set_yticks(range(len(ordered)), [_name(audit) for audit in ordered], fontsize=8.5)
        axes.set_ylim(-0.6, len(ordered) - 0.4)
        if _dwarfed(counts):
            axes.set_xscale("symlog", linthresh=1, linscale=0.4)
            axes.set_xlim(0, max(counts) ** 1.3)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.set_xlabel("unargmaxable classes (logarithmic)")
        else:
            axes.set_xlim(0, max(1, *counts) * 1.22)
            axes.set_xlabel("unargmaxable classes")
        axes.spines[["top", "right"]].set_visible(False)
        if left_out:
            axes.set_title(f"the {len(ordered)} models with the most; {left_out} more left out")
        figure.tight_layout()


def _dwarfed(counts: Sequence[int]) -> bool:
    """Whether the largest count leaves most of the others too short to be seen."""
    some = [count for count in counts if count]
    return len(some) > 1 and max(some) > _DWARFS * float(np.median(some))


def plot_iterations(
    store: Store, audits: Sequence[StoredAudit], path: str | os.PathLike[str]
) -> None:
    """Figures 10 to 12: iterations of the approximate algorithm against the class index.

    One panel a model: classes it finds, argmaxable ones it gives up on, and unargmaxable ones.
    """
    counted = [audit for audit in audits if audit.patience is not None]
    if not counted:
        raise UncorkError(
            "no audit in the store has the approximate algorithm's iterations: audit with "
            "--iterations, or set iterations = true in the sweep's manifest"
        )
    counted = counted[:_MOST_PANELS]
    columns = 5 if len(counted) > 12 else min(4, len(counted))
    rows = -(-len(counted) // columns)
    wide = columns > 2
    above = 0.38 if wide else 0.8  # inches for the legend
    with drawn_to(path, (max(3.1 * columns + 0.4, 4.4), 2.6 * rows + above + 0.3)) as figure:
        panels = figure.subplots(rows, columns, squeeze=False)
        for number, axes in enumerate(panels.flat):
            if number < len(counted):
                _panel(axes, counted[number], store.columns(counted[number].id))
                if number % columns == 0:
                    axes.set_ylabel("iterations")
                if number + columns >= len(counted):
                    axes.set_xlabel("class index")
            else:
                axes.set_visible(False)
        _legend(figure, 3 if wide else 1)
        figure.tight_layout(rect=(0, 0, 1, 1 - above / figure.get_figheight()))


def _panel(axes: Any, audit: StoredAudit, columns: dict[str, np.ndarray]) -> None:
    ids, counts = columns["class_id"], columns["iterations"]
    lost = columns["verdict"] == Verdict.UNARGMAXABLE
    found = (counts >= 0) & ~lost
    missed = (counts < 0) & ~lost
    patience = audit.patience or 0
    top = patience if (lost | missed).any() else max(1, int(counts.max(initial=1)))
    size = 1.6 if len(ids) > 3000 else 4.0
    kept: dict[str, Any] = {"s": size, "linewidths": 0, "rasterized": True}
    axes.scatter(ids[found], counts[found], color=REACHED, alpha=0.5, **kept)
    axes.scatter(ids[missed], np.full(missed.sum(), top), color=MISSED, **kept)
    if top > _LOGARITHMIC:  # most classes take a handful of iterations, a few take thousands
        axes.set_yscale("symlog", linthresh=1)
        axes.scatter(ids[lost], np.full(lost.sum(), top * 1.5), color=LOST, **kept)
        axes.set_ylim(-0.3, 2.4 * top)
    else:
        axes.scatter(ids[lost], np.full(lost.sum(), top * 1.06), color=LOST, **kept)
        axes.set_ylim(-0.06 * top, 1.14 * top)
    axes.set_title(
        f"{_name(audit)}\n{found.sum():,} found, {missed.sum():,} missed, {lost.sum():,} lost",
        fontsize=8, color=INK,
    )  # fmt: skip
    axes.tick_params(labelsize=7.5)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: Any, columns: int) -> None:
    from matplotlib.lines import Line2D

    meanings = (
        (REACHED, "argmaxable, found by the approximate algorithm"),
        (MISSED, "argmaxable, but it gives up"),
        (LOST, "unargmaxable"),
    )
    figure.legend(
        handles=[
            Line2D([], [], color=colour, marker="o", linestyle="none", markersize=5, label=text)
            for colour, text in meanings
        ],
        loc="upper center", ncols=columns, fontsize=8.5, frameon=False,
    )  # fmt: skip


def _name(audit: StoredAudit) -> str:
    # A dollar sign would start mathematics.
    text = printable(audit.name).replace("$", r"\$")
    return text if len(text) <= _LONGEST_NAME else "…" + text[1 - _LONGEST_NAME :]
