"""p − target of rows that fit in registers, in place, with threshold or normaliser and all.

For vocabularies up to 32,768 classes, where whole rows of logits are at hand.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._logits import cap_slope, logits, padded
from uncork.nn.kernels._math import largest_shift, margin, power_term, probability, solve


@triton.jit(do_not_specialize=["begin"])
def entmax_residual_kernel(
    slice_, marks, sums, state, targets, bias, weights,
    n, begin, width, stride, alpha, cap, slack, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, BIAS: tl.constexpr,
    CAP: tl.constexpr, ODD: tl.constexpr, SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr,
    GRADIENT: tl.constexpr, MARK: tl.constexpr, G: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """slice_ (rows, width), all classes; tops and shifts are found here. Otherwise as
    `residual_kernel`."""
    row = tl.program_id(0).to(tl.int64)
    known = row + begin
    own_slice = slice_ + row * stride
    at = tl.arange(0, G)[:, None] * L + tl.arange(0, L)[None, :]
    inside = at < width
    target = tl.load(targets + known)
    z_target = logits(own_slice, bias, target, 0, width, cap, BIAS, CAP, ODD)
    z = logits(own_slice, bias, at, 0, width, cap, BIAS, CAP, ODD)
    maxima = tl.max(z, 0)
    top = tl.max(maxima)
    top = tl.where(top == -float("inf"), 0.0, top)
    size = tl.full([], width, tl.float32)
    if KIND == 1:
        whole = tl.sum(tl.exp(z - top))
        c = tl.where(whole == 0.0, 0.0, -tl.log(whole))  # all −inf: every p is 0
    else:
        c = largest_shift(alpha, KIND)
        if G > 1 and not BRACKET:
            c = solve(maxima - top, c, size, alpha, tolerance * 16, KIND, BRACKET, STEPS)
        c = solve(z - top, c, size, alpha, tolerance, KIND, BRACKET, STEPS)
    own_state = state + known
    tl.store(own_state + 7 * n, top)
    tl.store(own_state + 8 * n, c)
    x = (z - top) + c
    p = probability(x, alpha, KIND)
    if MARK:
        above = inside & ~(x <= -margin(top, c, alpha, slack, KIND))
        bits = tl.sum(above.to(tl.int32) << tl.arange(0, G)[:, None], 0)
        tl.store(marks + row * L + tl.arange(0, L), bits.to(marks.dtype.element_ty))
    own = sums + known * 4
    tl.store(own, tl.sum(power_term(x, p, alpha, KIND)))
    tl.store(own + 1, tl.sum(p))
    tl.store(own + 3, z_target)
    times = tl.load(own_state + 3 * n)
    spread = tl.load(own_state + 5 * n)
    r = times * p
    taken = times * probability((z_target - top) + c, alpha, KIND) - tl.load(own_state + 4 * n)
    if SMOOTH:
        share_target = 1.0
        if WEIGHTS:
            share = tl.load(weights + at, mask=inside, other=0.0).to(tl.float32)
            share_target = tl.load(weights + target).to(tl.float32)
        else:
            share = tl.where(inside, 1.0, 0.0)
        tl.store(own + 2, tl.sum(tl.where(share == 0.0, 0.0, share * z)))
        r -= spread * share
        taken -= spread * share_target
    if GRADIENT:
        if CAP:
            r = r * cap_slope(z, cap)
            taken = taken * cap_slope(z_target, cap)
        tl.debug_barrier()
        tl.store(own_slice + at, r.to(slice_.dtype.element_ty), mask=at < padded(width))
        tl.debug_barrier()
        tl.store(own_slice + target, taken.to(slice_.dtype.element_ty))
