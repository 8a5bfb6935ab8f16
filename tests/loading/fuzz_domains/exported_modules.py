"""Random torch modules exported and saved as .pt2: functional operators, views, writes in place.

python -m fuzz_domains.exported_modules --count 300 --seed 0
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from uncork.core.errors import UncorkError
from uncork.domain import Ball, Box, LayerNorm, RMSNorm
from uncork.loading import find

from .hill_climbing import LANES, Figures, climb, command, outside, starts, turned_round

_CLASSES = 5
_TYPES = ("float32", "float32", "float32", "float64", "bfloat16", "float16")
_Step = Callable[[list[torch.Tensor]], torch.Tensor]


def _step(rng: np.random.Generator, value: torch.Tensor, module: nn.Module) -> _Step:
    """Some operator on one or two of the values so far, of which the last is `values[-1]`."""
    last, rank = value.shape[-1], value.ndim
    number, positive = float(rng.normal() * 2), float(abs(rng.normal()) + 0.1)
    axis = int(rng.integers(1, rank))
    flag, other = bool(rng.random() < 0.5), int(rng.integers(0, 1 << 20))
    low, high = sorted(rng.normal(size=2).tolist())

    def kept(layer: nn.Module) -> _Step:
        name = f"layer{len(list(module.children()))}"
        module.add_module(name, layer)
        return lambda v: getattr(module, name)(v[-1])

    def numbers(*shape: int) -> Callable[[], torch.Tensor]:
        name = f"number{len(list(module.parameters(recurse=False)))}"
        module.register_parameter(name, nn.Parameter(torch.randn(*shape)))
        return lambda: getattr(module, name)

    def earlier(v: list[torch.Tensor]) -> torch.Tensor:
        return v[other % len(v)]

    def seen_from(view: Callable[[torch.Tensor], torch.Tensor], write: Any) -> _Step:
        """The value after something was written into a view of it."""

        def step(v: list[torch.Tensor]) -> torch.Tensor:
            write(view(v[-1]))
            return v[-1]

        return step

    def written(v: list[torch.Tensor]) -> torch.Tensor:
        made = torch.empty_like(v[-1])
        torch.mul(v[-1], number, out=made)
        return made if flag else v[-1]

    plain: list[_Step] = [
        lambda v: torch.relu(v[-1]), lambda v: torch.sigmoid(v[-1]), lambda v: torch.tanh(v[-1]),
        lambda v: functional.gelu(v[-1], approximate=("none", "tanh")[flag]),
        lambda v: functional.silu(v[-1]), lambda v: functional.mish(v[-1]),
        lambda v: functional.hardswish(v[-1]), lambda v: functional.softplus(v[-1], number),
        lambda v: functional.selu(v[-1]), lambda v: functional.elu(v[-1], positive),
        lambda v: functional.celu(v[-1], positive), lambda v: functional.hardsigmoid(v[-1]),
        lambda v: functional.relu6(v[-1]), lambda v: functional.leaky_relu(v[-1], number),
        lambda v: functional.hardtanh(v[-1], low, high),
        lambda v: torch.clamp(v[-1], low, high), lambda v: torch.clamp(v[-1], high, low),
        lambda v: torch.clamp(v[-1], min=number), lambda v: torch.clamp(v[-1], max=number),
        lambda v: torch.exp(v[-1]), lambda v: torch.sqrt(v[-1]), lambda v: torch.abs(v[-1]),
        lambda v: torch.rsqrt(v[-1]), lambda v: torch.neg(v[-1]), lambda v: torch.erf(v[-1]),
        lambda v: torch.atan(v[-1]), lambda v: torch.reciprocal(v[-1]),
        lambda v: v[-1] + number, lambda v: v[-1] * number, lambda v: v[-1] / number,
        lambda v: number - v[-1], lambda v: number / v[-1], lambda v: v[-1].pow(2),
        lambda v: v[-1].pow(number), lambda v: torch.add(v[-1], earlier(v), alpha=number),
        lambda v: torch.sub(v[-1], earlier(v), alpha=number),
        lambda v: v[-1] + earlier(v), lambda v: v[-1] * earlier(v), lambda v: v[-1] - earlier(v),
        lambda v: v[-1] / earlier(v), lambda v: torch.maximum(v[-1], earlier(v)),
        lambda v: torch.minimum(v[-1], earlier(v)),
        lambda v: torch.div(v[-1], number, rounding_mode="floor" if flag else None),
        lambda v: torch.where(v[-1] > 0, v[-1], earlier(v)),
        lambda v: v[-1].masked_fill(v[-1] > 0, number),
        lambda v: torch.cat([v[-1], earlier(v)], axis), lambda v: torch.stack([v[-1]] * 2, 1),
        lambda v: v[-1].softmax(axis), lambda v: v[-1].log_softmax(-1),
        lambda v: functional.normalize(v[-1], dim=-1), lambda v: v[-1].cumsum(axis),
        lambda v: v[-1].mean(axis, keepdim=flag), lambda v: v[-1].sum(axis, keepdim=flag),
        lambda v: v[-1].amax(axis, keepdim=flag), lambda v: v[-1].max(axis, keepdim=flag)[0],
        lambda v: v[-1].flatten(1), lambda v: v[-1].transpose(1, -1),
        lambda v: v[-1].movedim(1, -1), lambda v: v[-1].unsqueeze(1), lambda v: v[-1].squeeze(1),
        lambda v: v[-1].flip(-1), lambda v: v[-1].roll(1, -1),
        lambda v: v[-1].select(axis, 0), lambda v: v[-1].narrow(axis, 0, 2),
        lambda v: v[-1][..., 1:], lambda v: v[-1][..., ::2], lambda v: v[-1].chunk(2, axis)[flag],
        lambda v: v[-1].split(2, axis)[0], lambda v: v[-1].to(torch.float64),
        lambda v: v[-1].to(torch.float16), lambda v: v[-1].to(torch.float32),
        lambda v: functional.pad(v[-1], (1, 1), value=number),
        lambda v: functional.max_pool1d(v[-1], 2, 1, 1), lambda v: functional.glu(v[-1]),
        lambda v: functional.avg_pool1d(v[-1], 3, 1, 1, count_include_pad=flag),
        lambda v: functional.avg_pool2d(v[-1], 2, 1, divisor_override=None if flag else 3),
        lambda v: functional.adaptive_avg_pool1d(v[-1], 1),
        lambda v: functional.adaptive_avg_pool2d(v[-1], 1),
        lambda v: functional.adaptive_max_pool2d(v[-1], 1),
        lambda v: functional.dropout(v[-1], 0.5, flag),
        lambda v: functional.layer_norm(v[-1], v[-1].shape[-1:], eps=10.0 ** -(other % 12)),
        lambda v: functional.rms_norm(v[-1], v[-1].shape[-1:]),
        lambda v: v[-1] * torch.rsqrt(v[-1].pow(2).mean(-1, keepdim=True) + 1e-6),
        lambda v: (v[-1] - v[-1].mean(-1, keepdim=True)) / (v[-1].std(-1, keepdim=True) + 1e-5),
        # In place, through views, and into something else.
        lambda v: v[-1].relu_(), lambda v: v[-1].mul_(number), lambda v: v[-1].add_(earlier(v)),
        lambda v: v[-1].sigmoid_(), lambda v: v[-1].clamp_(low, high), written,
        seen_from(lambda x: x.view(-1), lambda x: x.mul_(number)),
        seen_from(lambda x: x[..., 1:], lambda x: x.sub_(3.0)),
        seen_from(lambda x: x.swapdims(0, 1), lambda x: x.add_(number)),
        seen_from(lambda x: functional.feature_alpha_dropout(x, 0.5, False), torch.neg_),
        seen_from(lambda x: torch.einsum("a...->...a", x), lambda x: x.mul_(5.0)),
        seen_from(lambda x: torch.positive(x), lambda x: x.mul_(-5.0)),
        seen_from(lambda x: x, lambda x: torch.mul(x, number, out=x)),
        seen_from(lambda x: x, lambda x: torch._foreach_mul_([x.clone(), x], number)),
        seen_from(lambda x: x, lambda x: x.copy_(x * number)),
        lambda v: [v[0].mul_(number), v[-1]][1],
    ]  # fmt: skip
    layers: list[Callable[[], nn.Module]] = [
        lambda: nn.Linear(last, int(rng.integers(3, 8))), lambda: nn.Linear(last, last),
        lambda: nn.LayerNorm(last, eps=10.0 ** -rng.integers(3, 8)), lambda: nn.RMSNorm(last),
        lambda: nn.BatchNorm1d(value.shape[1]), lambda: nn.Conv1d(value.shape[1], 3, 1, padding=1),
        lambda: nn.Conv2d(value.shape[1], 3, 1, padding=int(flag)), lambda: nn.PReLU(),
        lambda: nn.BatchNorm2d(value.shape[1]), lambda: nn.LayerNorm(value.shape[1:]),
        lambda: nn.GroupNorm(1, value.shape[1]),
    ]  # fmt: skip
    which = int(rng.integers(len(plain) + len(layers) + 6))
    if which < len(plain):
        return plain[which]
    which -= len(plain)
    if which < len(layers):
        return kept(layers[which]())
    if which == len(layers):
        made = kept(nn.LSTM(last, 3, bidirectional=flag, batch_first=True))
        return lambda v: made(v)[0]
    if which == len(layers) + 1:
        made = kept(nn.GRU(last, 3, batch_first=True))
        return lambda v: made(v)[0]
    own = numbers(last)
    makers: list[_Step] = [
        lambda v: v[-1] * own(), lambda v: v[-1] + own(), lambda v: own() - v[-1],
        lambda v: torch.maximum(v[-1], own()),
    ]  # fmt: skip
    return makers[which % len(makers)]


def _after(rng: np.random.Generator, module: nn.Module) -> list[_Step]:
    """What may follow the head."""
    number = float(rng.normal() * 2)
    module.register_parameter("scale", nn.Parameter(torch.randn(_CLASSES)))
    order = torch.from_numpy(rng.permutation(_CLASSES))
    makers: list[_Step] = [
        lambda v: v[-1].log_softmax(-1), lambda v: v[-1].softmax(-1), lambda v: v[-1].softmax(0),
        lambda v: v[-1] * number, lambda v: v[-1] / number, lambda v: -v[-1],
        lambda v: v[-1] * module.scale, lambda v: v[-1] + module.scale, lambda v: v[-1].sigmoid(),
        lambda v: v[-1][..., order], lambda v: v[-1][..., 1:], lambda v: v[-1].flip(-1),
        lambda v: torch.cat([v[-1], v[-1][..., :1]], -1), lambda v: v[-1].tanh() * 30.0,
        lambda v: v[-1].clamp(-1, 1), lambda v: v[-1].pow(2), lambda v: v[-1].relu(),
        lambda v: 1 - v[-1], lambda v: v[-1].mul_(number), lambda v: v[-1].neg_(),
        lambda v: [v[-1].view(-1).neg_(), v[-1]][1], lambda v: v[-1] + v[-1].flip(-1),
        lambda v: v[-1].cumsum(-1), lambda v: v[-1].masked_fill(module.scale > 0, -1e9),
        lambda v: v[-1] * v[-1].mean(-1, keepdim=True), lambda v: v[-1].to(torch.float64),
        lambda v: v[-1].roll(1, -1), lambda v: torch.mul(v[-1], number, out=v[-1]),
        lambda v: v[-1].transpose(0, 1).transpose(0, 1), lambda v: v[-1].reciprocal(),
        lambda v: functional.layer_norm(v[-1], v[-1].shape[-1:]),
        lambda v: functional.layer_norm(v[-1], v[-1].shape[-1:], module.scale),
        lambda v: [v[-1].swapdims(0, 1).neg_(), v[-1]][1], lambda v: torch.rsub(v[-1], number),
    ]  # fmt: skip
    count = int(rng.choice([0, 1, 1, 2]))
    return [makers[int(rng.integers(len(makers)))] for _ in range(count)]


class Made(nn.Module):
    """Steps before the head, the head, and steps after it; `seen` is what arrived at the head."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[_Step] = []
        self.after: list[_Step] = []
        self.watched = False
        self.shape: tuple[int, ...] = ()

    def forward(self, x: torch.Tensor) -> Any:
        values = [x * 1.0]
        for step in self.before:
            values.append(step(values))
        if self.watched:
            self.seen = values[-1].detach().clone()
        values.append(self.head(values[-1]))
        if self.watched:
            self.scores = values[-1].detach().clone()
        for step in self.after:
            values.append(step(values))
        return values[-1]


