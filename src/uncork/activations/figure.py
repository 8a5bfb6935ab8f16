"""The ranges of the head's inputs, feature by feature, as a figure (the paper's Appendix F)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from uncork.activations.statistics import Statistics
from uncork.core.whole_file import whole_file
from uncork.report.drawing import check_figure

_BANDS = ((0.001, 0.999, "#c6dbef", "99.8 %"), (0.05, 0.95, "#6baed6", "90 %"),
          (0.25, 0.75, "#2171b5", "50 %"))  # fmt: skip


def write_figure(statistics: Statistics, path: str | os.PathLike[str], title: str) -> None:
    """Minimum and maximum, and the bands that hold 99.8, 90 and 50 % of the sampled inputs."""
    check_figure(path)
    from matplotlib.figure import Figure

    quantiles = statistics.quantiles()
    order = np.argsort(quantiles[0.5], kind="stable")
    place = np.arange(statistics.features)
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    ranges, norms = figure.subplots(1, 2, width_ratios=(3, 1))
    ranges.fill_between(
        place, statistics.lower[order], statistics.upper[order], color="#eff3ff", step="mid",
        edgecolor="#9ecae1", linewidth=0.5, label="all",
    )  # fmt: skip
    for low, high, colour, name in _BANDS:
        ranges.fill_between(
            place, quantiles[low][order], quantiles[high][order], color=colour, step="mid",
            linewidth=0, label=name,
        )  # fmt: skip
    ranges.plot(place, quantiles[0.5][order], color="#08306b", linewidth=1, label="median")
    ranges.axhline(0, color="0.5", linewidth=0.5)
    ranges.set_xlim(0, max(1, statistics.features - 1))
    ranges.set_xlabel("feature, in the order of its median")
    ranges.set_ylabel("value at the head's input")
    ranges.legend(loc="upper left", frameon=False, ncols=5, fontsize="small")
    top = ranges.get_ylim()
    ranges.set_ylim(top[0], top[1] + 0.08 * (top[1] - top[0]))  # room for the legend
    lengths = np.linalg.norm(statistics.sample.astype(np.float64), axis=1)
    norms.hist(lengths, bins=40, color="#6baed6", orientation="horizontal")
    norms.set_xlabel("inputs of the sample")
    norms.set_ylabel("length ‖x‖₂")
    figure.suptitle(
        f"{title}: {statistics.count:,} inputs of {statistics.features:,} features", fontsize=11
    )
    with whole_file(path) as target:
        figure.savefig(target, format=Path(path).suffix[1:].lower(), dpi=150)
