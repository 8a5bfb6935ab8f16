"""What the watch costs while a model trains: python -m benchmarks.nn_watch [--quick] [--out FILE]

A decoder of six layers (512 features, 8 heads, feed-forward 2,048) with an untied head of 32,000 ×
512 and bias trains on 8,192 tokens a step (16 × 512; tokens follow Zipf's law, each the sum of
the two before it, so that there is something to learn): bfloat16 autocast, cross-entropy over all
logits, fused AdamW. The watch counts every 100 steps. Its share is the time of a count over that of
100 steps without one. Afterwards a full audit says whether the last count was right. Then the
training goes on with a new watch that is held to 1 % of the time, its first count, a full audit,
included: at which steps does it count, and what share did it take?
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from uncork.auditing import audit
from uncork.core.head import Head
from uncork.domain import Box
from uncork.nn import Watch


class Decoder(nn.Module):
    """A small language model, pre-norm."""

    def __init__(self, classes: int, features: int, layers: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(classes, features)
        self.places = nn.Embedding(context, features)
        block = nn.TransformerEncoderLayer(
            features, max(1, features // 64), 4 * features, 0.0, "gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.body = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(features)
        self.head = nn.Linear(features, classes)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.norm(self.body(x, mask=mask, is_causal=True)))


def batches(classes: int, size: int, context: int, device: str) -> torch.Tensor:
    """Sixteen batches, on the device: (16, size, context + 1)."""
    ids = (classes ** torch.rand(16, size, context + 1, device=device) - 1).long()
    for k in range(2, context + 1, 2):
        ids[:, :, k] = (ids[:, :, k - 1] + ids[:, :, k - 2]) % classes
    return ids.clamp(0, classes - 1)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    classes, features, context = arguments.classes, arguments.features, arguments.context
    model = Decoder(classes, features, arguments.layers, context).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")
    data = batches(classes, arguments.batch, context, device)
    mask = nn.Transformer.generate_square_subsequent_mask(context, device=device)

    def step(k: int) -> None:
        ids = data[k % len(data)]
        with torch.autocast(device, torch.bfloat16):
            z = model(ids[:, :-1], mask)
            loss = nn.functional.cross_entropy(z.flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    def clock() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    for k in range(10):
        step(k)
    watch = Watch(model.head, every=arguments.every, domain=Box(100))
    began = clock()
    first = watch.count()
    first_seconds = clock() - began
    windows, counts = [], []
    for window in range(arguments.windows):
        began = clock()
        for k in range(arguments.every):
            step(window * arguments.every + k)
        trained = clock()
        counted = watch.count()
        ended = clock()
        windows.append((trained - began, ended - trained))
        counts.append(counted)
        print(
            f"{arguments.every} steps {trained - began:.3f} s, count {ended - trained:.4f} s, "
            f"audited {counted['audited']:.0f}, unargmaxable {counted['unargmaxable']:.0f}",
            flush=True,
        )
    head = Head(model.head.weight.detach(), model.head.bias.detach(), domain=Box(100))
    began = clock()
    full = audit(head, device=device)
    full_seconds = clock() - began
    held = Watch(model.head, every=arguments.every, share=arguments.share)
    clock()
    for k in range(arguments.held):
        step(k)
        held.step()
    clock()
    share = held._pace.share
    steps, watching = (statistics.median(times) for times in zip(*windows, strict=True))
    same = all(counts[-1][name] == full.counts[name] for name in ("unargmaxable", "tied"))
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "classes": classes, "features": features, "tokens a step": arguments.batch * context,
        "every": arguments.every, "step ms": round(1e3 * steps / arguments.every, 4),
        "count ms": round(1e3 * watching, 3), "count ms, worst": round(
            1e3 * max(t for _, t in windows), 3),
        "share %": round(100 * watching / steps, 3),
        "share %, all counts": round(
            100 * sum(t for _, t in windows) / sum(t for t, _ in windows), 3),
        "first count s": round(first_seconds, 3), "full audit s": round(full_seconds, 3),
        "first": first, "last": counts[-1], "full": dict(full.counts),
        "last count equals the full audit": same,
        "held to %": 100 * arguments.share, "held: steps": arguments.held,
        "held: counted at": [int(entry["step"]) for entry in held.history],
        "held: share % at the end": round(100 * share, 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a toy, to see that it runs")
    parser.add_argument("--classes", type=int, default=32_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--held", type=int, default=6000, help="steps of the training held to it")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.classes, arguments.features, arguments.layers = 300, 16, 1
        arguments.context, arguments.batch, arguments.every, arguments.windows = 16, 4, 5, 2
        arguments.held = 20
    result = measure(arguments)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        Path(arguments.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