def make(rng: np.random.Generator) -> Made:
    shapes = [(6,), (6,), (6,), (3, 6), (2, 4, 4)]
    model = Made()
    model.shape = shapes[int(rng.integers(len(shapes)))]
    values = [torch.randn(3, *model.shape)]
    for _ in range(int(rng.integers(1, 6))):
        step = _step(rng, values[-1], model)
        trial = [one.clone() for one in values]
        try:
            with torch.no_grad():
                result = step(trial)
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
            continue
        fits = result.shape[:1] == (3,) and 2 <= result.ndim <= 4 and 0 < result.numel() <= 4096
        if fits and result.dtype == torch.float32:
            model.before.append(step)
            values = [*trial, result]
    model.head = nn.Linear(values[-1].shape[-1], _CLASSES, bias=bool(rng.random() < 0.6))
    model.after = _after(rng, model)
    with torch.no_grad():
        for parameter in model.parameters():
            if rng.random() < 0.7:
                parameter.normal_()
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.uniform_(0.2, 2.0)
    return model


def run(count: int, seed: int) -> Figures:
    figures = Figures()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        for number in range(count):
            rng = np.random.default_rng([seed, number])
            torch.manual_seed(int(rng.integers(1 << 31)))
            path = Path(folder) / f"{number}.pt2"
            _try(figures, rng, f"module {number} of seed {seed}", path)
            path.unlink(missing_ok=True)
    return figures


