"""Losses of trainers without logits, beside the same written in full: log-probabilities of tokens,
with entropies, at a temperature, of sparse policies; distillation; cross entropy with a z-loss.

    python -m benchmarks.nn_trainers [--rows N] [--classes C] [--only NAME …] [--out FILE]

A step is the loss and its gradients for hidden states and weight. "in full" is how it is usually
written, all logits in float32; on a GPU torch.compile of that takes part, and Liger where it has
the same loss and can be imported (--peers DIR: from there). All take turns in one process on the
same tensors, and a median is printed as the ratio to "in full". On a GPU in bfloat16, with the
memory that a step needs beyond its tensors; on a CPU in float32, processor time of one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import uncork.nn.functional as F
from benchmarks import nn_peers as peers
from benchmarks.nn_heads import peak, seconds

Tensor = torch.Tensor
Loss = Callable[..., Tensor]
ROUNDS = 5
SIZES = {"cuda": (8192, 128_256, 4096), "cpu": (128, 32_768, 512)}
log_softmax = torch.nn.functional.log_softmax


class Data:
    """What every loss is made of: a student, its tokens, a teacher, and what came from before."""

    def __init__(self, rows: int, classes: int, features: int, device: str) -> None:
        torch.manual_seed(0)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32

        def made(*shape: int, std: float = 1.0) -> Tensor:
            return (torch.randn(*shape, device=device) * std).to(dtype)

        self.x = made(rows, features).requires_grad_()
        self.w = made(classes, features, std=features**-0.5).requires_grad_()
        self.tokens = torch.randint(classes, (rows,), device=device)
        self.teacher = made(rows, features)
        self.head = made(classes, features, std=features**-0.5)
        self.up = torch.randn(rows, device=device)  # of log-probabilities, as advantages are
        self.likely = self.best()  # on the support of a sparse policy

    def best(self) -> Tensor:
        with torch.no_grad():
            return F.linear_cross_entropy(
                self.x, self.w, self.tokens, return_predictions=True
            ).predicted  # fmt: skip


def in_full(x: Tensor, w: Tensor, temperature: float = 1.0) -> Tensor:
    return log_softmax((x @ w.T).float() / temperature, -1)


def at(log_p: Tensor, tokens: Tensor) -> Tensor:
    return log_p.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def losses(data: Data) -> dict[str, tuple[Loss, Loss]]:
    """By name: ours, and the same in full, both of (hidden states, weight)."""
    tokens, likely, up = data.tokens, data.likely, data.up
    teacher, head = data.teacher, data.head

    def with_entropy(log_p: Tensor, entropy: Tensor) -> Tensor:
        return (up * log_p).sum() - 0.01 * entropy.sum()

    def entropy_in_full(x: Tensor, w: Tensor) -> Tensor:
        log_p = in_full(x, w)
        return with_entropy(at(log_p, tokens), -(log_p.exp() * log_p).sum(-1))

    def jsd_in_full(x: Tensor, w: Tensor) -> Tensor:
        log_p, log_t = in_full(x, w), in_full(teacher, head)
        log_m = torch.logsumexp(torch.stack([log_p, log_t]), 0) - torch.tensor(2.0).log()
        both = log_t.exp() * (log_t - log_m) + log_p.exp() * (log_p - log_m)
        return 0.5 * both.sum(-1).mean()

    def kl_in_full(x: Tensor, w: Tensor) -> Tensor:
        log_p, log_t = in_full(x, w), in_full(teacher, head)
        return torch.nn.functional.kl_div(log_p, log_t, reduction="batchmean", log_target=True)

    def reverse_in_full(x: Tensor, w: Tensor) -> Tensor:
        log_p, log_t = in_full(x, w), in_full(teacher, head)
        return torch.nn.functional.kl_div(log_t, log_p, reduction="batchmean", log_target=True)

    def z_loss_in_full(x: Tensor, w: Tensor) -> Tensor:
        z = (x @ w.T).float()
        return torch.nn.functional.cross_entropy(z, tokens) + 1e-4 * (z.logsumexp(-1) ** 2).mean()

    def distilled(divergence: Any) -> Loss:
        return lambda x, w: F.linear_distillation_loss(
            x, w, teacher, teacher_weight=head, divergence=divergence
        )

    return {
        "log p": (
            lambda x, w: (up * F.linear_log_prob(x, w, tokens)).sum(),
            lambda x, w: (up * at(in_full(x, w), tokens)).sum(),
        ),
        "log p at a temperature": (
            lambda x, w: (up * F.linear_log_prob(x, w, tokens, temperature=0.7)).sum(),
            lambda x, w: (up * at(in_full(x, w, 0.7), tokens)).sum(),
        ),
        "log p and entropy": (
            lambda x, w: with_entropy(*F.linear_log_prob(x, w, tokens, return_entropy=True)),
            entropy_in_full,
        ),
        "log p, 1.5-entmax": (
            lambda x, w: (up * F.linear_log_prob(x, w, likely, alpha=1.5)).sum(),
            lambda x, w: (up * at(F.log_entmax((x @ w.T).float()), likely)).sum(),
        ),
        "kl": (distilled("kl"), kl_in_full),
        "reverse_kl": (distilled("reverse_kl"), reverse_in_full),
        "jsd": (distilled("jsd"), jsd_in_full),
        "z-loss": (
            lambda x, w: F.linear_cross_entropy(x, w, tokens, z_loss=1e-4),
            z_loss_in_full,
        ),
    }


def others(name: str, full: Loss, data: Data) -> dict[str, Loss]:
    """Peers of one loss."""
    if not data.x.is_cuda:
        return {}
    found = {peers.named("torch.compile", "torch", "in full"): torch.compile(full)}
    betas = {"kl": 0.0, "jsd": 0.5, "reverse_kl": 1.0}
    if name in betas:
        found |= peers.linear_divergences(betas[name], data.teacher, data.head)
    return found


def measure(
    name: str, cases: dict[str, Loss], data: Data, device: str, least: float
) -> list[dict[str, Any]]:
    """A row for each way of computing one loss, which must agree with "in full"."""

    def step(loss: Loss) -> Tensor:
        data.x.grad = data.w.grad = None
        made = loss(data.x, data.w)
        made.backward()
        return made.detach()

    times: dict[str, list[float]] = {way: [] for way in cases}
    for _ in range(ROUNDS):
        for way, loss in cases.items():
            times[way].append(seconds(lambda loss=loss: step(loss), device, least, 5))
    exact = float(step(cases["in full"]))
    rows = []
    for way, loss in cases.items():
        found = {"loss": name, "way": way, "ms": round(1e3 * statistics.median(times[way]), 3)}
        found["of in full"] = round(
            statistics.median(times[way]) / statistics.median(times["in full"]), 3
        )
        found["off by"] = f"{abs(float(step(loss)) - exact) / abs(exact):.1e}"
        data.x.grad = data.w.grad = None
        most = peak(lambda loss=loss: step(loss), device)
        if most is not None:
            found["MiB"] = round(1024 * most)
        rows.append(found)
        print("  ".join(f"{key} {value}" for key, value in found.items()), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, classes, features = SIZES[device]
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--classes", type=int, default=classes)
    parser.add_argument("--features", type=int, default=features)
    parser.add_argument("--only", nargs="+", help="only these losses")
    parser.add_argument("--peers", type=Path, help="a folder of packages or wheels to import")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    if options.peers is not None:
        peers.add_to_path(options.peers)
    if device == "cpu":
        torch.set_num_threads(1)
    data = Data(options.rows, options.classes, options.features, device)
    machine = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    sizes = f"{options.rows} x {options.classes} x {options.features}"
    print(f"{machine}, torch {torch.__version__}: {sizes}, {data.x.dtype}", flush=True)
    made: list[dict[str, Any]] = []
    for name, (ours, full) in losses(data).items():
        if options.only and name not in options.only:
            continue
        cases = {"in full": full, "uncork": ours, **others(name, full, data)}
        made += measure(name, cases, data, device, 0.2)
        if options.out is not None:  # after every loss: what was measured is kept
            found = {"machine": machine, "torch": torch.__version__, "sizes": sizes,
                     "peers": peers.PATHS, "figures": made}  # fmt: skip
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
