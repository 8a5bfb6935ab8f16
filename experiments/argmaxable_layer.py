"""ArgmaxableLinear against a plain layer: accuracy, and classes lost while training.

    python experiments/argmaxable_layer.py     (needs torch and scikit-learn; a minute on one core)

Three tasks: scikit-learn's digits, and 200 classes of noisy points through 3 and 8 features. Each
layer follows the same two-layer network, with the same seeds and settings.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits

import uncork.nn as unn
from uncork import Head, audit

SEEDS = (0, 1, 2)
EPOCHS = 30


def digits(seed):
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    return x[order] / 16, y[order], 10


def many_classes(seed, classes=200, each=40):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), each)
    x = rng.normal(size=(classes, 32))[y] + 0.35 * rng.normal(size=(len(y), 32))
    order = rng.permutation(len(y))
    return x[order], y[order], classes


def lost(layer):
    """Classes not proven argmaxable (inputs within ±100)."""
    plain = layer if isinstance(layer, torch.nn.Linear) else layer.to_linear()
    result = audit(Head(plain.weight, plain.bias), device="cpu", jobs=1)
    return plain.out_features - result.counts["argmaxable"]


def train(task, features, how, seed):
    x, y, classes = task(seed)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    split = len(y) * 4 // 5
    torch.manual_seed(seed)
    body = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], 128), torch.nn.ReLU(), torch.nn.Linear(128, features)
    )
    if how == "plain":
        head = torch.nn.Linear(features, classes)
    else:
        head = unn.ArgmaxableLinear(features, classes, how)
    optimiser = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=3e-3)
    checkpoints = []
    for epoch in range(EPOCHS):
        for start in range(0, split, 128):
            logits = head(body(x[start : start + 128]))
            loss = torch.nn.functional.cross_entropy(logits, y[start : start + 128])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if (epoch + 1) % (EPOCHS // 5) == 0:
            checkpoints.append(lost(head))
    with torch.no_grad():
        right = head(body(x[split:])).argmax(1) == y[split:]
    return right.float().mean().item(), checkpoints


def main():
    torch.set_num_threads(1)
    for name, task, features in (
        ("digits, 8 features", digits, 8),
        ("200 classes, 3 features", many_classes, 3),
        ("200 classes, 8 features", many_classes, 8),
    ):
        for how in ("plain", "norm", "bias"):
            runs = [train(task, features, how, seed) for seed in SEEDS]
            accuracy = np.array([a for a, _ in runs])
            print(
                f"{name:<24} {how:<6} accuracy {accuracy.mean():.3f} "
                f"({' '.join(f'{a:.3f}' for a in accuracy)})  "
                f"lost at 5 checkpoints: {', '.join(str(c) for _, c in runs)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
