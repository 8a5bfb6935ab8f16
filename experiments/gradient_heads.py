"""Heads that are compared in `gradient.py`: those of uncork.nn, and candidates tried only here.

- wide: h → GELU(A h) of D features → W. Not linear in h.
- whitened: z = W M h + b with M = σ (C + εσ²)^(-1/2), C the rows' covariance and σ² its mean
  eigenvalue: a constant, taken anew every few steps. The same set of functions, of rows whose
  columns are alike; so a step of h moves the logits along P g.
- preconditioned: W h + b, but the gradient that goes back is K Wᵀg with K = (C + ε)^(-1), of the
  length that Wᵀg has over the batch.
- natural: the same with K = (S + ε)^(-1/2), S the running second moment of Wᵀg itself;
  natural-quarter: with (S + ε)^(-1/4).
- frequent: the V/20 most frequent classes have D more features, GELU(A h); the others do not.
- narrow-feeds, wide-feeds: two softmax heads on one body, of d features and of the body's own
  width. The body learns from one of them; the other reads it (see `gradient.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import uncork.nn.functional as F
from uncork.nn import heads
from uncork.nn.passing import Passing, measure_passing
from uncork.nn.watch.gradient import passing_of

WIDE = 512  # features of a wide layer
EVERY = 20  # steps between two looks at the rows
DAMPING = 1e-2  # ε, beside the mean eigenvalue
KEPT = 0.95  # of a running second moment, a step
SHARE = 20  # one class in so many counts as frequent
KINDS = (
    "softmax", "entmax", "alpha-relu", "mos", "wide", "whitened", "preconditioned", "natural",
    "natural-quarter", "frequent",
)  # fmt: skip


def make_head(kind: str, features: int, classes: int) -> nn.Module:
    made: dict[str, Any] = {
        "wide": WideHead, "whitened": WhitenedHead, "preconditioned": PreconditionedHead,
        "natural": NaturalHead, "natural-quarter": QuarterHead, "frequent": FrequentHead,
    }  # fmt: skip
    if kind in made:
        return made[kind](features, classes)
    options = {"components": 3} if kind == "mos" else {}
    return heads.HEADS[kind](features, classes, **options)


def power(matrix: Tensor, exponent: float) -> Tensor:
    """(M/m + ε)^exponent of a symmetric M with mean eigenvalue m."""
    mean = matrix.diagonal().mean().clamp(min=1e-30)
    values, vectors = torch.linalg.eigh((matrix / mean).float())
    return (vectors * (values.clamp(min=0) + DAMPING) ** exponent) @ vectors.T


class WideHead(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.widen = nn.Sequential(nn.Linear(features, WIDE), nn.GELU())
        self.head = heads.SoftmaxHead(WIDE, classes)

    def loss(self, hidden: Tensor, target: Tensor) -> Tensor:
        return self.head.loss(self.widen(hidden), target)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        return self.head.log_probabilities(self.widen(hidden))


class _Refreshed(heads.SoftmaxHead):
    """A softmax head that looks at its rows every few steps of training."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.register_buffer("matrix", torch.eye(features))
        self.steps = 0

    def loss(self, hidden: Tensor, target: Tensor, **options: Any) -> Tensor:
        if self.training:
            if self.steps % EVERY == 0:
                with torch.autocast(hidden.device.type, enabled=False):
                    self.refresh()
            self.steps += 1
        return super().loss(hidden, target, **options)

    @torch.no_grad()
    def covariance(self) -> Tensor:
        rows = self.weight - self.weight.mean(0)
        return rows.T @ rows / len(rows)

    def refresh(self) -> None:
        raise NotImplementedError


class WhitenedHead(_Refreshed):
    @torch.no_grad()
    def refresh(self) -> None:
        self.matrix.copy_(power(self.covariance(), -0.5))

    def _row_tensors(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return (hidden @ self.matrix.to(hidden.dtype),)

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden @ self.matrix.to(hidden.dtype))


