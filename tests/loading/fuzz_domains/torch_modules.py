"""Random torch modules: every class with a rule, its settings, both modes, hooks and repetitions.

python -m fuzz_domains.torch_modules --count 1000 --seed 0
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

from uncork.core.errors import UncorkError
from uncork.domain import LayerNorm
from uncork.loading import find

from .hill_climbing import Figures, climb, command, outside, starts, turned_round

_CLASSES = 4
_MOST = 4096  # numbers in a value
_TYPES = ("float32", "float32", "float32", "float64", "bfloat16", "float16")


class Squared(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x - 3


class ReLU(nn.Module):
    """A namesake of torch's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - 1


def _layer(rng: np.random.Generator, shape: tuple[int, ...]) -> nn.Module:
    """Any module, with any settings, for a value of that shape."""
    last, number, small = shape[-1], float(rng.normal() * 2), int(rng.integers(1, 4))
    axis = int(rng.integers(-len(shape), len(shape)))
    flag = bool(rng.random() < 0.5)
    makers: list[Any] = [
        nn.ReLU, nn.ReLU6, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.Mish, nn.Hardswish, nn.SELU,
        nn.Softsign, nn.Hardsigmoid, nn.LogSigmoid, lambda: nn.Softmax(axis),
        lambda: nn.Softmin(axis), lambda: nn.LogSoftmax(axis), nn.Softmax2d,
        lambda: nn.ELU(number), lambda: nn.CELU(number), lambda: nn.GELU(("none", "tanh")[flag]),
        lambda: nn.Softplus(number, abs(number) * 5), nn.Identity,
        lambda: nn.Hardtanh(min(number, 0.3), max(number, 0.7)),
        lambda: nn.Dropout(rng.choice([0.0, 0.3, 0.5])), lambda: nn.Dropout1d(0.5),
        lambda: nn.Dropout2d(0.5), lambda: nn.AlphaDropout(0.5),
        lambda: nn.FeatureAlphaDropout(0.3),
        lambda: nn.Flatten(int(rng.integers(0, 3)), -1 - flag), lambda: nn.Unflatten(1, (1, -1)),
        lambda: nn.MaxPool1d(small, 1, small // 2 * flag, dilation=int(rng.integers(1, 3))),
        lambda: nn.MaxPool2d(small, 1, small // 2 * flag), lambda: nn.AdaptiveMaxPool1d(small),
        lambda: nn.AdaptiveMaxPool2d(small), lambda: nn.AdaptiveAvgPool1d(small),
        lambda: nn.AdaptiveAvgPool1d(last), lambda: nn.AdaptiveAvgPool2d(small),
        lambda: nn.AvgPool1d(small, 1, small // 2 * flag, count_include_pad=rng.random() < 0.5),
        lambda: nn.AvgPool2d(
            small, 1, small // 2 * flag, divisor_override=None if flag else small
        ),
        lambda: nn.LayerNorm(last, eps=10.0 ** -rng.integers(2, 8), elementwise_affine=flag),
        lambda: nn.LayerNorm(last), lambda: nn.RMSNorm(last), lambda: nn.RMSNorm(last, eps=1e-5),
        lambda: nn.RMSNorm(last, eps=10.0 ** -rng.integers(2, 60), elementwise_affine=flag),
        lambda: nn.LayerNorm(shape[1:]), lambda: nn.Linear(last, int(rng.integers(2, 9))),
        lambda: nn.Linear(last, last), nn.LeakyReLU, nn.Tanhshrink, Squared, ReLU,
        lambda: nn.BatchNorm1d(shape[1]), lambda: nn.Conv2d(shape[1], 3, 1, padding=small),
        lambda: nn.Conv1d(shape[1], 3, 1), lambda: nn.PReLU(),
    ]  # fmt: skip
    return makers[int(rng.integers(len(makers)))]()


def _after(rng: np.random.Generator) -> list[nn.Module]:
    """What may follow the head."""
    makers: list[Any] = [
        lambda: nn.Softmax(int(rng.choice([-1, -1, 1, 0]))), lambda: nn.LogSoftmax(-1), nn.Tanh,
        nn.Sigmoid, nn.LogSigmoid, nn.Identity, nn.Dropout, nn.Softmin, nn.ReLU, Squared,
        nn.Flatten,
        lambda: nn.AdaptiveAvgPool2d(1), lambda: nn.AdaptiveAvgPool1d(_CLASSES), nn.Softsign,
    ]  # fmt: skip
    count = int(rng.choice([0, 0, 1, 1, 2]))
    return [makers[int(rng.integers(len(makers)))]() for _ in range(count)]


def _model(rng: np.random.Generator) -> tuple[nn.Sequential, nn.Module, tuple[int, ...]]:
    """A sequence of layers that fit, its head, and the shape of one input."""
    shapes = [(6,), (6,), (3, 6), (2, 4, 6), (4, 3, 3)]
    shape = shapes[int(rng.integers(len(shapes)))]
    steps: list[nn.Module] = []
    value = torch.randn(2, *shape)
    for _ in range(int(rng.integers(1, 6))):
        again = bool(steps) and rng.random() < 0.15
        module = steps[int(rng.integers(len(steps)))] if again else _layer(rng, tuple(value.shape))
        try:
            result = module(value)
        except (RuntimeError, ValueError, IndexError, TypeError):
            continue
        # Inputs of a batch stay apart only while the batch comes first.
        if result.shape[:1] == (2,) and 2 <= result.ndim <= 4 and 0 < result.numel() <= _MOST:
            steps.append(module)
            value = result.detach()
    if value.ndim == 4 and rng.random() < 0.5:
        head: nn.Module = nn.Conv2d(value.shape[1], _CLASSES, 1, padding=int(rng.integers(0, 2)))
    else:
        head = nn.Linear(value.shape[-1], _CLASSES, bias=bool(rng.random() < 0.5))
    model = nn.Sequential(*steps, head)
    for module in _after(rng):
        try:
            nn.Sequential(model, module)(torch.randn(2, *shape))
        except (RuntimeError, ValueError, IndexError, TypeError):
            continue
        model.append(module)
    if rng.random() < 0.2 and len(steps) > 1:
        cut = int(rng.integers(1, len(steps)))
        layers = list(model)
        model = nn.Sequential(nn.Sequential(*layers[:cut]), *layers[cut:])
    return model, head, shape


def _disturb(rng: np.random.Generator, model: nn.Module) -> None:
    """Now and then a hook, a patch or other numbers."""
    with torch.no_grad():
        for parameter in model.parameters():
            if rng.random() < 0.7:
                parameter.normal_()
    module = list(model.modules())[int(rng.integers(len(list(model.modules()))))]
    what = rng.random()
    if what < 0.05:
        module.register_forward_hook(lambda _, given, result: result * -3 + 1)
    elif what < 0.1:
        module.register_forward_pre_hook(lambda _, given: (given[0] * -3 + 1,))
    elif what < 0.15:
        own = module.forward
        module.forward = lambda x: own(x) * -3 + 1


def run(count: int, seed: int) -> Figures:
    figures = Figures()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(count):
            rng = np.random.default_rng([seed, number])
            torch.manual_seed(int(rng.integers(1 << 31)))
            _try(figures, rng, f"model {number} of seed {seed}")
    return figures


def _try(figures: Figures, rng: np.random.Generator, name: str) -> None:
    model, head, shape = _model(rng)
    _disturb(rng, model)
    model.train(bool(rng.random() < 0.3))
    dtype = getattr(torch, str(rng.choice(_TYPES)))
    model = model.to(dtype)
    figures.models += 1
    try:
        found = find(model, domain="auto")
    except UncorkError:
        figures.stopped["refused"] += 1
        return
    if _named(model, found.weight_name) is not head:
        figures.violations.append(f"{name}: another head: {model}")
        return
    doubts = found.contents.choose().doubts
    figures.doubtful += bool(doubts)
    seen: list[torch.Tensor] = []
    output: list[torch.Tensor] = []

    def arrive(x: np.ndarray) -> np.ndarray:
        given = torch.from_numpy(x).to(next(model.parameters()).dtype)
        with torch.no_grad(), np.errstate(all="ignore"):
            output[:] = [model(given)]
        value = seen[-1]
        axis = 1 if isinstance(head, nn.Conv2d) else -1
        rows = torch.movedim(value, axis, -1).double()
        return rows.reshape(len(x), -1, rows.shape[-1]).numpy()

    head.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    shown = found.shown_domain
    if shown is not None:
        figures.known += 1
        figures.by[shown.why.partition(" ")[0]] += 1
        tolerance = 0.0
        if isinstance(shown.domain, LayerNorm):  # said to be without rounding: in float64, nearly
            model.double()
            tolerance = 1e-6
        x = starts(rng, shape)
        if tolerance:  # rows of one size, whose spread is not lost in their mean
            x = rng.normal(size=x.shape).astype(np.float32) * np.float32(10.0) ** rng.integers(
                -2, 3
            )
        rows = climb(arrive, x, shown.domain, rng, 12)
        figures.inputs += len(rows)
        wrong = outside(rows, shown.domain, tolerance)
        if len(wrong):
            figures.violations.append(f"{name}: {shown.why}, {shown.domain}: {wrong[0]}: {model}")
    else:
        figures.stopped[found.domain_from.partition("head (")[2].partition(" ")[0]] += 1
    if not doubts and isinstance(head, nn.Linear):
        model.double()  # the order in real numbers: 16 bits tie and swap what is near
        rows = arrive(rng.normal(size=(16, *shape)).astype(np.float32)).reshape(
            -1, head.in_features
        )
        logits = rows @ found.head.rows(0, _CLASSES).T + found.head.offsets
        scores = output[0].double().numpy()
        if scores.size != logits.size or turned_round(logits, scores.reshape(logits.shape)):
            figures.violations.append(f"{name}: another order after the head: {model}")


def _named(model: nn.Module, weight: str) -> nn.Module:
    return model.get_submodule(weight.removesuffix("weight").removesuffix("."))


if __name__ == "__main__":
    command(run)
