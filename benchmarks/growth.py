"""How the audit's cost grows with classes and with features: python -m benchmarks.growth

Where most classes are lost: python -m benchmarks.growth few [most classes]
Single heads of classes x features: python -m benchmarks.growth 10000x3 20000x5 4096x2048"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import uncork
from benchmarks.heads import planted_head

CLASSES = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000)
FEATURES = (16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096)
AT_FEATURES, AT_CLASSES = 64, 8_000
FEW_CLASSES = (50_000, 100_000, 200_000, 400_000, 800_000)
FEW_FEATURES = 10
FEW_PLOT = Path(__file__).parent.parent / "docs" / "images" / "growth-few.png"
PLOT = Path(__file__).parent.parent / "docs" / "images" / "growth.png"


def measure_growth() -> list[dict[str, Any]]:
    """Audits of made heads (two planted interior rows, no bias), a row each."""
    rows = []
    shapes = [(c, AT_FEATURES) for c in CLASSES] + [(AT_CLASSES, d) for d in FEATURES]
    for classes, features in shapes:
        made = planted_head(classes, features, interior=2, duplicates=0)
        start = time.perf_counter()
        audit = uncork.audit(made.head, device="cpu")
        row = {
            "classes": classes, "features": features,
            "seconds": round(time.perf_counter() - start, 3),
            "stages": {k: round(v, 3) for k, v in audit.seconds.items() if k != "load"},
            "counts": audit.counts,
        }  # fmt: skip
        rows.append(row)
        print(json.dumps(row), flush=True)
    draw(rows)
    return rows


def draw(rows: list[dict[str, Any]]) -> None:
    """Two panels, log-log, one line a stage."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, axis, count in zip(
        panels, ("classes", "features"), (len(CLASSES), len(FEATURES)), strict=True
    ):
        part = rows[:count] if axis == "classes" else rows[len(CLASSES) :]
        for stage, marker in zip(
            ("total", "screen", "decide", "certify", "prepare"), "osv^x", strict=True
        ):
            x = [row[axis] for row in part]
            y = [max(row["stages"].get(stage, 0.0), 1e-3) for row in part]
            panel.loglog(x, y, marker=marker, label=stage, lw=2 if stage == "total" else 1)
        fixed = f"{AT_FEATURES} features" if axis == "classes" else f"{AT_CLASSES:,} classes"
        panel.set(xlabel=axis, title=f"by {axis}, {fixed}")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("seconds")
    panels[1].legend()
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOT, dpi=150)


def lost_head(classes: int, features: int, seed: int = 0) -> uncork.Head:
    """Normal rows, each shortened to between 0.4 and 1 of its length: most are inside the hull."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((classes, features)) * rng.uniform(0.4, 1, (classes, 1))
    return uncork.Head(weight.astype(np.float32))


def measure_few(most: int = FEW_CLASSES[-1]) -> list[dict[str, Any]]:
    """Audits of heads of few features, most of whose classes are lost, a row each."""
    rows = []
    for classes in (count for count in FEW_CLASSES if count <= most):
        head = lost_head(classes, FEW_FEATURES)
        start, processor = time.perf_counter(), time.process_time()
        audit = uncork.audit(head, device="cpu")
        row = {
            "classes": classes, "features": FEW_FEATURES,
            "seconds": round(time.perf_counter() - start, 3),
            "processor seconds": round(time.process_time() - processor, 3),
            "stages": {k: round(v, 3) for k, v in audit.seconds.items() if k != "load"},
            "counts": audit.counts,
        }  # fmt: skip
        rows.append(row)
        print(json.dumps(row), flush=True)
    draw_few(rows)
    return rows


def draw_few(rows: list[dict[str, Any]]) -> None:
    """Processor seconds beside C² and C·E, both from the first point on."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 4), layout="constrained")
    panel = figure.subplots()
    classes = np.array([row["classes"] for row in rows], dtype=np.float64)
    winners = np.array([row["counts"]["argmaxable"] for row in rows], dtype=np.float64)
    seconds = np.array([row["processor seconds"] for row in rows])
    panel.loglog(classes, seconds, marker="o", lw=2, label="audit")
    for name, cost in (("C²", classes**2), ("C·E", classes * winners)):
        panel.loglog(classes, seconds[0] * cost / cost[0], ls="--", lw=1, label=name)
    panel.set(
        xlabel="classes C", ylabel="processor seconds",
        title=f"{FEW_FEATURES} features, E classes can win",
    )  # fmt: skip
    panel.set_xticks(classes, [f"{int(count):,}" for count in classes])
    panel.minorticks_off()
    panel.grid(alpha=0.3)
    panel.legend()
    FEW_PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FEW_PLOT, dpi=150)


def measure_one(text: str) -> None:
    """One audit: of rows that are mostly lost, or of a planted head where features are many."""
    classes, features = map(int, text.split("x"))
    if features < 64:
        head = lost_head(classes, features)
    else:
        head = planted_head(classes, features, interior=2, duplicates=0).head
    start, processor = time.perf_counter(), time.process_time()
    audit = uncork.audit(head, device="cpu")
    seconds, cpu = time.perf_counter() - start, time.process_time() - processor
    print(f"{text:14}{seconds:8.2f} s{cpu:8.2f} s of processor time  {audit.counts}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1][0].isdigit():
        measure_one("2000x4")  # warms up
        for text in sys.argv[1:]:
            measure_one(text)
    elif sys.argv[1:2] == ["few"]:
        measure_few(*map(int, sys.argv[2:3]))
    else:
        measure_growth()
