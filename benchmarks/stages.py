"""Where an audit's time goes: python -m benchmarks.stages [--device cuda] [--source OLD/src …]

Audits made heads shaped like a language model's (bfloat16, RMSNorm, clustered rows of lengths 1:3,
a decaying spectrum, planted rows inside the hull, rows equal to one another) and prints the seconds
of every stage, wall and processor, and the functions that took most. Each `--source` is a tree of
the package to measure, in a process of its own and in the order given: two versions of the code
beside each other. `--shape 128256,4096,200` names other heads: classes, features, lost rows. With
fewer than about thirty classes a feature the planted rows lie far out, and take far longer.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def made_head(classes: int, features: int, lost: int, seed: int = 0) -> tuple[Any, np.ndarray]:
    """The head, and the classes that no input can make the argmax."""
    import ml_dtypes

    import uncork

    rng = np.random.default_rng(seed)
    spectrum = ((1 + np.arange(features) / (features / 20)) ** -0.5).astype(np.float32)
    centres = rng.standard_normal((max(1, classes // 64), features), dtype=np.float32)
    mean = 0.3 * rng.standard_normal(features, dtype=np.float32)
    weight = np.empty((classes, features), dtype=ml_dtypes.bfloat16)
    step = 8192
    for start in range(0, classes, step):
        count = min(step, classes - start)
        rows = 0.7 * rng.standard_normal((count, features), dtype=np.float32)
        rows += 0.5 * centres[rng.integers(0, len(centres), count)]
        rows *= rng.uniform(1, 3, (count, 1)).astype(np.float32) * spectrum
        weight[start : start + count] = rows + mean
    special = rng.permutation(classes)[: lost + 40]
    inside, copies = special[:lost], special[lost:]
    ordinary = np.setdiff1d(np.arange(classes), special)
    for k, t in enumerate(inside):
        if k % 2:  # under-trained: near the mean
            row = mean + 0.02 * rng.standard_normal(features)
        else:  # an average of a few others, pulled to the mean
            some = rng.choice(ordinary, int(rng.integers(5, 31)), replace=False)
            share = rng.dirichlet(np.ones(len(some)))
            row = 0.6 * (share @ weight[some].astype(np.float64)) + 0.4 * mean
        weight[t] = row
    weight[copies] = weight[copies[0]]  # reserved, all alike
    gain = rng.uniform(0.5, 2.0, features)
    return uncork.Head(weight, domain=uncork.RMSNorm(gain)), np.sort(inside)


def measure(
    shape: tuple[int, int, int], device: str, jobs: int | None, seed: int, profile: bool
) -> dict[str, Any]:
    import uncork

    head, planted = made_head(*shape, seed)
    profiler = cProfile.Profile()
    wall, processor = time.perf_counter(), time.process_time()
    if profile:
        profiler.enable()
    audit = uncork.audit(head, device=device, jobs=jobs)
    profiler.disable()
    row = {
        "head": f"{shape[0]} x {shape[1]} bfloat16, {shape[2]} lost",
        "wall s": round(time.perf_counter() - wall, 2),
        "processor s": round(time.process_time() - processor, 2),
        "stages": {k: round(v, 2) for k, v in audit.seconds.items()},
        "counts": audit.counts,
        "planted found": bool(np.isin(planted, audit.unargmaxable).all()),
        "device": audit.device,
    }
    print(json.dumps(row), flush=True)
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(14)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    words = "classes,features,lost; default 32768,1024,500"
    parser.add_argument("--shape", action="append", help=words)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--source", action="append", type=Path, default=[])
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    shapes = options.shape or ["32768,1024,500"]
    if options.source:
        for source in options.source:
            print(f"# {source}", flush=True)
            again = [a for s in shapes for a in ("--shape", s)]
            again += ["--device", options.device, "--seed", str(options.seed)]
            again += ["--jobs", str(options.jobs)] if options.jobs else []
            again += ["--profile"] * options.profile
            command = [sys.executable, "-m", "benchmarks.stages", *again]
            subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)}, check=True)
        return
    if options.device == "cuda":  # the first call loads libraries and kernels
        measure((4096, 300, 20), options.device, options.jobs, options.seed, False)
    for text in shapes:
        classes, features, lost = map(int, text.split(","))
        shape = classes, features, lost
        measure(shape, options.device, options.jobs, options.seed, options.profile)


if __name__ == "__main__":
    main()
