"""Sparse outputs on one GPU, beside softmax: python -m benchmarks.nn_gpu [--quick] [--peers DIR] …

Transforms, forward and backward, over logits of standard deviation 10^-1.5 to 10^2; losses of given
logits, forward + backward, beside cross entropy; and a linear layer with its loss, forward +
backward in bfloat16 with gradients for input and weight, large and small. Everything runs in one
process on the same tensors, taking turns; a time is the median of several batches.
Peers that can be imported take part, each named with its version and path: torch.compile, torch's
own linear_cross_entropy (2.13), Liger (`liger_kernel`, its Triton path and those for Hopper), CCE
(`cut_cross_entropy`), quack, entmax, AdaSplash (`adasplash`); of the others a line says why not.
--peers DIR: packages or wheels to import them from, where nothing can be installed. Some compile
for minutes: --patience leaves out what has not finished its first step in so many seconds.

"random" inputs are Gaussian. "trained" ones are as after training: a hidden state is mostly the
weight's row of its target, with a few rivals and noise, and targets follow Zipf's law.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import uncork.nn as unn
import uncork.nn.functional as F
from benchmarks import nn_peers as peers

Work = Callable[[], Any]
TRANSFORMS = [(4096, 32768, "float32"), (2048, 128256, "float32"), (4096, 50257, "bfloat16")]
SMALL = [(1024, 1000, 512), (8192, 10000, 512)]
LOSSES = [(8192, 256000, 2304), (8192, 128256, 4096), (8192, 32768, 512), (16384, 50257, 768)]
SCALES = [10 ** (e / 2) for e in range(-3, 5)]
ROUNDS = 7  # in which all take turns
PATIENCE = 0  # seconds for a first step, which may have to compile; 0: any


def milliseconds(work: Work, least: float = 20.0, batches: int = 5) -> float:
    """Median time of one call, of several calls back to back."""
    work()
    torch.cuda.synchronize()
    calls = 1
    times: list[float] = []
    while len(times) < batches:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        torch.cuda.synchronize()
        took = begin.elapsed_time(end)
        if not times and took < least and calls < 64:
            calls = min(64, max(calls + 1, int(calls * least / max(took, 1e-3))))
            continue
        times.append(took / calls)
    return statistics.median(times)


def ceilings() -> dict[str, float]:
    """What the machine can do: copies (TB/s, read plus written) and bfloat16 products (TFLOP/s)."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.empty(1 << 32, dtype=torch.uint8, device="cuda").random_()
    c = torch.empty_like(b)
    return {
        "copy TB/s": round(2 * b.numel() / milliseconds(lambda: c.copy_(b)) / 1e9, 2),
        "product TFLOP/s": round(2 * 8192**3 / milliseconds(lambda: a @ a) / 1e9, 1),
    }


def transforms(machine: dict[str, float], scales: list[float]) -> list[dict[str, Any]]:
    rows = []
    for size, n, dtype in TRANSFORMS:
        base = torch.randn(size, n, device="cuda")
        grad = torch.randn(size, n, device="cuda").to(getattr(torch, dtype))
        floor = 2 * grad.numel() * grad.element_size() / machine["copy TB/s"] / 1e9
        for std in scales:
            z = (base * std).to(grad.dtype)
            tau = unn.tau_from_data(z[:64])
            cases: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
                "softmax": lambda x: torch.softmax(x, -1),
                "entmax 1.5": lambda x: F.entmax(x, 1.5),
                "sparsemax": F.sparsemax,
                "entmax 1.25": lambda x: F.entmax(x, 1.25),
                "alpha_relu": lambda x, tau=tau: F.alpha_relu(x, 1.5, tau),
            }
            row: dict[str, Any] = {"rows": size, "classes": n, "dtype": dtype, "std": round(std, 4)}
            for name, transform in cases.items():
                leaf = z.detach().requires_grad_()
                out = transform(leaf)
                with torch.no_grad():
                    forward = milliseconds(lambda f=transform, x=z: f(x))
                backward = milliseconds(
                    lambda o=out, x=leaf, g=grad: torch.autograd.grad(o, x, g, retain_graph=True)
                )
                row[name] = {
                    "forward": round(forward, 4),
                    "backward": round(backward, 4),
                    "share of the ceiling": round(floor / forward, 2),
                    "support": round(float((out[:256] > 0).sum() / 256), 1),
                }
                del out, leaf
            if std == 1.0:
                row["peers, forward"] = {
                    name: round(milliseconds(lambda f=f, x=z: f(x), batches=3), 4)
                    for name, f in sparse_peers().items()
                }
            for name in list(cases)[1:]:
                for way in ("forward", "backward"):
                    row[name][f"{way} / softmax"] = round(row[name][way] / row["softmax"][way], 2)
            rows.append(row)
            print(json.dumps(row), flush=True)
        del base, grad
        torch.cuda.empty_cache()
    return rows


