"""The linear losses as one differentiable function: where the gradients are made, kept and scaled.

With reduction "mean" or "sum" the gradients are made together with the loss, in one pass over the
vocabulary; backward then only multiplies them by the number from upstream, in place, and hands them
over. A second backward through the same graph makes them again. With "none", and in float16 (whose
range is too small for gradients before the upstream factor), they are made in backward.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from uncork.errors import UncorkError
from uncork.nn import kernels
from uncork.nn._torch import torch
from uncork.nn.linear_blocks import compute as compute_blocks
from uncork.nn.linear_blocks import loss_of_logits
from uncork.nn.linear_rows import LinearOptions, LinearResult, Wanted, upstream_of

Tensor = torch.Tensor


# Rows up to which the kernels count the targets and add up the losses themselves: few launches,
# and not much waiting for programs that read all rows.
COUNTED_ROWS = 1 << 15


def compute(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tau: Tensor | float,
    target: Tensor,
    class_weight: Tensor | None,
    upstream: Tensor | None,
    options: LinearOptions,
    wanted: Wanted,
    reduction: str | None = None,
) -> LinearResult:
    """Losses of the rows and the gradients wanted, by whichever way the tensors allow.

    reduction "mean" or "sum", in place of `upstream`: only where `adds_up` says so.
    """
    with torch.no_grad(), _without_autocast(input.device.type):
        if options.shard is None and kernels.usable(input, weight):
            from uncork.nn.linear_slices import compute as compute_slices

            return compute_slices(
                input, weight, bias, tau, target, class_weight, upstream, options, wanted, reduction
            )
        tau = _as_tensor(tau, input)
        if options.shard is not None:
            from uncork.nn.vocab_parallel import compute as compute_shard

            return compute_shard(
                input, weight, bias, tau, target, class_weight, upstream, options, wanted
            )
        return compute_blocks(
            input, weight, bias, tau, target, class_weight, upstream, options, wanted
        )


def adds_up(input: Tensor, weight: Tensor, options: LinearOptions) -> bool:
    """Whether the kernels make the reduced loss too."""
    small = len(input) <= COUNTED_ROWS and options.shard is None
    return small and kernels.usable(input, weight)


def _as_tensor(tau: Tensor | float, input: Tensor) -> Tensor:
    if isinstance(tau, Tensor):
        return tau
    return torch.full((), tau, dtype=torch.float32, device=input.device)


def _without_autocast(device: str) -> AbstractContextManager[None]:
    """Autocast switched off, which takes time a small problem has not got: only where it is on."""
    if torch.is_autocast_enabled(device):
        off: AbstractContextManager[None] = torch.autocast(device, enabled=False)
        return off
    return nullcontext()


def linear_loss(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tau: Tensor | float,
    target: Tensor,
    class_weight: Tensor | None,
    reduction: str,
    options: LinearOptions,
) -> Tensor:
    """Loss of rows input (N, d) @ weight (C, d)ᵀ + bias: () or, with reduction "none", (N)."""
    wanted = Wanted(_asked(input), _asked(weight), _asked(bias), _asked(tau))
    early = wanted.any and reduction != "none" and input.dtype != torch.float16
    loss: Tensor
    if torch.compiler.is_compiling():
        upstream = None
        if reduction != "none":
            upstream = upstream_of(reduction, target, class_weight, options, input.dtype)
        tau = _as_tensor(tau, input)
        loss = _TracedLinearLoss.apply(
            input, weight, bias, tau, target, class_weight, upstream, early, options, wanted
        )
    else:
        loss = _LinearLoss.apply(
            input, weight, bias, tau, target, class_weight, reduction, early, options, wanted
        )
    if reduction == "mean" and not len(input):
        return loss + math.nan  # of no rows: gradients are 0, as cross_entropy's are
    return loss


def _asked(leaf: Tensor | float | None) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad and torch.is_grad_enabled()


_NOTHING = Wanted(False, False, False, False)
_LARGE = 1 << 24


def _reduced(losses: Tensor, upstream: Tensor | None) -> Tensor:
    if upstream is None:
        return losses
    return torch.dot(losses, upstream.to(losses.dtype))


class _LinearLoss(torch.autograd.Function):
    """The reduced loss (), or with "none" losses by row (N). `early`: gradients are made in
    forward."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tau: Tensor | float,
        target: Tensor,
        class_weight: Tensor | None,
        reduction: str,
        early: bool,
        options: LinearOptions,
        wanted: Wanted,
    ) -> Tensor:
        upstream = None
        added_up = reduction != "none" and adds_up(input, weight, options)
        if reduction != "none" and not added_up:
            upstream = upstream_of(reduction, target, class_weight, options, input.dtype)
        made = compute(
            input, weight, bias, tau, target, class_weight, upstream if early else None, options,
            wanted if early else _NOTHING, reduction if added_up else None,
        )  # fmt: skip
        given = tau if isinstance(tau, Tensor) else None
        ctx.save_for_backward(input, weight, bias, given, target, class_weight)
        ctx.tau, ctx.reduction, ctx.options, ctx.wanted = tau, reduction, options, wanted
        if given is not None:
            ctx.tau = None
        ctx.ready = made[1:5] if early else None
        if made.total is not None:
            return made.total
        assert made.losses is not None
        return _reduced(made.losses, upstream)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        gradients: Any
        if torch.is_grad_enabled():
            gradients = _differentiable(ctx, grad)
        elif ctx.ready is not None:
            gradients, ctx.ready = ctx.ready, None  # handed over: who holds them may keep them
            _scale([made for made in gradients if made is not None], grad)
        else:
            input, weight, bias, tau, target, class_weight = _saved(ctx)
            gradients = compute(
                input, weight, bias, tau, target, class_weight, _by_row(ctx, grad), ctx.options,
                ctx.wanted,
            )[1:5]  # fmt: skip
        return (*gradients, None, None, None, None, None, None)


