"""α-ReLU and its loss in one pass over a row."""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._math import entry_at, positive
from uncork.nn.kernels._tiles import edge, edge_at, edge_inside, inner


@triton.jit
def _power(x, alpha, tau, KIND: tl.constexpr):
    """(p, p^α)."""
    w = positive(x * (alpha - 1.0) - tau)
    if KIND == 2:
        y = w
    elif KIND == 15:
        y = w * w
    else:
        y = tl.exp(tl.log(tl.where(w > 0, w, 1.0)) / (alpha - 1.0))
        y = tl.where(w > 0, y, w)  # w itself off the support: 0, or NaN
    return y, y * w


@triton.jit
def alpha_relu_loss_kernel(
    z, p, losses, targets, n, stride_z, stride_p, alpha, tau, ignore_index,
    KIND: tl.constexpr, L: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """z (rows, n) → p (rows, n) and losses (rows) = Σp^α/α + (τ + 1/α)/(α−1) − z_target, 0 where
    the target is ignore_index."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, L)
    start = row * stride_z
    off = (start % ALIGN).to(tl.int32)
    base = z + tl.multiple_of(start - off, ALIGN)
    out = p + tl.multiple_of(row * stride_p - off, ALIGN)
    whole = (n + off) // L
    total = tl.zeros([L], tl.float32)
    for k in range(1, whole):
        y, power = _power(inner(base, k, lanes, L), alpha, tau, KIND)
        tl.store(out + k * L + lanes, y.to(p.dtype.element_ty))
        total += power
    for end in range(2):
        y, power = _power(edge(base, end, off, n, whole, lanes, L), alpha, tau, KIND)
        at = edge_at(end, whole, lanes, L)
        inside = edge_inside(at, end, off, n, whole)
        tl.store(out + at, y.to(p.dtype.element_ty), mask=inside)
        total += power
    target = tl.load(targets + row)
    at_target = entry_at(z + start, target, n)
    value = tl.sum(total) / alpha + (tau + 1.0 / alpha) / (alpha - 1.0) - at_target
    tl.store(losses + row, tl.where(target == ignore_index, 0.0, value))
