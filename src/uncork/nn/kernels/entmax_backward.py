"""The gradient of α-entmax: s∘(g − ⟨s, g⟩/Σs), s = p^{2−α}.

The upstream gradient is read only where p is positive: a sparse row costs one read of p from
memory, a second from cache, and one write.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._math import slope_of


@triton.jit
def entmax_backward_kernel(
    p, grad, out, n, stride_p, stride_g, stride_out, alpha,
    KIND: tl.constexpr, L: tl.constexpr, ONE: tl.constexpr, ALIGN: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """p, grad (rows, n) → out (rows, n). ONE: the row is one tile and stays in registers."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, L)
    if ONE:
        inside = lanes < n
        y = tl.load(p + row * stride_p + lanes, mask=inside, other=0.0).to(tl.float32)
        s = slope_of(y, alpha, KIND)
        g = tl.load(grad + row * stride_g + lanes, mask=y > 0, other=0.0).to(tl.float32)
        mass = tl.sum(s)
        mean = tl.sum(s * g) / tl.where(mass == 0, 1.0, mass)
        result = s * (g - mean)
        tl.store(out + row * stride_out + lanes, result.to(out.dtype.element_ty), mask=inside)
    else:
        start = row * stride_p
        off = (start % ALIGN).to(tl.int32)
        base = p + tl.multiple_of(start - off, ALIGN)
        base_g = grad + (row * stride_g - off)
        base_out = out + tl.multiple_of(row * stride_out - off, ALIGN)
        whole = (n + off) // L
        mass = tl.zeros([L], tl.float32)
        pushed = tl.zeros([L], tl.float32)
        for k in tl.range(1, whole, num_stages=STAGES):
            y = tl.load(base + k * L + lanes).to(tl.float32)
            s = slope_of(y, alpha, KIND)
            g = tl.load(base_g + k * L + lanes, mask=y > 0, other=0.0).to(tl.float32)
            mass += s
            pushed += s * g
        for edge in range(2):  # the first tile, and what follows the whole ones
            at = edge * whole * L + lanes
            inside = (at >= off) & (at < n + off) & ((edge == 0) | (whole > 0))
            y = tl.load(base + at, mask=inside, other=0.0).to(tl.float32)
            s = slope_of(y, alpha, KIND)
            g = tl.load(base_g + at, mask=y > 0, other=0.0).to(tl.float32)
            mass += s
            pushed += s * g
        total = tl.sum(mass)
        mean = tl.sum(pushed) / tl.where(total == 0, 1.0, total)
        for k in tl.range(1, whole, num_stages=STAGES):
            y = tl.load(base + k * L + lanes).to(tl.float32)
            g = tl.load(base_g + k * L + lanes, mask=y > 0, other=0.0).to(tl.float32)
            result = slope_of(y, alpha, KIND) * (g - mean)
            tl.store(base_out + k * L + lanes, result.to(out.dtype.element_ty))
        for edge in range(2):
            at = edge * whole * L + lanes
            inside = (at >= off) & (at < n + off) & ((edge == 0) | (whole > 0))
            y = tl.load(base + at, mask=inside, other=0.0).to(tl.float32)
            g = tl.load(base_g + at, mask=y > 0, other=0.0).to(tl.float32)
            result = slope_of(y, alpha, KIND) * (g - mean)
            tl.store(base_out + at, result.to(out.dtype.element_ty), mask=inside)