def _saved(ctx: Any) -> tuple[Any, ...]:
    input, weight, bias, tau, target, class_weight = ctx.saved_tensors
    return input, weight, bias, ctx.tau if tau is None else tau, target, class_weight


def _by_row(ctx: Any, grad: Tensor) -> Tensor:
    """The gradient from upstream for every row's loss."""
    if ctx.reduction == "none":
        return grad
    input, _, _, _, target, class_weight = ctx.saved_tensors
    upstream = upstream_of(ctx.reduction, target, class_weight, ctx.options, input.dtype)
    return grad * upstream


def _differentiable(ctx: Any, grad: Tensor) -> list[Tensor | None]:
    """Gradients that can be differentiated again: all logits at once, by torch's own means."""
    if ctx.options.shard is not None:
        raise UncorkError("a vocabulary-parallel loss has first derivatives only")
    input, weight, bias, tau, target, class_weight = _saved(ctx)
    leaves = [input, weight, bias, tau]
    asked = [leaf for leaf, wanted in zip(leaves, ctx.wanted, strict=True) if wanted]
    wide = input.dtype if input.dtype == torch.float64 else torch.float32
    z = torch.nn.functional.linear(input, weight).to(wide)
    if bias is not None:
        z = z + bias.to(wide)
    loss = loss_of_logits(z, target, class_weight, tau, ctx.options)
    rows = _by_row(ctx, grad).to(wide)
    made = iter(torch.autograd.grad(loss, asked, rows, create_graph=True))
    return [next(made) if wanted else None for wanted in ctx.wanted]


def _scale(gradients: list[Tensor], factor: Tensor) -> None:
    """Every gradient times factor, in place. The kernel leaves the memory alone where the factor is
    1, which it is for a loss that is the last thing computed; below some size launching it takes
    longer than torch's multiplication of all at once."""
    small = []
    for gradient in gradients:
        if gradient.numel() < _LARGE or not kernels.usable(gradient):
            small.append(gradient)
            continue
        from uncork.nn.kernels.scale import scale

        scale(gradient, factor)
    if small:
        torch._foreach_mul_(small, factor)


# --- torch.compile sees one opaque operator --------------------------------------------------


@torch.library.custom_op("uncork::linear_loss", mutates_args=())
def _operator(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tau: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    upstream: Tensor | None,
    alpha: float,
    fixed: bool,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    float32_accumulation: bool | None,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    options = LinearOptions(
        alpha, fixed, ignore_index, label_smoothing, softcap, float32_accumulation
    )
    made = compute(
        input, weight, bias, tau, target, class_weight, upstream, options, Wanted(*wanted)
    )
    assert made.losses is not None
    none = input.new_empty(0)
    return (
        made.losses,
        none if made.input is None else made.input,
        none.clone() if made.weight is None else made.weight,
        none.clone() if made.bias is None else made.bias,
        none.clone() if made.tau is None else made.tau,
    )


@_operator.register_fake
def _shapes(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tau: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    upstream: Tensor | None,
    alpha: float,
    fixed: bool,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    float32_accumulation: bool | None,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    leaves = (input, weight, bias, tau)
    gradients = [
        leaf.new_empty(leaf.shape) if asked and leaf is not None else input.new_empty(0)
        for leaf, asked in zip(leaves, wanted, strict=True)
    ]
    losses = input.new_empty(input.shape[0], dtype=wide)
    return losses, gradients[0], gradients[1], gradients[2], gradients[3]


def _call_operator(
    tensors: tuple[Tensor | None, ...],
    upstream: Tensor | None,
    options: LinearOptions,
    wanted: Wanted,
) -> tuple[Tensor, ...]:
    made: tuple[Tensor, ...] = _operator(
        *tensors, upstream, options.alpha, options.fixed, options.ignore_index,
        options.label_smoothing, options.softcap, options.float32_accumulation, list(wanted),
    )  # fmt: skip
    return made


class _TracedLinearLoss(torch.autograd.Function):
    """As `_LinearLoss`, for a tracer: nothing is changed in place, nothing differentiable twice."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tau: Tensor,
        target: Tensor,
        class_weight: Tensor | None,
        upstream: Tensor | None,
        early: bool,
        options: LinearOptions,
        wanted: Wanted,
    ) -> Tensor:
        tensors = (input, weight, bias, tau, target, class_weight)
        losses, *gradients = _call_operator(
            tensors, upstream if early else None, options, wanted if early else _NOTHING
        )
        ctx.early, ctx.options, ctx.wanted = early, options, wanted
        if early:
            ctx.save_for_backward(*gradients)
        else:
            ctx.save_for_backward(*tensors, upstream)
        return _reduced(losses, upstream)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        if ctx.early:
            gradients = [
                (made * grad.to(made.dtype) if asked else None)
                for made, asked in zip(ctx.saved_tensors, ctx.wanted, strict=True)
            ]
        else:
            *tensors, upstream = ctx.saved_tensors
            rows = grad if upstream is None else grad * upstream
            made = _call_operator(tuple(tensors), rows, ctx.options, ctx.wanted)[1:]
            gradients = [
                one if asked else None for one, asked in zip(made, ctx.wanted, strict=True)
            ]
        return (*gradients, None, None, None, None, None, None)
