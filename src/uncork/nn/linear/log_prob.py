"""Log-probabilities of chosen classes, and entropies, without the logits: for policy gradients.

    log_prob, entropy = linear_log_prob(hidden, weight, actions, return_entropy=True)
    loss = -(advantage * log_prob).mean() - 0.01 * entropy.mean()

At α = 1 the policy is softmax; above, α-entmax, where actions off the support have log-probability
−inf and no gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, overload

from uncork.core.errors import UncorkError
from uncork.nn._rows import check_parameter, check_tensor
from uncork.nn._torch import torch
from uncork.nn.linear.autograd import linear_loss
from uncork.nn.linear.by_row import (
    Block,
    Holders,
    Softmax,
    by_row,
    check_temperature,
    layer,
    times,
)
from uncork.nn.linear.problem import check_classes
from uncork.nn.losses.specification import (
    LinearArguments,
    Reduction,
    check_beside,
    check_indices,
    ignored_class,
    loss_named,
)
from uncork.nn.transforms.deformed import log_on_support, slopes
from uncork.nn.transforms.entmax import LEAST_ALPHA_BY_P, entmax, log_entmax, log_near_1

if TYPE_CHECKING:
    from typing_extensions import Unpack

Tensor = torch.Tensor


class LinearLogProb(NamedTuple):
    """Of every target's shape, 0 where ignored."""

    log_prob: Tensor  #: log p of the target
    entropy: Tensor  #: −Σ p log p of its distribution


class LogProbOptions(TypedDict, total=False):
    """What both forms of :func:`linear_log_prob` take."""

    alpha: float
    linear_bias: Tensor | None
    ignore_index: int
    softcap: float | None
    temperature: float
    group: Any
    first_class: int | None
    classes: int | None


@overload
def linear_log_prob(
    input: Tensor, linear_weight: Tensor, target: Tensor, *,
    return_entropy: Literal[False] = False, **options: Unpack[LogProbOptions],
) -> Tensor: ...  # fmt: skip
@overload
def linear_log_prob(
    input: Tensor, linear_weight: Tensor, target: Tensor, *,
    return_entropy: Literal[True], **options: Unpack[LogProbOptions],
) -> LinearLogProb: ...  # fmt: skip


@torch.compiler.disable  # blocks of rows are a loop, which torch.compile would unroll
def linear_log_prob(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    alpha: float = 1.0,
    linear_bias: Tensor | None = None,
    ignore_index: int = -100,
    softcap: float | None = None,
    temperature: float = 1.0,
    return_entropy: bool = False,
    group: Any = None,
    first_class: int | None = None,
    classes: int | None = None,
) -> Tensor | LinearLogProb:
    """log p_target with p = entmax(linear(input, linear_weight, linear_bias) / temperature).

    Logits are made for a block of rows at a time, and once more in backward.

    Args:
        input: hidden states (..., d).
        linear_weight: (C, d), the layer's weight; `linear_bias` (C).
        target: class indices, the shape of `input` without d.
        alpha: ≥ 1; 1 is softmax.
        ignore_index: targets that are not computed: 0, with gradient 0.
        softcap: logits become softcap · tanh(logits / softcap), before the temperature.
        temperature: what logits are divided by.
        return_entropy: also −Σ p log p of every row, differentiable.
        group, first_class, classes: where processes share the classes out (of all of them
            `torch.distributed.group.WORLD`), as for
            :func:`uncork.nn.functional.vocab_parallel_loss`; the weight is this process's then.
    """
    if isinstance(alpha, Tensor):
        raise UncorkError("alpha must be a number here: a tensor is taken by log_entmax, of logits")
    check_parameter(alpha, at_least=1.0)
    check_temperature(temperature)
    check_tensor("input", input)
    check_indices("target", target)
    if target.shape != input.shape[:-1]:
        raise UncorkError(
            f"target must be class indices of shape {tuple(input.shape[:-1])} for input "
            f"{tuple(input.shape)}, got {tuple(target.shape)}"
        )
    check_beside("target", target, input.device)
    ignored = ignored_class(-100 if ignore_index is None else ignore_index)
    given = layer(input, linear_weight, linear_bias, group, first_class, classes)
    if target.is_inference():  # tokens sampled there: autograd keeps no tensor of that kind
        target = target.clone()
    if alpha == 1 and temperature == 1 and not return_entropy:  # which has kernels
        made = linear_loss(
            loss_named("softmax"), (1.0,), input, linear_weight, target,
            Reduction(None, ignored, "none"), LinearArguments(linear_bias, softcap),
            given.shard,
        )  # fmt: skip
        return -made.loss
    index = target.reshape(-1).long()
    counted = index != ignored
    index = torch.where(counted, index, 0)
    total = len(linear_weight) if given.shard is None else given.shard.classes
    check_classes(index, total)
    objective = LogProb(float(alpha), return_entropy)
    values = by_row(objective, given, (index, counted), softcap=softcap, temperature=temperature)
    shaped = [value.reshape(target.shape) for value in values]
    return LinearLogProb(*shaped) if return_entropy else shaped[0]


