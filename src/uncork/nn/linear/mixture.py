"""−log Σ_k π_k P_k(target): mixtures of softmaxes of linked logits, without the logits.

A component's share in a row's gradient is a number, its responsibility for the target. So a block
of rows is one product of all its components' contexts with the weight, from which the residuals
follow as in cross entropy, each component's times its responsibility: three products a component,
as many as softmax takes. One component with a link is sigsoftmax, or a piecewise linear head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from uncork.nn import kernels
from uncork.nn._torch import torch
from uncork.nn.linear.by_row import add_product, logits
from uncork.nn.linear.links import Link

Tensor = torch.Tensor

ON_CPU = 1 << 22  # logits in memory at a time: 16 MiB in float32
ON_GPU = 1 << 27


class Tensors(NamedTuple):
    """What may want gradients."""

    contexts: Tensor  #: (N, K, e)
    log_prior: Tensor | None  #: (N, K), None for one component
    weight: Tensor  #: (C, e)
    bias: Tensor | None  #: (C)
    table: Tensor | None  #: the link's own parameters


@dataclass(frozen=True)
class Call:
    """Everything but the tensors."""

    link: Link
    ignore_index: int
    #: the losses (N) of the same tensors by torch's own means, to be differentiated again
    again: Callable[[Tensors], Tensor]


@torch.compiler.disable  # traced, every block would be compiled anew
def mixture_loss(
    call: Call,
    tensors: Tensors,
    target: Tensor,
    class_weight: Tensor | None,
    shares: Tensor | None,
) -> Tensor:
    """Losses by row (N); with shares (N) given, their sum weighted by these."""
    loss: Tensor = _MixtureLoss.apply(call, target, class_weight, shares, *tensors)
    return loss


class _MixtureLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: Call,
        target: Tensor,
        class_weight: Tensor | None,
        shares: Tensor | None,
        *given: Any,
    ) -> Tensor:
        tensors, wanted = Tensors(*given), ctx.needs_input_grad[4:]
        # float16's range is too small for gradients before the upstream factor (a loss scale).
        early = any(wanted) and shares is not None and tensors.weight.dtype != torch.float16
        losses, gradients = compute(
            call, tensors, target, class_weight, shares if early else None, wanted
        )
        ctx.save_for_backward(target, class_weight, shares, *given)
        ctx.call, ctx.wanted = call, wanted
        ctx.ready = gradients if early else None
        return losses if shares is None else torch.dot(losses, shares.to(losses.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        target, class_weight, shares, *given = ctx.saved_tensors
        tensors = Tensors(*given)
        rows = grad if shares is None else grad * shares
        made: list[Tensor | None]
        if torch.is_grad_enabled():  # to be differentiated again: all rows at once
            losses = ctx.call.again(tensors)
            leaves: list[Any] = [
                one for one, asked in zip(tensors, ctx.wanted, strict=True) if asked
            ]
            found = iter(
                torch.autograd.grad(losses, leaves, rows.to(losses.dtype), create_graph=True)
            )
            made = [next(found) if asked else None for asked in ctx.wanted]
        elif ctx.ready is not None:
            made, ctx.ready = ctx.ready, None  # handed over: a second backward makes them anew
            made = [None if one is None else one.mul_(grad) for one in made]
        else:
            made = compute(ctx.call, tensors, target, class_weight, rows, ctx.wanted)[1]
        return (None, None, None, None, *made)


@torch.no_grad()
def compute(
    call: Call,
    tensors: Tensors,
    target: Tensor,
    class_weight: Tensor | None,
    upstream: Tensor | None,
    wanted: tuple[bool, ...],
) -> tuple[Tensor, list[Tensor | None]]:
    """Losses (N), and with upstream (N) the gradients wanted, in the order of `Tensors`."""
    contexts, log_prior, weight, bias, table = tensors
    rows, components, features = contexts.shape
    classes, device = len(weight), contexts.device
    wide = torch.float64 if contexts.dtype == torch.float64 else torch.float32
    counted = target != call.ignore_index
    index = torch.where(counted, target, 0)
    if device.type == "cpu" and bool(((index < 0) | (index >= classes)).any()):
        raise IndexError(f"a target is out of bounds for {classes} classes")
    by_class = counted.to(wide)
    if class_weight is not None:
        by_class = torch.where(counted, class_weight.to(wide)[index], 0.0)
    losses = torch.zeros(rows, dtype=wide, device=device)
    gradients: list[Tensor | None] = [None] * 5
    if upstream is not None:
        kinds = (contexts.dtype, wide, wide, wide, wide)
        for place, (one, asked) in enumerate(zip(tensors, wanted, strict=True)):
            if asked and one is not None:
                gradients[place] = torch.zeros_like(one, dtype=kinds[place])
    d_contexts, d_prior, d_weight, d_bias, d_table = gradients
    elements = ON_CPU if device.type == "cpu" else ON_GPU
    step = max(1, elements // (classes * components))
    with torch.autocast(device.type, enabled=False):
        for start in range(0, rows, step):
            part = slice(start, start + step)
            x = contexts[part].reshape(-1, features)
            made = call.link(_logits(x, weight, bias), _repeated(index[part], components), table)
            log_p = made.log_p.view(-1, components)
            joint = log_p if log_prior is None else log_p + log_prior[part]
            total = torch.logsumexp(joint, -1)
            losses[part] = torch.where(counted[part], -total * by_class[part], 0.0)
            if upstream is None:
                continue
            above = torch.where(counted[part], upstream[part].to(wide) * by_class[part], 0.0)
            # −d log Σ_k π_k P_k: each component's share in it. Of no probability at all, of none.
            share = torch.exp(joint - torch.where(total == -math.inf, 0.0, total).unsqueeze(-1))
            share = share * above.unsqueeze(-1)
            if d_prior is not None:
                d_prior[part] = -share
            r, by_table = made.residual(share.reshape(-1))
            if d_table is not None and by_table is not None:
                d_table += by_table
            if d_bias is not None:
                d_bias += r.sum(0, dtype=wide)
            r = r.to(weight.dtype)
            if d_contexts is not None:
                d_contexts[part] = torch.mm(r, weight).view(-1, components, features)
            if d_weight is not None:
                add_product(d_weight, r.t(), x)
    return losses, [
        None if made is None or one is None else made.to(one.dtype)
        for made, one in zip(gradients, tensors, strict=True)
    ]


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In float32 or better; of the products' own type where kernels read them."""
    narrow = bias is None or bias.dtype == x.dtype
    if narrow and (kernels.usable(x) or x.dtype.itemsize >= 4):
        return torch.nn.functional.linear(x, weight, bias)
    return logits(x, weight, bias, None)


def _repeated(index: Tensor, components: int) -> Tensor:
    return index.repeat_interleave(components) if components > 1 else index