def sparse_peers() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """1.5-entmax of the packages that can be imported."""
    found = {}
    for name, work in peers.transforms().items():
        try:
            work(torch.randn(4, 1000, device="cuda"))
            found[name] = work
        except Exception as error:
            print(f"no {name}: {str(error)[:200]}", flush=True)
    return found


def inputs(n: int, classes: int, d: int, kind: str) -> tuple[torch.Tensor, ...]:
    """Hidden states, weight, target."""
    torch.manual_seed(0)
    w = torch.randn(classes, d, device="cuda") / d**0.5
    if kind == "random":
        x = torch.randn(n, d, device="cuda")
        target = torch.randint(0, classes, (n,), device="cuda")
    else:
        ranks = torch.rand(n, device="cuda", dtype=torch.float64)
        target = (classes**ranks - 1).long().clamp(0, classes - 1)  # P(class) ~ 1/class
        rivals = torch.randint(0, classes, (n, 4), device="cuda")
        x = 12 * w[target] + 4 * w[rivals].mean(1) + torch.randn(n, d, device="cuda")
    return x.bfloat16().requires_grad_(), w.bfloat16().requires_grad_(), target


def logit_losses(machine: dict[str, float], scales: list[float]) -> list[dict[str, Any]]:
    """Forward + backward of losses of given logits. Two reads and two writes are the ceiling."""
    found = []
    for size, n, dtype in TRANSFORMS:
        base = torch.randn(size, n, device="cuda")
        target = torch.randint(0, n, (size,), device="cuda")
        for std in [scale for scale in scales if 0.1 <= scale <= 10]:
            z = (base * std).to(getattr(torch, dtype)).requires_grad_()
            tau = unn.tau_from_data(z[:64].detach())
            cases: dict[str, Callable[..., torch.Tensor]] = {
                "cross_entropy": torch.nn.functional.cross_entropy,
                "entmax_loss 1.5": F.entmax_loss,
                "sparsemax_loss": F.sparsemax_loss,
                "alpha_relu_loss": lambda z, t, tau=tau: F.alpha_relu_loss(z, t, tau=tau),
            }
            cases |= peers.losses_of_logits()
            row: dict[str, Any] = {"rows": size, "classes": n, "dtype": dtype, "std": round(std, 4)}
            floor = 4 * z.numel() * z.element_size() / machine["copy TB/s"] / 1e9
            row["two reads and two writes ms"] = round(floor, 3)
            steps: dict[str, Work] = {}
            for name, loss in cases.items():

                def step(
                    loss: Callable[..., torch.Tensor] = loss,
                    z: torch.Tensor = z,
                    target: torch.Tensor = target,
                ) -> None:
                    z.grad = None
                    loss(z, target).backward()

                steps[name] = step
            times: dict[str, list[float]] = {name: [] for name in steps}
            for _ in range(3):
                for name, step in steps.items():
                    times[name].append(milliseconds(step, least=20.0, batches=1))
            softmax = statistics.median(times["cross_entropy"])
            for name in steps:
                time = statistics.median(times[name])
                row[name] = {"ms": round(time, 3), "of softmax": round(time / softmax, 2)}
            print(json.dumps(row), flush=True)
            found.append(row)
            z.grad = None
    return found


