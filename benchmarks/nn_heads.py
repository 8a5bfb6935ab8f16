"""Output heads beside plain softmax: python -m benchmarks.nn_heads [--small] [--out FILE]
    python -m benchmarks.nn_heads --table FILE    # what was written, as docs/how-to/heads.md has it

For each head and vocabulary: the time of a training step (loss and all gradients) and the most
memory it needs beyond parameters and inputs, and the time to decode 64 rows (argmax). The yardstick
runs in the same process on the same tensors: torch's own cross_entropy(linear(hidden)). "mos in
full" is a mixture of softmaxes as it is usually written, all components' probabilities at once.
On a GPU in bfloat16. On a CPU in float32 and one thread: processor time, which neighbours do not
change, fewer rows and components, and no memory. "at most" is what a head may cost beside softmax:
K + 1 times it for K components, twice it for one. --small: toy sizes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import uncork.nn as unn

ROWS, FEATURES = 4096, 512
CLASSES = (10_000, 50_000, 128_000)
CPU_ROWS, CPU_CLASSES = 64, (50_000,)
MIXTURES = ("mos", "moc", "mos-sigsoftmax")
COMPONENTS = {"cuda": 10, "cpu": 4}
IN_FULL = 50_000  # the largest vocabulary for which "mos in full" is run


def seconds(work: Callable[[], Any], device: str, least: float, most: int = 20) -> float:
    """Median time of one call, after one to warm up."""
    work()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < least and len(times) < most):
        if device == "cuda":
            torch.cuda.synchronize()
        clock = time.perf_counter if device == "cuda" else time.process_time
        began = clock()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(clock() - began)
    return statistics.median(times)


def peak(work: Callable[[], Any], device: str) -> float | None:
    """GiB that a call needs at most beyond what is held before it."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - held) / 2**30


def profile(step: Callable[[], Any]) -> str:
    """Kernels that take most of a step's time: milliseconds and launches in one step."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watched

    step()
    with watched(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    rows = [one for one in seen.key_averages() if one.self_device_time_total > 0]
    rows.sort(key=lambda one: -one.self_device_time_total)
    lines = [
        f"{one.self_device_time_total / 5e3:8.3f} ms {one.count / 5:6.1f}  {one.key[:90]}"
        for one in rows[:16]
    ]
    return "\n".join(lines)


def mixture_in_full(head: Any, hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """As the paper's own code: probabilities of all components, mixed, logarithm last."""
    contexts, log_prior = head.contexts(hidden)
    logits = torch.nn.functional.linear(contexts, head.weight, head.bias)  # (N, K, C)
    mixed = (torch.softmax(logits.float(), -1) * log_prior.exp().unsqueeze(-1)).sum(1)
    return torch.nn.functional.nll_loss(torch.log(mixed + 1e-8), target)


def measure(
    name: str, rows: int, features: int, classes: int, device: str, least: float
) -> dict[str, Any]:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    kind = {"torch": "softmax", "mos in full": "mos"}.get(name, name)
    settings: dict[str, Any] = {"device": device, "dtype": dtype}
    if kind in MIXTURES:
        settings["components"] = COMPONENTS[device]
    head: Any = unn.heads.HEADS[kind](features, classes, **settings)
    hidden = torch.randn(rows, features, device=device, dtype=dtype, requires_grad=True)
    target = torch.randint(0, classes, (rows,), device=device)

    def loss() -> torch.Tensor:
        if name == "torch":
            logits = torch.nn.functional.linear(hidden, head.weight, head.bias)
            return torch.nn.functional.cross_entropy(logits, target)
        if name == "mos in full":
            return mixture_in_full(head, hidden, target)
        return head.loss(hidden, target)

    def step() -> None:
        hidden.grad = None
        head.zero_grad(set_to_none=True)
        loss().backward()

    few = hidden.detach()[:64]
    took = seconds(step, device, least)
    hidden.grad = None
    head.zero_grad(set_to_none=True)
    most = peak(step, device)
    return {
        "head": name,
        "classes": classes,
        "at most": getattr(head, "components", 1) + 1,
        "parameters": sum(parameter.numel() for parameter in head.parameters()),
        "milliseconds": round(1e3 * took, 3),
        "GiB": None if most is None else round(most, 4),
        "decoding milliseconds": round(1e3 * seconds(lambda: head.argmax(few), device, least), 3),
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'head':<16}{'classes':>9}{'ms':>10}{'ratio':>8}{'at most':>9}{'GiB':>9}{'ratio':>8}"
        f"{'decode':>9}"
    ]
    for row in rows:
        memory = "" if row["GiB"] is None else f"{row['GiB']:.3f}"
        share = "" if row["GiB"] is None else f"{row['memory / softmax']:.2f}"
        lines.append(
            f"{row['head']:<16}{row['classes']:>9,}{row['milliseconds']:>10.2f}"
            f"{row['time / softmax']:>8.2f}{row['at most']:>9}{memory:>9}{share:>8}"
            f"{row['decoding milliseconds']:>9.2f}"
        )
    return "\n".join(lines)


