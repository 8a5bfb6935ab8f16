"""Random heads of 10,000 classes: past which width can every class win?

    python experiments/random_heads.py --out results/random_heads

Grivas et al. (2022) expect none of 10,000 classes to be lost past 30 features when weight and bias
are drawn from U(−1, 1). Every class of heads of several widths and seeds is decided, with a bias
and inputs within ±100, for U(−1, 1) and N(0, 1); for the latter the expected number is known where
the formula can be computed, up to 17 features.
Finished heads are kept: a second call continues, or prints the table again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from many_runs import write_json

from uncork import Box, UncorkError, audit
from uncork.core.progress import ProgressBar
from uncork.report.drawing import INK, LOST, REACHED, drawn_to
from uncork.theory.lost_classes import MOST_FEATURES_IN_CLOSED_FORM, expected_lost
from uncork.theory.random_heads import INITS, random_head

WIDTHS = (5, 10, 15, 20, 22, 24, 26, 28, 30, 32, 35, 40)
SEEDS = (0, 1, 2)
NAMES = {"uniform": "U(−1, 1)", "normal": "N(0, 1)"}


def decide(classes: int, width: int, init: str, seed: int) -> dict[str, Any]:
    head = random_head(classes, width, init, bias=True, seed=seed, domain=Box(100))
    result = audit(head)
    return {
        "init": init, "classes": classes, "features": width, "seed": seed,
        "fingerprint": head.fingerprint, "counts": result.counts, "proven": result.proven,
        "seconds": round(result.seconds["total"], 2),
    }  # fmt: skip


def lost(runs: list[dict[str, Any]], init: str, width: int) -> list[int]:
    """Unargmaxable classes, a number a seed."""
    return [
        run["counts"]["unargmaxable"]
        for run in runs
        if run["init"] == init and run["features"] == width
    ]


def print_table(runs: list[dict[str, Any]], widths: list[int], expected: dict[int, float]) -> None:
    print(f"{'features':>8}  {'U(−1, 1), by seed':<26} {'N(0, 1), by seed':<26} N(0, 1), expected")
    for width in widths:
        cells = [", ".join(f"{n:,}" for n in lost(runs, i, width)) for i in ("uniform", "normal")]
        known = f"{expected[width]:>12,.2f}" if width in expected else f"{'–':>12}"
        print(f"{width:>8}  {cells[0]:<26} {cells[1]:<26} {known}")
    left = sum(run["counts"]["undecided"] for run in runs)
    proven = all(run["proven"] for run in runs)
    print(f"{len(runs)} heads, {left} classes undecided, every verdict proven: {proven}")


def draw(
    path: Path, runs: list[dict[str, Any]], widths: list[int], expected: dict[int, float]
) -> None:
    with drawn_to(path, (6.4, 4.0)) as figure:
        axes = figure.subplots()
        for init, colour, marker in (("normal", REACHED, "o"), ("uniform", LOST, "s")):
            counts = {width: lost(runs, init, width) for width in widths}
            for k, (width, values) in enumerate(counts.items()):
                axes.plot(
                    [width] * len(values), values, marker, color=colour, markersize=4, alpha=0.8,
                    label=f"{NAMES[init]}, one point a seed" if k == 0 else None, clip_on=False,
                )  # fmt: skip
            means = [np.mean(values) for values in counts.values()]
            axes.plot(widths, means, color=colour, linewidth=1, alpha=0.6)
        axes.plot(
            list(expected), list(expected.values()), "x", color=INK, markersize=7,
            label="N(0, 1), expected number",
        )  # fmt: skip
        axes.axvline(30, color=INK, linestyle=":", linewidth=1)
        axes.text(30.4, 3000, "the paper's\n30 features", color=INK, fontsize=8)
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(0, 2e4)
        axes.set_xlabel("features")
        axes.set_ylabel(f"unargmaxable of {runs[0]['classes']:,} classes")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
        figure.tight_layout()


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog="example: python experiments/random_heads.py --out results/random_heads",
    )
    parser.add_argument("--out", type=Path, required=True, help="the results folder")
    parser.add_argument("--classes", type=int, default=10_000)
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    asked = options(arguments)
    runs = []
    with ProgressBar() as progress:
        progress.stage("heads", len(INITS) * len(asked.widths) * len(asked.seeds))
        for init in INITS:
            for width in asked.widths:
                for seed in asked.seeds:
                    name = f"{init}-{asked.classes}x{width}-seed{seed}.json"
                    file = asked.out / "heads" / name
                    if not file.is_file():
                        write_json(file, decide(asked.classes, width, init, seed))
                    runs.append(json.loads(file.read_text("utf-8")))
                    progress.advance(1)
    expected = {
        width: expected_lost(asked.classes, width, bias=True)
        for width in asked.widths
        if width < MOST_FEATURES_IN_CLOSED_FORM  # the bias is one more
    }
    summary = {"expected_normal": {str(w): round(e, 4) for w, e in expected.items()}, "heads": runs}
    write_json(asked.out / "random_heads.json", summary, lines=True)
    print_table(runs, asked.widths, expected)
    draw(asked.out / "random_heads.png", runs, asked.widths, expected)


if __name__ == "__main__":
    try:
        main()
    except UncorkError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
