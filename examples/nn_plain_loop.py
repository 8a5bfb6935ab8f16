"""A sparse output layer in a plain PyTorch training loop.

    python examples/nn_plain_loop.py

Trains one classifier three times on the same toy data: with cross entropy, with 1.5-entmax, and
with α-ReLU, whose τ is set from the first batch. Prints accuracy and how many classes keep any
probability.
"""

import torch

import uncork.nn as unn
import uncork.nn.functional as F

CLASSES, FEATURES = 50, 20


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(CLASSES, (2000,), generator=generator)
    return centres[labels] + 0.5 * torch.randn(2000, FEATURES, generator=generator), labels


def train(loss: torch.nn.Module, epochs: int = 15) -> torch.nn.Module:
    torch.manual_seed(0)
    x, y = data(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, CLASSES)
    )
    if isinstance(loss, unn.AlphaReLULoss):
        unn.calibrate_tau(model, x[:100], criterion=loss)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(100):
            optimiser.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimiser.step()
    return model


def main() -> dict[str, tuple[float, float]]:
    x, y = data(2)
    relu_loss = unn.AlphaReLULoss(alpha=1.5)
    results = {}
    for name, loss, output in [
        ("softmax", torch.nn.CrossEntropyLoss(), lambda z: torch.softmax(z, -1)),
        ("entmax", unn.EntmaxLoss(alpha=1.5), lambda z: F.entmax(z, 1.5)),
        ("alpha_relu", relu_loss, lambda z: F.alpha_relu(z, 1.5, relu_loss.tau)),
    ]:
        model = train(loss)
        with torch.no_grad():
            p = output(model(x))
        accuracy = float((p.argmax(-1) == y).float().mean())
        support = float((p > 0).sum(-1).float().mean())
        results[name] = (accuracy, support)
        print(
            f"{name:<11} accuracy {accuracy:.3f}   classes above zero {support:5.1f} of {CLASSES}"
        )
    return results


if __name__ == "__main__":
    main()
