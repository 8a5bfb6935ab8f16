"""What is computed of every row of logits, a block of rows at a time: never (rows × classes).

An objective says what it makes of a block's logits and what its derivative is; this file makes the
logits, hands the derivative on to hidden states, weight and bias, and lets processes share the
classes out. `log_prob` and `distillation` are objectives.

Where one number is asked for, gradients are made together with it, in one pass. Where a value for
every row is, they are made in backward, from the logits once more. To differentiate twice, and
under torch.func, all rows are computed at once, by torch's own means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from uncork.core.errors import UncorkError
from uncork.nn._autograd import apply
from uncork.nn._rows import (
    are_transformed,
    check_floating,
    check_number,
    is_traced,
    under_autocast,
    without_autocast,
)
from uncork.nn._torch import torch
from uncork.nn.linear.in_blocks import apart
from uncork.nn.linear.problem import (
    Shard,
    Wanted,
    check_softcap,
    check_weight,
    logits,
    refuse_shard,
    shard_of,
)
from uncork.nn.losses.specification import check_beside, check_per_class
from uncork.nn.transforms.deformed import along_simplex
from uncork.nn.transforms.entmax import Entmax
from uncork.nn.transforms.sharded import refuse_linear
from uncork.nn.transforms.threshold import shifted
from uncork.nn.transforms.together import Together

Tensor = torch.Tensor

ON_CPU = 1 << 22  # logits in memory at a time: 16 MiB in float32
ON_GPU = 1 << 26


class Alone:
    """As `Together` where one process has all classes."""

    def __init__(self, classes: int) -> None:
        self.first, self.classes = 0, classes

    def reduced(self, value: Tensor, how: str) -> Tensor:
        return value

    def top(self, z: Tensor) -> Tensor:
        return shifted(z)[1]

    def probabilities(self, z: Tensor, alpha: float) -> Tensor:
        p: Tensor = apply(Entmax, z, alpha)
        return p

    def along_simplex(self, p: Tensor, along: Tensor, alpha: float) -> Tensor:
        return along_simplex(p, along, alpha)


Holders = Alone | Together


class Block(Protocol):
    """A block of rows' logits and what was made of them."""

    @property
    def values(self) -> tuple[Tensor, ...]:
        """(R) each."""
        ...

    def gradient(self, above: tuple[Tensor, ...]) -> Tensor:
        """Σ_i above_i · d(values_i)/d(logits), above (R) each: (R, C). Asked for once, since it may
        take the place of what the block holds."""
        ...


