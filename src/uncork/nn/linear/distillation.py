"""Distillation into a linear layer without the student's logits, nor the teacher's.

The teacher is given as logits, as hidden states with a head of its own (its logits then never exist
either), or as its k largest logits and their classes.

    loss = linear_distillation_loss(hidden, weight, teacher_hidden, teacher_weight=teacher_head)

With p the student's and t the teacher's distribution, both softmax at the given temperature:

    "kl"          Σ t log(t/p)                            gradient p − t
    "reverse_kl"  Σ p log(p/t)                            gradient p (log(p/t) − its mean)
    "jsd"         β Σ t log(t/m) + (1−β) Σ p log(p/m)     (1−β) p (log(p/m) − its mean)

with m = β t + (1−β) p (Agarwal et al. 2024); the gradients are by logits before the temperature
divides them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from uncork.core.errors import UncorkError
from uncork.nn._rows import check_number, check_tensor
from uncork.nn._torch import torch
from uncork.nn.linear.by_row import (
    Alone,
    Block,
    Holders,
    Softmax,
    by_row,
    check_temperature,
    layer,
    reduced_by,
    times,
)
from uncork.nn.linear.problem import (
    check_classes,
    check_softcap,
    check_token_weight,
    check_weight,
    divided,
    logits,
)
from uncork.nn.losses.specification import Reduction, check_beside, check_indices

Tensor = torch.Tensor
Divergence = Literal["kl", "reverse_kl", "jsd"]


@torch.compiler.disable  # blocks of rows are a loop, which torch.compile would unroll
def linear_distillation_loss(
    input: Tensor,
    linear_weight: Tensor,
    teacher: Tensor,
    *,
    divergence: Divergence = "kl",
    beta: float = 0.5,
    temperature: float = 1.0,
    linear_bias: Tensor | None = None,
    softcap: float | None = None,
    teacher_weight: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    teacher_softcap: float | None = None,
    teacher_classes: Tensor | None = None,
    token_weight: Tensor | None = None,
    reduction: str = "mean",
    group: Any = None,
    first_class: int | None = None,
    classes: int | None = None,
) -> Tensor:
    """The divergence of softmax(linear(input, linear_weight, linear_bias)) from the teacher's.

    Args:
        input: the student's hidden states (..., d).
        linear_weight: (C, d), the student's head; `linear_bias` (C).
        teacher: its logits (..., C); with `teacher_weight` its hidden states (..., e); with
            `teacher_classes` its k largest logits (..., k), all others counting as −inf. It
            receives no gradient.
        divergence: "kl", the teacher's from the student's; "reverse_kl", which prefers one of the
            teacher's modes; or "jsd" between them.
        beta: of "jsd", above 0 and below 1: near 0 it behaves as β times "kl", near 1 as 1−β times
            "reverse_kl".
        temperature: what both logits are divided by. Multiply the loss by its square to keep the
            gradient's size, as Hinton et al. 2015 do.
        softcap, teacher_softcap: logits become softcap · tanh(logits / softcap).
        teacher_weight: (C, e), the teacher's head; `teacher_bias` (C).
        teacher_classes: (..., k), the classes of the k logits. Where a row has fewer, fill up with
            logits of −inf, of any class. A row that has none is 0, with gradient 0.
        token_weight: what each row's loss is multiplied by, as 0 for a prompt. A mean divides by
            their sum; where all are 0, it is 0, and so are the gradients.
        reduction: "none", "mean" or "sum".
        group, first_class, classes: where processes share the classes out (of all of them
            `torch.distributed.group.WORLD`), as for
            :func:`uncork.nn.functional.vocab_parallel_loss`: weights, biases and a teacher's
            logits are this process's; `teacher_classes` are among all.
    """
    tensors = {"input": input, "linear_weight": linear_weight, "teacher": teacher}
    optional = {
        "teacher_weight": teacher_weight, "teacher_bias": teacher_bias,
        "teacher_classes": teacher_classes,
    }  # fmt: skip
    tensors |= {name: value for name, value in optional.items() if value is not None}
    for name, value in tensors.items():
        check_tensor(name, value)
    check_weight(linear_weight, "linear_weight")
    Reduction(reduction=reduction).check(len(linear_weight), input.device)
    if divergence not in ("kl", "reverse_kl", "jsd"):
        raise UncorkError(f"divergence must be 'kl', 'reverse_kl' or 'jsd', got {divergence!r}")
    if divergence == "jsd":
        expected = "above 0 and below 1 (where others take these, give 'kl' and 'reverse_kl')"
        check_number(beta, "beta", expected, lambda share: 0 < share < 1)
    if divergence == "reverse_kl" and teacher_classes is not None:
        raise UncorkError(
            "reverse_kl is infinite where the teacher has k classes only: take 'kl' or 'jsd'"
        )
    if teacher_bias is not None and teacher_weight is None:
        raise UncorkError("teacher_bias goes with teacher_weight: a teacher's logits have it in")
    check_token_weight(token_weight, input, reduction)
    check_softcap(teacher_softcap, "teacher_softcap")
    check_temperature(temperature)
    given = layer(input, linear_weight, linear_bias, group, first_class, classes)
    check_beside("teacher", teacher, input.device)
    rows, shared = _teacher(
        input, linear_weight, teacher, teacher_weight, teacher_bias, teacher_classes
    )
    if teacher_classes is not None:
        total = len(linear_weight) if given.shard is None else given.shard.classes
        check_classes(rows[1], total, "teacher_classes")
    objective = Distillation(divergence, float(beta), float(temperature), teacher_softcap, *shared)
    how: dict[str, Any] = {"softcap": softcap, "temperature": temperature}
    if reduction == "none":
        (values,) = by_row(objective, given, rows, **how)
        values = values.reshape(input.shape[:-1])
        if token_weight is None:
            return values
        # Of its own memory where it is from inference mode, of which autograd keeps nothing.
        copy = token_weight.is_inference()
        return values * token_weight.to(values.dtype, copy=copy)
    wide = torch.float64 if given.input.dtype == torch.float64 else torch.float32
    upstream = torch.ones_like(given.input[:, 0], dtype=wide)  # `len` would fix an open size
    if token_weight is not None:
        upstream = token_weight.detach().reshape(-1).to(wide)
    if reduction == "mean":
        upstream = divided(upstream, upstream.sum())
    value = reduced_by(objective, given, rows, upstream, **how)
    # Of no rows the mean is NaN and gradients are 0, as those of the other losses are.
    return value + math.nan if reduction == "mean" and upstream.shape[0] == 0 else value


def _teacher(
    input: Tensor,
    linear_weight: Tensor,
    teacher: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    classes: Tensor | None,
) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, Tensor | None]]:
    """The teacher's rows (N, …), or what `rows_of` takes these from, and its head."""
    lead = input.shape[:-1]
    teacher = teacher.detach()
    if weight is not None and classes is not None:
        raise UncorkError("give teacher_weight or teacher_classes, not both")
    if weight is not None:
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        made = layer(teacher, weight, bias, None, None, None, "teacher_weight")
        if len(weight) != len(linear_weight) or teacher.shape[:-1] != lead:
            raise UncorkError(
                f"teacher {tuple(teacher.shape)} with teacher_weight {tuple(weight.shape)} does "
                f"not fit input {tuple(input.shape)} with {len(linear_weight)} classes"
            )
        return (made.input,), (made.weight, bias)
    width = len(linear_weight) if classes is None else classes.shape[-1]
    if tuple(teacher.shape) != (*lead, width):
        raise UncorkError(
            f"teacher must have shape {(*lead, width)} for input {tuple(input.shape)}, got "
            f"{tuple(teacher.shape)}"
        )
    if classes is None and len(lead) > 1 and not teacher.is_contiguous():
        return (teacher,), (None, None)  # flat it would be a copy, as large as all logits
    flat = teacher.reshape(math.prod(lead), width)
    if classes is None:
        return (flat,), (None, None)
    check_indices("teacher_classes", classes)
    if classes.shape != teacher.shape:
        raise UncorkError(
            f"teacher_classes must have shape {tuple(teacher.shape)}, got {tuple(classes.shape)}"
        )
    return (flat, classes.reshape(flat.shape).long()), (None, None)


