"""Draw what benchmarks.nn_gpu measured: python -m benchmarks.nn_gpu_plot [RESULTS] [IMAGE]"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

COLOURS = {"entmax 1.5": "#0b6e99", "sparsemax": "#c1440e", "alpha_relu": "#3a7d44"}
NAMES = {"entmax 1.5": "entmax 1.5", "sparsemax": "sparsemax", "alpha_relu": "α-ReLU"}
LOSSES = {
    "entmax 1.5": "linear_entmax_loss 1.5",
    "sparsemax": "linear_sparsemax_loss",
    "alpha_relu": "linear_alpha_relu_loss",
}


def transforms(axes: Any, results: dict[str, Any]) -> None:
    """Forward (line) and backward (dashes) as multiples of softmax's, one panel a size."""
    sizes = sorted({(row["classes"], row["dtype"], row["rows"]) for row in results["transforms"]})
    for axis, (classes, dtype, count) in zip(axes, sizes, strict=True):
        rows = [row for row in results["transforms"] if row["classes"] == classes]
        for name, colour in COLOURS.items():
            stds = [row["std"] for row in rows]
            for way, style in (("forward", "-"), ("backward", "--")):
                values = [row[name][f"{way} / softmax"] for row in rows]
                label = NAMES[name] if way == "forward" else None
                axis.plot(stds, values, style, color=colour, label=label)
        axis.axhline(1, color="#888888", linewidth=0.8)
        axis.set(xscale="log", ylim=(0, 1.7), title=f"{count:,} × {classes:,} {dtype}")
        axis.set_xlabel("standard deviation of the logits")
    axes[0].set_ylabel("time / torch softmax\n(dashed: backward)")
    axes[0].legend(frameon=False)


def losses(axes: Any, results: dict[str, Any]) -> None:
    """Forward + backward in milliseconds over the logits' scale, peers as levels."""
    plain = [r for r in results["losses"] if r["inputs"] == "random" and "std" not in r]
    chosen = sorted(plain, key=lambda row: row["classes"])[-3:]
    for axis, row in zip(axes, chosen, strict=True):
        sweep = [r for r in results["losses"] if "std" in r and r["classes"] == row["classes"]]
        for name, colour in COLOURS.items():
            times = [r[LOSSES[name]]["ms"] for r in sweep]
            axis.plot([r["std"] for r in sweep], times, color=colour)
        levels = {"torch.compile": "-", "CCE": "--", "Liger": ":"}
        for peer, style in levels.items():
            axis.axhline(row[peer]["ms"], color="#555555", linestyle=style, label=peer, linewidth=1)
        own = row["linear_cross_entropy"]["ms"]
        axis.axhline(own, color="#8a5fbf", linewidth=1, label="linear_cross_entropy")
        shape = f"{row['rows']:,} × {row['classes']:,} × {row['features']:,}"
        axis.set(xscale="log", ylim=(0, None), title=shape)
        axis.set_xlabel("standard deviation of the logits")
    axes[0].set_ylabel("linear layer + loss, ms\nforward + backward, bfloat16")
    axes[0].legend(frameon=False, fontsize=8, title="softmax losses", title_fontsize=8)


def main() -> None:
    source = Path(sys.argv[1] if len(sys.argv) > 1 else "benchmarks/results/nn_gpu.json")
    image = Path(sys.argv[2] if len(sys.argv) > 2 else "docs/images/nn_gpu.png")
    results = json.loads(source.read_text())
    plt.rcParams |= {"font.size": 9, "axes.spines.top": False}
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.2), layout="constrained")
    transforms(axes[0], results)
    losses(axes[1], results)
    image.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(image, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
