"""α-ReLU and its gradient, elementwise: one read and one write (and one read of the gradient where
the output is positive)."""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._math import positive


@triton.jit
def _base(z, alpha, tau):
    return positive(z * (alpha - 1.0) - tau)


@triton.jit
def alpha_relu_kernel(z, p, taus, numel, alpha, tau, KIND: tl.constexpr, L: tl.constexpr,
                      TAU_TENSOR: tl.constexpr):  # fmt: skip
    """p = [(α−1) z − τ]₊^{1/(α−1)} over memory in order. taus: one float32, where τ is a tensor."""
    at = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
    inside = at < numel
    if TAU_TENSOR:
        tau = tl.load(taus).to(tl.float32)
    w = _base(tl.load(z + at, mask=inside, other=0.0).to(tl.float32), alpha, tau)
    if KIND == 15:
        w = w * w
    elif KIND != 2:
        power = tl.exp(tl.log(tl.where(w > 0, w, 1.0)) / (alpha - 1.0))
        w = tl.where(w > 0, power, w)  # w itself off the support: 0, or NaN
    tl.store(p + at, w.to(p.dtype.element_ty), mask=inside)


@triton.jit
def alpha_relu_backward_kernel(z, grad, out, taus, numel, alpha, tau, KIND: tl.constexpr,
                               L: tl.constexpr, TAU_TENSOR: tl.constexpr):  # fmt: skip
    """grad · dp/dz, dp/dz = w^{(2−α)/(α−1)} on the support."""
    at = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
    inside = at < numel
    if TAU_TENSOR:
        tau = tl.load(taus).to(tl.float32)
    w = _base(tl.load(z + at, mask=inside, other=-float("inf")).to(tl.float32), alpha, tau)
    g = tl.load(grad + at, mask=inside & (w > 0), other=0.0).to(tl.float32)
    if KIND == 2:
        slope = tl.where(w > 0, 1.0, w)
    elif KIND == 15:
        slope = w
    else:
        power = tl.exp(tl.log(tl.where(w > 0, w, 1.0)) * ((2.0 - alpha) / (alpha - 1.0)))
        slope = tl.where(w > 0, power, w)
    tl.store(out + at, (slope * g).to(out.dtype.element_ty), mask=inside)