@dataclass(frozen=True)
class LogProb:
    """log p of the target and, if asked for, the entropy."""

    alpha: float
    entropy: bool

    @property
    def count(self) -> int:
        return 2 if self.entropy else 1

    def __call__(self, z: Tensor, rows: tuple[Tensor, ...], holders: Holders) -> Block:
        index, counted = rows
        at = Place(index, z.shape[1], holders)
        if self.alpha == 1:
            return _SoftmaxBlock(z, at, counted, holders, self.entropy)
        return _EntmaxBlock(z, at, counted, holders, self.entropy, self.alpha)

    def at_once(self, z: Tensor, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        index, counted = rows
        log_p = log_entmax(z, self.alpha)
        values: tuple[Tensor, ...] = (log_p.gather(-1, index.unsqueeze(-1)).squeeze(-1),)
        if self.entropy:
            values += (-times(entmax(z, self.alpha), log_p).sum(-1),)
        return tuple(torch.where(counted, value, 0.0) for value in values)


class Place:
    """Where one class of each row is among a process's classes."""

    def __init__(self, index: Tensor, width: int, holders: Holders) -> None:
        index = index - holders.first
        self.mine = (index >= 0) & (index < width)
        self.index = torch.where(self.mine, index, 0).unsqueeze(-1)
        self.holders = holders

    def read(self, values: Tensor) -> Tensor:
        """values (R, C) at it: (R)."""
        own = values.gather(-1, self.index).squeeze(-1)
        return self.holders.reduced(torch.where(self.mine, own, 0.0), "SUM")

    def add(self, values: Tensor, amount: Tensor) -> Tensor:
        """values (R, C) with amount (R) added there, in place."""
        return values.scatter_add_(-1, self.index, (amount * self.mine).unsqueeze(-1))


class _SoftmaxBlock:
    def __init__(
        self, z: Tensor, at: Place, counted: Tensor, holders: Holders, entropy: bool
    ) -> None:
        made = Softmax(z, holders)
        self.p, self.log_p, self.at, self.counted = made.p, made.log_p, at, counted
        self.values: tuple[Tensor, ...] = (torch.where(counted, at.read(self.log_p), 0.0),)
        if entropy:
            self.own = -holders.reduced(times(self.p, self.log_p).sum(-1), "SUM")
            self.values += (torch.where(counted, self.own, 0.0),)

    def gradient(self, above: tuple[Tensor, ...]) -> Tensor:
        """d log p_y = e_y − p; dH = −p (log p + H)."""
        first = torch.where(self.counted, above[0], 0.0)
        along = None
        if len(above) > 1:
            second = torch.where(self.counted, above[1], 0.0).unsqueeze(-1)
            along = times(self.p, self.log_p.add_(self.own.unsqueeze(-1))).mul_(second)
        r = self.p.mul_(-first.unsqueeze(-1))  # in p's place: new memory has to be mapped first
        return self.at.add(r if along is None else r.sub_(along), first)


class _EntmaxBlock:
    def __init__(
        self,
        z: Tensor,
        at: Place,
        counted: Tensor,
        holders: Holders,
        entropy: bool,
        alpha: float,
    ) -> None:
        self.p, self.at, self.counted = holders.probabilities(z, alpha), at, counted
        self.alpha, self.holders = alpha, holders
        self.log_p = self._of_target(z)
        self.values: tuple[Tensor, ...] = (torch.where(counted, self.log_p, 0.0),)
        if entropy:
            own = holders.reduced(times(self.p, log_on_support(self.p)).sum(-1), "SUM")
            self.values += (torch.where(counted, -own, 0.0),)

    def _of_target(self, z: Tensor) -> Tensor:
        """log p of the target: (R)."""
        p, holders = self.at.read(self.p), self.holders
        if self.alpha >= LEAST_ALPHA_BY_P:
            return p.log()
        largest = holders.reduced(self.p.amax(-1), "MAX")
        beside = torch.stack([holders.top(z).squeeze(-1), self.at.read(z)], -1)
        return log_near_1(beside, torch.stack([largest, p], -1), self.alpha)[:, 1]

    def gradient(self, above: tuple[Tensor, ...]) -> Tensor:
        """(diag(s) − s sᵀ/Σs) times the derivative by p, s = p^{2−α}; 0 where p_y is."""
        there = self.counted & (self.log_p > -math.inf)
        if self.alpha > 2:
            return self.holders.along_simplex(self.p, self._by_p(above, there), self.alpha)
        s = slopes(self.p, self.alpha)
        # s/p of the target in one power: 1/p is infinite where p is near the smallest number.
        slope = torch.where(there, (1 - self.alpha) * self.log_p, 0.0).exp()
        at_target = torch.where(there, above[0] * slope, 0.0)
        pushed = torch.zeros_like(s)
        if len(above) > 1:
            second = torch.where(self.counted, above[1], 0.0).unsqueeze(-1)
            pushed = -second * times(s, log_on_support(self.p) + 1)
        pushed = self.at.add(pushed, at_target)
        sums = torch.stack([pushed.sum(-1, keepdim=True), s.sum(-1, keepdim=True)])
        total, mass = self.holders.reduced(sums, "SUM")
        return pushed - s * (total / torch.where(mass == 0, 1.0, mass))

    def _by_p(self, above: tuple[Tensor, ...], there: Tensor) -> Tensor:
        """The derivative by p: 1/p of the target, −log p − 1 of the entropy."""
        made = torch.zeros_like(self.p)
        if len(above) > 1:
            second = torch.where(self.counted, above[1], 0.0).unsqueeze(-1)
            made = -second * torch.where(self.p > 0, log_on_support(self.p) + 1, 0.0)
        at_target = above[0] * torch.where(there, -self.log_p, 0.0).exp()
        return self.at.add(made, torch.where(there, at_target, 0.0))
