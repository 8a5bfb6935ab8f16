"""α-entmax of rows that fit in one multiprocessor's registers: one read, one write.

A program holds a row as a (G, L) tile whose columns each lie in one thread. The maxima of the
columns are solved first, almost for free, and leave two or three steps for the whole row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._math import (
    entry_at,
    fenchel_young,
    largest_shift,
    power_term,
    probability,
    solve,
)

WIDEST = 32768  # float32 values: half of the registers


@triton.jit
def entmax_narrow_kernel(
    z, p, shift, alphas, targets, n, stride_z, stride_p, alpha, tolerance,
    ignore_index,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, ROW_ALPHA: tl.constexpr,
    WRITE: tl.constexpr, LEVEL: tl.constexpr, LOSS: tl.constexpr, G: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """z (rows, n) → p (rows, n), or with WRITE off only shift = s (rows), with LEVEL c.

    LOSS: beside p, shift becomes the loss of each row against its class in targets (rows), 0
    where that is ignore_index."""
    row = tl.program_id(0).to(tl.int64)
    if ROW_ALPHA:
        alpha = tl.load(alphas + row)
    columns = tl.arange(0, G)[:, None] * L + tl.arange(0, L)[None, :]
    inside = columns < n
    v = tl.load(z + row * stride_z + columns, mask=inside, other=-float("inf")).to(tl.float32)
    tops = tl.max(v, 0)
    top = tl.max(tops)
    top = tl.where(top == -float("inf"), 0.0, top)
    v = v - top
    size = tl.full([], n, tl.float32)  # one class is a constant to Triton, without .to
    c = largest_shift(alpha, KIND) + 0.0 * size
    if G > 1 and not BRACKET:
        c = solve(tops - top, c, size, alpha, tolerance * 16, KIND, BRACKET, STEPS)
    c = solve(v, c, size, alpha, tolerance, KIND, BRACKET, STEPS)
    if WRITE:
        out = probability(v + c, alpha, KIND)
        tl.store(p + row * stride_p + columns, out.to(p.dtype.element_ty), mask=inside)
        if LOSS:
            power = tl.sum(power_term(v + c, out, alpha, KIND))
            target = tl.load(targets + row)
            at_target = entry_at(z + row * stride_z, target, n) - top
            loss = fenchel_young(c, power, at_target, alpha, KIND)
            tl.store(shift + row, tl.where(target == ignore_index, 0.0, loss))
    else:
        tl.store(shift + row, c if LEVEL else largest_shift(alpha, KIND) - c)
