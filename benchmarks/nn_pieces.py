"""The piecewise linear head's residual, several ways: python -m benchmarks.nn_pieces [--out FILE]

On a GPU, 4,096 rows of 512 features and 50,000 classes in bfloat16. For each way of adding up the
residual by piece: the time of that kernel alone, of a training step, its ratio to torch's
cross_entropy(linear) in the same process, and the error of the slopes' gradient against float64,
computed from the same logits. "atomics" adds each logit's part to memory; "counted" counts values
in shared memory (`kernels.links.counts`), by so many programs on a multiprocessor of so many
threads; "counted, global" counts in global memory. --profile: which kernels a step's time goes to.
--small: toy sizes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import uncork.nn as unn
from benchmarks.nn_heads import profile, seconds
from uncork.nn.kernels.links import counts, linked
from uncork.nn.linear.links import Pieces, _ByKernels

Tensor = torch.Tensor
ROWS, FEATURES, CLASSES = 4096, 512, 50_000
WAYS: dict[str, dict[str, Any] | None] = {
    "atomics": None,
    "counted": {},
    "counted, 1 x 512 threads": {"PROGRAMS": 1, "REGISTERS": None},
    "counted, 3 x 512": {"PROGRAMS": 3, "REGISTERS": 40},
    "counted, 2 x 256": {"LANES": 2048, "PROGRAMS": 2, "REGISTERS": None},
    "counted, 3 x 256": {"LANES": 2048, "PROGRAMS": 3, "REGISTERS": 80},
    "counted, 4 x 256": {"LANES": 2048, "PROGRAMS": 4},
    "counted, span 16384": {"SPAN": 16384},
    "counted, global": {"SHARED": False},
}


@contextmanager
def way(settings: dict[str, Any] | None) -> Iterator[None]:
    """With these constants of `counts`; of None, nothing is counted."""
    changed = {name: getattr(counts, name) for name in settings or {}}
    room = linked.room_for_counts
    try:
        for name, value in (settings or {}).items():
            setattr(counts, name, value)
        if settings is None:
            linked.room_for_counts = lambda logits, rows: None
        yield
    finally:
        linked.room_for_counts = room
        for name, value in changed.items():
            setattr(counts, name, value)


def exact(z: Tensor, target: Tensor, slopes: Tensor, link: Pieces) -> Tensor:
    """The slopes' gradient of the mean loss, in float64, some rows at a time."""
    steep = torch.nn.functional.softplus(slopes.double())
    lower = torch.arange(link.pieces, device=z.device, dtype=torch.float64) * link.width
    lower = lower - link.bound
    height = link.width * (steep.cumsum(0) - steep) - link.bound - steep * lower
    sums = torch.zeros(2, link.pieces, device=z.device, dtype=torch.float64)
    for some, aims in zip(z.split(256), target.split(256), strict=True):
        wide = some.double()
        piece = ((wide + link.bound) / link.width).floor().clamp(0, link.pieces - 1).long()
        r = torch.softmax(height[piece] + steep[piece] * wide, -1)
        r[torch.arange(len(r), device=z.device), aims] -= 1
        sums[0].index_add_(0, piece.flatten(), r.flatten())
        sums[1].index_add_(0, piece.flatten(), (r * (wide - lower[piece])).flatten())
    above = sums[0].flip(0).cumsum(0).flip(0) - sums[0]
    return (link.width * above + sums[1]) * torch.sigmoid(slopes.double()) / len(z)


def residual(z: Tensor, target: Tensor, slopes: Tensor, link: Pieces) -> tuple[Tensor, Any]:
    """The slopes' gradient of one block, z becoming the residual, and what was launched."""
    linking: Any = link.begin(slopes, len(z), torch.float32)
    rows = linking(z, target)
    assert isinstance(rows, _ByKernels)
    coefficients = torch.full((len(z),), 1 / len(z), device=z.device)
    rows.residual(coefficients)
    return linking.by_parameters(), (rows, coefficients)


def kernel_seconds(rows: Any, coefficients: Tensor, z: Tensor, logits: Tensor) -> float:
    """Median time of the residual's kernel, of fresh logits each time."""
    times = []
    for _ in range(8):
        z.copy_(logits)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        rows.residual(coefficients)
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="toy sizes: shows that it runs")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), help="only these")
    parser.add_argument("--profile", action="store_true", help="and where a step's time goes")
    given = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    sizes = (40, 16, 5000) if given.small else (ROWS, FEATURES, CLASSES)
    rows, features, classes = sizes
    torch.manual_seed(0)
    head: Any = unn.heads.PlifHead(features, classes, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        head.slopes.add_(0.2 * torch.randn_like(head.slopes))
    hidden = torch.randn(rows, features, device=device, dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(0, classes, (rows,), device=device)
    link = Pieces(head.pieces, head.bound)
    slopes = head.slopes.detach()
    logits = torch.nn.functional.linear(hidden, head.weight, head.bias).detach()
    truth = exact(logits, target, slopes, link)

    def step() -> None:
        hidden.grad = None
        head.zero_grad(set_to_none=True)
        head.loss(hidden, target).backward()

    def plain() -> None:
        hidden.grad = None
        head.zero_grad(set_to_none=True)
        z = torch.nn.functional.linear(hidden, head.weight, head.bias)
        torch.nn.functional.cross_entropy(z, target).backward()

    machine = torch.cuda.get_device_name() if on_gpu else "CPU"
    print(f"{machine}, torch {torch.__version__}: {rows} x {features} x {classes}", flush=True)
    base = seconds(plain, device, 0.2)
    print(f"torch's cross_entropy(linear): {1e3 * base:.3f} ms", flush=True)
    made: list[dict[str, Any]] = []
    print(f"{'way':<26}{'kernel ms':>11}{'step ms':>10}{'ratio':>8}{'error':>12}", flush=True)
    for name in given.ways:
        with way(WAYS[name]):
            try:
                z = logits.clone()
                found, launched = residual(z, target, slopes, link)
                error = float((found.double() - truth).norm() / truth.norm())
                took = kernel_seconds(*launched, z, logits) if on_gpu else float("nan")
                whole = seconds(step, device, 0.2)
            except Exception:  # one way that fails keeps no other from being timed
                traceback.print_exc()
                continue
        made.append({
            "way": name, "kernel milliseconds": round(1e3 * took, 4),
            "milliseconds": round(1e3 * whole, 4), "time / softmax": round(whole / base, 3),
            "error": error,
        })  # fmt: skip
        print(
            f"{name:<26}{1e3 * took:>11.3f}{1e3 * whole:>10.3f}{whole / base:>8.2f}{error:>12.2e}",
            flush=True,
        )
        if given.out is not None:
            figures = {"machine": machine, "torch": torch.__version__, "rows": rows,
                       "features": features, "classes": classes,
                       "softmax milliseconds": round(1e3 * base, 4), "ways": made}  # fmt: skip
            given.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    again = seconds(plain, device, 0.2)
    print(f"torch's cross_entropy(linear) again: {1e3 * again:.3f} ms", flush=True)
    if given.profile and on_gpu:
        print(profile(step), flush=True)


if __name__ == "__main__":
    main()
