"""The audit on one GPU: python -m benchmarks.gpu [FILES …] [--only NAME] [--seed N] [--profile]

Audits model files given by path and made heads of a language model's size, everything decided and
proven, and prints stage times, peak GPU memory (with `--device cpu` the process's), the machine's
own ceilings in the same run, and what share of the time one half product at the bfloat16 ceiling
would take. A head that fails prints its traceback, and the next one is audited.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import uncork
from benchmarks.heads import Planted, planted_head, trained_like_head
from benchmarks.one_audit import peak_megabytes

PLANTED = {
    "planted 50257x768": (50_257, 768, "float32", 100, 20, 0),
    "planted 128256x4096": (128_256, 4096, "bfloat16", 200, 50, 10),
    "planted 256000x2304": (256_000, 2304, "bfloat16", 200, 50, 10),
}
BF16 = {"dtype": "bfloat16", "norm": True}
# Shapes of Llama 3 8B, Gemma 3 1B, Gemma 3 27B, and two catalogues of items.
TRAINED: dict[str, tuple[int, int, dict[str, Any]]] = {
    "128256x4096": (128_256, 4096, {**BF16, "reserved": 256}),
    "262144x1152": (262_144, 1152, {**BF16, "untrained": 2000, "reserved": 60}),
    "262144x5376": (262_144, 5376, {**BF16, "untrained": 100, "reserved": 60}),
    "1000000x768": (1_000_000, 768, {"untrained": 100}),
    "10000000x128": (10_000_000, 128, {"even": True}),
}
SHORT = ("PP-OCR", "planted 50257x768", "128256x4096", "262144x1152")  # of --quick


def ceilings() -> dict[str, float]:
    """What the machine can do: products (TFLOP/s) and copies (GB/s)."""
    found: dict[str, float] = {}
    for dtype, size in ((torch.bfloat16, 16384), (torch.float32, 8192), (torch.float64, 8192)):
        a = torch.randn(size, size, device="cuda").to(dtype)
        rate = 2 * size**3 / _seconds(lambda a=a: a @ a) / 1e12
        found[f"{str(dtype).removeprefix('torch.')} TFLOP/s"] = round(rate, 1)
    b = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    c = torch.empty_like(b)
    found["copy GB/s"] = round(2 * b.numel() / _seconds(lambda: c.copy_(b)) / 1e9)
    return found


def _seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def measure(
    name: str,
    head: uncork.Head,
    planted: Planted | None = None,
    *,
    device: str = "cuda",
    strict: bool = False,
    profile: bool = False,
) -> dict[str, Any]:
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    watch = cProfile.Profile()
    peak = Path("/proc/self/clear_refs")
    if not on_gpu and peak.exists():
        peak.write_text("5")  # the peak of making the head does not count
    start = time.perf_counter()
    if profile:
        watch.enable()
    audit = uncork.audit(head, device=device, strict=strict)
    watch.disable()
    seconds = time.perf_counter() - start
    row: dict[str, Any] = {
        "head": name,
        "classes": head.classes,
        "features": head.features,
        "dtype": head.dtype,
        "domain": str(head.domain),
        "strict": strict,
        "seconds": round(seconds, 2),
        "stages": {k: round(v, 2) for k, v in audit.seconds.items()},
        "counts": audit.counts,
        "by formula": int((audit.proofs.scales > 0).sum()),
        "peak GiB": round(
            torch.cuda.max_memory_allocated() / 2**30 if on_gpu else peak_megabytes() / 1024, 2
        ),
        # All that a head without planted rows has to do: V Vᵀ, half of it.
        "half a product TFLOP": round(head.classes**2 * head.features / 1e12, 2),
    }
    if planted is not None:
        lost = np.union1d(audit.unargmaxable, audit.tied)
        expected = np.union1d(planted.interior, planted.duplicates.reshape(-1))
        row["planted found"] = bool(np.isin(expected, lost).all())
        row["lost, not planted"] = int((~np.isin(audit.unargmaxable, planted.interior)).sum())
    if len(audit.undecided):
        t = int(audit.undecided[0])
        row["first undecided"] = [t, audit.proofs.reasons.get(t)]
    if profile:
        pstats.Stats(watch).sort_stats("tottime").print_stats(25)
    return row


def table(rows: list[dict[str, Any]], rate: float | None) -> str:
    """A line for each head; the last column is half a product at the bfloat16 rate, in seconds."""
    stages = ("prepare", "screen", "decide", "certify")
    lines = [
        f"{'head':28}{'seconds':>9}" + "".join(f"{s:>9}" for s in stages)
        + f"{'lost':>7}{'tied':>6}{'open':>6}{'GiB':>7}{'planted':>9}{'limit s':>9}"
    ]  # fmt: skip
    for row in rows:
        counts = row["counts"]
        limit = "" if rate is None else f"{row['half a product TFLOP'] / rate:.2f}"
        planted = {True: "found", False: "MISSED", None: ""}[row.get("planted found")]
        lines.append(
            f"{row['head'][:27]:28}{row['seconds']:9.2f}"
            + "".join(f"{row['stages'][s]:9.2f}" for s in stages)
            + f"{counts['unargmaxable']:7}{counts['tied']:6}{counts['undecided']:6}"
            + f"{row['peak GiB'] or 0:7.1f}{planted:>9}{limit:>9}"
        )
    return "\n".join(lines)


def made(name: str, seed: int, device: str, shrink: int = 1) -> Planted:
    if name in PLANTED:
        classes, features, dtype, interior, duplicates, zeros = PLANTED[name]
        return planted_head(
            classes // shrink, features // shrink, interior=interior, duplicates=duplicates,
            zeros=zeros, dtype=dtype, device=device, seed=seed,
        )  # fmt: skip
    classes, features, options = TRAINED[name]
    fewer = {k: v // shrink if isinstance(v, int) and v > 1 else v for k, v in options.items()}
    size = classes // shrink, max(8, features // shrink)
    return trained_like_head(*size, **fewer, seed=seed, device=device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--only", action="append", help="a head's name; may be given again")
    parser.add_argument("--quick", action="store_true", help="leave out the largest heads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--strict", action="store_true", help="float64, no tensor cores")
    parser.add_argument("--profile", action="store_true", help="where each audit's time goes")
    parser.add_argument("--list", action="store_true", help="print the heads' names")
    parser.add_argument("--device", default="cuda", help="cpu, to try this out with --shrink")
    parser.add_argument("--shrink", type=int, default=1, help="divide classes and features")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu.json"))
    options = parser.parse_args()
    names = [*PLANTED, *TRAINED]
    if options.list:
        print("\n".join(names))
        return
    if options.only:
        names = [name for name in names if name in options.only]
    elif options.quick:
        names = [name for name in names if name in SHORT]
    how = {"device": options.device, "strict": options.strict}
    warm = planted_head(4000, 64, interior=10, duplicates=2).head
    uncork.audit(warm, **how)
    found = {"torch": torch.__version__, "seed": options.seed}
    if options.device == "cuda":
        found |= {"device": torch.cuda.get_device_name(0), "ceilings": ceilings()}
        print(json.dumps(found), flush=True)
    rows: list[dict[str, Any]] = []
    for name in [*options.models, *names]:
        try:
            begun = time.perf_counter()
            if isinstance(name, Path):
                head, planted = uncork.load(str(name)), None
            else:
                planted = made(name, options.seed, options.device, options.shrink)
                head = planted.head
            ready = time.perf_counter() - begun
            row = measure(str(name), head, planted, **how, profile=options.profile)
            row["seconds to make or load"] = round(ready, 1)
            rows.append(row)
            print(json.dumps(row), flush=True)
            del head, planted
        except Exception:  # the other heads are still worth measuring
            print(f"{name} failed:\n{traceback.format_exc()}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**found, "audits": rows}, indent=1) + "\n")
    print(table(rows, found.get("ceilings", {}).get("bfloat16 TFLOP/s")))


if __name__ == "__main__":
    main()