class PreconditionedHead(_Refreshed):
    @torch.no_grad()
    def refresh(self) -> None:
        self.matrix.copy_(power(self.covariance(), -1.0))

    def _row_tensors(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return (_Back.apply(hidden, self) if hidden.requires_grad else hidden,)

    def seen(self, gradient: Tensor) -> None:
        """What goes back, before it is changed."""


class NaturalHead(PreconditionedHead):
    exponent = -0.5

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.register_buffer("moment", torch.zeros(features, features))

    @torch.no_grad()
    def refresh(self) -> None:
        if self.steps:
            self.matrix.copy_(power(self.moment, self.exponent))

    @torch.no_grad()
    def seen(self, gradient: Tensor) -> None:
        self.moment.mul_(KEPT).add_(gradient.T @ gradient, alpha=1 - KEPT)


class QuarterHead(NaturalHead):
    exponent = -0.25


class _Back(torch.autograd.Function):
    """h as it is; its gradient times a matrix, and then of the length it had."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: PreconditionedHead) -> Tensor:
        ctx.head = head
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        wide = gradient.float()
        scale = wide.abs().amax().clamp(min=1e-30)  # gradients of a mean are small: no underflow
        ctx.head.seen(wide / scale)
        made = wide @ ctx.head.matrix
        made = made * (wide.norm() / made.norm().clamp(min=1e-30))
        return made.to(gradient.dtype), None


class FrequentHead(nn.Module):
    """Classes are numbered by frequency, most frequent first."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first = max(1, classes // SHARE)
        self.rows = heads.SoftmaxHead(features, classes)
        self.widen = nn.Sequential(nn.Linear(features, WIDE), nn.GELU())
        self.more = nn.Linear(WIDE, self.first, bias=False)

    def _top(self, hidden: Tensor) -> Tensor:
        rows, bias = self.rows.weight[: self.first], self.rows.bias[: self.first]
        both = torch.cat([hidden, self.widen(hidden).to(hidden.dtype)], -1)
        return nn.functional.linear(both, torch.cat([rows, self.more.weight], -1), bias).float()

    def loss(self, hidden: Tensor, target: Tensor) -> Tensor:
        top, first = self._top(hidden), self.first
        weight, bias = self.rows.weight[first:], self.rows.bias[first:]
        inside = target < first
        below = (target - first).clamp(min=0)
        rest = F.linear_cross_entropy(
            hidden, weight, below, linear_bias=bias, reduction="none", return_lse=True
        )
        own = top.gather(1, target.clamp(max=first - 1)[:, None])[:, 0]
        chosen = torch.where(inside, own, rest.lse - rest.loss)
        return (torch.logaddexp(torch.logsumexp(top, -1), rest.lse) - chosen).mean()

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        logits = self.rows(hidden).float()
        return torch.log_softmax(torch.cat([self._top(hidden), logits[:, self.first :]], -1), -1)


@torch.no_grad()
def passing(kind: str, head: Any, hidden: Tensor, target: Tensor) -> Passing:
    """What passes at the head's last matrix; of a mixture, of all its components' logits."""
    hidden = hidden.float()
    if kind in heads.HEADS:
        return passing_of(head, hidden, target)
    metric = None
    if kind == "wide":
        hidden, head = head.widen(hidden), head.head
    rows = head.rows if kind == "frequent" else head
    weight, bias = rows.weight, rows.bias
    if kind == "frequent":
        hidden = torch.cat([hidden, head.widen(hidden)], -1)
        more = weight.new_zeros(len(weight), WIDE)
        more[: head.first] = head.more.weight
        weight = torch.cat([weight, more], -1)
    elif kind == "whitened":
        weight = weight @ head.matrix
    elif isinstance(head, PreconditionedHead):
        metric = head.matrix
    return measure_passing(weight, bias, hidden, target, metric=metric)