def _try(figures: Figures, rng: np.random.Generator, name: str, path: Path) -> None:
    model = make(rng).eval()
    dtype = getattr(torch, str(rng.choice(_TYPES)))
    model = model.to(dtype)
    decomposed = bool(rng.random() < 0.4)
    try:
        given = torch.randn(LANES, *model.shape, dtype=dtype)
        model(given.clone())  # not every step can be taken in every type
        with torch.no_grad():
            exported = torch.export.export(model, (given,))
        if decomposed:
            exported = exported.run_decompositions()
        torch.export.save(exported, path)
    except Exception:  # what torch itself cannot export
        figures.stopped["torch.export"] += 1
        return
    figures.models += 1
    try:
        found = find(path, domain="auto")
    except UncorkError:
        figures.stopped["refused"] += 1
        return
    model.watched = True
    described = f"{name} ({dtype}{', decomposed' * decomposed})"
    if found.weight_name not in ("head.weight",):
        figures.violations.append(f"{described}: another head: {found.weight_name}")
        return
    with torch.no_grad():
        weight = model.head.weight.double().numpy()
    stored = found.head.rows(0, found.head.weight.shape[0])
    doubts = found.contents.choose().doubts
    figures.doubtful += bool(doubts)

    def arrive(x: np.ndarray) -> np.ndarray:
        given = torch.from_numpy(x).to(next(model.parameters()).dtype)
        with torch.no_grad():
            output[:] = [model(given)]
        return model.seen.double().reshape(len(x), -1, model.seen.shape[-1]).numpy()

    output: list[torch.Tensor] = []
    shown = found.shown_domain
    if shown is not None and stored.shape[1] == weight.shape[1]:
        figures.known += 1
        figures.by[shown.why.partition(" ")[0]] += 1
        x, tolerance = starts(rng, model.shape), 0.0
        if not isinstance(shown.domain, Box):  # said to be without rounding: in float64, nearly
            model.double()
            tolerance = 1e-6
            x = rng.normal(size=x.shape).astype(np.float32)
        climbs = isinstance(shown.domain, Box | LayerNorm | RMSNorm | Ball)
        try:
            rows = climb(arrive, x, shown.domain, rng, 8) if climbs else arrive(x)
        except RuntimeError:  # a step of a type of its own, once the model is in float64
            figures.stopped["types"] += 1
            return
        rows = rows.reshape(-1, stored.shape[1])
        figures.inputs += len(rows)
        wrong = outside(rows, shown.domain, tolerance)
        if len(wrong):
            figures.violations.append(f"{described}: {shown.why}, {shown.domain}: {wrong[0]}")
    elif shown is None:
        figures.stopped[found.domain_from.partition("head (")[2].partition(" ")[0]] += 1
    if not doubts and stored.shape == weight.shape:
        model.double()  # the order in real numbers: 16 bits tie and swap what is near
        try:
            rows = arrive(rng.normal(size=(LANES, *model.shape)).astype(np.float32))
        except RuntimeError:  # a step of a type of its own
            return
        rows = rows.reshape(-1, stored.shape[1])
        logits = rows @ stored.T + found.head.offsets
        scores = output[0].double().numpy()
        if scores.size != logits.size or turned_round(logits, scores.reshape(logits.shape)):
            figures.violations.append(f"{described}: another order after the head")


if __name__ == "__main__":
    command(run)
