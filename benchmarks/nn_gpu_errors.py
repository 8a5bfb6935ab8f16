"""Errors of the linear losses' gradients: python -m benchmarks.nn_gpu_errors [--out FILE]

In bfloat16 on one GPU, against float64 of the same inputs, at the sizes of benchmarks.nn_gpu: the
norm of the difference, relative to the gradient's. Beside them torch's own cross entropy in
bfloat16, and what is lost by rounding the exact gradient to bfloat16, which no bfloat16 gradient
can be expected to better.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import uncork.nn as unn
import uncork.nn.functional as F
from benchmarks.nn_gpu import LOSSES, inputs

Tensor = torch.Tensor
KINDS = [("random", 0.1), ("random", 0.3), ("random", 1.0), ("trained", 1.0)]
RESULTS = Path(__file__).parent / "results" / "nn_gpu_errors.json"


def exact(
    x: Tensor, w: Tensor, target: Tensor, transform: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Gradients of the mean loss in float64, for input and weight, some rows at a time."""
    x, w = x.detach().double(), w.detach().double()
    d_input, d_weight = torch.empty_like(x), torch.zeros_like(w)
    step = max(64, (1 << 27) // len(w))
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        with torch.no_grad():
            r = transform(x[rows] @ w.T)
            r[torch.arange(len(r)), target[rows]] -= 1
            r /= len(x)
            torch.mm(r, w, out=d_input[rows])
            d_weight.addmm_(r.T, x[rows])
    return d_input, d_weight


def measure(n: int, classes: int, d: int, kind: str, std: float) -> dict[str, Any]:
    x, w, target = inputs(n, classes, d, kind)
    x = (x.detach() * std).requires_grad_()
    with torch.no_grad():
        tau = unn.tau_from_data(x[:64].float() @ w.float().T)

    def torchs(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy((x @ w.T).float(), t)

    def relu(tau: float) -> tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]:
        return (
            lambda x, w, t: F.linear_alpha_relu_loss(x, w, t, tau=tau),
            lambda z: F.alpha_relu(z, 1.5, tau),
        )

    families: dict[str, tuple[dict[str, Callable[..., Tensor]], Callable[[Tensor], Tensor]]] = {
        "softmax": (
            {"torch cross_entropy": torchs, "linear_cross_entropy": F.linear_cross_entropy},
            lambda z: torch.softmax(z, -1),
        ),
        "entmax 1.5": ({"linear_entmax_loss": F.linear_entmax_loss}, lambda z: F.entmax(z, 1.5)),
        "sparsemax": ({"linear_sparsemax_loss": F.linear_sparsemax_loss}, F.sparsemax),
        "alpha_relu": ({"linear_alpha_relu_loss": relu(tau)[0]}, relu(tau)[1]),
        "alpha_relu dense": ({"linear_alpha_relu_loss, τ = 0": relu(0.0)[0]}, relu(0.0)[1]),
    }
    row: dict[str, Any] = {
        "rows": n, "classes": classes, "features": d, "inputs": kind, "std": std,
    }  # fmt: skip
    for losses, transform in families.values():
        truth = exact(x, w, target, transform)
        for name, loss in losses.items():
            made = torch.autograd.grad(loss(x, w, target), (x, w))
            row[name] = {
                leaf: {
                    "error": _error(mine, real),
                    "of rounding alone": _error(real.bfloat16(), real),
                }
                for leaf, mine, real in zip(("input", "weight"), made, truth, strict=True)
            }
            del made
        del truth
    torch.cuda.empty_cache()
    return row


def _error(made: Tensor, truth: Tensor) -> float | None:
    """None where both are 0: every row has its target alone."""
    off, size = float((made.double() - truth).norm()), float(truth.norm())
    if not size:
        return float("inf") if off else None
    return float(f"{off / size:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    for size in LOSSES:
        for kind, std in KINDS:
            rows.append(measure(*size, kind, std))
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    result = {
        "device": torch.cuda.get_device_name(0), "torch": torch.__version__, "errors": rows,
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
