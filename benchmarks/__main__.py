"""uncork against the paper's pipeline: python -m benchmarks [--only NAME] [--sample N] [--growth]

For every head, in one run: the audit with every verdict certified, and the reference pipeline
(Braid Reflect with patience 2,500, then the linear programme over all rows) on a sample of classes,
one class at a time on one core; its time is scaled up to all classes and divided by the
number of cores, as if it ran on all of them without loss. Prints ratios, stage times, peak memory
and the machine's own ceilings, and writes benchmarks/results/cpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.heads import MADE, REAL, build

RESULTS = Path(__file__).parent / "results"


def audited(name: str) -> dict[str, Any]:
    """The audit, in a process of its own, so that peak memory is this audit's alone."""
    command = [sys.executable, "-m", "benchmarks.one_audit", name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def reference_seconds(name: str, sample: int, lost: list[int]) -> dict[str, Any]:
    """The paper's pipeline on a sample of classes: expected seconds a class on one core.

    Half of the sample is drawn from the unargmaxable classes, which cost it most, and half from
    the others; each half counts for as many classes as it stands for.
    """
    from uncork.auditing.search.reference import decide_reference

    head, _ = build(name)
    rng = np.random.default_rng(0)
    kinds = {
        "argmaxable": np.setdiff1d(np.arange(head.classes), lost),
        "unargmaxable": np.array(lost, dtype=np.int64),
    }
    total, parts = 0.0, {}
    for kind, classes in kinds.items():
        chosen = rng.permutation(classes)[: sample // 2]
        if not len(chosen):
            continue
        agreed = 0
        with threadpool_limits(1):
            start = time.perf_counter()
            for t in chosen.tolist():
                agreed += decide_reference(head, t) == kind
            seconds = (time.perf_counter() - start) / len(chosen)
        total += seconds * len(classes)
        parts[kind] = {
            "classes": len(classes), "sampled": len(chosen),
            "seconds a class": round(seconds, 4), "reference agrees": agreed,
        }  # fmt: skip
    return {"sample": parts, "seconds on one core": round(total, 2)}


def ceilings() -> dict[str, float]:
    """What the machine can do: matrix products (GFLOP/s, all cores) and copies (GB/s)."""
    rng = np.random.default_rng(0)
    found: dict[str, float] = {"cores": os.cpu_count() or 1}
    for dtype in (np.float32, np.float64):
        a = rng.standard_normal((4096, 1024)).astype(dtype)
        b = rng.standard_normal((1024, 4096)).astype(dtype)
        found[f"{np.dtype(dtype)} product GFLOP/s"] = round(
            2 * 4096 * 4096 * 1024 / _best(lambda a=a, b=b: a @ b) / 1e9
        )
    block = np.zeros(1 << 27)
    target = np.empty_like(block)
    found["copy GB/s"] = round(2 * block.nbytes / _best(lambda: np.copyto(target, block)) / 1e9, 1)
    return found


def _best(work: Any) -> float:
    times = []
    for _ in range(4):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="a head's name; may be given again")
    parser.add_argument("--sample", type=int, default=24, help="classes for the reference")
    parser.add_argument("--growth", action="store_true", help="also how cost grows, and its plot")
    parser.add_argument("--out", type=Path, default=RESULTS / "cpu.json")
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": platform.processor() or platform.machine()}
    result["ceilings"] = ceilings()
    print(json.dumps(result["ceilings"]), flush=True)
    rows = []
    for name in options.only or [*REAL, *MADE]:
        row = audited(name)
        lost = row.pop("unargmaxable")
        if options.sample and name in REAL:  # made heads are for uncork's own times
            row["reference"] = reference_seconds(name, options.sample, lost)
            spread = row["reference"]["seconds on one core"] / (os.cpu_count() or 1)
            row["reference"]["seconds on all cores"] = round(spread, 2)
            row["ratio"] = float(f"{spread / row['seconds']:.3g}")
        rows.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    result["heads"] = rows
    print(
        f"\n{'head':16} {'classes × features':>18} {'audit s':>9} {'reference s':>12} {'ratio':>8}"
    )
    for row in rows:
        reference = row.get("reference", {}).get("seconds on all cores", "")
        shape = f"{row['classes']:,} × {row['features']}"
        ratio = row.get("ratio", "")
        print(f"{row['head']:16} {shape:>18} {row['seconds']:>9} {reference:>12} {ratio:>8}")
    if options.growth:
        from benchmarks.growth import measure_growth

        result["growth"] = measure_growth()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
