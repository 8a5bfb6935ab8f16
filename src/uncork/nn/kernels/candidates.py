"""Entries of a slice that may be positive, kept in a short list for each row.

For α-ReLU the line an entry must pass is given. For α-entmax it is what the entries seen so far
already exclude: they alone give an S that is too small, and all at or below S − 1/(α−1) is zero.
After the last slice the list holds the whole support, and the threshold is found on it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._logits import logits
from uncork.nn.kernels._math import largest_shift, margin, solve


@triton.jit
def _solved(
    entries, size, top, c, alpha, tolerance, KIND: tl.constexpr, BRACKET: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    """(top, c) of entries (−inf where none), from those of fewer entries."""
    new = tl.maximum(tl.max(entries), top)
    if BRACKET:
        c = largest_shift(alpha, KIND) + 0.0 * size
    else:
        c = tl.minimum(
            c + tl.where(top == -float("inf"), 0.0, new - top), largest_shift(alpha, KIND)
        )
    safe = tl.where(new == -float("inf"), 0.0, new)
    c = solve(entries - safe, c, size, alpha, tolerance, KIND, BRACKET, STEPS)
    return new, c


@triton.jit
def _pruned(
    own_values, own_classes, count, top, c, alpha, slack, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """What is kept is looked at again: the line rises, and the list shrinks. (count, top, c)"""
    places = tl.arange(0, K)
    tl.debug_barrier()
    valid = places < count
    y = tl.load(own_values + places, mask=valid, other=-float("inf"))
    which = tl.load(own_classes + places, mask=valid, other=0)
    top, c = _solved(y, 1.0 * K, top, c, alpha, tolerance * 64, KIND, BRACKET, STEPS)
    stays = (valid & ~(y <= top - c - margin(top, c, alpha, slack, KIND))).to(tl.int32)
    place = tl.cumsum(stays, 0) - 1
    tl.debug_barrier()
    tl.store(own_values + place, y, mask=stays > 0)
    tl.store(own_classes + place, which, mask=stays > 0)
    return tl.sum(stays), top, c


@triton.jit
def candidates_kernel(
    slice_, values, classes, counts, tops, shifts, targets, sums, bias,
    first, width, stride, refresh, alpha, cap, slack, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, SEARCH: tl.constexpr,
    BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr, K: tl.constexpr, L: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """slice_ (rows, width) → values, classes (rows, K), counts (rows) (more than K: overflowed).

    SEARCH: α-entmax, with tops and shifts (rows) brought up to date where `refresh` is not 0;
    otherwise they are given. sums (rows, 4) receives z_target.
    """
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, L)
    own_values = values + row * K
    own_classes = classes + row * K
    count = tl.load(counts + row)
    target = tl.load(targets + row) - first
    top = tl.load(tops + row)
    c = tl.load(shifts + row)
    if (target >= 0) & (target < width):
        z_target = logits(slice_ + row * stride, bias, target, first, width, cap, BIAS, CAP, ODD)
        tl.store(sums + row * 4 + 3, z_target)
    if count <= K:
        if SEARCH:  # noqa: SIM102
            if first == 0:
                z = logits(slice_ + row * stride, bias, lanes, first, width, cap, BIAS, CAP, ODD)
                top, c = _solved(z, 1.0 * L, top, c, alpha, tolerance * 64, KIND, BRACKET, STEPS)
        line = top - c - margin(top, c, alpha, slack, KIND)
        already = count
        # A list is looked through when it is long, and has doubled since.
        limit = tl.minimum(tl.maximum(K // 4, 2 * count), 3 * K // 4)
        for k in tl.range(0, width, L, num_stages=STAGES):
            at = k + lanes
            z = logits(slice_ + row * stride, bias, at, first, width, cap, BIAS, CAP, ODD)
            above = ((at < width) & ~(z <= line)).to(tl.int32)  # NaN stays and spoils its row
            new = tl.sum(above)
            if new > 0:
                place = count + tl.cumsum(above, 0) - 1
                fits = (above > 0) & (place < K)
                tl.store(own_values + place, z, mask=fits)
                tl.store(own_classes + place, first + at, mask=fits)
                count += new
                if SEARCH:  # noqa: SIM102
                    if (count > limit) & (count <= K):
                        count, top, c = _pruned(
                            own_values, own_classes, count, top, c, alpha, slack, tolerance,
                            KIND, BRACKET, STEPS, K,
                        )  # fmt: skip
                        line = top - c - margin(top, c, alpha, slack, KIND)
                        limit = tl.minimum(tl.maximum(K // 4, 2 * count), 3 * K // 4)
                        already = 0
        if SEARCH:
            if (count != already) & (refresh != 0):  # noqa: SIM102
                if count <= K:
                    # Two steps: a line that is nearly as high as it could be is as good.
                    count, top, c = _pruned(
                        own_values, own_classes, count, top, c, alpha, slack, tolerance,
                        KIND, BRACKET, STEPS if BRACKET else 2, K,
                    )  # fmt: skip
            tl.store(tops + row, top)
            tl.store(shifts + row, c)
        tl.store(counts + row, count)
