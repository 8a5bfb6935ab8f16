"""From a slice of logits to a slice of p − target, in place, with the row sums the loss needs.

One kernel for every loss: p = f((z − top) + c) with top and c of each row known. The slice then
goes into the two products that make the gradients. What float32 logits become may be 16 bits wide,
at the beginning of the same row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._logits import cap_slope, logits, padded
from uncork.nn.kernels._math import margin, power_term, probability
from uncork.nn.kernels.refined_rows import refine_row


@triton.jit(do_not_specialize=["begin"])
def residual_kernel(
    slice_, out, sums, state, targets, bias, weights,
    n, begin, first, width, stride, stride_out, alpha, cap,
    KIND: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr,
    SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr, GRADIENT: tl.constexpr, NARROWS: tl.constexpr,
    L: tl.constexpr,
):  # fmt: skip
    """slice_ (rows, width) of classes first … becomes mass·p − smooth·weight − hit·[c = target].

    out is the same memory as what it becomes, with NARROWS of a narrower type. state (9, n) as
    `prepare_kernel` leaves it, with tops and shifts found since; targets (n) int64; sums (n, 4):
    Σp^α, Σp, Σ weight·z, z_target, added to. The slice's rows are those from `begin`, at multiples
    of 16 entries (`padded`).
    """
    row = tl.program_id(0).to(tl.int64)
    known = row + begin
    top = tl.load(state + known + 7 * n)
    c = tl.load(state + known + 8 * n)
    residual_row(
        slice_ + row * stride, out + row * stride_out, out, sums + known * 4, state + known,
        tl.load(targets + known), top, c, bias, weights, n, first, width, 1, alpha, cap, 0.0,
        KIND, BIAS, CAP, ODD, SMOOTH, WEIGHTS, GRADIENT, NARROWS, False, L, 1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["begin"])
def exact_residual_kernel(
    slice_, x, weight, marks, classes, values, sums, state, targets, bias, exact_bias, weights,
    n, begin, width, stride, words, features, stride_x, stride_w, alpha, cap, slack,
    KIND: tl.constexpr, BIAS: tl.constexpr, EXACT_BIAS: tl.constexpr, CAP: tl.constexpr,
    ODD: tl.constexpr, SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr, GRADIENT: tl.constexpr,
    K: tl.constexpr, E: tl.constexpr, D: tl.constexpr, L: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """The same of all classes at once, in place, and rows with few positive entries once more from
    float32 logits: otherwise as `refined_rows_kernel`, marks (rows, words, L). exact_bias is the
    whole of the bias, and `bias` what the slice does not hold of it."""
    row = tl.program_id(0).to(tl.int64)
    known = row + begin
    own_slice = slice_ + row * stride
    own_marks = marks + row * words * L
    target = tl.load(targets + known)
    residual_row(
        own_slice, own_slice, own_marks, sums + known * 4, state + known, target,
        tl.load(state + known + 7 * n), tl.load(state + known + 8 * n),
        bias, weights, n, 0, width, words, alpha, cap, slack,
        KIND, BIAS, CAP, ODD, SMOOTH, WEIGHTS, GRADIENT, False, True, L, 1,
    )  # fmt: skip
    tl.debug_barrier()
    refine_row(
        own_slice, x + known * stride_x, weight, own_marks, classes + row * K, values + row * K,
        sums + known * 4, state + known, target, exact_bias, weights,
        n, words, features, stride_w, alpha, cap, 0.0,
        KIND, False, 0, False, EXACT_BIAS, CAP, SMOOTH, WEIGHTS, GRADIENT, K, E, D, L, BITS,
    )  # fmt: skip


@triton.jit
def residual_row(
    own_slice, own_out, own_marks, own_sums, own_state, target, top, c, bias, weights,
    n, first, width, words, alpha, cap, slack,
    KIND: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr,
    SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr, GRADIENT: tl.constexpr, NARROWS: tl.constexpr,
    MARK: tl.constexpr, L: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One row of it, with its target's number among all classes, top and c. MARK: marks (words, L)
    of what may be positive if every logit may be off by `slack` of its size, as `list_marks` reads
    them."""
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
    line = -margin(top, c, alpha, slack, KIND)
    bits = tl.zeros([L], tl.int32)
    tl.debug_barrier()
    for k in tl.range(0, width, L, num_stages=STAGES):
        at = k + lanes
        z = logits(own_slice, bias, at, first, width, cap, BIAS, CAP, ODD)
        x = (z - top) + c
        p = probability(x, alpha, KIND)
        power += power_term(x, p, alpha, KIND)
        total += p
        r = times * p
        if MARK:
            tile = k // L
            above = (at < width) & ~(x <= line)
            bits = bits | (above.to(tl.int32) << (tile % 32))
            if words > 1:  # noqa: SIM102
                if (tile % 32 == 31) & (k + L < width):
                    tl.store(own_marks + tile // 32 * L + lanes, bits)
                    bits = tl.zeros([L], tl.int32)
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
            if NARROWS:
                # What is written lies where this or an earlier tile was read: by all, by now.
                tl.debug_barrier()
            tl.store(own_out + at, r.to(own_out.dtype.element_ty), mask=at < padded(width))
    if MARK:
        tl.store(own_marks + (words - 1) * L + lanes, bits.to(own_marks.dtype.element_ty))
    if here:
        tl.store(own_sums + 3, z_target)
        if GRADIENT:
            r = times * probability((z_target - top) + c, alpha, KIND) - less
            if SMOOTH:
                r -= spread * weight_target
            if CAP:
                r = r * cap_slope(z_target, cap)
            tl.debug_barrier()
            tl.store(own_out + at_target, r.to(own_out.dtype.element_ty))
    tl.store(own_sums, tl.load(own_sums) + tl.sum(power))
    tl.store(own_sums + 1, tl.load(own_sums + 1) + tl.sum(total))
    if SMOOTH:
        tl.store(own_sums + 2, tl.load(own_sums + 2) + tl.sum(weighted))
