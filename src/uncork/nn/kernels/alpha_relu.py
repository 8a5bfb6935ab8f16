"""α-ReLU of logits, its gradient and its loss.

The transform is elementwise: one read and one write, and for the gradient one more read where the
output is positive. The loss takes one pass over a row.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from uncork.nn._rows import Alpha
from uncork.nn._torch import torch
from uncork.nn.kernels.launch import (
    alignment,
    as_rows,
    ceiling,
    launch,
    on_its_device,
    power_of_two,
)
from uncork.nn.kernels.logits import aligned, edge, edge_at, edge_inside, entry_at, inner
from uncork.nn.kernels.math import ENTMAX15, SPARSEMAX, kind_of, positive

Tensor = torch.Tensor

# --- launching ------------------------------------------------------------------------------------


@on_its_device
def alpha_relu_forward(z: Tensor, alpha: float, tau: Alpha, dtype: torch.dtype) -> Tensor:
    """p like z (of any strides without overlap); tau is a float or a tensor of one value."""
    z = _dense(z)
    p = torch.empty_like(z, dtype=dtype)
    _launch_elementwise(alpha_relu_kernel, alpha, tau, z=z, p=p)
    return p


@on_its_device
def alpha_relu_backward(z: Tensor, grad: Tensor, alpha: float, tau: Alpha) -> Tensor:
    """grad · dp/dz like z."""
    z = _dense(z)
    if grad.stride() != z.stride():
        grad = torch.empty_like(z, dtype=grad.dtype).copy_(grad)
    out = torch.empty_like(z)
    _launch_elementwise(alpha_relu_backward_kernel, alpha, tau, z=z, grad=grad, out=out)
    return out


def _launch_elementwise(kernel: Any, alpha: float, tau: Alpha, **tensors: Tensor) -> None:
    given = isinstance(tau, Tensor)
    z = tensors["z"]
    block = 1024 * (16 // z.element_size()) // 2
    launch(kernel, ceiling(z.numel(), block), {
        **tensors, "taus": tau if given else z, "numel": z.numel(), "alpha": alpha,
        "tau": 0.0 if given else tau, "KIND": kind_of(alpha), "L": block, "TAU_TENSOR": given,
        "num_warps": 4,
    })  # fmt: skip


def _dense(z: Tensor) -> Tensor:
    """Memory without gaps or overlaps, in any order of dimensions."""
    return z if _without_gaps(z) else z.contiguous()


def _without_gaps(z: Tensor) -> bool:
    expected = 1
    for size, stride in sorted(zip(z.shape, z.stride(), strict=True), key=lambda pair: pair[1]):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


@on_its_device
def alpha_relu_losses(
    z: Tensor, target: Tensor, ignore_index: int, alpha: float, tau: float
) -> tuple[Tensor, Tensor]:
    """(losses (N) float32, p like z) of rows z (N, n) against classes (N)."""
    n = z.shape[-1]
    rows = as_rows(z)
    p = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    losses = torch.empty(len(z), dtype=torch.float32, device=z.device)
    lanes = min(4096, max(32, power_of_two(n)))
    launch(alpha_relu_loss_kernel, len(rows), {
        "z": rows, "p": p, "losses": losses, "targets": target, "n": n,
        "stride_z": rows.stride(0), "stride_p": n, "alpha": alpha, "tau": tau,
        "ignore_index": ignore_index, "KIND": kind_of(alpha), "L": lanes,
        "ALIGN": alignment(rows, p), "num_warps": min(8, max(1, lanes // 512)),
    })  # fmt: skip
    return losses, p


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _base(z, alpha, tau):
    return positive(z * (alpha - 1.0) - tau)


@triton.jit
def _power(w, alpha, KIND: tl.constexpr):
    """p = w^{1/(α−1)} of w = `_base`."""
    if KIND == SPARSEMAX:
        return w
    elif KIND == ENTMAX15:
        return w * w
    else:
        power = tl.exp(tl.log(tl.where(w > 0, w, 1.0)) / (alpha - 1.0))
        return tl.where(w > 0, power, w)  # w itself off the support: 0, or NaN


@triton.jit
def alpha_relu_kernel(
    z, p, taus, numel, alpha, tau, KIND: tl.constexpr, L: tl.constexpr, TAU_TENSOR: tl.constexpr
):
    """p = [(α−1) z − τ]₊^{1/(α−1)}, in the order of memory. taus: one float32, where τ is a
    tensor."""
    at = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
    inside = at < numel
    if TAU_TENSOR:
        tau = tl.load(taus).to(tl.float32)
    w = _base(tl.load(z + at, mask=inside, other=0.0).to(tl.float32), alpha, tau)
    tl.store(p + at, _power(w, alpha, KIND).to(p.dtype.element_ty), mask=inside)


@triton.jit
def alpha_relu_backward_kernel(
    z, grad, out, taus, numel, alpha, tau,
    KIND: tl.constexpr, L: tl.constexpr, TAU_TENSOR: tl.constexpr,
):  # fmt: skip
    """grad · dp/dz, dp/dz = w^{(2−α)/(α−1)} on the support."""
    at = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
    inside = at < numel
    if TAU_TENSOR:
        tau = tl.load(taus).to(tl.float32)
    w = _base(tl.load(z + at, mask=inside, other=-float("inf")).to(tl.float32), alpha, tau)
    g = tl.load(grad + at, mask=inside & (w > 0), other=0.0).to(tl.float32)
    if KIND == SPARSEMAX:
        slope = tl.where(w > 0, 1.0, w)
    elif KIND == ENTMAX15:
        slope = w
    else:
        power = tl.exp(tl.log(tl.where(w > 0, w, 1.0)) * ((2.0 - alpha) / (alpha - 1.0)))
        slope = tl.where(w > 0, power, w)
    tl.store(out + at, (slope * g).to(out.dtype.element_ty), mask=inside)


@triton.jit
def alpha_relu_loss_kernel(
    z, p, losses, targets, n, stride_z, stride_p, alpha, tau, ignore_index,
    KIND: tl.constexpr, L: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """z (rows, n) → p (rows, n) and losses (rows) = Σp^α/α + (τ + 1/α)/(α−1) − z_target, 0 where
    the target is ignore_index. ALIGN as for `aligned`."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, L)
    base, out, off, whole = aligned(z, p, row, n, stride_z, stride_p, L, ALIGN)
    total = tl.zeros([L], tl.float32)
    for k in range(1, whole):
        w = _base(inner(base, k, lanes, L), alpha, tau)
        y = _power(w, alpha, KIND)
        tl.store(out + k * L + lanes, y.to(p.dtype.element_ty))
        total += y * w  # p^α
    for end in range(2):
        w = _base(edge(base, end, off, n, whole, lanes, L), alpha, tau)
        y = _power(w, alpha, KIND)
        at = edge_at(end, whole, lanes, L)
        inside = edge_inside(at, end, off, n, whole)
        tl.store(out + at, y.to(p.dtype.element_ty), mask=inside)
        total += y * w
    target = tl.load(targets + row)
    at_target = entry_at(z + row * stride_z, target, n)
    value = tl.sum(total) / alpha + (tau + 1.0 / alpha) / (alpha - 1.0) - at_target
    tl.store(losses + row, tl.where(target == ignore_index, 0.0, value))
