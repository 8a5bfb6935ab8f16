"""A step of beam search with sparse outputs, beside softmax in the same run.

    python -m benchmarks.nn_decoding [--beams 64] [--classes 50000] [--device cpu] [--repeat 30]

A step is what follows the logits: log-probabilities, the beams' scores added, the 2·width best of
each sentence, of which beam and class each is. "all" makes the log-probabilities of all classes,
"top-k" those of each beam's best only. α-ReLU's τ is the mean of entmax's own, towards which
training drives it. Medians of processor time (of wall time on a GPU, and of the GPU's own time in a
graph of the same step), each function in turn, and the ratio to the faster softmax.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

import uncork.nn.functional as F
from benchmarks.nn_heads import profile

Tensor = torch.Tensor
Step = Callable[[Tensor, Tensor, int], "Best"]


class Best(NamedTuple):
    """The best continuations of each sentence, (sentences, 2 width) each."""

    scores: Tensor
    beams: Tensor
    classes: Tensor


def from_all(z: Tensor, scores: Tensor, width: int, log_p: Callable[[Tensor], Tensor]) -> Best:
    """From all log-probabilities."""
    joint = (log_p(z) + scores).reshape(len(z) // width, -1)
    best, place = joint.topk(2 * width)
    return Best(best, place // z.shape[1], place % z.shape[1])


def from_best(
    z: Tensor, scores: Tensor, width: int, topk: Callable[[Tensor, int], tuple[Tensor, Tensor]]
) -> Best:
    """The same from each beam's own best: no other can be among the sentence's."""
    values, classes = topk(z, 2 * width)  # (beams, 2 width)
    joint = (values + scores).reshape(len(z) // width, -1)
    best, place = joint.topk(2 * width)
    return Best(best, place // (2 * width), classes.reshape(len(joint), -1).gather(1, place))


def steps(tau: float) -> dict[str, Step]:
    def everything(log_p: Callable[[Tensor], Tensor]) -> Step:
        return lambda z, scores, width: from_all(z, scores, width, log_p)

    def best(
        topk: Callable[[Tensor, int], tuple[Tensor, Tensor]],
    ) -> Step:
        return lambda z, scores, width: from_best(z, scores, width, topk)

    return {
        "softmax, all": everything(lambda z: torch.log_softmax(z, -1)),
        "softmax, top-k": best(lambda z, k: torch.log_softmax(z, -1).topk(k)),
        "sparsemax, all": everything(F.log_sparsemax),
        "sparsemax, top-k": best(lambda z, k: F.log_entmax_topk(z, k, 2.0)),
        "entmax 1.5, all": everything(F.log_entmax),
        "entmax 1.5, top-k": best(F.log_entmax_topk),
        "entmax 1.25, all": everything(lambda z: F.log_entmax(z, 1.25)),
        "entmax 1.25, top-k": best(lambda z, k: F.log_entmax_topk(z, k, 1.25)),
        "alpha_relu, all": everything(lambda z: F.log_alpha_relu(z, 1.5, tau)),
        "alpha_relu, top-k": best(lambda z, k: F.log_alpha_relu_topk(z, k, 1.5, tau)),
    }


@torch.inference_mode()
def timed(step: Step, z: Tensor, width: int) -> float:
    scores = torch.zeros(len(z), 1, device=z.device)
    clock = time.perf_counter if z.is_cuda else time.process_time
    if z.is_cuda:
        torch.cuda.synchronize()
    start = clock()
    step(z, scores, width)
    if z.is_cuda:
        torch.cuda.synchronize()
    return clock() - start


@torch.inference_mode()
def replayed(step: Step, z: Tensor, width: int, times: int = 20) -> float:
    """Seconds that the GPU itself needs, without waiting for its host."""
    scores = torch.zeros(len(z), 1, device=z.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(z, scores, width)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    for _ in range(times):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1e-3 * begin.elapsed_time(end) / times


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
    parser.add_argument("--profile", action="store_true", help="kernels of each step, on a GPU")
    options = parser.parse_args()
    torch.manual_seed(0)
    z = torch.randn(options.beams, options.classes, device=options.device) * options.std
    functions = steps(float(F.entmax(z, return_support=True).tau.mean()))
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(options.repeat + 3):
        for name, function in functions.items():
            taken = timed(function, z, options.width)
            if turn >= 3:  # kernels are compiled, pages are there
                times[name].append(taken)
    medians = {name: 1e3 * statistics.median(values) for name, values in times.items()}
    softmax = min(medians["softmax, all"], medians["softmax, top-k"])
    print(f"{options.beams} x {options.classes} float32 on {options.device}, {torch.__version__}")
    for name, median in medians.items():
        line = f"{name:<20} {median:8.3f} ms {median / softmax:6.2f} of softmax"
        if z.is_cuda:
            line += f" {1e3 * replayed(functions[name], z, options.width):8.3f} ms of the GPU's"
        print(line)
        if options.profile:
            print(profile(partial(timed, functions[name], z, options.width)))


if __name__ == "__main__":
    main()
