"""What benchmarks.nn_gpu and nn_gpu_errors measured, as Markdown: python -m benchmarks.nn_gpu_table

Of another file than the last whole run's, given as argument: only what that one has.

Linear losses, small ones, and errors: docs/results/performance.md has these tables as they are
printed, and who took part, with version and path.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "nn_gpu.json"
ERRORS = RESULTS.with_name("nn_gpu_errors.json")
PEERS = [
    "torch.compile", "torch, linear_cross_entropy", "CCE", "Liger", "Liger, Hopper (CuTe)",
    "Liger, Hopper (CuTe), mean", "Liger, Hopper (cuTile)", "quack", "entmax package, 1.5, k = 100",
]  # fmt: skip
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
    there = [name for name in PEERS if any("ms" in row.get(name, {}) for row in random)]
    names = dict.fromkeys(there, "") | OURS

    def time(row: dict[str, Any], name: str) -> str:
        return milliseconds(row[name]["ms"]) if "ms" in row.get(name, {}) else "–"

    def memory(row: dict[str, Any], name: str) -> str:
        return f" ({row[name]['extra MiB']:,})" if "ms" in row.get(name, {}) else ""

    lines = [
        ("", [size(row) for row in random]),
        ("---", ["---"] * len(random)),
        ("three products alone", [milliseconds(row["three products ms"]) for row in random]),
    ]
    for name, shown in names.items():
        cells = [time(row, name) + memory(row, name) for row in random]
        lines.append((shown or name, cells))
    softmax = [name for name in there if not name.startswith("entmax")]
    for name in [*softmax, "linear_cross_entropy", *SPARSE]:
        shown = names[name] or name
        lines.append((f"trained: {shown}", [time(row, name) for row in trained]))
    for name in SPARSE:
        shown = f"flat, std {flattest:.2f}: {names[name]}"
        lines.append((shown, [time(row, name) for row in flat]))
    return as_markdown(lines)


def small(results: dict[str, Any]) -> str:
    measured = results["small problems"]
    lines = [("", [size(row) for row in measured]), ("---", ["---"] * len(measured))]
    for name in (name for name in measured[0] if isinstance(measured[0][name], dict)):
        cells = [f"{row[name]['ms']:.2f} ({row[name]['extra MiB']:,})" for row in measured]
        lines.append((f"`{name}`", cells))
    return as_markdown(lines)


def errors(results: dict[str, Any]) -> str:
    """Thousandths: of the input's and the weight's gradient, and by rounding alone."""
    measured = results["errors"]

    def kind(row: dict[str, Any]) -> str:
        how = f"std {row['std']:g}" if row["inputs"] == "random" else row["inputs"]
        return f"{row['rows']:,} × {row['classes']:,}, {how}"

    def shown(found: dict[str, Any]) -> str:
        if found["input"]["error"] is None:
            return "all 0"
        made, least = (
            " / ".join(f"{1000 * found[leaf][what]:.2f}" for leaf in ("input", "weight"))
            for what in ("error", "of rounding alone")
        )
        return f"{made} ({least})"

    names = [name for name in measured[0] if isinstance(measured[0][name], dict)]
    titles = [name if name.startswith("torch") else f"`{name}`" for name in names]
    lines = [("", titles), ("---", ["---"] * len(titles))]
    lines += [(kind(row), [shown(row[name]) for name in names]) for row in measured]
    return as_markdown(lines)


def size(row: dict[str, Any]) -> str:
    return f"{row['rows']:,} × {row['classes']:,} × {row['features']:,}"


def as_markdown(lines: list[tuple[str, list[str]]]) -> str:
    return "\n".join(f"| {' | '.join([first, *cells])} |" for first, cells in lines)


def milliseconds(value: float) -> str:
    return f"{value:.2f}" if value < 4 else f"{value:.1f}"


def of_transforms(results: dict[str, Any]) -> str:
    """1.5-entmax, forward, of whom it was measured of: milliseconds."""
    measured = [row for row in results["transforms"] if "peers, forward" in row]
    sizes = [f"{row['rows']:,} × {row['classes']:,} {row['dtype']}" for row in measured]
    lines = [("", sizes), ("---", ["---"] * len(sizes))]
    for name, shown in (("softmax", "torch's softmax"), ("entmax 1.5", "`entmax` 1.5")):
        lines.append((shown, [f"{row[name]['forward']:.2f}" for row in measured]))
    for name in measured[0]["peers, forward"]:
        cells = [f"{row['peers, forward'].get(name, float('nan')):.2f}" for row in measured]
        lines.append((name, cells))
    return as_markdown(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    chosen = parser.parse_args().results
    results = json.loads(chosen.read_text(encoding="utf-8"))
    if chosen != RESULTS:
        parts = {"losses": table, "transforms": of_transforms, "small problems": small}
        print(*(show(results) for part, show in parts.items() if part in results), sep="\n\n")
    else:
        of_errors = json.loads(ERRORS.read_text(encoding="utf-8"))
        print(table(results), small(results), errors(of_errors), sep="\n\n")
    if results.get("peers"):
        print("", *(f"- {name}: {what}" for name, what in results["peers"].items()), sep="\n")


if __name__ == "__main__":
    main()
