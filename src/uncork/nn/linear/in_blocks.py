"""Losses computed a block of rows at a time: what all of them share with torch's autograd.

Where the loss is reduced, gradients are made together with it, block by block, and handed over by
backward; a value for every row, and a second backward, compute each block again. To differentiate
twice, and under torch.func, all rows are computed at once, by torch's own means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from uncork.nn._rows import are_transformed, is_traced
from uncork.nn._torch import torch
from uncork.nn.linear.problem import row_weights
from uncork.nn.losses.specification import Reduction

Tensor = torch.Tensor
Tensors = Sequence[Tensor | None]
Gradients = list[Tensor | None]


class BlockLoss(Protocol):
    """A loss of rows, but for its tensors."""

    def compute(
        self,
        tensors: Tensors,
        target: Tensor,
        how: Reduction,
        upstream: Tensor | None,
        wanted: Sequence[bool],
    ) -> tuple[Tensor, Gradients]:
        """Losses (N), 0 where ignored; and, given upstream (N), the gradients wanted."""
        ...

    def at_once(self, tensors: Tensors, target: Tensor, how: Reduction) -> Tensor:
        """The same losses (N) of all rows at once, to be differentiated."""
        ...


def wide(dtype: torch.dtype) -> torch.dtype:
    """What sums over classes are kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def row_shares(target: Tensor, how: Reduction, like: Tensor) -> Tensor | None:
    """What each row's weighted loss counts in the reduced one, (N), or None for "none"."""
    if how.reduction == "none":
        return None
    shares = row_weights(target, how.weight, how.ignore_index).to(wide(like.dtype))
    ones = torch.ones_like(shares)
    return ones / shares.sum() if how.reduction == "mean" else ones


@torch.compiler.disable  # traced, every block would be compiled anew
def loss_in_blocks(loss: BlockLoss, tensors: Tensors, target: Tensor, how: Reduction) -> Tensor:
    """The loss of all rows, reduced as cross_entropy does: () or, with "none", (N)."""
    first = tensors[0]
    assert first is not None
    shares = row_shares(target, how, first)
    made: Tensor
    # torch's transforms go through all rows at once, and so do its tracers, but for torch.compile.
    if is_traced() or are_transformed(target, how.weight, *tensors):
        made = loss.at_once(tensors, target, how)
        made = made if shares is None else torch.dot(made, shares.to(made.dtype))
    else:
        learning = torch.is_grad_enabled()  # inside it never is
        made = _InBlocks.apply(loss, how, learning, target, how.weight, shares, *tensors)
    # Of no rows. (`len` would fix an open size.)
    return made + math.nan if how.reduction == "mean" and target.shape[0] == 0 else made


class _InBlocks(torch.autograd.Function):
    """Losses by row (N); with shares (N) given, their sum weighted by these."""

    @staticmethod
    def forward(
        ctx: Any,
        loss: BlockLoss,
        how: Reduction,
        learning: bool,
        target: Tensor,
        class_weight: Tensor | None,
        shares: Tensor | None,
        *tensors: Tensor | None,
    ) -> Tensor:
        wanted = ctx.needs_input_grad[6:]
        # float16's range is too small for gradients before the upstream factor (a loss scale).
        narrow = any(one is not None and one.dtype == torch.float16 for one in tensors)
        early = learning and any(wanted) and shares is not None and not narrow
        losses, gradients = loss.compute(tensors, target, how, shares if early else None, wanted)
        ctx.save_for_backward(target, class_weight, shares, *tensors)
        ctx.loss, ctx.how, ctx.wanted = loss, how, wanted
        ctx.ready = gradients if early else None
        return losses if shares is None else torch.dot(losses, shares.to(losses.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        target, _, shares, *tensors = ctx.saved_tensors
        rows = grad if shares is None else grad * shares
        made: Gradients
        again = torch.is_grad_enabled()  # to be differentiated again
        if again or are_transformed(grad):  # or of many losses at once, batched
            with torch.enable_grad():
                tensors = apart(tensors, ctx.wanted)
                losses = ctx.loss.at_once(tensors, target, ctx.how)
            leaves = [one for one, asked in zip(tensors, ctx.wanted, strict=True) if asked]
            found = iter(
                torch.autograd.grad(losses, leaves, rows.to(losses.dtype), create_graph=again)
            )
            made = [next(found) if asked else None for asked in ctx.wanted]
        elif ctx.ready is not None:
            made, ctx.ready = ctx.ready, None  # handed over: a second backward makes them anew
            made = [None if one is None else one.mul_(grad) for one in made]
        else:
            made = ctx.loss.compute(tensors, target, ctx.how, rows, ctx.wanted)[1]
        return (None, None, None, None, None, None, *made)


def apart(tensors: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    """The tensors, those wanted as views to differentiate by. By the tensors themselves, one that
    others are made of (a tied weight, under the hidden states) would have their derivatives in its
    own, and autograd would add them once more."""
    return [one.view_as(one) if asked else one for one, asked in zip(tensors, wanted, strict=True)]


def as_given(sums: Gradients, tensors: Tensors) -> Gradients:
    """Gradients in the types of their tensors."""
    return [
        None if made is None or one is None else made.to(one.dtype)
        for made, one in zip(sums, tensors, strict=True)
    ]
