"""Losses of any head, a block of rows at a time: (rows × classes) never exists in full.

A head gives a function from some rows' tensors and the tensors all rows share to the rows' losses.
Where the loss is reduced, gradients are made together with it, block by block, and summed over
blocks in float32; otherwise backward computes each block again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from uncork.nn._torch import torch
from uncork.nn.linear.problem import row_weights

Tensor = torch.Tensor
#: rows' tensors (R, …), shared tensors, targets (R), class weights → losses (R), 0 where ignored
Losses = Callable[[Sequence[Tensor], Sequence[Tensor | None], Tensor, Tensor | None], Tensor]

ON_CPU = 1 << 22  # numbers in memory at a time: 16 MiB in float32
# On a GPU every block costs launches and the adding up of a weight's gradient: 512 MiB, or less
# where torch's own cross entropy would take less.
ON_GPU = 1 << 27
SHARE = 0.75  # of rows × classes


def block_rows(rows: int, classes: int, device: torch.device, copies: int = 1) -> int:
    """How many rows of scores to make at a time where each is kept `copies` times."""
    elements = ON_CPU
    if device.type != "cpu":
        elements = min(ON_GPU, max(ON_CPU, int(SHARE * rows * classes)))
    return max(1, elements // max(1, classes * copies))


def blocks(rows: int, step: int) -> Iterator[slice]:
    """Slices that cover the rows."""
    for start in range(0, rows, step):
        yield slice(start, start + step)


def wide(dtype: torch.dtype) -> torch.dtype:
    """What sums over classes are kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class ChunkOptions:
    """A chunked loss but for its tensors."""

    losses: Losses
    rows: int  #: how many of the tensors belong to rows; the others are shared
    step: int  #: rows of a block


def row_shares(
    target: Tensor, class_weight: Tensor | None, ignore_index: int, reduction: str, like: Tensor
) -> Tensor | None:
    """What each row's weighted loss counts in the reduced one, (N), or None for "none"."""
    if reduction == "none":
        return None
    shares = row_weights(target, class_weight, ignore_index).to(wide(like.dtype))
    ones = torch.ones_like(shares)
    return ones / shares.sum() if reduction == "mean" else ones


@torch.compiler.disable  # traced, every block would be compiled anew
def chunked_loss(
    losses: Losses,
    rows: Sequence[Tensor],
    shared: Sequence[Tensor | None],
    target: Tensor,
    *,
    step: int,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """`losses` of all rows, reduced as cross_entropy does: () or, with "none", (N)."""
    options = ChunkOptions(losses, len(rows), step)
    upstream = row_shares(target, weight, ignore_index, reduction, rows[0])
    tensors = (*rows, *shared)
    asked = [
        tensor is not None and tensor.requires_grad and torch.is_grad_enabled()
        for tensor in tensors
    ]
    loss: Tensor = _ChunkedLoss.apply(options, asked, target, weight, upstream, *tensors)
    return loss + math.nan if reduction == "mean" and not len(target) else loss  # of no rows


def _losses(
    options: ChunkOptions,
    tensors: Sequence[Tensor | None],
    target: Tensor,
    class_weight: Tensor | None,
) -> Tensor:
    """Losses (R) of one block of rows."""
    rows = [tensor for tensor in tensors[: options.rows] if tensor is not None]
    return options.losses(rows, tensors[options.rows :], target, class_weight)


def _of(tensors: Sequence[Tensor | None], rows: slice, count: int) -> list[Tensor | None]:
    """A block's tensors: its rows of the first `count`, and all of the shared ones."""
    return [
        tensor[rows] if index < count and tensor is not None else tensor
        for index, tensor in enumerate(tensors)
    ]


def compute(
    options: ChunkOptions,
    asked: Sequence[bool],
    target: Tensor,
    class_weight: Tensor | None,
    upstream: Tensor | None,
    tensors: Sequence[Tensor | None],
) -> tuple[Tensor, list[Tensor | None]]:
    """Losses by row, and with upstream (N) given the gradients asked for."""
    first = tensors[0]
    assert first is not None
    kind = wide(first.dtype)
    losses = torch.zeros(len(target), dtype=kind, device=first.device)
    gradients: list[Tensor | None] = [None] * len(tensors)
    if upstream is not None:
        for index, tensor in enumerate(tensors):
            if asked[index] and tensor is not None:
                sum_type = tensor.dtype if index < options.rows else wide(tensor.dtype)
                gradients[index] = torch.zeros_like(tensor, dtype=sum_type)
    with torch.autocast(first.device.type, enabled=False):
        for rows in blocks(len(target), options.step):
            piece = _of(tensors, rows, options.rows)
            if upstream is None:
                with torch.no_grad():
                    losses[rows] = _losses(options, piece, target[rows], class_weight)
                continue
            leaves: list[Any] = [
                None if tensor is None else tensor.detach().requires_grad_(asked[index])
                for index, tensor in enumerate(piece)
            ]
            with torch.enable_grad():
                made = _losses(options, leaves, target[rows], class_weight)
            losses[rows] = made.detach()
            wanted = [index for index in range(len(leaves)) if gradients[index] is not None]
            found = torch.autograd.grad(
                made, [leaves[index] for index in wanted], upstream[rows].to(made.dtype)
            )
            for index, gradient in zip(wanted, found, strict=True):
                whole = gradients[index]
                assert whole is not None
                if index < options.rows:
                    whole[rows] = gradient
                else:
                    whole += gradient
    return losses, [
        None if gradient is None or tensor is None else gradient.to(tensor.dtype)
        for gradient, tensor in zip(gradients, tensors, strict=True)
    ]


def reduced(losses: Tensor, upstream: Tensor | None) -> Tensor:
    return losses if upstream is None else (losses * upstream.to(losses.dtype)).sum()


class _ChunkedLoss(torch.autograd.Function):
    """Losses by row (N); with upstream (N) given, their sum weighted by it."""

    @staticmethod
    def forward(
        ctx: Any,
        options: ChunkOptions,
        asked: list[bool],
        target: Tensor,
        class_weight: Tensor | None,
        upstream: Tensor | None,
        *tensors: Tensor | None,
    ) -> Tensor:
        # float16's range is too small for gradients before the upstream factor (a loss scale).
        early = any(asked) and all(t is None or t.dtype != torch.float16 for t in tensors)
        losses, gradients = compute(
            options, asked, target, class_weight, upstream if early else None, tensors
        )
        ctx.save_for_backward(target, class_weight, upstream, *tensors)
        ctx.options, ctx.asked = options, asked
        ctx.ready = gradients if early and upstream is not None else None
        return reduced(losses, upstream)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        target, class_weight, upstream, *tensors = ctx.saved_tensors
        gradients: Sequence[Tensor | None]
        rows = grad if upstream is None else grad * upstream
        if torch.is_grad_enabled():  # to be differentiated again: all rows at once
            losses = _losses(ctx.options, tensors, target, class_weight)
            leaves = [t for t, asked in zip(tensors, ctx.asked, strict=True) if asked]
            made = iter(torch.autograd.grad(losses, leaves, rows, create_graph=True))
            gradients = [next(made) if asked else None for asked in ctx.asked]
        elif ctx.ready is not None:
            gradients, ctx.ready = ctx.ready, None  # handed over: a second backward makes them anew
            gradients = [None if made is None else made.mul_(grad) for made in gradients]
        else:
            gradients = compute(ctx.options, ctx.asked, target, class_weight, rows, tensors)[1]
        return (None, None, None, None, None, *gradients)
