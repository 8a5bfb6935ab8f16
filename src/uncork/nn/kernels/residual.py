"""From a slice of logits to a slice of p − target, in place, with the row sums the loss needs.

One kernel for every loss: p = f((z − top) + c) with top and c of each row known. The slice then
goes into the two products that make the gradients.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._logits import cap_slope, logits
from uncork.nn.kernels._math import power_term, probability


@triton.jit
def residual_kernel(
    slice_, sums, state, targets, bias, weights,
    n, begin, first, width, stride, alpha, cap,
    KIND: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, SMOOTH: tl.constexpr,
    WEIGHTS: tl.constexpr, GRADIENT: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """slice_ (rows, width) of classes first … becomes mass·p − smooth·weight − hit·[c = target].

    state (9, n) as `prepare_kernel` leaves it, with tops and shifts found since; targets (n) int64;
    sums (n, 4): Σp^α, Σp, Σ weight·z, z_target, added to. The slice's rows are those from `begin`.
    """
    row = tl.program_id(0).to(tl.int64)
    known = row + begin
    lanes = tl.arange(0, L)
    target = tl.load(targets + known) - first
    own_state = state + known
    times = tl.load(own_state + 3 * n)
    less = tl.load(own_state + 4 * n)
    spread = tl.load(own_state + 5 * n)
    top = tl.load(own_state + 7 * n)
    c = tl.load(own_state + 8 * n)
    power = tl.zeros([L], tl.float32)
    total = tl.zeros([L], tl.float32)
    weighted = tl.zeros([L], tl.float32)
    # The target is one entry: read before it is overwritten, put right at the end.
    own_slice = (target >= 0) & (target < width)
    z_target = 0.0
    weight_target = 1.0
    if own_slice:
        z_target = logits(slice_ + row * stride, bias, target, first, own_slice, cap, BIAS, CAP)
        if SMOOTH:  # noqa: SIM102
            if WEIGHTS:
                weight_target = tl.load(weights + first + target).to(tl.float32)
    tl.debug_barrier()
    for k in range(0, width, L):
        at = k + lanes
        inside = at < width
        z = logits(slice_ + row * stride, bias, at, first, inside, cap, BIAS, CAP)
        x = (z - top) + c
        p = probability(x, alpha, KIND)
        power += power_term(x, p, alpha, KIND)
        total += p
        r = times * p
        if SMOOTH:
            if WEIGHTS:
                share = tl.load(weights + first + at, mask=inside, other=0.0).to(tl.float32)
            else:
                share = tl.where(inside, 1.0, 0.0)
            weighted += tl.where(share == 0.0, 0.0, share * z)
            r -= spread * share
        if GRADIENT:
            if CAP:
                r = r * cap_slope(z, cap)
            tl.store(slice_ + row * stride + at, r.to(slice_.dtype.element_ty), mask=inside)
    own = sums + known * 4
    if own_slice:
        tl.store(own + 3, z_target)
        if GRADIENT:
            r = times * probability((z_target - top) + c, alpha, KIND) - less
            if SMOOTH:
                r -= spread * weight_target
            if CAP:
                r = r * cap_slope(z_target, cap)
            tl.debug_barrier()
            tl.store(slice_ + row * stride + target, r.to(slice_.dtype.element_ty))
    tl.store(own, tl.load(own) + tl.sum(power))
    tl.store(own + 1, tl.load(own + 1) + tl.sum(total))
    if SMOOTH:
        tl.store(own + 2, tl.load(own + 2) + tl.sum(weighted))
