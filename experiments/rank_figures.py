"""The figures of the rank study: spectra of log-probabilities, and perplexity by head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.report.drawing import INK, LOST, drawn_to

_GREEN, _PINK, _ORANGE = "#009E73", "#CC79A7", "#E69F00"
# Colours follow the kind of head; mixtures of more softmaxes are darker.
STYLES: dict[str, tuple[str, str]] = {
    "softmax": (INK, "-"),
    "MoC, K = 15": (LOST, "--"),
    "MoS, K = 3": ("#9ecae1", "-"),
    "MoS, K = 5": ("#6baed6", "-"),
    "MoS, K = 10": ("#3182bd", "-"),
    "MoS, K = 15": ("#08519c", "-"),
    "sigsoftmax": (_GREEN, "-"),
    "mixture of sigsoftmaxes, K = 3": (_GREEN, "--"),
    "PLIF": (_PINK, "-"),
    "Mixtape, K = 4": (_ORANGE, "-"),
    "1.5-entmax": (_PINK, ":"),
    "sparsemax": (_PINK, ":"),
    "1.5-ReLU": (_PINK, ":"),
}


def draw(out: Path) -> list[Path]:
    """Both figures beside `summary.json`."""
    try:
        results = json.loads((out / "summary.json").read_text("utf-8"))
    except FileNotFoundError:
        raise UncorkError(f"there is no summary.json in {out}: run the train stage first") from None
    paths = [out / "rank-spectra.svg", out / "rank-perplexity.svg"]
    _spectra(results, paths[0])
    _perplexity(results, paths[1])
    return paths


def _spectra(results: list[dict[str, Any]], path: Path) -> None:
    widths = sorted({one["width"] for one in results})
    with drawn_to(path, (max(8.4, 0.8 + 4.2 * len(widths)), 4.9)) as figure:
        for axes, width in zip(
            figure.subplots(1, len(widths), squeeze=False, sharey=True)[0], widths, strict=True
        ):
            first = {one["head"]: one for one in reversed(results) if one["width"] == width}
            for label, (colour, line) in STYLES.items():
                one = first.get(label)
                if one and one["rank"] is not None:
                    index, value = np.array(one["spectrum"]).T
                    axes.loglog(index, np.maximum(value, 1e-18), line, color=colour, label=label)
            some = next(one for one in first.values() if one["rank"] is not None)
            axes.axhline(some["tolerance"], color=INK, linewidth=0.8, linestyle=":")
            axes.text(1.1, some["tolerance"] * 1.6, "tolerance", fontsize=8, color=INK)
            axes.axvline(some["bound"], color=INK, linewidth=0.8, linestyle=":")
            axes.text(some["bound"] * 0.93, 2e-17, f"d + 2 = {some['bound']}", fontsize=8,
                      color=INK, ha="right")  # fmt: skip
            axes.set_title(f"d = {width}", fontsize=10, color=INK)
            axes.set_xlabel("singular value, by size")
            axes.set_ylim(1e-17, 2)
            _plain(axes)
        figure.axes[0].set_ylabel("relative to the largest")
        figure.suptitle(
            f"Log-probabilities of {some['of']:,} held-out contexts: how many directions?",
            fontsize=11.5, color=INK,
        )  # fmt: skip
        figure.tight_layout(rect=(0, 0.17, 1, 1))
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="lower center", ncols=4,
                      frameon=False, fontsize=8)  # fmt: skip


def _perplexity(results: list[dict[str, Any]], path: Path) -> None:
    widths = sorted({one["width"] for one in results})
    labels = [label for label in STYLES if any(one["head"] == label for one in results)]
    with drawn_to(path, (max(6.4, 2.4 + 3.2 * len(widths)), 1.3 + 0.3 * len(labels))) as figure:
        panels = figure.subplots(1, len(widths), squeeze=False, sharey=True)[0]
        for axes, width in zip(panels, widths, strict=True):
            beyond = []
            for place, label in enumerate(labels):
                rows = [one for one in results if (one["head"], one["width"]) == (label, width)]
                if any("smoothed perplexity" in one for one in rows):
                    beyond.append((place, np.mean([one["smoothed perplexity"] for one in rows])))
                elif rows:
                    values = [one["perplexity"] for one in rows]
                    colour = STYLES[label][0]
                    axes.plot(values, [place] * len(rows), "o", color=colour, markersize=4)
                    axes.plot(np.mean(values), place, "|", color=colour, markersize=14)
            for place, value in beyond:  # on another scale: said, not drawn
                where = {"ha": "right", "va": "center", "transform": axes.get_yaxis_transform()}
                axes.text(0.97, place, f"{value:.1f}, smoothed", fontsize=8, color=INK, **where)
            axes.set_title(f"d = {width}", fontsize=10, color=INK)
            axes.set_xlabel("perplexity on held-out text")
            _plain(axes)
        panels[0].set_yticks(range(len(labels)), labels)
        panels[0].set_ylim(len(labels) - 0.5, -0.5)
        figure.suptitle("Perplexity by head: a dot a seed, a bar their mean", fontsize=11,
                        color=INK)  # fmt: skip
        figure.tight_layout()


def _plain(axes: Any) -> None:
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