def loss_rows(
    cases: dict[str, Callable[..., torch.Tensor]],
    data: Any,
    ceiling: float,
    rounds: int | None = None,
) -> dict[str, Any]:
    """Each case's time, a median over rounds in which all take turns: what disturbs the machine
    for a moment then falls on all of them alike."""
    x, w, target = data
    made = (x.numel() + w.numel()) * x.element_size()
    steps: dict[str, Work] = {}
    extra: dict[str, int] = {}
    rows: dict[str, Any] = {}
    for name, loss in cases.items():

        def step(loss: Callable[..., torch.Tensor] = loss) -> None:
            x.grad = w.grad = None
            loss(x, w, target).backward()

        try:
            with within(PATIENCE):
                step()
            x.grad = w.grad = None
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            step()
            torch.cuda.synchronize()
            extra[name] = torch.cuda.max_memory_allocated() - before - made
            steps[name] = step
        except Exception as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            print(name, "failed:", said[0][:200], flush=True)
            rows[name] = {"failed": said[0][:200]}
        finally:
            x.grad = w.grad = None
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds or ROUNDS):
        for name, step in steps.items():
            times[name].append(milliseconds(step, least=40.0, batches=1))
            x.grad = w.grad = None
    for name in steps:
        time = statistics.median(times[name])
        rows[name] = {
            "ms": round(time, 3),
            "fastest to slowest round": [round(min(times[name]), 3), round(max(times[name]), 3)],
            "extra MiB": round(extra[name] / 2**20),
            "share of three products": round(ceiling / time, 3),
        }
    return rows


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """A TimeoutError after so many seconds; after none, never."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"not compiled within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def losses(machine: dict[str, float], scales: list[float]) -> list[dict[str, Any]]:
    rows = []
    for n, classes, d in LOSSES:
        ceiling = 6 * n * classes * d / machine["product TFLOP/s"] / 1e9
        others = peers.linear_losses()
        print(json.dumps(peers.PATHS), flush=True)
        for kind in ("random", "trained"):
            data = inputs(n, classes, d, kind)
            x, w, _ = data
            with torch.no_grad():
                z = x[:64].float() @ w.float().T
                tau = unn.tau_from_data(z)
                support = {
                    "entmax 1.5": float((F.entmax(z, 1.5) > 0).sum() / 64),
                    "sparsemax": float((F.sparsemax(z) > 0).sum() / 64),
                }
            cases: dict[str, Callable[..., torch.Tensor]] = {
                "linear_alpha_relu_loss": lambda x, w, t, tau=tau: F.linear_alpha_relu_loss(
                    x, w, t, tau=tau
                ),
                "linear_alpha_relu_loss, dense (τ = 0)": lambda x, w, t: F.linear_alpha_relu_loss(
                    x, w, t, tau=0.0
                ),
                "linear_entmax_loss 1.5": F.linear_entmax_loss,
                "linear_sparsemax_loss": F.linear_sparsemax_loss,
                "linear_cross_entropy": F.linear_cross_entropy,
                "linear_cross_entropy, float32 sums": (
                    lambda x, w, t: F.linear_cross_entropy(x, w, t, float32_accumulation=True)
                ),
                **others,
            }
            row: dict[str, Any] = {
                "rows": n, "classes": classes, "features": d, "inputs": kind,
                "three products ms": round(ceiling, 2), "support": support, "tau": round(tau, 4),
            }  # fmt: skip
            row |= loss_rows(cases, data, ceiling)
            print(json.dumps(row), flush=True)
            rows.append(row)
            if kind == "random":
                rows.extend(sweep(data, scales, ceiling, row))
            del data, x, w
            torch.cuda.empty_cache()
        torch._dynamo.reset()
    return rows


def small_problems(machine: dict[str, float], scales: list[float]) -> list[dict[str, Any]]:
    """A layer and its loss where memory is no worry: in one, and one after the other."""
    linear = torch.nn.functional.linear
    cases: dict[str, Callable[..., torch.Tensor]] = {
        "cross_entropy(linear)": lambda x, w, t: torch.nn.functional.cross_entropy(linear(x, w), t),
        "linear_cross_entropy": F.linear_cross_entropy,
        "entmax_loss(linear)": lambda x, w, t: F.entmax_loss(linear(x, w), t),
        "linear_entmax_loss": F.linear_entmax_loss,
        "alpha_relu_loss(linear)": lambda x, w, t: F.alpha_relu_loss(linear(x, w), t, tau=1.0),
        "linear_alpha_relu_loss": lambda x, w, t: F.linear_alpha_relu_loss(x, w, t, tau=1.0),
    }
    rows = []
    for n, classes, d in SMALL:
        ceiling = 6 * n * classes * d / machine["product TFLOP/s"] / 1e9
        row: dict[str, Any] = {"rows": n, "classes": classes, "features": d}
        row |= loss_rows(cases, inputs(n, classes, d, "random"), ceiling)
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def sweep(data: Any, scales: list[float], ceiling: float, like: Any) -> list[dict[str, Any]]:
    """The sparse losses over the logits' scale; softmax's cost does not depend on it."""
    x, w, target = data
    rows = []
    for std in scales:
        scaled = ((x.detach() * std).requires_grad_(), w, target)
        with torch.no_grad():
            z = scaled[0][:64].float() @ w.float().T
            tau = unn.tau_from_data(z)
            support = float((F.entmax(z, 1.5) > 0).sum() / 64)
        cases: dict[str, Callable[..., torch.Tensor]] = {
            "linear_alpha_relu_loss": lambda x, w, t, tau=tau: F.linear_alpha_relu_loss(
                x, w, t, tau=tau
            ),
            "linear_entmax_loss 1.5": F.linear_entmax_loss,
            "linear_sparsemax_loss": F.linear_sparsemax_loss,
        }
        row = {key: like[key] for key in ("rows", "classes", "features", "three products ms")}
        row |= {"inputs": "random", "std": round(std, 4), "support": {"entmax 1.5": support}}
        row |= loss_rows(cases, scaled, ceiling, rounds=3)
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


PARTS = {
    "transforms": transforms, "logit losses": logit_losses, "losses": losses,
    "small problems": small_problems,
}  # fmt: skip


def choose(options: argparse.Namespace) -> None:
    global ROUNDS, PATIENCE
    ROUNDS, PATIENCE = options.rounds, options.patience
    if options.shapes:
        LOSSES[:] = [tuple(int(size) for size in shape.split("x")) for shape in options.shapes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="losses at three scales of the logits")
    parser.add_argument("--only", choices=list(PARTS), nargs="+", default=list(PARTS))
    parser.add_argument("--shapes", nargs="+", help="of linear losses: ROWSxCLASSESxFEATURES")
    parser.add_argument("--scales", type=float, nargs="+", help="of the logits: 1 is one of them")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--patience", type=int, default=PATIENCE, help="seconds of a first step")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/nn_gpu.json"))
    parser.add_argument("--peers", type=Path, help="a folder of packages or wheels to import")
    options = parser.parse_args()
    if options.peers is not None:
        peers.add_to_path(options.peers)
    quick = [SCALES[0], 1.0, 10.0]
    choose(options)
    machine = ceilings()
    print(json.dumps(machine), flush=True)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(0), "torch": torch.__version__, "ceilings": machine,
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name, measure in PARTS.items():
        if name in options.only:
            scales = quick if options.quick and name == "losses" else SCALES
            result[name] = measure(machine, options.scales or scales)
            result["peers"] = peers.PATHS
            options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
