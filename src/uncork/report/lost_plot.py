"""plot_lost: how many classes random heads lose, by the number of classes and features."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.theory.lost_classes import (
    MOST_FEATURES_IN_CLOSED_FORM,
    LostClasses,
    expected_lost,
)

_INK = "#333333"
_MARKERS = "osD^vP*X"


def plot_lost(
    simulated: Sequence[LostClasses], path: str | os.PathLike[str], *, closed_form: bool = True
) -> None:
    """One panel for each way of drawing heads; a curve a number of features.

    Points are simulated, with two standard errors; lines are the closed form, where there is one
    and the inputs were unbounded (`closed_form`).
    """
    import matplotlib
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys((s.init, s.bias) for s in simulated))
    features = sorted({s.features for s in simulated})
    columns = min(2, len(kinds))
    rows = -(-len(kinds) // columns)
    with matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "font.size": 10}):
        figure = Figure(figsize=(1.2 + 4.1 * columns, 1.2 + 3.1 * rows), dpi=200)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        handles: dict[str, Any] = {}
        for panel, axes in enumerate(grid.flat):
            if panel >= len(kinds):
                axes.set_visible(False)
                continue
            init, bias = kinds[panel]
            here = [s for s in simulated if (s.init, s.bias) == (init, bias)]
            handles.update(_panel(axes, here, features, closed_form))
            axes.set_title(f"{init}, {'with' if bias else 'no'} bias", fontsize=10, color=_INK)
            if panel >= len(kinds) - columns:
                axes.set_xlabel("classes")
            axes.tick_params(labelbottom=panel >= len(kinds) - columns)
            if panel % columns == 0:
                axes.set_ylabel("unargmaxable, expected share")
        heads = sorted({s.heads for s in simulated})
        counted = f"{heads[0]}" if len(heads) == 1 else f"{heads[0]} to {heads[-1]}"
        figure.suptitle(
            f"Classes that a random head can never predict ({counted} heads a point, ±2 s.e.)",
            fontsize=11.5, color=_INK,
        )  # fmt: skip
        figure.tight_layout(rect=(0, 0.09 if rows == 1 else 0.055, 1, 1))
        figure.legend(
            handles.values(), handles.keys(), loc="lower center", frameon=False,
            ncols=min(len(handles), 4 * columns), fontsize=9,
        )  # fmt: skip
        try:
            figure.savefig(path)
        except OSError as error:
            raise UncorkError(f"{path} cannot be written: {error.strerror or error}") from error


def _panel(
    axes: Any, simulated: Sequence[LostClasses], features: Sequence[int], closed_form: bool
) -> dict[str, Any]:
    import matplotlib

    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.88, len(features)))
    handles: dict[str, Any] = {}
    for k, d in enumerate(features):
        points = sorted((s for s in simulated if s.features == d), key=lambda s: s.classes)
        if not points:
            continue
        classes = np.array([s.classes for s in points])
        known = (
            closed_form
            and points[0].init == "normal"
            and d + points[0].bias <= MOST_FEATURES_IN_CLOSED_FORM
        )
        axes.errorbar(
            classes,
            [s.share for s in points],
            yerr=[2 * np.nan_to_num(s.standard_error) / s.classes for s in points],
            fmt=_MARKERS[k % len(_MARKERS)],
            linestyle="none" if known else "dotted",
            linewidth=1.0,
            markersize=4.5,
            capsize=2,
            color=colours[k],
        )
        handles[f"d = {d}"] = axes.plot(
            [], [], _MARKERS[k % len(_MARKERS)], color=colours[k], markersize=4.5
        )[0]
        if known and classes.max() > classes.min():
            grid = np.unique(np.geomspace(classes.min(), classes.max(), 60).round().astype(int))
            exact = [expected_lost(int(c), d, bias=points[0].bias) / c for c in grid]
            axes.plot(grid, exact, color=colours[k], linewidth=1.3, zorder=1)
            handles.setdefault("closed form", matplotlib.lines.Line2D([], [], color=_INK))
    axes.set_xscale("log")
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0, decimals=0))
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    # The line's entry last: it is about all of the points.
    return dict(sorted(handles.items(), key=lambda entry: entry[0] == "closed form"))