class Objective(Protocol):
    """From a block of logits z (R, C) and the rows' own tensors to a `Block`."""

    @property
    def count(self) -> int:
        """How many values a row has."""
        ...

    def __call__(self, z: Tensor, rows: tuple[Tensor, ...], holders: Holders) -> Block: ...

    def at_once(self, z: Tensor, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The same values, (N) each, of all rows of logits z (N, C), to be differentiated."""
        ...


@dataclass(frozen=True)
class Call:
    """Everything but the tensors."""

    objective: Objective
    softcap: float | None
    temperature: float
    shard: Shard | None


class Layer(NamedTuple):
    """Hidden states and the layer they go through, checked and in one type."""

    input: Tensor  #: (N, d)
    weight: Tensor  #: (C, d)
    bias: Tensor | None  #: (C)
    shard: Shard | None


def layer(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    group: Any,
    first_class: int | None,
    classes: int | None,
    name: str = "linear_weight",
) -> Layer:
    """The arguments of a function of a layer. Without `group`, and the two numbers, one process has
    all classes."""
    check_floating(input)
    refuse_linear("input", input)
    check_weight(weight, name)
    if input.dim() == 0 or input.shape[-1] != weight.shape[1]:
        raise UncorkError(
            f"hidden states {tuple(input.shape)} and {name} {tuple(weight.shape)} do not fit: "
            "(..., d) and (classes, d) are expected"
        )
    check_beside(name, weight, input.device)
    check_per_class(name.replace("weight", "bias"), bias, len(weight), input.device)
    device = input.device.type
    if under_autocast(device) and input.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
        input, weight = input.to(dtype), weight.to(dtype)
    if input.dtype != weight.dtype:
        raise UncorkError(
            f"hidden states are {input.dtype} and {name} {weight.dtype}: give them one dtype, or "
            "compute under torch.autocast"
        )
    shard = None
    if not (group is None and first_class is None and classes is None):
        shard = shard_of(weight, name, first_class, classes, group)
    return Layer(input.reshape(-1, input.shape[-1]), weight, bias, shard)


def check_temperature(temperature: float) -> None:
    check_number(temperature, "temperature", "a positive number", lambda t: 0 < t < math.inf)


def by_row(
    objective: Objective,
    given: Layer,
    rows: tuple[Tensor, ...],
    *,
    softcap: float | None = None,
    temperature: float = 1.0,
) -> tuple[Tensor, ...]:
    """The objective's values of every row, (N) each."""
    made = _apply(objective, given, rows, None, softcap, temperature)
    return made.unbind(0)


def reduced_by(
    objective: Objective,
    given: Layer,
    rows: tuple[Tensor, ...],
    upstream: Tensor,
    *,
    softcap: float | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Σ upstream · the objective's first value, upstream (N): ()."""
    return _apply(objective, given, rows, upstream, softcap, temperature)


def _apply(
    objective: Objective,
    given: Layer,
    rows: tuple[Tensor, ...],
    upstream: Tensor | None,
    softcap: float | None,
    temperature: float,
) -> Tensor:
    check_softcap(softcap)
    check_temperature(temperature)
    call = Call(objective, softcap, float(temperature), given.shard)
    leaves: tuple[Tensor | None, ...] = given[:3]
    held = vars(objective).values()  # a teacher's head
    if is_traced() or are_transformed(upstream, *leaves, *rows, *held):
        return _at_once(call, leaves, rows, upstream)
    if not torch.is_grad_enabled():  # which the function could not see: it would make gradients
        leaves = tuple(None if leaf is None else leaf.detach() for leaf in leaves)
    made: Tensor = _ByRow.apply(call, upstream, *leaves, *rows)
    return made


def _at_once(
    call: Call, leaves: Sequence[Any], rows: tuple[Tensor, ...], upstream: Tensor | None
) -> Tensor:
    """The same from all logits, by torch's own means, through which its transforms go."""
    refuse_shard(call.shard)
    input, weight, bias = leaves
    z = logits(input, weight, bias, call.softcap) / call.temperature
    values = call.objective.at_once(z, tuple(rows_of(one, slice(None)) for one in rows))
    return torch.stack(values) if upstream is None else torch.dot(values[0], upstream)


class _Gradients(NamedTuple):
    input: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


class _ByRow(torch.autograd.Function):
    """Values (count, N); with upstream (N) the first one's sum, each times that, ()."""

    @staticmethod
    def forward(
        ctx: Any,
        call: Call,
        upstream: Tensor | None,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *rows: Tensor,
    ) -> Tensor:
        needed = ctx.needs_input_grad
        wanted = Wanted(needed[2], needed[3], needed[4], False)
        # As in `autograd`: float16's range is too small for gradients before the upstream factor.
        early = wanted.any and upstream is not None and input.dtype != torch.float16
        above = None
        if early and upstream is not None:
            above = upstream.unsqueeze(0)
        values, gradients = compute(
            call, input, weight, bias, rows, above, wanted if early else None
        )
        # A teacher's rows may be from inference mode, which autograd does not keep.
        ctx.unsaved = [one if one.is_inference() else None for one in rows]
        saved = [None if one.is_inference() else one for one in rows]
        ctx.save_for_backward(upstream, input, weight, bias, *saved)
        ctx.call, ctx.wanted = call, wanted
        ctx.ready = gradients if early else None
        return values if upstream is None else torch.dot(values[0], upstream)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        upstream, input, weight, bias, *saved = ctx.saved_tensors
        rows = [one if kept is None else kept for one, kept in zip(saved, ctx.unsaved, strict=True)]
        made: list[Tensor | None]
        again = torch.is_grad_enabled()  # to be differentiated again
        if again or are_transformed(grad):  # or of many losses at once, batched
            with torch.enable_grad():
                leaves = apart((input, weight, bias), ctx.wanted[:3])
                value = _at_once(ctx.call, leaves, tuple(rows), upstream)
            asked = [one for one, wanted in zip(leaves, ctx.wanted, strict=False) if wanted]
            found = iter(torch.autograd.grad(value, asked, grad, create_graph=again))
            made = [next(found) if wanted else None for wanted in ctx.wanted[:3]]
        elif ctx.ready is not None:
            gradients, ctx.ready = ctx.ready, None
            made = [None if one is None else one.mul_(grad) for one in gradients]
        else:
            above = grad if upstream is None else (grad * upstream).unsqueeze(0)
            made = list(compute(ctx.call, input, weight, bias, tuple(rows), above, ctx.wanted)[1])
        return (None, None, *made, *[None] * len(rows))


@torch.no_grad()
def compute(
    call: Call,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows: tuple[Tensor, ...],
    above: Tensor | None,
    wanted: Wanted | None,
) -> tuple[Tensor, _Gradients]:
    """Values (count, N), and the gradients wanted; above (count or 1, N): dL/d(values)."""
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    device, classes = input.device, len(weight)
    shard = call.shard
    holders: Holders = (
        Alone(classes) if shard is None else Together(shard.group, shard.first, shard.classes)
    )
    asked = Wanted(False, False, False, False) if wanted is None or above is None else wanted
    values = torch.zeros((call.objective.count, len(input)), dtype=wide, device=device)
    # Hidden states' gradients are summed over processes, so they are kept wide until then.
    kept = input.dtype if shard is None else wide
    d_input = torch.zeros_like(input, dtype=kept) if asked.input else None
    d_weight = torch.zeros_like(weight, dtype=wide) if asked.weight else None
    d_bias = torch.zeros(classes, dtype=wide, device=device) if asked.bias else None
    elements = ON_CPU if device.type == "cpu" else ON_GPU
    step = max(1, elements // max(1, holders.classes))  # the same for everybody
    with without_autocast(device.type):
        for start in range(0, len(input), step):
            part = slice(start, start + step)
            z = scaled = logits(input[part], weight, bias, call.softcap)
            if call.temperature != 1:
                scaled = z / call.temperature
            own = tuple(rows_of(t, part) for t in rows)
            block = call.objective(scaled, own, holders)
            values[:, part] = torch.stack(block.values)
            if above is None or not asked.any:
                continue
            r = block.gradient(tuple(above[:, part].to(wide)))
            if call.temperature != 1:
                r.div_(call.temperature)
            if call.softcap is not None:
                r = r * (1 - (z / call.softcap).square())
            if d_bias is not None:
                d_bias += r.sum(0)
            r = r.to(weight.dtype)
            if d_input is not None:
                d_input[part] = torch.mm(r, weight)
            if d_weight is not None:
                add_product(d_weight, r.t(), input[part])
    if d_input is not None and shard is not None:
        torch.distributed.all_reduce(d_input, group=shard.group)
    return values, _Gradients(
        None if d_input is None else d_input.to(input.dtype),
        None if d_weight is None else d_weight.to(weight.dtype),
        None if d_bias is None or bias is None else d_bias.to(bias.dtype),
    )


def rows_of(tensor: Tensor, part: slice) -> Tensor:
    """Some rows of a tensor (N, …), or of one (…, C) whose leading dimensions make N."""
    if tensor.dim() < 3:
        return tensor[part]
    lead = tensor.shape[:-1]
    which = torch.arange(*part.indices(math.prod(lead)), device=tensor.device)
    return tensor[torch.unravel_index(which, lead)]


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, in total's own type."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += torch.mm(left, right)


class Softmax:
    """Softmax of rows z (R, C): p, log p and log Σ exp z, over all processes' classes."""

    def __init__(self, z: Tensor, holders: Holders) -> None:
        top = holders.top(z)
        v = z - top
        p = v.exp()
        total = holders.reduced(p.sum(-1, keepdim=True), "SUM")
        self.none = total.squeeze(-1) == 0  # (R), all −inf: every p is 0
        total = torch.where(total == 0, torch.ones_like(total), total)
        self.p = p.div_(total)
        self.log_p = v.sub_(total.log())
        self.lse = (top + total.log()).squeeze(-1)  # (R)


def times(p: Tensor, values: Tensor) -> Tensor:
    """p · values, 0 where p is, whatever the value; and so are its derivatives."""
    return p * torch.where(p == 0, 0.0, values)
