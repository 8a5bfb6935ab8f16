"""The gradient of every loss of logits in one pass: p − e_target times what upstream gives."""

from __future__ import annotations

import triton
import triton.language as tl


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
    """out (rows, n) = upstream · (p − e_target), 0 where the target is ignore_index. p and out lie
    in one piece, so tiles need not begin with rows. upstream: grads (rows), or one for all, times
    shares (1). A tile has entries of two rows at most: n ≥ L.
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
    # An ignored row is 0 whatever its logits are.
    r = tl.where(factor == 0.0, 0.0, r)
    tl.store(out + at, r.to(out.dtype.element_ty), mask=inside)


@triton.jit
def narrow_loss_backward_kernel(
    p, out, targets, grads, shares, n, rows, numel, ignore_index,
    BY_ROW: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The same a row at a time: n ≤ L."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, L)
    inside = at < n
    target = tl.load(targets + row)
    grad = _upstream(grads, shares, row, target, rows, ignore_index, BY_ROW)
    y = tl.load(p + row * n + at, mask=inside, other=0.0).to(tl.float32)
    r = grad * (y - tl.where(at == target, 1.0, 0.0))
    r = tl.where(grad == 0.0, 0.0, r)
    tl.store(out + row * n + at, r.to(out.dtype.element_ty), mask=inside)
