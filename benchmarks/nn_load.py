"""Sparse transforms and losses on a CPU with busy neighbours, beside softmax in the same run.

    python -m benchmarks.nn_load [--rows 256] [--classes 32768] [--threads 2] [--neighbours 0 1]

A neighbour is a process that only counts, as a data loader keeps one core busy; with --audits it is
one that audits a head on as many threads as there are cores. For each number of them every
function's forward + backward is timed in turn, `--repeat` times, and the medians are
printed with their ratio to softmax (or, for losses, to torch's cross_entropy). "torch's threads" is
the same code with every operation a parallel region of its own, as torch runs it.

The last column is the promise: the ratio beside neighbours is at most 1.5 of the quiet one.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch

import uncork.nn.functional as F
from uncork.nn import _threads

Function = Callable[[torch.Tensor], torch.Tensor]


COUNTING = "while True: pass"
AUDITING = """
import numpy, uncork
head = uncork.Head(numpy.random.default_rng(0).standard_normal((20_000, 256), numpy.float32))
while True: uncork.audit(head)
"""


@contextlib.contextmanager
def busy(count: int, audits: bool) -> Iterator[None]:
    """So many processes that do nothing but count, or audit."""
    does = AUDITING if audits else COUNTING
    started = [subprocess.Popen([sys.executable, "-c", does]) for _ in range(count)]
    time.sleep((5 if audits else 0.5) if count else 0)
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def seconds(function: Function, z: torch.Tensor) -> float:
    z.grad = None
    start = time.perf_counter()
    value = function(z)
    value.backward(torch.ones_like(value))
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--classes", type=int, default=32768)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--audits", action="store_true", help="neighbours that audit a head")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--std", type=float, default=1.0)
    parser.add_argument("--only", nargs="+", help="only these of ours")
    parser.add_argument("--shared-only", action="store_true", help="without torch's own threads")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    z = (torch.randn(options.rows, options.classes) * options.std).requires_grad_()
    target = torch.randint(options.classes, (options.rows,))
    yardsticks: dict[str, Function] = {
        "softmax": lambda z: torch.softmax(z, -1),
        "cross_entropy": lambda z: torch.nn.functional.cross_entropy(z, target),
    }
    ours: dict[str, Function] = {
        "sparsemax": F.sparsemax,
        "entmax 1.5": F.entmax,
        "entmax 1.25": lambda z: F.entmax(z, 1.25),
        "alpha_relu": lambda z: F.alpha_relu(z, 1.5, 0.2),
        "normmax": F.normmax,
        "sparsemax_loss": lambda z: F.sparsemax_loss(z, target),
        "entmax_loss": lambda z: F.entmax_loss(z, target),
        "alpha_relu_loss": lambda z: F.alpha_relu_loss(z, target, tau=0.2),
    }
    ours = {name: of for name, of in ours.items() if not options.only or name in options.only}
    print(
        f"{options.rows} x {options.classes} float32, forward + backward, {options.threads} "
        f"threads, torch {torch.__version__}, medians of {options.repeat}"
    )
    print(f"{'neighbours':>10}  {'function':<16} {'ms':>8} {'ratio':>6} {'of quiet':>8}", end="")
    print(f"  {'torch threads':>14} {'ratio':>6}")
    quiet: dict[str, float] = {}
    for count in options.neighbours:
        times: dict[tuple[str, bool], list[float]] = {}
        with busy(count, options.audits):
            for _ in range(options.repeat):
                for name, function in yardsticks.items():
                    times.setdefault((name, True), []).append(seconds(function, z))
                for shared in (True,) if options.shared_only else (True, False):
                    _threads.shared_out = shared
                    for name, function in ours.items():
                        times.setdefault((name, shared), []).append(seconds(function, z))
                _threads.shared_out = True
        medians = {key: 1e3 * statistics.median(values) for key, values in times.items()}
        for name in yardsticks:
            print(f"{count:10d}  {name:<16} {medians[name, True]:8.2f}")
        for name in ours:
            against = medians["cross_entropy" if name.endswith("loss") else "softmax", True]
            ratio = medians[name, True] / against
            first = quiet.setdefault(name, ratio)
            line = f"{count:10d}  {name:<16} {medians[name, True]:8.2f} {ratio:6.2f} "
            line += f"{ratio / first:8.2f}"
            if (name, False) in medians:
                line += f"  {medians[name, False]:14.2f} {medians[name, False] / against:6.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
