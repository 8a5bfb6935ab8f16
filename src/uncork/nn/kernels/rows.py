"""What each row's target asks for, and what its loss is: the two ends of a linear loss.

Each does in one launch what torch takes a dozen for, which a small problem would wait for.
"""

from __future__ import annotations

import triton
import triton.language as tl

GIVEN = tl.constexpr(0)
ONES = tl.constexpr(1)
MEAN = tl.constexpr(2)


@triton.jit
def _counted_weight(targets, weights, n, classes, ignore_index, WEIGHTS: tl.constexpr):
    """What a mean divides by: every program finds it for itself, which is one launch less."""
    total = tl.zeros([2048], tl.float32)
    for k in range(0, n, 2048):
        at = k + tl.arange(0, 2048)
        target = tl.load(targets + at, mask=at < n, other=ignore_index)
        counted = target != ignore_index
        if WEIGHTS:
            known = counted & (target >= 0) & (target < classes)
            own = tl.load(weights + target, mask=known, other=0.0).to(tl.float32)
        else:
            own = tl.where(counted, 1.0, 0.0)
        total += own
    return tl.sum(total)


@triton.jit
def prepare_kernel(
    targets, upstream, weights, taus, index, rows_out, sums,
    n, classes, ignore_index, smoothing, smooth, spread_total, tau, less, extra, first_top,
    first_shift,
    UPSTREAM: tl.constexpr, WEIGHTS: tl.constexpr, FIXED: tl.constexpr, TAU_TENSOR: tl.constexpr,
    L: tl.constexpr,
):  # fmt: skip
    """targets (n) → index (n) int64, and rows_out (7, n): counted, mass, hit, mass·upstream,
    hit·upstream, smooth·upstream, and upstream itself, all 0 where ignored; then tops and shifts
    (rows 7 and 8). sums (n, 4) are zeroed. A target that is no class makes its row NaN, and no
    kernel after this one reads or writes at it.

    mass, hit as in `RowTargets`; less = α − 1; FIXED: shifts are −(τ + extra)/less.
    """
    at = tl.program_id(0) * L + tl.arange(0, L)
    inside = at < n
    target = tl.load(targets + at, mask=inside, other=0)
    counted = (target != ignore_index) & inside
    known = (target >= 0) & (target < classes)
    target = tl.where(counted & known, target, 0)
    own = tl.where(counted, 1.0, 0.0)
    if WEIGHTS:
        own = tl.load(weights + target, mask=counted, other=0.0).to(tl.float32)
    own = tl.where(known, own, float("nan"))
    hit = tl.where(counted, (1.0 - smoothing) * own, 0.0)
    if WEIGHTS:
        mass = tl.where(counted, hit + tl.load(spread_total), 0.0)
    else:
        mass = tl.where(counted, tl.where(known, 1.0, float("nan")), 0.0)
    if UPSTREAM == 0:
        above = tl.load(upstream + at, mask=counted, other=0.0).to(tl.float32)
    else:
        above = tl.where(counted, 1.0, 0.0)
        if UPSTREAM == 2:
            share = _counted_weight(targets, weights, n, classes, ignore_index, WEIGHTS)
            above = tl.where(counted, above / share, 0.0)
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
        if TAU_TENSOR:
            tau = tl.load(taus).to(tl.float32)
        shift = -(tau + extra) / less + zero
    else:
        shift = first_shift + zero
    tl.store(rows_out + 7 * n + at, first_top + zero, mask=inside)
    tl.store(rows_out + 8 * n + at, shift, mask=inside)
    for k in range(4):
        tl.store(sums + at * 4 + k, zero, mask=inside)


@triton.jit
def losses_kernel(
    rows_in, sums, losses, slopes, n, offset, alpha, smooth,
    FIXED: tl.constexpr, SMOOTH: tl.constexpr, SLOPES: tl.constexpr, TOTAL: tl.constexpr,
    MEAN: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """losses (n) = mass·Ω*(z) − hit·z_target − smooth·Σ weight·z, Ω* = S + (Σp^α − 1)/α; and, if
    asked for, slopes (n): upstream · mass · (1 − Σp)/(α − 1), the derivative by τ.

    TOTAL: one program for all rows, and losses (1) is their sum, each times its upstream; of none
    that count, a MEAN is NaN.
    """
    first = tl.program_id(0) * L
    last = tl.minimum(first + L, n)
    if TOTAL:
        last = n
    total = tl.zeros([L], tl.float32)
    several = tl.zeros([L], tl.float32)
    for k in range(first, last, L):
        at = k + tl.arange(0, L)
        inside = at < n
        counted = tl.load(rows_in + at, mask=inside, other=0.0)
        mass = tl.load(rows_in + n + at, mask=inside, other=0.0)
        hit = tl.load(rows_in + 2 * n + at, mask=inside, other=0.0)
        top = tl.load(rows_in + 7 * n + at, mask=inside, other=0.0)
        shift = tl.load(rows_in + 8 * n + at, mask=inside, other=0.0)
        power = tl.load(sums + at * 4, mask=inside, other=1.0)
        z_target = tl.load(sums + at * 4 + 3, mask=inside, other=0.0)
        value = (top - shift + offset) + (power - 1.0) / alpha
        if not FIXED:
            # Ω*(z) ≥ z_c: less is rounding. NaN stays.
            value = tl.maximum(value, z_target, propagate_nan=tl.PropagateNan.ALL)
        loss = hit * (value - z_target) + (mass - hit) * value
        if SMOOTH:
            loss -= smooth * tl.load(sums + at * 4 + 2, mask=inside, other=0.0)
        loss = tl.where(counted > 0, loss, 0.0)
        above = tl.load(rows_in + 6 * n + at, mask=inside, other=0.0)
        if TOTAL:
            total += tl.where(counted > 0, loss * above, 0.0)
            several += counted
        else:
            tl.store(losses + at, loss, mask=inside)
        if SLOPES:
            masses = tl.load(sums + at * 4 + 1, mask=inside, other=0.0)
            slope = above * mass * (1.0 - masses) / (alpha - 1.0)
            tl.store(slopes + at, tl.where(counted > 0, slope, 0.0), mask=inside)
    if TOTAL:
        whole = tl.sum(total)
        if MEAN:
            whole = tl.where(tl.sum(several) == 0.0, float("nan"), whole)
        tl.store(losses, whole)
