"""The two ends of a linear loss: what each row's target asks for, and its loss and gradients.

Each kernel does in one launch what torch takes a dozen for, and a small problem would wait for
them. Between the two ends, the kernels of `residual` and `lists` read and fill two tensors:

`state` (9, n), float32, of each row: whether it counts, mass and hit, these and smooth times the
gradient from upstream, that gradient itself (all of them 0 where the target is ignored), and
p = f((z − top) + shift).

`sums` (n, 4), float32, of each row: Σp^α, Σp, Σ weight·z over all classes, and z of its target.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn._torch import torch
from uncork.nn.kernels.launch import ceiling, launch, on_its_device

Tensor = torch.Tensor

# Rows of `state`
COUNTED = tl.constexpr(0)
MASS = tl.constexpr(1)
HIT = tl.constexpr(2)
MASS_GRAD = tl.constexpr(3)
HIT_GRAD = tl.constexpr(4)
SMOOTH_GRAD = tl.constexpr(5)
GRAD = tl.constexpr(6)
TOP = tl.constexpr(7)
SHIFT = tl.constexpr(8)

# Columns of `sums`
POWERS = tl.constexpr(0)
PROBABILITIES = tl.constexpr(1)
WEIGHTED = tl.constexpr(2)
Z_TARGET = tl.constexpr(3)

# The gradient from upstream: given by row, 1, or 1/(what a mean divides by)
GIVEN = tl.constexpr(0)
ONES = tl.constexpr(1)
MEAN = tl.constexpr(2)

_BLOCK = 4096

# --- targets and losses ---------------------------------------------------------------------------


@triton.jit
def _counted_weight(targets, weights, n, classes, ignore_index, WEIGHTS: tl.constexpr):
    """What a mean divides by. Every program computes it for itself, which saves a launch."""
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
    """targets (n) → index (n) int64, and rows_out (9, n), the `state` described above, with the
    first tops and shifts. sums (n, 4) are zeroed. A target that is not a class makes its row NaN,
    and no later kernel reads or writes at it.

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
    if UPSTREAM == GIVEN:
        above = tl.load(upstream + at, mask=counted, other=0.0).to(tl.float32)
    else:
        above = tl.where(counted, 1.0, 0.0)
        if UPSTREAM == MEAN:
            share = _counted_weight(targets, weights, n, classes, ignore_index, WEIGHTS)
            above = tl.where(counted, above / share, 0.0)
    tl.store(index + at, target, mask=inside)
    tl.store(rows_out + n * COUNTED + at, tl.where(counted, 1.0, 0.0), mask=inside)
    tl.store(rows_out + n * MASS + at, mass, mask=inside)
    tl.store(rows_out + n * HIT + at, hit, mask=inside)
    tl.store(rows_out + n * MASS_GRAD + at, mass * above, mask=inside)
    tl.store(rows_out + n * HIT_GRAD + at, hit * above, mask=inside)
    tl.store(rows_out + n * SMOOTH_GRAD + at, smooth * above, mask=inside)
    tl.store(rows_out + n * GRAD + at, above, mask=inside)
    zero = tl.zeros([L], tl.float32)
    if FIXED:
        if TAU_TENSOR:
            tau = tl.load(taus).to(tl.float32)
        shift = -(tau + extra) / less + zero
    else:
        shift = first_shift + zero
    tl.store(rows_out + n * TOP + at, first_top + zero, mask=inside)
    tl.store(rows_out + n * SHIFT + at, shift, mask=inside)
    for k in range(4):
        tl.store(sums + at * 4 + k, zero, mask=inside)


