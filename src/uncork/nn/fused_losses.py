"""Losses of logits on CUDA, against classes: two launches forward, one back.

What `reduce_loss` does for every loss on every device takes torch two dozen launches and a dozen
passes over the logits. Here a kernel makes losses and p in one pass, and another p − e_y.
"""

from __future__ import annotations

from typing import Any

from uncork.nn._rows import Alpha
from uncork.nn._torch import torch
from uncork.nn.families import Family, Fused

Tensor = torch.Tensor

ONE_PROGRAM = 1 << 15  # rows that one program adds up soon enough


def fused_loss(
    rows: Tensor,
    target: Tensor,
    family: Family,
    alpha: Alpha,
    tau: Alpha,
    fused: Fused,
    reduction: str,
    ignore_index: int,
) -> Tensor:
    """Loss of logits (N, C) against classes of any shape: (), or with "none" of that shape.

    `fused` is the family's kernel. float16 has not the range for a p that is still to be
    multiplied: such logits are taken as float32.
    """
    if rows.dtype == torch.float16:
        rows = rows.float()
    classes = target.reshape(-1).long().contiguous()
    loss: Tensor
    loss, _ = _FusedLoss.apply(rows, classes, family, alpha, tau, fused, reduction, ignore_index)
    return loss.reshape(target.shape) if reduction == "none" else loss


class _FusedLoss(torch.autograd.Function):
    """(loss () or (N), p (N, C)). p is an output so that second derivatives pass through it;
    nothing else is kept of the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        target: Tensor,
        family: Family,
        alpha: Alpha,
        tau: Alpha,
        fused: Fused,
        reduction: str,
        ignore_index: int,
    ) -> tuple[Tensor, Tensor]:
        losses, p = fused(z, target, ignore_index)
        loss, share = losses, None
        if reduction != "none":
            loss, share = _reduced(losses, target, ignore_index, reduction == "mean")
        ctx.save_for_backward(p, target, share)
        ctx.family, ctx.alpha, ctx.tau, ctx.ignore_index = family, alpha, tau, ignore_index
        ctx.set_materialize_grads(False)
        return loss, p

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_p: Tensor | None) -> tuple[Any, ...]:
        p, target, share = ctx.saved_tensors
        dz = None
        if grad is not None and not torch.is_grad_enabled():
            from uncork.nn.kernels.losses import loss_backward

            dz = loss_backward(p, target, grad, share, ctx.ignore_index)
        elif grad is not None:
            counted = target != ctx.ignore_index
            upstream = grad if share is None else (grad * share).expand(len(p))
            upstream = torch.where(counted, upstream, torch.zeros_like(upstream))
            safe = torch.where(counted, target, torch.zeros_like(target))
            dz = residual(p, safe.unsqueeze(-1), upstream.unsqueeze(-1), None)
        if grad_p is not None:
            dz = plus(dz, ctx.family.vjp(p, grad_p, ctx.alpha, ctx.tau))
        return (dz, *[None] * 7)


def _reduced(
    losses: Tensor, target: Tensor, ignore_index: int, mean: bool
) -> tuple[Tensor, Tensor]:
    """(total (), share ()): the share is what a row that counts has in the total."""
    if len(losses) <= ONE_PROGRAM:
        from uncork.nn.kernels.losses import reduced

        return reduced(losses, target, ignore_index, mean)
    if not mean:
        return losses.sum(), torch.ones((), device=losses.device)
    share = 1 / (target != ignore_index).sum().float()
    return losses.sum() * share, share


def plus(left: Tensor | None, right: Tensor) -> Tensor:
    return right if left is None else left + right


def residual(p: Tensor, target: Tensor, grad: Tensor, mass: Tensor | None) -> Tensor:
    """grad · (p − e_y), or grad · (a p − b)."""
    if mass is not None:
        return grad * (mass * p - target)
    # Set, not add: scatter without addition is deterministic on every device.
    return (grad * p).scatter(-1, target, grad * (p.gather(-1, target) - 1))
