"""The linear losses of benchmarks.nn_gpu as Markdown: python -m benchmarks.nn_gpu_table [RESULTS]

docs/performance.md has this table as it is printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "nn_gpu.json"
PEERS = ["torch.compile", "CCE", "Liger", "entmax package, 1.5, k = 100"]
OURS = {
    "linear_cross_entropy": "`linear_cross_entropy`",
    "linear_cross_entropy, float32 sums": "the same, float32 sums",
    "linear_alpha_relu_loss": "`linear_alpha_relu_loss`",
    "linear_alpha_relu_loss, dense (τ = 0)": "the same, τ = 0 (half of all positive)",
    "linear_entmax_loss 1.5": "`linear_entmax_loss` 1.5",
    "linear_sparsemax_loss": "`linear_sparsemax_loss`",
}
SPARSE = ["linear_alpha_relu_loss", "linear_entmax_loss 1.5", "linear_sparsemax_loss"]


def table(results: dict[str, Any]) -> str:
    measured = results["losses"]
    random = [row for row in measured if row["inputs"] == "random" and "std" not in row]
    trained = [row for row in measured if row["inputs"] == "trained"]
    flattest = min(row["std"] for row in measured if "std" in row)
    flat = [row for row in measured if row.get("std") == flattest]
    names = dict.fromkeys(PEERS, "") | OURS

    def time(row: dict[str, Any], name: str) -> str:
        return milliseconds(row[name]["ms"])

    lines = [
        ("", [f"{r['rows']:,} × {r['classes']:,} × {r['features']:,}" for r in random]),
        ("---", ["---"] * len(random)),
        ("three products alone", [milliseconds(row["three products ms"]) for row in random]),
    ]
    for name, shown in names.items():
        cells = [f"{time(row, name)} ({row[name]['extra MiB']:,})" for row in random]
        lines.append((shown or name, cells))
    for name in [*PEERS[:3], "linear_cross_entropy", *SPARSE]:
        shown = names[name] or name
        lines.append((f"trained: {shown}", [time(row, name) for row in trained]))
    for name in SPARSE:
        shown = f"flat, std {flattest:.2f}: {names[name]}"
        lines.append((shown, [time(row, name) for row in flat]))
    return "\n".join(f"| {' | '.join([first, *cells])} |" for first, cells in lines)


def milliseconds(value: float) -> str:
    return f"{value:.2f}" if value < 4 else f"{value:.1f}"


if __name__ == "__main__":
    print(table(json.loads(Path([*sys.argv, RESULTS][1]).read_text(encoding="utf-8"))))
