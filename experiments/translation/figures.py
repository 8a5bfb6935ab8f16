"""The paper's figures from a results folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from translation.measures import SUM_EDGES
from translation.outputs import OUTPUTS, TITLES
from translation.scoring import step_milliseconds
from uncork.core.errors import UncorkError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "softmax": "#4c4c4c",
    "sparsemax": "#d98b2b",
    "entmax": "#2a78b5",
    "alpha_relu": "#b5304c",
}
PEER = "entmax package: 1.5-entmax (all sorted)"


def plot(results: Path, folder: Path) -> list[Path]:
    """Every figure whose data are there, as PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UncorkError("figures need `pip install 'uncork[plot]'`") from error
    summary_path, times_path = results / "summary.json", results / "measure.json"
    if not summary_path.is_file():
        raise UncorkError(f"{summary_path}: not there; run the score stage first")
    summary = json.loads(summary_path.read_text())
    times = json.loads(times_path.read_text()) if times_path.is_file() else {}
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    drawings: list[tuple[str, tuple[float, float], Callable[..., bool]]] = [
        ("training", (9, 3.6), _training),
        ("step_time", (9, 4.2), _step_time),
        ("decoding", (5.5, 3.6), _decoding),
        ("support", (5.5, 3.6), _support),
        ("tau", (9, 3.6), _tau),
        ("sums", (5.5, 3.6), _sums),
    ]
    for name, size, draw in drawings:
        figure = Figure(figsize=size, layout="constrained")
        if draw(figure, summary, times):
            path = folder / f"translate_{name}.png"
            figure.savefig(path, dpi=130)
            written.append(path)
    return written


def _bare(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)


