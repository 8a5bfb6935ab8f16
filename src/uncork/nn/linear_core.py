"""The linear losses as one differentiable function: where the gradients are made, kept and scaled.

With reduction "mean" or "sum" the gradients are made together with the loss, in one pass over the
vocabulary; backward then only multiplies them by the number from upstream, in place, and hands them
over. A second backward through the same graph makes them again. With "none", and in float16 (whose
range is too small for gradients before the upstream factor), they are made in backward.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from uncork.errors import UncorkError
from uncork.nn import kernels
from uncork.nn._torch import torch
from uncork.nn.linear_blocks import compute as compute_blocks
from uncork.nn.linear_blocks import loss_of_logits
from uncork.nn.linear_rows import LinearOptions, LinearResult, Wanted, row_weights

Tensor = torch.Tensor


def compute(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tau: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    upstream: Tensor | None,
    options: LinearOptions,
    wanted: Wanted,
) -> LinearResult:
    """Losses of the rows and the gradients wanted, by whichever way the tensors allow."""
    with torch.no_grad(), _without_autocast(input.device.type):
        if options.shard is not None:
            from uncork.nn.vocab_parallel import compute as compute_shard

            return compute_shard(
                input, weight, bias, tau, target, class_weight, upstream, options, wanted
            )
        if kernels.usable(input, weight):
            from uncork.nn.linear_slices import compute as compute_slices

            return compute_slices(
                input, weight, bias, tau, target, class_weight, upstream, options, wanted
            )
        return compute_blocks(
            input, weight, bias, tau, target, class_weight, upstream, options, wanted
        )


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
    tau: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    reduction: str,
    options: LinearOptions,
) -> Tensor:
    """Loss of rows input (N, d) @ weight (C, d)ᵀ + bias: () or, with reduction "none", (N)."""
    wanted = Wanted(*(_asked(leaf) for leaf in (input, weight, bias, tau)))
    upstream = None  # dL/d(loss of a row) for an upstream gradient of 1
    if reduction != "none":
        wide = torch.float64 if input.dtype == torch.float64 else torch.float32
        shares = row_weights(target, class_weight, options.ignore_index).to(wide)
        upstream = torch.ones_like(shares)
        if reduction == "mean":
            upstream /= shares.sum()
    early = wanted.any and reduction != "none" and input.dtype != torch.float16
    function = _TracedLinearLoss if torch.compiler.is_compiling() else _LinearLoss
    loss: Tensor = function.apply(
        input, weight, bias, tau, target, class_weight, upstream, early, options, wanted
    )
    return loss


def _asked(leaf: Tensor | None) -> bool:
    return leaf is not None and leaf.requires_grad and torch.is_grad_enabled()


_NOTHING = Wanted(False, False, False, False)
_LARGE = 1 << 25


def _reduced(losses: Tensor, upstream: Tensor | None) -> Tensor:
    if upstream is None:
        return losses
    return (losses * upstream.to(losses.dtype)).sum()


class _LinearLoss(torch.autograd.Function):
    """Losses by row (N); with upstream (N) given, their sum weighted by it. `early`: gradients are
    made in forward."""

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
        made = compute(
            input, weight, bias, tau, target, class_weight,
            upstream if early else None, options, wanted if early else _NOTHING,
        )  # fmt: skip
        ctx.save_for_backward(input, weight, bias, tau, target, class_weight, upstream)
        ctx.options, ctx.wanted = options, wanted
        ctx.ready = made[1:] if early else None
        return _reduced(made.losses, upstream)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        input, weight, bias, tau, target, class_weight, upstream = ctx.saved_tensors
        gradients: Any
        if torch.is_grad_enabled():
            gradients = _differentiable(ctx, grad)
        elif ctx.ready is not None:
            gradients, ctx.ready = ctx.ready, None  # handed over: who holds them may keep them
            gradients = [None if made is None else _scaled(made, grad) for made in gradients]
        else:
            rows = grad if upstream is None else grad * upstream
            gradients = compute(
                input, weight, bias, tau, target, class_weight, rows, ctx.options, ctx.wanted
            )[1:]
        return (*gradients, None, None, None, None, None, None)


def _differentiable(ctx: Any, grad: Tensor) -> list[Tensor | None]:
    """Gradients that can be differentiated again: all logits at once, by torch's own means."""
    if ctx.options.shard is not None:
        raise UncorkError("a vocabulary-parallel loss has first derivatives only")
    input, weight, bias, tau, target, class_weight, upstream = ctx.saved_tensors
    leaves = [input, weight, bias, tau]
    asked = [leaf for leaf, wanted in zip(leaves, ctx.wanted, strict=True) if wanted]
    wide = input.dtype if input.dtype == torch.float64 else torch.float32
    z = torch.nn.functional.linear(input, weight).to(wide)
    if bias is not None:
        z = z + bias.to(wide)
    loss = loss_of_logits(z, target, class_weight, tau, ctx.options)
    rows = grad if upstream is None else grad * upstream
    made = iter(torch.autograd.grad(loss, asked, rows.to(wide), create_graph=True))
    return [next(made) if wanted else None for wanted in ctx.wanted]


def _scaled(gradient: Tensor, factor: Tensor) -> Tensor:
    """gradient · factor in place. The kernel leaves the memory alone where the factor is 1, which
    it is for a loss that is the last thing computed; below some size launching it takes longer than
    torch's multiplication."""
    if gradient.numel() >= _LARGE and kernels.usable(gradient):
        from uncork.nn.kernels.scale import scale_kernel

        block = 4096
        programs = -(-gradient.numel() // block)
        scale_kernel[(programs,)](gradient, factor, gradient.numel(), L=block, num_warps=4)
        return gradient
    return gradient.mul_(factor)


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
