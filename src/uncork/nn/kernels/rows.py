"""What each row's target asks for, and what its loss is: the two ends of a linear loss.

Each does in one launch what torch takes a dozen for, which a small problem would wait for.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def prepare_kernel(
    targets, upstream, weights, taus, index, rows_out, sums, counts,
    n, ignore_index, smoothing, smooth, spread_total, less, extra, first_top, first_shift,
    WEIGHTS: tl.constexpr, FIXED: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """targets (n) → index (n) int64, and rows_out (7, n): counted, mass, hit, mass·upstream,
    hit·upstream, smooth·upstream, and upstream itself, all 0 where ignored; then tops and shifts
    (rows 7 and 8). sums (n, 4) and counts (n) are zeroed.

    mass, hit as in `RowTargets`; less = α − 1; FIXED: shifts are −(τ + extra)/less.
    """
    at = tl.program_id(0) * L + tl.arange(0, L)
    inside = at < n
    target = tl.load(targets + at, mask=inside, other=0)
    counted = (target != ignore_index) & inside
    target = tl.where(counted, target, 0)
    own = tl.where(counted, 1.0, 0.0)
    if WEIGHTS:
        own = tl.load(weights + target, mask=counted, other=0.0).to(tl.float32)
    hit = tl.where(counted, (1.0 - smoothing) * own, 0.0)
    if WEIGHTS:
        mass = tl.where(counted, hit + tl.load(spread_total), 0.0)
    else:
        mass = tl.where(counted, 1.0, 0.0)
    above = tl.load(upstream + at, mask=counted, other=0.0).to(tl.float32)
    tl.store(index + at, target, mask=inside)
    tl.store(rows_out + at, tl.where(counted, 1.0, 0.0), mask=inside)
    tl.store(rows_out + n + at, mass, mask=inside)
    tl.store(rows_out + 2 * n + at, hit, mask=inside)
    tl.store(rows_out + 3 * n + at, mass * above, mask=inside)
    tl.store(rows_out + 4 * n + at, hit * above, mask=inside)
    tl.store(rows_out + 5 * n + at, smooth * above, mask=inside)
    tl.store(rows_out + 6 * n + at, above, mask=inside)
    zero = tl.zeros([L], tl.float32)
    if FIXED:
        shift = -(tl.load(taus).to(tl.float32) + extra) / less + zero
    else:
        shift = first_shift + zero
    tl.store(rows_out + 7 * n + at, first_top + zero, mask=inside)
    tl.store(rows_out + 8 * n + at, shift, mask=inside)
    for k in range(4):
        tl.store(sums + at * 4 + k, zero, mask=inside)
    tl.store(counts + at, tl.zeros([L], tl.int32), mask=inside)


@triton.jit
def losses_kernel(
    rows_in, tops, shifts, sums, losses, slopes, n, offset, alpha, smooth,
    FIXED: tl.constexpr, SMOOTH: tl.constexpr, SLOPES: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """losses (n) = mass·Ω*(z) − hit·z_target − smooth·Σ weight·z, Ω* = S + (Σp^α − 1)/α; and, if
    asked for, slopes (n): upstream · mass · (1 − Σp)/(α − 1), the derivative by τ."""
    at = tl.program_id(0) * L + tl.arange(0, L)
    inside = at < n
    counted = tl.load(rows_in + at, mask=inside, other=0.0)
    mass = tl.load(rows_in + n + at, mask=inside, other=0.0)
    hit = tl.load(rows_in + 2 * n + at, mask=inside, other=0.0)
    top = tl.load(tops + at, mask=inside, other=0.0)
    shift = tl.load(shifts + at, mask=inside, other=0.0)
    power = tl.load(sums + at * 4, mask=inside, other=1.0)
    z_target = tl.load(sums + at * 4 + 3, mask=inside, other=0.0)
    value = (top - shift + offset) + (power - 1.0) / alpha
    if not FIXED:
        # Ω*(z) ≥ z_c: less is rounding. NaN stays.
        value = tl.maximum(value, z_target, propagate_nan=tl.PropagateNan.ALL)
    loss = hit * (value - z_target) + (mass - hit) * value
    if SMOOTH:
        loss -= smooth * tl.load(sums + at * 4 + 2, mask=inside, other=0.0)
    tl.store(losses + at, tl.where(counted > 0, loss, 0.0), mask=inside)
    if SLOPES:
        total = tl.load(sums + at * 4 + 1, mask=inside, other=0.0)
        above = tl.load(rows_in + 6 * n + at, mask=inside, other=0.0)
        slope = above * mass * (1.0 - total) / (alpha - 1.0)
        tl.store(slopes + at, tl.where(counted > 0, slope, 0.0), mask=inside)
