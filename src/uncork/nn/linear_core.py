"""The linear losses as one differentiable function: where the gradients are made, kept and scaled.

With reduction "mean" or "sum" the gradients are made together with the loss, in one pass over the
vocabulary; backward then only multiplies them by the number from upstream, in place, and hands them
over. A second backward through the same graph makes them again. With "none", and in float16 (whose
range is too small for gradients before the upstream factor), they are made in backward.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn import kernels
from uncork.nn._torch import torch
from uncork.nn.linear_blocks import loss_of_logits
from uncork.nn.linear_rows import NOTHING, LinearOptions, LinearTensors, Wanted, upstream_of
from uncork.nn.linear_traced import TracedLinearLoss
from uncork.nn.linear_ways import adds_up, compute

Tensor = torch.Tensor

_LARGE = 1 << 22  # numbers of a gradient: see `_scale`


def linear_loss(tensors: LinearTensors, reduction: str, options: LinearOptions) -> Tensor:
    """Loss of rows input @ weightᵀ + bias: () or, with reduction "none", (N)."""
    wanted = Wanted(*(_asked(leaf) for leaf in tensors[:4]))
    early = wanted.any and reduction != "none" and tensors.input.dtype != torch.float16
    apply = TracedLinearLoss.apply if torch.compiler.is_compiling() else _LinearLoss.apply
    loss: Tensor = apply(reduction, early, options, wanted, *tensors)
    if reduction == "mean" and not len(tensors.input):
        return loss + math.nan  # of no rows: gradients are 0, as cross_entropy's are
    return loss


def _asked(leaf: Tensor | float | None) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad and torch.is_grad_enabled()


class _LinearLoss(torch.autograd.Function):
    """The reduced loss (), or with "none" losses by row (N), of tensors as in `LinearTensors`.
    `early`: gradients are made in forward."""

    @staticmethod
    def forward(
        ctx: Any, reduction: str, early: bool, options: LinearOptions, wanted: Wanted, *given: Any
    ) -> Tensor:
        tensors = LinearTensors(*given)
        upstream = None
        added_up = reduction != "none" and adds_up(tensors, options)
        if reduction != "none" and not added_up:
            upstream = upstream_of(reduction, tensors, options)
        made = compute(
            tensors, upstream if early else None, options, wanted if early else NOTHING,
            reduction if added_up else None,
        )  # fmt: skip
        input, weight, bias, tau, target, class_weight = tensors
        ctx.tau = None if isinstance(tau, Tensor) else tau  # only tensors can be saved
        saved_tau = tau if ctx.tau is None else None
        ctx.save_for_backward(input, weight, bias, saved_tau, target, class_weight)
        ctx.reduction, ctx.options, ctx.wanted = reduction, options, wanted
        ctx.ready = made[1:5] if early else None
        if made.total is not None:
            return made.total
        assert made.losses is not None
        return made.losses if upstream is None else torch.dot(made.losses, upstream)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        gradients: Any
        if torch.is_grad_enabled():
            gradients = _differentiable(ctx, grad)
        elif ctx.ready is not None:
            gradients, ctx.ready = ctx.ready, None  # handed over: who holds them may keep them
            _scale([made for made in gradients if made is not None], grad)
        else:
            tensors = _saved(ctx)
            made = compute(tensors, _by_row(ctx, tensors, grad), ctx.options, ctx.wanted)
            gradients = made[1:5]
        return (None, None, None, None, *gradients, None, None)


def _saved(ctx: Any) -> LinearTensors:
    tensors = LinearTensors(*ctx.saved_tensors)
    return tensors if ctx.tau is None else tensors._replace(tau=ctx.tau)


def _by_row(ctx: Any, tensors: LinearTensors, grad: Tensor) -> Tensor:
    """The gradient from upstream for every row's loss."""
    if ctx.reduction == "none":
        return grad
    return grad * upstream_of(ctx.reduction, tensors, ctx.options)


def _differentiable(ctx: Any, grad: Tensor) -> list[Tensor | None]:
    """Gradients that can be differentiated again: all logits at once, by torch's own means."""
    if ctx.options.shard is not None:
        raise UncorkError("a vocabulary-parallel loss has first derivatives only")
    tensors = _saved(ctx)
    input, weight, bias, tau, target, class_weight = tensors
    leaves = zip(tensors[:4], ctx.wanted, strict=True)
    asked = [leaf for leaf, wanted in leaves if wanted and isinstance(leaf, Tensor)]
    wide = input.dtype if input.dtype == torch.float64 else torch.float32
    z = torch.nn.functional.linear(input, weight).to(wide)
    if bias is not None:
        z = z + bias.to(wide)
    loss = loss_of_logits(z, target, class_weight, tau, ctx.options)
    rows = _by_row(ctx, tensors, grad).to(wide)
    made = iter(torch.autograd.grad(loss, asked, rows, create_graph=True))
    return [next(made) if wanted else None for wanted in ctx.wanted]


def _scale(gradients: list[Tensor], factor: Tensor) -> None:
    """Every gradient times factor, in place. The kernel leaves the memory alone where the factor is
    1, which it is for a loss that is the last thing computed; below some size launching it takes
    longer than torch's multiplications."""
    large: list[Tensor] = []
    small: list[Tensor] = []
    for made in gradients:
        (large if made.numel() >= _LARGE and kernels.usable(made) else small).append(made)
    if large:
        from uncork.nn.kernels.ends import scale

        for values, others in zip_longest(large[::2], large[1::2]):
            scale(values, others, factor)
    if small:
        torch._foreach_mul_(small, factor)
