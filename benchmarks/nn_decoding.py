"""A step of beam search with sparse outputs, beside softmax in the same run.

    python -m benchmarks.nn_decoding [--beams 64] [--classes 50000] [--device cpu] [--repeat 30]

A step is what follows the logits: log-probabilities of all classes, the beams' scores added, the
2·k best of each sentence. Medians, each function in turn, and the ratio to softmax.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import uncork.nn.functional as F

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "log_softmax": lambda z: torch.log_softmax(z, -1),
    "log_sparsemax": F.log_sparsemax,
    "log_entmax": F.log_entmax,
    "log_entmax 1.25": lambda z: F.log_entmax(z, 1.25),
    "log_alpha_relu": lambda z: F.log_alpha_relu(z, 1.5, 0.2),
}


@torch.inference_mode()
def step(function: Callable[[torch.Tensor], torch.Tensor], z: torch.Tensor, width: int) -> float:
    scores = torch.zeros(len(z), 1, device=z.device)
    if z.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    joint = (function(z) + scores).reshape(len(z) // width, -1)
    joint.topk(2 * width)
    if z.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beams", type=int, default=64, help="rows of logits: sentences × width")
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--classes", type=int, default=50_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--std", type=float, default=2.0)
    options = parser.parse_args()
    torch.manual_seed(0)
    z = torch.randn(options.beams, options.classes, device=options.device) * options.std
    times: dict[str, list[float]] = {name: [] for name in FUNCTIONS}
    for turn in range(options.repeat + 3):
        for name, function in FUNCTIONS.items():
            taken = step(function, z, options.width)
            if turn >= 3:  # kernels are compiled, pages are there
                times[name].append(taken)
    medians = {name: 1e3 * statistics.median(values) for name, values in times.items()}
    print(f"{options.beams} x {options.classes} float32 on {options.device}, {torch.__version__}")
    for name, median in medians.items():
        print(f"{name:<16} {median:8.3f} ms {median / medians['log_softmax']:6.2f} of softmax")


if __name__ == "__main__":
    main()