@triton.jit
def losses_kernel(
    rows_in, sums, losses, slopes, n, offset, alpha, smooth,
    FIXED: tl.constexpr, SMOOTH: tl.constexpr, SLOPES: tl.constexpr, TOTAL: tl.constexpr,
    MEAN: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """losses (n) = mass·Ω*(z) − hit·z_target − smooth·Σ weight·z, Ω* = S + (Σp^α − 1)/α. SLOPES:
    also slopes (n) = upstream · mass · (1 − Σp)/(α − 1), the derivative by τ.

    TOTAL: one program for all rows, and losses (1) is their sum, each times its upstream. If no row
    counts, a MEAN is NaN.
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
        counted = tl.load(rows_in + n * COUNTED + at, mask=inside, other=0.0)
        mass = tl.load(rows_in + n * MASS + at, mask=inside, other=0.0)
        hit = tl.load(rows_in + n * HIT + at, mask=inside, other=0.0)
        top = tl.load(rows_in + n * TOP + at, mask=inside, other=0.0)
        shift = tl.load(rows_in + n * SHIFT + at, mask=inside, other=0.0)
        power = tl.load(sums + at * 4 + POWERS, mask=inside, other=1.0)
        z_target = tl.load(sums + at * 4 + Z_TARGET, mask=inside, other=0.0)
        value = (top - shift + offset) + (power - 1.0) / alpha
        if not FIXED:
            # Ω*(z) ≥ z_c: less is rounding. NaN stays.
            value = tl.maximum(value, z_target, propagate_nan=tl.PropagateNan.ALL)
        loss = hit * (value - z_target) + (mass - hit) * value
        if SMOOTH:
            loss -= smooth * tl.load(sums + at * 4 + WEIGHTED, mask=inside, other=0.0)
        loss = tl.where(counted > 0, loss, 0.0)
        above = tl.load(rows_in + n * GRAD + at, mask=inside, other=0.0)
        if TOTAL:
            total += tl.where(counted > 0, loss * above, 0.0)
            several += counted
        else:
            tl.store(losses + at, loss, mask=inside)
        if SLOPES:
            masses = tl.load(sums + at * 4 + PROBABILITIES, mask=inside, other=0.0)
            slope = above * mass * (1.0 - masses) / (alpha - 1.0)
            tl.store(slopes + at, tl.where(counted > 0, slope, 0.0), mask=inside)
    if TOTAL:
        whole = tl.sum(total)
        if MEAN:
            whole = tl.where(tl.sum(several) == 0.0, float("nan"), whole)
        tl.store(losses, whole)


# --- gradients ------------------------------------------------------------------------------------


@on_its_device
def scale(values: Tensor, others: Tensor | None, factor: Tensor) -> None:
    """values, and others if given, times factor (one value), in place and in one launch. Nothing is
    written if the factor is 1."""
    numel, more = values.numel(), 0 if others is None else others.numel()
    programs = ceiling(numel, _BLOCK)
    launch(scale_kernel, programs + ceiling(more, _BLOCK), {
        "values": values, "others": values if others is None else others, "factor": factor,
        "programs": programs, "numel": numel, "numel_of_others": more, "L": _BLOCK, "num_warps": 4,
    })  # fmt: skip


@triton.jit
def _scale_block(values, times, block, numel, L: tl.constexpr):
    at = block.to(tl.int64) * L + tl.arange(0, L)
    inside = at < numel
    scaled = tl.load(values + at, mask=inside).to(tl.float32) * times
    tl.store(values + at, scaled.to(values.dtype.element_ty), mask=inside)


@triton.jit
def scale_kernel(values, others, factor, programs, numel, numel_of_others, L: tl.constexpr):
    """values (numel) and others times factor (one value), which the host need not know. The first
    `programs` programs take values, the rest others."""
    times = tl.load(factor).to(tl.float32)
    if times != 1.0:
        block = tl.program_id(0)
        if block < programs:
            _scale_block(values, times, block, numel, L)
        else:
            _scale_block(others, times, block - programs, numel_of_others, L)


@on_its_device
def add(total: Tensor, others: Tensor) -> None:
    """total += others[0] + others[1] + …, all contiguous, of 16 bits and rounded once."""
    numel = total.numel()
    launch(add_kernel, ceiling(numel, _BLOCK), {
        "total": total, "others": others, "numel": numel, "COUNT": others.shape[0], "L": _BLOCK,
        "num_warps": 4,
    })  # fmt: skip


@triton.jit
def add_kernel(total, others, numel, COUNT: tl.constexpr, L: tl.constexpr):
    """total (numel) += the sum of others (COUNT, numel), in float32."""
    at = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
    inside = at < numel
    value = tl.load(total + at, mask=inside).to(tl.float32)
    for k in tl.static_range(COUNT):
        # In 64 bits: k · numel may not fit into 32.
        value += tl.load(others + at + tl.full([], k, tl.int64) * numel, mask=inside).to(tl.float32)
    tl.store(total + at, value.to(total.dtype.element_ty), mask=inside)