def _over_seeds(runs: list[dict[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values of shape (seeds, steps)), as far as all seeds go."""
    shortest = min(len(run["points"]) for run in runs)
    steps = np.array([p["step"] for p in runs[0]["points"][:shortest]])
    return steps, np.array([[p[key] for p in run["points"][:shortest]] for run in runs])


def _training(figure: Figure, summary: dict[str, Any], times: dict[str, Any]) -> bool:
    """Figures 2 and 3: validation BLEU by step, and by time at the measured time a step."""
    milliseconds = step_milliseconds(times)
    panels = figure.subplots(1, 2 if milliseconds else 1, squeeze=False)[0]
    for output in OUTPUTS:
        runs = summary["curves"].get(output)
        if not runs:
            continue
        steps, values = _over_seeds(runs, "bleu")
        mean, low, high = values.mean(0), values.min(0), values.max(0)
        colour, title = COLOURS[output], TITLES[output]
        panels[0].plot(steps, mean, color=colour, label=title, marker="o", markersize=3)
        panels[0].fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        if milliseconds:
            panels[1].plot(
                steps * milliseconds[title] / 1000, mean, color=colour, marker="o", markersize=3
            )
            if output == "entmax" and PEER in milliseconds:
                panels[1].plot(
                    steps * milliseconds[PEER] / 1000,
                    mean,
                    color=colour,
                    linestyle="--",
                    marker="o",
                    markersize=3,
                    label="1.5-entmax by the entmax package",
                )
    _bare(panels[0], "training step", "validation BLEU (greedy)")
    panels[0].legend(frameon=False)
    if milliseconds:
        _bare(
            panels[1], "seconds of training steps, alone on the device", "validation BLEU (greedy)"
        )
        if PEER in milliseconds:
            panels[1].legend(frameon=False, loc="upper left")
            panels[1].margins(y=0.15)
    return True


def _step_time(figure: Figure, summary: dict[str, Any], times: dict[str, Any]) -> bool:
    rows = [r for r in times.get("steps", []) if r["state"] != "at the start"]
    rows += times.get("large", [])
    if not rows:
        return False
    panels = figure.subplots(1, len(rows), squeeze=False, sharey=True)[0]
    for axes, row in zip(panels, rows, strict=True):
        labels = list(row["milliseconds_a_step"])
        for place, label in enumerate(reversed(labels)):
            whole = row["milliseconds_a_step"][label]["median"]
            alone = row["milliseconds_the_loss_alone"][label]["median"]
            peer = "package" in label
            axes.barh(place, whole, color="#c9c9c9", label=None)
            axes.barh(place, alone, color="#8a8a8a" if peer else "#2a78b5")
            axes.text(whole, place, f" {whole:.1f}", va="center", fontsize=8)
        axes.set_yticks(range(len(labels)), list(reversed(labels)), fontsize=8)
        _bare(axes, "milliseconds a step (dark: the loss alone)", "")
        axes.set_title(f"{row['classes']:,} classes, {row['state']}", fontsize=9)
        axes.margins(x=0.12)
    return True


def _decoding(figure: Figure, summary: dict[str, Any], times: dict[str, Any]) -> bool:
    """Figure 4."""
    found = times.get("decoding")
    if not found:
        return False
    axes = figure.subplots()
    titles = {title: output for output, title in TITLES.items()}
    for label in dict.fromkeys(r["label"] for r in found["rows"]):
        rows = [r for r in found["rows"] if r["label"] == label]
        peer = label not in titles
        colour = COLOURS[titles[label]] if not peer else "#9a9a9a"
        axes.plot(
            [r["beam"] for r in rows],
            [r["milliseconds_a_step"]["median"] for r in rows],
            color=colour,
            linestyle="--" if "sparsemax" in label and peer else ":" if peer else "-",
            marker="o",
            markersize=3,
            label=label,
        )
    _bare(axes, "beam size", "milliseconds a step")
    axes.set_xticks(sorted({r["beam"] for r in found["rows"]}))
    axes.set_ylim(0, 1.6 * axes.get_ylim()[1])
    axes.legend(frameon=False, fontsize=8, loc="upper center", ncols=2)
    return True


def _support(figure: Figure, summary: dict[str, Any], times: dict[str, Any]) -> bool:
    """Figure 5: how many units keep a probability above zero."""
    axes = figure.subplots()
    for output in OUTPUTS:
        runs = summary["curves"].get(output)
        if runs:
            steps, values = _over_seeds(runs, "support")
            axes.plot(steps, values.mean(0), color=COLOURS[output], label=TITLES[output])
            axes.fill_between(
                steps, values.min(0), values.max(0), color=COLOURS[output], alpha=0.15, linewidth=0
            )
    axes.set_yscale("log")
    _bare(axes, "training step", "units with probability above zero, mean")
    axes.legend(frameon=False)
    return True


def _tau(figure: Figure, summary: dict[str, Any], times: dict[str, Any]) -> bool:
    """Figure 6: the beginning of training by τ."""
    runs = sorted(summary["tau_runs"], key=lambda run: run["tau"])
    if not runs:
        return False
    import matplotlib

    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(runs)))
    panels = figure.subplots(1, 2)
    for run, colour in zip(runs, shades, strict=True):
        steps = [p["step"] for p in run["history"]]
        label = f"τ = {run['tau']:g}"
        panels[0].plot(
            steps, [100 * p["accuracy"] for p in run["history"]], color=colour, label=label
        )
        panels[1].plot(steps, [p["sum"] for p in run["history"]], color=colour, label=label)
    _bare(panels[0], "training step", "validation accuracy, %")
    panels[0].legend(frameon=False, fontsize=8)
    _bare(panels[1], "training step", "Σp, mean over positions")
    return True


def _sums(figure: Figure, summary: dict[str, Any], times: dict[str, Any]) -> bool:
    """Figure 7: is α-ReLU normalised by itself?"""
    runs = summary["test"].get("alpha_relu")
    if not runs:
        return False
    axes = figure.subplots()
    for run in runs:
        counts = np.array(run["positions"]["sum"]["histogram"])
        axes.stairs(
            100 * counts / counts.sum(), SUM_EDGES, color=COLOURS["alpha_relu"], alpha=0.7,
            label="a seed" if run is runs[0] else None,
        )  # fmt: skip
    axes.axvline(1, color="#4c4c4c", linewidth=0.8, linestyle="--")
    _bare(axes, "Σp of 1.5-ReLU at a position", "% of test positions")
    return True