@dataclass(frozen=True)
class Distillation:
    """The divergence of each row."""

    divergence: Divergence
    beta: float
    temperature: float
    softcap: float | None  #: the teacher's
    weight: Tensor | None  #: its head
    bias: Tensor | None
    count: int = 1

    def __call__(self, z: Tensor, rows: tuple[Tensor, ...], holders: Holders) -> Block:
        student = Softmax(z, holders)
        teacher = self._of_teacher(z, rows, holders)
        if self.divergence == "kl":
            return _Forward(student, teacher, holders)
        return _Reverse(student, teacher, holders, self.beta if self.divergence == "jsd" else 1.0)

    def at_once(self, z: Tensor, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        teacher = self._of_teacher(z, rows, Alone(z.shape[-1]))
        t, log_t, log_p = teacher.p, teacher.log_p, torch.log_softmax(z, -1)
        if self.divergence == "kl":
            return (times(t, log_t - log_p).sum(-1),)
        p = torch.where(teacher.none.unsqueeze(-1), 0.0, log_p.exp())
        if self.divergence == "reverse_kl":
            return (times(p, log_p - log_t).sum(-1),)
        nothing = (log_p == -math.inf) & (log_t == -math.inf)  # whose mixture has no derivative
        log_p, log_t = (torch.where(nothing, 0.0, one) for one in (log_p, log_t))
        shares = torch.stack([log_t + math.log(self.beta), log_p + math.log1p(-self.beta)])
        log_m = torch.logsumexp(shares, 0)  # logaddexp has no second derivative where one is −inf
        of_t, of_p = times(t, log_t - log_m).sum(-1), times(p, log_p - log_m).sum(-1)
        return (self.beta * of_t + (1 - self.beta) * of_p,)

    def _of_teacher(self, z: Tensor, rows: tuple[Tensor, ...], holders: Holders) -> Softmax:
        z = self._logits(z, rows, holders)
        return Softmax(z if self.temperature == 1 else z / self.temperature, holders)

    def _logits(self, z: Tensor, rows: tuple[Tensor, ...], holders: Holders) -> Tensor:
        """The teacher's, shaped like z."""
        if self.weight is not None:
            return logits(rows[0], self.weight, self.bias, self.softcap).to(z.dtype)
        values = rows[0].to(z.dtype)
        if self.softcap is not None:
            capped = self.softcap * torch.tanh(values / self.softcap)
            values = torch.where(values == -math.inf, values, capped)  # a class ruled out stays so
        if len(rows) == 1:
            return values
        width, at = z.shape[1], rows[1] - holders.first
        at = torch.where((at >= 0) & (at < width), at, width)  # those of others: one column more
        none = torch.full_like(z[:, :1], -math.inf).expand(-1, width + 1)
        # The largest where a class is there twice: once with −inf, to fill up a row.
        # Not in place: under vmap only some of these may be batched.
        return none.scatter_reduce(1, at, values, "amax")[:, :width]


class _Forward:
    """Σ t log(t/p)."""

    def __init__(self, student: Softmax, teacher: Softmax, holders: Holders) -> None:
        self.p, self.t, self.none = student.p, teacher.p, teacher.none
        value = times(self.t, teacher.log_p - student.log_p).sum(-1)
        self.values = (holders.reduced(value, "SUM"),)

    def gradient(self, above: tuple[Tensor, ...]) -> Tensor:
        return self.p.sub_(self.t).mul_(torch.where(self.none, 0.0, above[0]).unsqueeze(-1))


class _Reverse:
    """Σ p log(p/t), or with β < 1 the JSD, where log(p/m) stands for log(p/t)."""

    def __init__(self, student: Softmax, teacher: Softmax, holders: Holders, beta: float) -> None:
        self.p, lead = student.p, teacher.log_p - student.log_p
        over_p = lead
        if beta < 1:
            over_p, over_t = _mixture(lead, beta)
        there = (self.p > 0) & ~teacher.none.unsqueeze(-1)
        self.ratio = torch.where(there, -over_p, 0.0)
        self.mean = holders.reduced((self.p * self.ratio).sum(-1), "SUM")
        self.share = 1.0 if beta == 1 else 1 - beta
        value = self.share * self.mean
        if beta < 1:
            other = times(teacher.p, over_t).sum(-1)
            value = value - beta * holders.reduced(other, "SUM")
        self.values = (value,)

    def gradient(self, above: tuple[Tensor, ...]) -> Tensor:
        r = self.ratio.sub_(self.mean.unsqueeze(-1)).mul_(self.p)
        return r.mul_((self.share * above[0]).unsqueeze(-1))


def _mixture(lead: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """log(m/p) and log(m/t) with m = β t + (1−β) p, from log(t/p): both exactly 0 where that is.

    m is the larger of the two times 1 + s (e^{−|log(t/p)|} − 1), s the share of the smaller."""
    share = torch.full_like(lead, beta).masked_fill_(lead > 0, 1 - beta)
    below = torch.expm1(-lead.abs()).mul_(share).log1p_()
    return below + lead.clamp(min=0), below - lead.clamp(max=0)
