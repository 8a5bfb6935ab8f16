"""α-entmax of rows of any width: one read and one write of a sparse row.

While a row streams past, entries that may be positive are kept, with their places. What may be
positive is known from a sample of the row: its entries alone give an S that is too small, and an
entry at or below S − 1/(α−1) has probability zero. Each of the L lanes keeps its own stack, so
keeping an entry is a store and no search for room. The threshold is found on the stacks, zeros are
written, and over them the few that are positive.

A row whose stacks would overflow (nearly flat, or α near 1) is read again for every step instead,
from a guess so good that two or three are enough.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._math import (
    advance,
    entry_at,
    fenchel_young,
    largest_shift,
    lowest_shift,
    newton_step,
    power_term,
    probability,
    reach,
    solve,
    terms,
)
from uncork.nn.kernels._tiles import edge, edge_at, edge_inside, inner

LANES = 1024
DEPTH = 8  # entries a lane can keep
SAMPLED = tl.constexpr(4)  # tiles: rows must have as many


@triton.jit
def _keep(x, tile, line, count, stack, tags, lanes, L: tl.constexpr, DEPTH: tl.constexpr):
    """Push entries above `line` on their lanes' stacks, with the number of their tile."""
    above = ~(x <= line) & (count < DEPTH)  # NaN stays and spoils its row, as it should
    # Said to lie together so that stores keep the loads' layout, and no thread has to hand its
    # entries to another first. The mask, of which nothing is known, has each stored by itself.
    place = tl.max_contiguous(tl.multiple_of(count * L + lanes, 8), 8)
    tl.store(stack + place, x.to(stack.dtype.element_ty), mask=above)
    tl.store(tags + place, (tile + tl.zeros_like(count)).to(tags.dtype.element_ty), mask=above)
    # Past the end it still counts: that is how an overflow is seen.
    return count + (~(x <= line)).to(tl.int32)


@triton.jit
def _line(top, c, alpha, KIND: tl.constexpr):
    """Entries at or below this are zero, with slack for rounding."""
    length = reach(alpha, KIND)
    return top - c - length - 1e-6 * (tl.abs(top) + tl.abs(c) + length)


