"""The figures of the language models: lost words by width, and by how frequent they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.report.drawing import INK, LOST, MISSED, REACHED, drawn_to

_LSTM = "box:-1,1"
_SERIES = (  # kind, domain, what it is called, colour, marker
    ("plain", _LSTM, "no bias", REACHED, "o"),
    ("student", _LSTM, "student of the widest", "#56B4E9", "D"),
    ("bias", _LSTM, "bias, inputs within ±1", LOST, "s"),
    ("bias", "box:-100,100", "bias, inputs within ±100", "#E69F00", "^"),
    ("random", _LSTM, "untrained: U(−1, 1)", "#999999", "x"),
)


def draw(out: Path) -> list[Path]:
    """Three figures beside `summary.json`."""
    try:
        summary = json.loads((out / "summary.json").read_text("utf-8"))
    except FileNotFoundError:
        raise UncorkError(f"there is no summary.json in {out}: analyse first") from None
    paths = [out / f"language-model-{what}.svg" for what in ("width", "frequency", "highest")]
    _by_width(summary, paths[0])
    _by_frequency(summary, paths[1])
    _highest(summary, paths[2])
    return paths


def _by_width(summary: dict[str, Any], path: Path) -> None:
    widths = sorted({one["width"] for one in summary["heads"]})
    with drawn_to(path, (6.6, 4.4)) as figure:
        axes = figure.subplots()
        for kind, domain, label, colour, marker in _SERIES:
            rows = [h for h in summary["heads"] if (h["kind"], h["domain"]) == (kind, domain)]
            if not rows:
                continue
            here = sorted({one["width"] for one in rows})
            means = [np.mean([one["lost"] for one in rows if one["width"] == w]) for w in here]
            axes.plot(here, means, color=colour, linewidth=1.2)
            axes.plot([one["width"] for one in rows], [one["lost"] for one in rows], marker,
                      color=colour, markersize=5, label=label, fillstyle="none")  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, [str(w) for w in widths])
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(-0.2, summary["words"] * 1.3)
        axes.set_xlabel("features of the head")
        axes.set_ylabel(f"unargmaxable words of {summary['words']:,}")
        axes.set_title("Words that a language model can never predict (a mark a seed)",
                       fontsize=11, color=INK)  # fmt: skip
        axes.legend(frameon=False, fontsize=9)
        _plain(axes)
        figure.tight_layout()


def _by_frequency(summary: dict[str, Any], path: Path) -> None:
    """The share of lost words in each tenth of the frequency ranking."""
    groups = [
        (kind, width)
        for kind in ("plain", "student", "bias")
        for width in sorted({one["width"] for one in summary["heads"]})
        if _mean_by_rank(summary, kind, _LSTM, width).sum() > 0.01 * summary["words"]
    ]
    with drawn_to(path, (8.6, 4.2)) as figure:
        axes = figure.subplots()
        places = np.arange(1, 11)
        sizes = [len(part) for part in np.array_split(np.arange(summary["words"]), 10)]
        for kind, width in groups:
            share = _mean_by_rank(summary, kind, _LSTM, width) / sizes
            name, colour = next(s[2:4] for s in _SERIES if s[:2] == (kind, _LSTM))
            line = {8: "-", 16: "--", 32: "-.", 64: ":"}.get(width, "-")
            axes.plot(places, share, line, marker="o", markersize=3, color=colour,
                      label=f"d = {width}: {name}")  # fmt: skip
        axes.set_xticks(places)
        axes.set_ylim(0, None)
        axes.set_xlabel("tenth of the vocabulary, most frequent words first")
        axes.set_ylabel("share unargmaxable, mean over seeds")
        axes.set_title("Which words are lost? (1 % of them or more)", fontsize=11, color=INK)
        if groups:
            axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        _plain(axes)
        figure.tight_layout()


def _mean_by_rank(summary: dict[str, Any], kind: str, domain: str, width: int) -> np.ndarray:
    rows = [
        one["lost by rank"]
        for one in summary["heads"]
        if (one["kind"], one["domain"], one["width"]) == (kind, domain, width)
    ]
    return np.mean(rows, axis=0) if rows else np.zeros(1)


def _highest(summary: dict[str, Any], path: Path) -> None:
    """The highest probability of a sample of words, against how often each was seen."""
    shown = sorted(
        (one for one in summary["heads"] if "highest" in one), key=lambda one: one["width"]
    )
    columns = max(1, min(3, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    with drawn_to(path, (1.0 + 2.9 * columns, 1.0 + 2.5 * rows)) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes in grid.flat[len(shown) :]:
            axes.set_visible(False)
        for axes, one in zip(grid.flat, shown, strict=False):
            found = one["highest"]
            count, low = np.array(found["counts"]), np.array(found["lower"])
            lost = np.array(found["lost"], dtype=bool)
            for chosen, colour, label in (
                (~lost, REACHED, "argmaxable"),
                (lost, LOST, "unargmaxable"),
            ):
                if chosen.any():
                    axes.loglog(count[chosen], low[chosen], ".", color=colour, label=label,
                                markersize=4)  # fmt: skip
            axes.axhline(0.5, color=MISSED, linewidth=0.8)
            axes.set_title(f"d = {one['width']}", fontsize=10, color=INK)
            _plain(axes)
        for axes in grid[-1]:
            axes.set_xlabel("times seen in training")
        for axes in grid[:, 0]:
            axes.set_ylabel("highest probability")
        if shown:
            grid[0, 0].legend(frameon=False, fontsize=8)
        figure.suptitle("The most that any input within ±1 can give a word (line: one half)",
                        fontsize=11, color=INK)  # fmt: skip
        figure.tight_layout()


def _plain(axes: Any) -> None:
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
