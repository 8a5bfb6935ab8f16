"""How the audit's cost grows with classes and with features: python -m benchmarks.growth"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import uncork
from benchmarks.heads import planted_head

CLASSES = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000)
FEATURES = (16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096)
AT_FEATURES, AT_CLASSES = 64, 8_000
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


if __name__ == "__main__":
    measure_growth()
