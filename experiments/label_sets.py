"""Label sets of multi-label heads: random ones, shipped ones, and F1@k of layers beside each other.

python experiments/label_sets.py random --json docs/results/data/label_sets_random.json
python experiments/label_sets.py shipped MODEL.tflite --json …
python experiments/label_sets.py train --json docs/results/data/label_sets_f1.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import uncork
from uncork.labels import LabelSets, decide_sets
from uncork.labels.price import wilson


def random_heads(labels: int, features: int, sample: int) -> list[dict[str, Any]]:
    """Shares of infeasible singles, pairs and triples of random heads, with and without a bias."""
    rows = []
    for bias in (None, 0.0, -2.0, -3.0):
        rng = np.random.default_rng(0)
        weight = rng.normal(size=(labels, features)).astype(np.float32) / np.sqrt(features)
        offsets = None
        if bias is not None:
            offsets = (bias + 0.5 * rng.normal(size=labels)).astype(np.float32)
        head = uncork.Head(weight, offsets)
        for size in (1, 2, 3):
            sets = LabelSets.of_size(labels, 1) if size == 1 else \
                LabelSets.sample(labels, size, sample)  # fmt: skip
            began = time.process_time()
            found = decide_sets(head, sets, jobs=1, keep=False)
            decided = len(sets) - len(found.undecided)
            rows.append({
                "labels": labels, "features": features, "bias": bias, "size": size,
                "sets": len(sets), **found.counts,
                "share": len(found.infeasible) / decided,
                "interval_95": wilson(len(found.infeasible), decided),
                "processor_seconds": round(time.process_time() - began, 2),
            })  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def shipped(path: str, domain: str, sample: int) -> list[dict[str, Any]]:
    """Every single label of a model file, and a sample of pairs."""
    head = uncork.load(path, domain=domain)
    rows = []
    for size in (1, 2):
        sets = LabelSets.of_size(head.classes, 1) if size == 1 else \
            LabelSets.sample(head.classes, size, sample)  # fmt: skip
        began = time.process_time()
        found = decide_sets(head, sets, keep=False)
        rows.append({
            "model": Path(path).name, "labels": head.classes, "features": head.features,
            "domain": str(head.domain), "size": size, "sets": len(sets), **found.counts,
            "processor_seconds": round(time.process_time() - began, 1),
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def data(labels: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """One to four labels of each example, any of them together; an input is the sum of its labels'
    directions, with noise."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(labels, 100)) / 10
    y = np.zeros((8000, labels), dtype=np.float32)
    for row in y:
        row[rng.choice(labels, int(rng.integers(1, 5)), replace=False)] = 1
    x = (y @ directions + 0.04 * rng.normal(size=(len(y), 100))).astype(np.float32)
    return x[:7000], y[:7000], x[7000:], y[7000:]


def f1_at(z: np.ndarray, y: np.ndarray, k: int) -> float:
    """Mean F1 of the k labels with the largest logits."""
    top = np.argsort(-z, axis=1)[:, :k]
    right = np.take_along_axis(y, top, axis=1).sum(axis=1)
    return float((2 * right / (k + y.sum(axis=1))).mean())


def train(labels: int, k: int, epochs: int) -> list[dict[str, Any]]:
    """One hidden layer, then a full layer, a bottleneck of 2k + 1 features, or a k-active one."""
    import torch

    import uncork.nn as unn

    def layer(kind: str, width: int) -> Any:
        if kind == "k-active":
            return unn.KActiveLinear(width, labels, k)
        return torch.nn.Linear(width, labels)

    settings = [("full", 256)]
    settings += [(kind, width) for width in (2 * k + 1, 16, 32) for kind in ("plain", "k-active")]
    rows = []
    for kind, width in settings:
        for seed in range(3):
            torch.manual_seed(seed)
            x, y, x_test, y_test = data(labels, seed)
            body = torch.nn.Sequential(
                torch.nn.Linear(x.shape[1], 256), torch.nn.ReLU(), torch.nn.Linear(256, width)
            )
            model = torch.nn.Sequential(body, layer(kind, width))
            optimiser = torch.optim.Adam(model.parameters(), 2e-3)
            inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
            for _ in range(epochs):
                for part in torch.randperm(len(x)).split(128):
                    loss = torch.nn.functional.binary_cross_entropy_with_logits(
                        model(inputs[part]), targets[part]
                    )
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
            with torch.no_grad():
                z = model(torch.from_numpy(x_test)).numpy()
            last = model[-1]
            bias = None if last.bias is None else last.bias.detach().numpy()
            head = uncork.Head(last.weight.detach().numpy(), bias)
            sets = LabelSets.of_matrix(y_test, labels)
            few = sets.take(np.flatnonzero(sets.sizes <= k)[:200])
            found = decide_sets(head, few, jobs=1, keep=False)
            trained = sum(p.numel() for p in last.parameters())
            rows.append({
                "layer": kind, "features": width, "seed": seed,
                "parameters_of_the_layer": trained, f"f1_at_{k}": f1_at(z, y_test, k),
                "exact_match": float(((z > 0) == y_test).all(axis=1).mean()),
                "test_sets": len(few), "infeasible": len(found.infeasible),
                "undecided": len(found.undecided),
            })  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("random", "shipped", "train"))
    parser.add_argument("model", nargs="?")
    parser.add_argument("--domain", default="auto")
    parser.add_argument("--labels", type=int, default=None)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--sample", type=int, default=2000)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.what == "random":
        rows = random_heads(options.labels or 1000, options.features, options.sample)
    elif options.what == "shipped":
        rows = shipped(options.model, options.domain, options.sample)
    else:
        rows = train(options.labels or 100, options.k, options.epochs)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
