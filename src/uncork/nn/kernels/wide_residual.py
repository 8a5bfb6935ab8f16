"""p − target of rows of any width, in place, with threshold or normaliser and all.

A row is read for every step of the search, from a guess so good that two steps are enough, and once
more to be overwritten. Few rows are in flight at a time, so that up to some hundred thousand bytes
a row only the first reading comes from memory, and the others from the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._logits import logits
from uncork.nn.kernels._math import (
    advance,
    largest_shift,
    lowest_shift,
    newton_step,
    solve,
    terms,
)
from uncork.nn.kernels.logsumexp import lane_exponentials
from uncork.nn.kernels.residual import residual_row

SAMPLED = tl.constexpr(4)  # tiles a guess is made from


@triton.jit
def _normaliser(
    row, bias, width, cap,
    BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr, G: tl.constexpr, L: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """(top, c) of softmax."""
    tops, total = lane_exponentials(row, bias, 0, width, cap, BIAS, CAP, ODD, G, L, STAGES)
    top = tl.max(tops)
    top = tl.where(top == -float("inf"), 0.0, top)
    whole = tl.sum(total * tl.exp(tops - top))
    return top, tl.where(whole == 0.0, 0.0, -tl.log(whole))  # all −inf: every p is 0


@triton.jit
def _sums_at(
    row, bias, width, top, c, alpha, cap,
    KIND: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr, G: tl.constexpr,
    L: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of `terms` at c, how many are positive (of α = 1.5 alone), and the lanes' maxima."""
    tile = tl.arange(0, G)[:, None] * L + tl.arange(0, L)[None, :]
    total = tl.zeros([L], tl.float32)
    slope = tl.zeros([L], tl.float32)
    there = tl.zeros([L], tl.float32)
    tops = tl.full([L], -float("inf"), tl.float32)
    for k in tl.range(0, width, G * L, num_stages=STAGES):
        z = logits(row, bias, k + tile, 0, width, cap, BIAS, CAP, ODD)
        tops = tl.maximum(tops, tl.max(z, 0))
        mass, rate = terms((z - top) + c, alpha, KIND)
        total += tl.sum(mass, 0)
        slope += tl.sum(rate, 0)
        if KIND == 15:
            there += tl.sum(tl.where(rate > 0, 1.0, 0.0), 0)
    return tl.sum(total), tl.sum(slope), tl.sum(there), tops


@triton.jit
def _threshold(
    row, bias, width, alpha, cap, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, BIAS: tl.constexpr,
    CAP: tl.constexpr, ODD: tl.constexpr, G: tl.constexpr, L: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """(top, c) of α-entmax."""
    size = tl.full([], width, tl.float32)
    highest = largest_shift(alpha, KIND) + 0.0 * size
    # Tiles evenly spread; an entry stands for as many others as it takes to make up the row.
    which = (tl.arange(0, SAMPLED) * tl.cdiv(width, L)) // SAMPLED
    at = which[:, None] * L + tl.arange(0, L)[None, :]
    x = logits(row, bias, at, 0, width, cap, BIAS, CAP, ODD)
    copies = size / tl.sum(tl.where(at < width, 1.0, 0.0))
    top = tl.max(x)
    top = tl.where(top == -float("inf"), 0.0, top)
    c = solve(x - top, highest, size, alpha, 1e-2, KIND, BRACKET, STEPS, copies)

    total, slope, there, tops = _sums_at(
        row, bias, width, top, c, alpha, cap, KIND, BIAS, CAP, ODD, G, L, STAGES
    )
    sampled = top
    top = tl.max(tops)
    top = tl.where(top == -float("inf"), 0.0, top)
    c += top - sampled
    low = lowest_shift(size, alpha, KIND)
    if BRACKET:
        c = tl.minimum(tl.maximum(c, low), highest)
    else:
        if KIND == 15:
            total = total * 0.25
            slope = slope * 0.5
        # From either side of the root a step leads to a c that is too large.
        c = tl.where(total > 0, c - newton_step(total, slope, alpha, KIND), highest)
        c = tl.minimum(c, highest)
        if (total > 4.0) | (total < 0.25):
            # The sample was no guide: the maxima of the lanes hold the largest entry.
            c = tl.minimum(
                c, solve(tops - top, highest, size, alpha, tolerance * 64, KIND, BRACKET, STEPS)
            )
    high = highest
    before = float("inf")
    done = False
    step = 0
    while (step < STEPS) & (done == 0):
        total, slope, there, tops = _sums_at(
            row, bias, width, top, c, alpha, cap, KIND, BIAS, CAP, ODD, G, L, STAGES
        )
        c, low, high, before, done = advance(
            total, slope, c, low, high, before, there, alpha, tolerance, KIND, BRACKET
        )
        step += 1
    return top, c


@triton.jit(do_not_specialize=["begin"])
def wide_residual_kernel(
    slice_, marks, sums, state, targets, bias, weights,
    n, begin, width, stride, words, alpha, cap, slack, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, BIAS: tl.constexpr,
    CAP: tl.constexpr, ODD: tl.constexpr, SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr,
    GRADIENT: tl.constexpr, MARK: tl.constexpr, G: tl.constexpr, L: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """slice_ (rows, width), all classes; tops and shifts are found here. Otherwise as
    `residual_kernel`."""
    row = tl.program_id(0).to(tl.int64)
    known = row + begin
    own_slice = slice_ + row * stride
    own_sums = sums + known * 4
    target = tl.load(targets + known)
    if KIND == 1:
        top, c = _normaliser(own_slice, bias, width, cap, BIAS, CAP, ODD, G, L, STAGES)
    else:
        top, c = _threshold(
            own_slice, bias, width, alpha, cap, tolerance,
            KIND, BRACKET, STEPS, BIAS, CAP, ODD, G, L, STAGES,
        )  # fmt: skip
    tl.store(state + known + 7 * n, top)
    tl.store(state + known + 8 * n, c)
    if GRADIENT or SMOOTH or KIND != 1:
        residual_row(
            own_slice, own_slice, marks + row * words * L, own_sums, state + known, target, top, c,
            bias, weights, n, 0, width, words, alpha, cap, slack,
            KIND, BIAS, CAP, ODD, SMOOTH, WEIGHTS, GRADIENT, False, MARK, L, STAGES,
        )  # fmt: skip
    else:
        tl.store(own_sums, 1.0 + 0.0 * c)
        tl.store(own_sums + 1, 1.0 + 0.0 * c)
        tl.store(own_sums + 3, logits(own_slice, bias, target, 0, width, cap, BIAS, CAP, ODD))
