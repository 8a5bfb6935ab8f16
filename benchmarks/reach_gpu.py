"""Highest probabilities on one GPU and on the CPU: python -m benchmarks.reach_gpu HEAD.npz

HEAD.npz holds `weight`, `bias` and `classes`, the ones to ask about. Both devices prove their
bounds; what they prove must agree.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.head import Head
from uncork.domain import Box
from uncork.reach.probability.search import highest_probability
from uncork.reach.sparse.search import sparse_probability


def measure(path: str, most: int, devices: list[str]) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as arrays:
        head = Head(arrays["weight"], arrays["bias"], domain=Box(100))
        asked = arrays["classes"][:most]
    result: dict[str, Any] = {
        "head": Path(path).stem, "classes": head.classes, "features": head.features,
        "asked": len(asked),
    }  # fmt: skip
    for name, work in {
        "softmax": lambda device: highest_probability(head, asked, device=device),
        "entmax 1.5": lambda device: sparse_probability(head, asked, 1.5, device=device),
    }.items():
        bounds = {}
        for device in devices:
            work(device)  # once to warm up
            began, spent = time.perf_counter(), time.process_time()
            bounds[device] = work(device)
            result[f"{name}, {device}"] = {
                "seconds": round(time.perf_counter() - began, 3),
                "CPU seconds": round(time.process_time() - spent, 3),
                "largest gap": float(bounds[device].gap.max()),
                "largest": float(bounds[device].upper.max()),
            }
            print(name, device, result[f"{name}, {device}"], flush=True)
        if len(bounds) == 2:
            one, other = bounds.values()
            agree = bool((one.lower <= other.upper).all() and (other.lower <= one.upper).all())
            result[f"{name}: bounds agree"] = agree
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("head")
    parser.add_argument("--most", type=int, default=10**9)
    parser.add_argument("--devices", nargs="+", default=["cuda", "cpu"])
    parser.add_argument("--out")
    arguments = parser.parse_args()
    result = measure(arguments.head, arguments.most, arguments.devices)
    print(json.dumps(result, indent=2))
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
