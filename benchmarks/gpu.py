"""The audit on one GPU: python -m benchmarks.gpu [MODEL FILES …] [--quick] [--out FILE]

Audits model files given by path and made heads of a language model's size, everything decided and
proven, and prints stage times, peak GPU memory, and the machine's own ceilings in the same run.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import uncork
from benchmarks.heads import Planted, planted_head


def ceilings() -> dict[str, float]:
    """What the machine can do: float64 products (TFLOP/s) and copies (GB/s)."""
    a = torch.randn(8192, 8192, dtype=torch.float64, device="cuda")
    b = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    c = torch.empty_like(b)
    return {
        "float64 product TFLOP/s": round(2 * 8192**3 / _seconds(lambda: a @ a) / 1e12, 1),
        "copy GB/s": round(2 * b.numel() / _seconds(lambda: c.copy_(b)) / 1e9),
    }


def _seconds(work: Any, repeats: int = 5) -> float:
    work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def measure(name: str, head: uncork.Head, planted: Planted | None = None) -> dict[str, Any]:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    audit = uncork.audit(head, device="cuda")
    seconds = time.perf_counter() - start
    row: dict[str, Any] = {
        "head": name,
        "classes": head.classes,
        "features": head.features,
        "dtype": head.dtype,
        "domain": str(head.domain),
        "seconds": round(seconds, 2),
        "stages": {k: round(v, 2) for k, v in audit.seconds.items()},
        "counts": audit.counts,
        "peak GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        # One product of all inputs with all rows, which screening and certifying each need.
        "one full product TFLOP": round(2 * head.classes**2 * head.features / 1e12, 2),
    }
    if planted is not None:
        row["planted found exactly"] = bool(
            np.isin(planted.interior, audit.unargmaxable).all()
            and np.isin(planted.duplicates, audit.tied).all()
        )
        row["unargmaxable not planted"] = int(
            (~np.isin(audit.unargmaxable, planted.interior)).sum()
        )
    if len(audit.undecided):
        t = int(audit.undecided[0])
        row["first undecided"] = [t, audit.proofs.reasons.get(t)]
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--quick", action="store_true", help="leave out the two largest heads")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu.json"))
    options = parser.parse_args()
    uncork.audit(planted_head(4000, 64, interior=10, duplicates=2).head, device="cuda")  # warm up
    rows = [measure(path.name, uncork.load(str(path))) for path in options.models]
    shapes = [(50_257, 768, "float32", 100, 20, 0)]
    if not options.quick:
        shapes += [(128_256, 4096, "bfloat16", 200, 50, 10)]
        shapes += [(256_000, 2304, "bfloat16", 200, 50, 10)]
    for classes, features, dtype, interior, duplicates, zeros in shapes:
        made = planted_head(
            classes, features, interior=interior, duplicates=duplicates, zeros=zeros,
            dtype=dtype, device="cuda",
        )  # fmt: skip
        rows.append(measure(f"made {classes} x {features} {dtype}", made.head, made))
    device = torch.cuda.get_device_name(0)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"device": device, "torch": torch.__version__, "ceilings": ceilings(), "audits": rows}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["ceilings"]), device)


if __name__ == "__main__":
    main()