def documented(found: dict[str, Any]) -> str:
    """Written figures as a table of Markdown: a row a head, time and memory a vocabulary."""
    names = {"torch": "torch's cross_entropy(linear)", "mos in full": "MoS written in full"}
    figures = {(row["head"], row["classes"]): row for row in found["figures"]}
    sizes = sorted({classes for _, classes in figures})
    heads = list(dict.fromkeys(row["head"] for row in found["figures"]))
    lines = [
        "| head | " + " | | ".join(f"{size:,}" for size in sizes) + " | |",
        "| --- |" + " --- | --- |" * len(sizes),
        "| |" + " time | memory |" * len(sizes),
    ]
    for head in heads:
        mixed = f"`{head}` K={COMPONENTS['cuda']}" if head in MIXTURES else f"`{head}`"
        cells = [names.get(head, mixed)]
        for size in sizes:
            row = figures.get((head, size))
            if row is None:
                cells += ["", ""]
            elif head == "torch":
                cells += [f"{row['milliseconds']:.2f} ms", f"{row['GiB']:.2f} GiB"]
            else:
                ratio = row["time / softmax"]
                cells.append(f"{ratio:.2f}×" if ratio < 2.5 else f"{ratio:.1f}×")
                cells.append(f"{row['memory / softmax']:.2f}×")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="toy sizes: shows that it runs")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--classes", type=int, nargs="+", help="only these vocabularies")
    parser.add_argument("--heads", nargs="*", help="only these (torch's softmax always takes part)")
    parser.add_argument("--table", type=Path, help="print this file's figures, and measure none")
    arguments = parser.parse_args()
    if arguments.table is not None:
        print(documented(json.loads(arguments.table.read_text(encoding="utf-8"))))
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = arguments.small
    rows, features = (128, 64) if small else (ROWS if device == "cuda" else CPU_ROWS, FEATURES)
    if device == "cpu":
        torch.set_num_threads(1)
    names = arguments.heads or ["mos in full", *unn.heads.HEADS]
    machine = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{machine}, torch {torch.__version__}: {rows} rows, {features} features", flush=True)
    made: list[dict[str, Any]] = []
    sizes = (2_000,) if small else CLASSES if device == "cuda" else CPU_CLASSES
    for classes in arguments.classes or sizes:
        plain: dict[str, Any] = {}
        for name in ["torch", *names]:
            if name == "mos in full" and classes > IN_FULL:
                continue
            row = measure(name, rows, features, classes, device, 0.05 if small else 0.2)
            plain = plain or row
            row["time / softmax"] = round(row["milliseconds"] / plain["milliseconds"], 3)
            if row["GiB"] is not None:
                row["memory / softmax"] = round(row["GiB"] / plain["GiB"], 3)
            made.append(row)
            print(table([row]).splitlines()[1], flush=True)
            if arguments.out is not None:  # after every row: what was measured is kept
                found = {"machine": machine, "torch": torch.__version__, "rows": rows,
                         "features": features, "figures": made}  # fmt: skip
                arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            torch.cuda.empty_cache()
    print(table(made))


if __name__ == "__main__":
    main()
