"""p − target of rows with few positive entries once more, from logits in float32.

α-entmax and α-ReLU feel their few largest logits to the last bit, which a 16-bit product has
rounded away. The kernels that write p − target into whole rows mark the classes that may be
positive on the way; where they are few their logits are computed again, and with them the row's
threshold, its sums, and p − target.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._logits import cap_slope
from uncork.nn.kernels._marks import count_marks, list_marks
from uncork.nn.kernels._math import largest_shift, power_term, probability, solve
from uncork.nn.kernels.refine import refine_list, refined_logit


@triton.jit(do_not_specialize=["begin"])
def refined_rows_kernel(
    slice_, x, weight, marks, classes, values, sums, state, targets, bias, weights,
    n, begin, stride, words, features, stride_x, stride_w, alpha, cap, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, BIAS: tl.constexpr,
    CAP: tl.constexpr, SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr, GRADIENT: tl.constexpr,
    K: tl.constexpr, E: tl.constexpr, D: tl.constexpr, L: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """slice_ (rows, all classes) of α-entmax as the kernels leave it that find thresholds, with
    marks (rows, words, L) of what may be positive. classes and values (rows, K) are room to work
    in. x (n, features) are all rows, those of the slice from `begin`."""
    row = tl.program_id(0).to(tl.int64)
    known = row + begin
    refine_row(
        slice_ + row * stride, x + known * stride_x, weight, marks + row * words * L,
        classes + row * K, values + row * K, sums + known * 4, state + known,
        tl.load(targets + known), bias, weights,
        n, words, features, stride_w, alpha, cap, tolerance,
        KIND, BRACKET, STEPS, True, BIAS, CAP, SMOOTH, WEIGHTS, GRADIENT, K, E, D, L, BITS,
    )  # fmt: skip


@triton.jit
def refine_row(
    own_slice, own_x, weight, own_marks, own_classes, own_values, own_sums, own_state, target,
    bias, weights, n, words, features, stride_w, alpha, cap, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, SEARCH: tl.constexpr,
    BIAS: tl.constexpr, CAP: tl.constexpr, SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr,
    GRADIENT: tl.constexpr, K: tl.constexpr, E: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """One row, with its target: with more than K marks it stays as it is. SEARCH: α-entmax, whose
    threshold is found again; otherwise top and shift in its state are right."""
    own_marks = own_marks.to(tl.pointer_type(tl.int32))
    count = count_marks(own_marks, words, L * BITS // 32)
    if count <= K:
        list_marks(own_marks, words, own_classes, K, L, BITS)
        refine_list(
            own_x, weight, own_classes, own_values, count, bias, features, stride_w, cap,
            BIAS, CAP, D, E,
        )  # fmt: skip
        z_target = refined_logit(
            own_x, weight, target, bias, features, stride_w, cap, BIAS, CAP, D, E
        )
        tl.debug_barrier()
        places = tl.arange(0, K)
        valid = places < count
        z = tl.load(own_values + places, mask=valid, other=-float("inf"))
        which = tl.load(own_classes + places, mask=valid, other=-1)
        if SEARCH:
            top = tl.max(z)
            top = tl.where(top == -float("inf"), 0.0, top)
            c = largest_shift(alpha, KIND) + 0.0 * top
            c = solve(z - top, c, 1.0 * K, alpha, tolerance, KIND, BRACKET, STEPS)
            tl.store(own_state + 7 * n, top)
            tl.store(own_state + 8 * n, c)
        else:
            top = tl.load(own_state + 7 * n)
            c = tl.load(own_state + 8 * n)
        v = (z - top) + c
        p = probability(v, alpha, KIND)
        tl.store(own_sums, tl.sum(tl.where(valid, power_term(v, p, alpha, KIND), 0.0)))
        tl.store(own_sums + 1, tl.sum(tl.where(valid, p, 0.0)))
        tl.store(own_sums + 3, z_target)
        if GRADIENT:
            times = tl.load(own_state + 3 * n)
            r = times * p
            taken = times * probability((z_target - top) + c, alpha, KIND)
            taken -= tl.load(own_state + 4 * n)
            if SMOOTH:
                spread = tl.load(own_state + 5 * n)
                if WEIGHTS:
                    r -= spread * tl.load(weights + which, mask=valid, other=0.0).to(tl.float32)
                    taken -= spread * tl.load(weights + target).to(tl.float32)
                else:
                    r -= spread
                    taken -= spread
            if CAP:
                r = r * cap_slope(z, cap)
                taken = taken * cap_slope(z_target, cap)
            element = own_slice.dtype.element_ty
            tl.store(own_slice + which, r.to(element), mask=valid & (which != target))
            tl.store(own_slice + target, taken.to(element))