@triton.jit
def _from_maxima(
    tops, top, c, size, alpha, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """(top, c) of the lanes' maxima, from those of the sample: S only rises."""
    new = tl.max(tops)
    new = tl.where(new == -float("inf"), 0.0, new)
    if BRACKET:
        c = largest_shift(alpha, KIND) + 0.0 * size
    else:
        c = tl.minimum(c + (new - top), largest_shift(alpha, KIND) + 0.0 * size)
        c = solve(tops - new, c, size, alpha, tolerance, KIND, BRACKET, STEPS)
    return new, c


@triton.jit
def _sampled(
    base, off, n, lanes, size, alpha, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, L: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """Tiles of a row, evenly spread: (lane maxima, top, c, guess of the row's c, crowded, full).

    c is that of the maxima alone, so too large for the row. The guess counts every entry as often
    as it stands for another, and may lie on either side. crowded: too many entries of the row lie
    above the sample's own line. full: too many are positive; stacks would overflow.
    """
    which = (tl.arange(0, SAMPLED) * (tl.cdiv(n + off, L))) // SAMPLED
    at = which[:, None] * L + lanes[None, :]
    inside = (at >= off) & (at < n + off)
    x = tl.load(base + at, mask=inside, other=-float("inf")).to(tl.float32)
    tops = tl.max(x, 0)
    top = tl.max(tops)
    top = tl.where(top == -float("inf"), 0.0, top)
    c = largest_shift(alpha, KIND) + 0.0 * size
    if not BRACKET:
        c = solve(tops - top, c, size, alpha, tolerance * 64, KIND, BRACKET, STEPS)
    guess = c
    crowded = False
    full = False
    if not BRACKET:
        copies = tl.maximum(size / (SAMPLED * L), 1.0)
        above = tl.sum(tl.where((x - top) + c > -reach(alpha, KIND), 1.0, 0.0))
        crowded = above * copies > 0.5 * L
        if above * copies > 2.0 * L:
            guess = solve(x - top, c, size, alpha, 1e-3, KIND, BRACKET, STEPS, copies)
            above = tl.sum(tl.where((x - top) + guess > -reach(alpha, KIND), 1.0, 0.0))
            full = above * copies > 0.1 * DEPTH * L  # some lanes have many more than others
    return tops, top, c, guess, crowded, full


@triton.jit
def entmax_wide_kernel(
    z, p, shift, alphas, targets, stacks, tagged, n, rows, stride_z, stride_p, alpha, tolerance,
    ignore_index,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, ROW_ALPHA: tl.constexpr,
    WRITE: tl.constexpr, LEVEL: tl.constexpr, LOSS: tl.constexpr, L: tl.constexpr,
    DEPTH: tl.constexpr, ALIGN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """z (rows, n) → p (rows, n), or with WRITE off only shift = s (rows), with LEVEL c. LOSS:
    beside p, shift becomes the loss of each row against its class in targets (rows), 0 where that
    is ignore_index.

    stacks, tagged (programs, DEPTH, L) of z's type and integers of that size. ALIGN > 1: rows of z
    and p begin at the same place modulo ALIGN entries (16 bytes), and tiles begin at a multiple of
    it.
    """
    lanes = tl.arange(0, L)
    stack = stacks + tl.program_id(0).to(tl.int64) * (DEPTH * L)
    tags = tagged + tl.program_id(0).to(tl.int64) * (DEPTH * L)
    size = tl.full([], n, tl.float32)
    row = tl.program_id(0).to(tl.int64)
    while row < rows:
        if ROW_ALPHA:
            alpha = tl.load(alphas + row)
        start = row * stride_z
        off = (start % ALIGN).to(tl.int32)
        base = z + tl.multiple_of(start - off, ALIGN)
        out = p + tl.multiple_of(row * stride_p - off, ALIGN)
        whole = (n + off) // L

        tops, top, c, guess, crowded, full = _sampled(
            base, off, n, lanes, size, alpha, tolerance, KIND, BRACKET, STEPS, L, DEPTH
        )
        count = tl.zeros([L], tl.int32)
        if full:
            # Sums at the guess while the row passes for the first time: a step for free.
            total = tl.zeros([L], tl.float32)
            slope = tl.zeros([L], tl.float32)
            for k in tl.range(1, whole, num_stages=STAGES):
                x = inner(base, k, lanes, L)
                tops = tl.maximum(tops, x)
                mass, rate = terms((x - top) + guess, alpha, KIND)
                total += mass
                slope += rate
            for end in range(2):
                x = edge(base, end, off, n, whole, lanes, L)
                tops = tl.maximum(tops, x)
                mass, rate = terms((x - top) + guess, alpha, KIND)
                total += mass
                slope += rate
            a = tl.sum(total)
            b = tl.sum(slope)
            if KIND == 15:
                a = a * 0.25
                b = b * 0.5
            guess = tl.where(a > 0, guess - newton_step(a, b, alpha, KIND), c)
            before_top = top
            top, c = _from_maxima(tops, top, c, size, alpha, tolerance * 64, KIND, BRACKET, STEPS)
            c = tl.minimum(c, guess + (top - before_top))
            depth = DEPTH + 1
        else:
            line = _line(top, c, alpha, KIND)
            x = edge(base, 0, off, n, whole, lanes, L)
            count = _keep(x, 0, line, count, stack, tags, lanes, L, DEPTH)
            # A crowded row raises its line on the way, after an eighth (of a long one, a
            # sixteenth and a quarter), by the lanes' maxima.
            part = tl.where(whole < 96, whole // 8, whole // 16) + 1
            last = tl.where(crowded, tl.minimum(part, whole), whole)
            first = tl.minimum(1, whole)
            while (first > 0) & (first < whole):
                for k in tl.range(first, last, num_stages=STAGES):
                    x = inner(base, k, lanes, L)
                    count = _keep(x, k, line, count, stack, tags, lanes, L, DEPTH)
                    tops = tl.maximum(tops, x)
                first = last
                last = tl.where(8 * last > whole, whole, 4 * last)
                if first < whole:
                    top, c = _from_maxima(
                        tops, top, c, size, alpha, tolerance * 64, KIND, BRACKET, STEPS
                    )
                    line = _line(top, c, alpha, KIND)
            x = edge(base, 1, off, n, whole, lanes, L)
            count = _keep(x, whole, line, count, stack, tags, lanes, L, DEPTH)
            tops = tl.maximum(tops, x)
            top, c = _from_maxima(tops, top, c, size, alpha, tolerance, KIND, BRACKET, STEPS)
            depth = tl.max(count)

        tl.debug_barrier()
        low = lowest_shift(size, alpha, KIND)
        high = largest_shift(alpha, KIND) + 0.0 * size
        before = float("inf")
        done = False
        step = 0
        while (step < STEPS) & (done == 0):
            total = tl.zeros([L], tl.float32)
            slope = tl.zeros([L], tl.float32)
            there = tl.zeros([L], tl.float32)
            if depth <= DEPTH:
                for d in range(depth):
                    x = tl.load(stack + d * L + lanes, mask=d < count, other=-float("inf"))
                    mass, rate = terms((x.to(tl.float32) - top) + c, alpha, KIND)
                    total += mass
                    slope += rate
                    there += tl.where(rate > 0, 1.0, 0.0)
            else:
                for k in tl.range(1, whole, num_stages=STAGES):
                    x = inner(base, k, lanes, L)
                    mass, rate = terms((x - top) + c, alpha, KIND)
                    total += mass
                    slope += rate
                    if KIND == 15:
                        there += tl.where(rate > 0, 1.0, 0.0)
                for end in range(2):
                    x = edge(base, end, off, n, whole, lanes, L)
                    mass, rate = terms((x - top) + c, alpha, KIND)
                    total += mass
                    slope += rate
                    if KIND == 15:
                        there += tl.where(rate > 0, 1.0, 0.0)
            c, low, high, before, done = advance(
                tl.sum(total), tl.sum(slope), c, low, high, before, tl.sum(there), alpha,
                tolerance, KIND, BRACKET,
            )  # fmt: skip
            step += 1

        power = tl.zeros([L], tl.float32)
        if WRITE:
            # NaN must reach every entry, so such a row is written in full.
            if (depth <= DEPTH) & (c == c):
                nothing = tl.zeros([L], p.dtype.element_ty)
                for k in range(1, whole):
                    tl.store(out + k * L + lanes, nothing)
                for end in range(2):
                    at = edge_at(end, whole, lanes, L)
                    tl.store(out + at, nothing, mask=edge_inside(at, end, off, n, whole))
                tl.debug_barrier()
                for d in range(depth):
                    x = tl.load(stack + d * L + lanes, mask=d < count, other=-float("inf"))
                    tile = tl.load(tags + d * L + lanes, mask=d < count, other=0).to(tl.int32)
                    x = (x.to(tl.float32) - top) + c
                    y = probability(x, alpha, KIND)
                    tl.store(out + tile * L + lanes, y.to(p.dtype.element_ty), mask=d < count)
                    if LOSS:
                        power += power_term(x, y, alpha, KIND)
            else:
                for k in tl.range(1, whole, num_stages=STAGES):
                    x = (inner(base, k, lanes, L) - top) + c
                    y = probability(x, alpha, KIND)
                    tl.store(out + k * L + lanes, y.to(p.dtype.element_ty))
                    if LOSS:
                        power += power_term(x, y, alpha, KIND)
                for end in range(2):
                    x = (edge(base, end, off, n, whole, lanes, L) - top) + c
                    y = probability(x, alpha, KIND)
                    if LOSS:
                        power += power_term(x, y, alpha, KIND)
                    at = edge_at(end, whole, lanes, L)
                    inside = edge_inside(at, end, off, n, whole)
                    tl.store(out + at, y.to(p.dtype.element_ty), mask=inside)
            if LOSS:
                target = tl.load(targets + row)
                at_target = entry_at(z + start, target, n) - top
                loss = fenchel_young(c, tl.sum(power), at_target, alpha, KIND)
                tl.store(shift + row, tl.where(target == ignore_index, 0.0, loss))
        else:
            tl.store(shift + row, c if LEVEL else largest_shift(alpha, KIND) - c)
        tl.debug_barrier()  # the next row's entries go on the same stacks
        row += tl.num_programs(0)
