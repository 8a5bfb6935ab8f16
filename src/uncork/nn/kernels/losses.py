"""What the losses of logits share: the mean of the rows, and the gradient p − e_target.

The losses themselves are computed along with p, in `entmax` and `alpha_relu`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn._torch import torch
from uncork.nn.kernels.launch import ceiling, launch, on_its_device, power_of_two

Tensor = torch.Tensor

_TILE = 2048


@on_its_device
def reduced(losses: Tensor, target: Tensor, ignore_index: int, mean: bool) -> tuple[Tensor, Tensor]:
    """(total (), share ()): the mean or sum of losses (N), and the factor of each row in it."""
    total, share = losses.new_empty(()), losses.new_empty(())
    launch(reduce_kernel, 1, {
        "losses": losses, "targets": target, "total": total, "share": share, "rows": len(losses),
        "ignore_index": ignore_index, "MEAN": mean, "L": 2048, "num_warps": 8,
    })  # fmt: skip
    return total, share


@on_its_device
def loss_backward(
    p: Tensor, target: Tensor, grad: Tensor, share: Tensor | None, ignore_index: int
) -> Tensor:
    """upstream · (p − e_target) like p (N, n). upstream is grad (N), or if there is a share (),
    grad · share for every row."""
    rows, n = p.shape
    out = torch.empty_like(p)
    kernel, grid, lanes = loss_backward_kernel, ceiling(p.numel(), _TILE), _TILE
    if n < _TILE:
        kernel, grid, lanes = narrow_loss_backward_kernel, rows, max(32, power_of_two(n))
    launch(kernel, grid, {
        "p": p, "out": out, "targets": target, "grads": grad.contiguous(),
        "shares": grad if share is None else share, "n": n, "rows": rows, "numel": p.numel(),
        "ignore_index": ignore_index, "BY_ROW": share is None, "L": lanes,
        "num_warps": min(4, max(1, lanes // 256)),
    })  # fmt: skip
    return out


@triton.jit
def reduce_kernel(
    losses, targets, total, share, rows, ignore_index, MEAN: tl.constexpr, L: tl.constexpr
):  # fmt: skip
    """total (1) of losses (rows), and share (1): the factor of each row that counts."""
    added = tl.zeros([L], tl.float32)
    counted = tl.zeros([L], tl.float32)
    for k in range(0, rows, L):
        at = k + tl.arange(0, L)
        inside = at < rows
        added += tl.load(losses + at, mask=inside, other=0.0)
        target = tl.load(targets + at, mask=inside, other=ignore_index)
        counted += tl.where(target != ignore_index, 1.0, 0.0)
    one = 1.0
    if MEAN:
        one = 1.0 / tl.sum(counted)  # if none counts, infinite, and the mean is NaN
    tl.store(total, tl.sum(added) * one)
    tl.store(share, one)


@triton.jit
def _upstream(grads, shares, row, target, rows, ignore_index, BY_ROW: tl.constexpr):
    there = row < rows
    if BY_ROW:
        grad = tl.load(grads + row, mask=there, other=0.0).to(tl.float32)
    else:
        grad = tl.load(grads).to(tl.float32) * tl.load(shares)
    return tl.where(there & (target != ignore_index), grad, 0.0)


@triton.jit
def loss_backward_kernel(
    p, out, targets, grads, shares, n, rows, numel, ignore_index,
    BY_ROW: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """out (rows, n) = upstream · (p − e_target), 0 where the target is ignore_index. upstream is
    grads (rows), or one number for all, times shares (1).

    p and out are contiguous, so tiles need not begin with rows. A tile has entries of at most two
    rows: n ≥ L.
    """
    at = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
    row = tl.program_id(0).to(tl.int64) * L // n
    there = row + 1 < rows
    target = tl.load(targets + row)
    next_target = tl.load(targets + row + 1, mask=there, other=0)
    grad = _upstream(grads, shares, row, target, rows, ignore_index, BY_ROW)
    next_grad = _upstream(grads, shares, row + 1, next_target, rows, ignore_index, BY_ROW)
    edge = (row + 1) * n
    after = at >= edge
    own = (at == edge - n + target) & ~after | (at == edge + next_target) & after
    factor = tl.where(after, next_grad, grad)
    inside = at < numel
    y = tl.load(p + at, mask=inside, other=0.0).to(tl.float32)
    r = factor * (y - tl.where(own, 1.0, 0.0))
    # An ignored row is 0, whatever its logits are.
    r = tl.where(factor == 0.0, 0.0, r)
    tl.store(out + at, r.to(out.dtype.element_ty), mask=inside)


@triton.jit
def narrow_loss_backward_kernel(
    p, out, targets, grads, shares, n, rows, numel, ignore_index,
    BY_ROW: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The same, one row a program: n ≤ L."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, L)
    inside = at < n
    target = tl.load(targets + row)
    grad = _upstream(grads, shares, row, target, rows, ignore_index, BY_ROW)
    y = tl.load(p + row * n + at, mask=inside, other=0.0).to(tl.float32)
    r = grad * (y - tl.where(at == target, 1.0, 0.0))
    r = tl.where(grad == 0.0, 0.0, r)
    tl.store(out + row * n + at, r.to(out.dtype.element_ty), mask=inside)
