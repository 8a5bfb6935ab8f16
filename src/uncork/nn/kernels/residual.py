"""From a slice of logits to a slice of p − target, in place, with the row sums the loss needs.

One kernel for every loss: p = f((z − top) + c) with top and c of each row known. The slice then
goes into the two products that make the gradients.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._logits import cap_slope, logits, padded
from uncork.nn.kernels._math import power_term, probability


@triton.jit
def residual_kernel(
    slice_, sums, state, targets, bias, weights,
    n, begin, first, width, stride, alpha, cap,
    KIND: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr,
    SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr, GRADIENT: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """slice_ (rows, width) of classes first … becomes mass·p − smooth·weight − hit·[c = target].

    state (9, n) as `prepare_kernel` leaves it, with tops and shifts found since; targets (n) int64;
    sums (n, 4): Σp^α, Σp, Σ weight·z, z_target, added to. The slice's rows are those from `begin`,
    at multiples of 16 entries (`padded`).
    """
    row = tl.program_id(0).to(tl.int64)
    known = row + begin
    top = tl.load(state + known + 7 * n)
    c = tl.load(state + known + 8 * n)
    residual_row(
        slice_ + row * stride, sums + known * 4, state + known, tl.load(targets + known), top, c,
        bias, weights, n, first, width, alpha, cap,
        KIND, BIAS, CAP, ODD, SMOOTH, WEIGHTS, GRADIENT, L, 1,
    )  # fmt: skip


@triton.jit
def residual_row(
    own_slice, own_sums, own_state, target, top, c, bias, weights,
    n, first, width, alpha, cap,
    KIND: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr,
    SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr, GRADIENT: tl.constexpr, L: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """One row of it, with its target's number among all classes, top and c."""
    lanes = tl.arange(0, L)
    times = tl.load(own_state + 3 * n)
    less = tl.load(own_state + 4 * n)
    spread = tl.load(own_state + 5 * n)
    power = tl.zeros([L], tl.float32)
    total = tl.zeros([L], tl.float32)
    weighted = tl.zeros([L], tl.float32)
    # The target is one entry: read before it is overwritten, put right at the end.
    at_target = target - first
    here = (at_target >= 0) & (at_target < width)
    z_target = 0.0
    weight_target = 1.0
    if here:
        z_target = logits(own_slice, bias, at_target, first, width, cap, BIAS, CAP, ODD)
        if SMOOTH:  # noqa: SIM102
            if WEIGHTS:
                weight_target = tl.load(weights + target).to(tl.float32)
    tl.debug_barrier()
    for k in tl.range(0, width, L, num_stages=STAGES):
        at = k + lanes
        z = logits(own_slice, bias, at, first, width, cap, BIAS, CAP, ODD)
        x = (z - top) + c
        p = probability(x, alpha, KIND)
        power += power_term(x, p, alpha, KIND)
        total += p
        r = times * p
        if SMOOTH:
            inside = at < width
            if WEIGHTS:
                share = tl.load(weights + first + at, mask=inside, other=0.0).to(tl.float32)
            else:
                share = tl.where(inside, 1.0, 0.0)
            weighted += tl.where(share == 0.0, 0.0, share * z)
            r -= spread * share
        if GRADIENT:
            if CAP:
                r = r * cap_slope(z, cap)
            tl.store(own_slice + at, r.to(own_slice.dtype.element_ty), mask=at < padded(width))
    if here:
        tl.store(own_sums + 3, z_target)
        if GRADIENT:
            r = times * probability((z_target - top) + c, alpha, KIND) - less
            if SMOOTH:
                r -= spread * weight_target
            if CAP:
                r = r * cap_slope(z_target, cap)
            tl.debug_barrier()
            tl.store(own_slice + at_target, r.to(own_slice.dtype.element_ty))
    tl.store(own_sums, tl.load(own_sums) + tl.sum(power))
    tl.store(own_sums + 1, tl.load(own_sums + 1) + tl.sum(total))
    if SMOOTH:
        tl.store(own_sums + 2, tl.load(own_sums + 2) + tl.sum(weighted))
