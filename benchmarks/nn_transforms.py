"""Forward and backward of the sparse transforms on CPU, beside the entmax package and softmax.

    python benchmarks/nn_transforms.py [--rows 4096] [--classes 32768] [--threads 2] [--repeat 3]

Both sides run in this one process on the same logits and the same upstream gradient. Each time is
the best of `--repeat` runs of forward + backward; the last two columns are the ratios that matter.
The entmax package (pip install entmax) is the peer; without it only softmax is compared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import uncork.nn.functional as F

try:
    import entmax as peer
except ModuleNotFoundError:
    peer = None

Transform = Callable[[torch.Tensor], torch.Tensor]


def seconds(transform: Transform, z: torch.Tensor, grad: torch.Tensor, repeat: int) -> float:
    """Best time of forward + backward."""
    best = float("inf")
    for _ in range(repeat):
        z.grad = None
        start = time.perf_counter()
        transform(z).backward(grad)
        best = min(best, time.perf_counter() - start)
    z.grad = None
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--classes", type=int, default=32768)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--std", type=float, nargs="+", default=[0.03, 1.0, 2.0, 10.0])
    parser.add_argument("--no-peer", action="store_true", help="leave the entmax package out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"{options.rows} x {options.classes} float32, forward + backward, "
        f"{options.threads} threads, torch {torch.__version__}, best of {options.repeat}"
    )
    print(
        f"{'std':>5}  {'transform':<11} {'seconds':>8} {'softmax':>8} {'peer':>8}"
        f"  {'of softmax':>10} {'peer / ours':>11}"
    )
    for std in options.std:
        torch.manual_seed(0)
        z = (torch.randn(options.rows, options.classes) * std).requires_grad_()
        grad = torch.randn(options.rows, options.classes)
        softmax = seconds(lambda x: torch.softmax(x, -1), z, grad, options.repeat)
        cases: list[tuple[str, Transform, str | None]] = [
            ("sparsemax", lambda x: F.sparsemax(x), "sparsemax"),
            ("entmax 1.5", lambda x: F.entmax(x, 1.5), "entmax15"),
            ("entmax 1.25", lambda x: F.entmax(x, 1.25), None),
            ("alpha_relu", lambda x: F.alpha_relu(x, 1.5, 0.2), None),
        ]
        for name, transform, peer_name in cases:
            ours = seconds(transform, z, grad, options.repeat)
            row = f"{std:5g}  {name:<11} {ours:8.3f} {softmax:8.3f}"
            theirs = None
            if peer is not None and peer_name is not None and not options.no_peer:
                theirs = seconds(getattr(peer, peer_name), z, grad, 1)
            row += f" {theirs:8.3f}" if theirs else f" {'-':>8}"
            row += f"  {ours / softmax:10.2f}"
            row += f" {theirs / ours:11.1f}" if theirs else f" {'-':>11}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
