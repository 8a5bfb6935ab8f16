"""α-ReLU and its loss in one pass over a row."""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._math import entry_at, positive


@triton.jit
def alpha_relu_loss_kernel(
    z, p, losses, targets, taus, n, stride_z, stride_p, alpha, tau,
    KIND: tl.constexpr, L: tl.constexpr, TAU_TENSOR: tl.constexpr,
):  # fmt: skip
    """z (rows, n) → p (rows, n) and losses (rows) = Σp^α/α + (τ + 1/α)/(α−1) − z_target."""
    row = tl.program_id(0).to(tl.int64)
    if TAU_TENSOR:
        tau = tl.load(taus).to(tl.float32)
    lanes = tl.arange(0, L)
    power = tl.zeros([L], tl.float32)
    for k in range(0, n, L):
        at = k + lanes
        inside = at < n
        x = tl.load(z + row * stride_z + at, mask=inside, other=-float("inf")).to(tl.float32)
        w = positive(x * (alpha - 1.0) - tau)
        if KIND == 2:
            y = w
        elif KIND == 15:
            y = w * w
        else:
            y = tl.exp(tl.log(tl.where(w > 0, w, 1.0)) / (alpha - 1.0))
            y = tl.where(w > 0, y, w)  # w itself off the support: 0, or NaN
        tl.store(p + row * stride_p + at, y.to(p.dtype.element_ty), mask=inside)
        power += y * w
    at_target = entry_at(z + row * stride_z, tl.load(targets + row), n)
    value = tl.sum(power) / alpha + (tau + 1.0 / alpha) / (alpha - 1.0)
    tl.store(losses + row, value - at_target)
