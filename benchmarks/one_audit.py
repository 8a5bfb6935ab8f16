"""One audit and its measurements, as JSON: python -m benchmarks.one_audit NAME"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import uncork
from benchmarks.heads import build


def main(name: str) -> None:
    head, planted = build(name)
    before = peak_megabytes()
    start, start_cpu = time.perf_counter(), time.process_time()
    audit = uncork.audit(head, device="cpu")
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    start, start_cpu = time.perf_counter(), time.process_time()
    held = uncork.verify(audit, head, device="cpu").ok
    row: dict[str, Any] = {
        "head": name, "classes": head.classes, "features": head.features,
        "bias": head.bias is not None, "domain": str(head.domain),
        "seconds": round(seconds, 2), "cpu seconds": round(cpu, 2),
        "stages": {k: round(v, 2) for k, v in audit.seconds.items() if k != "load"},
        "verify seconds": round(time.perf_counter() - start, 2), "verified": held,
        "verify cpu seconds": round(time.process_time() - start_cpu, 2),
        "counts": audit.counts,
        "head MB": round(head.weight.nbytes / 1e6, 1),
        "peak MB": round(peak_megabytes()), "peak MB before": round(before),
        "unargmaxable": audit.unargmaxable.tolist(),
    }  # fmt: skip
    if planted is not None:
        row["planted found exactly"] = bool(np.array_equal(planted, audit.unargmaxable))
    print(json.dumps(row, ensure_ascii=False))


def peak_megabytes() -> float:
    """Peak resident memory of this process in MB (getrusage would count the parent's too)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


if __name__ == "__main__":
    main(sys.argv[1])
