"""From logits to p − target, in place, with the row sums that the loss needs.

The residual then goes into the two products that make the gradients. One row is the same for every
loss: p = f((z − top) + shift), by `_residual_row`. The kernels differ in what they know of a row:

- `residual_kernel`: slices of logits, of rows whose top and shift are known. Softmax finds them
  first, with `logsumexp_kernel`.
- `entmax_residual_kernel`: whole rows that fit in registers (up to 32,768 classes). It finds
  threshold or normaliser itself.
- `wide_residual_kernel`: the same for whole rows of any width. It reads a row for every step of the
  search, from a guess so good that two steps are enough, and once more to overwrite it. Few rows
  are in flight at a time, so that rows of up to some hundred thousand bytes come from memory only
  once, and then from the cache.
- `refined_rows_kernel`, after one of these two: rows with few positive entries once more, from
  refined logits (see `logits`). The kernels that see whole rows mark the classes that may be
  positive. Where these are few, their logits are computed again, and with them the row's threshold,
  its sums and p − target. `exact_residual_kernel` is `residual_kernel` and this in one.

`state` and `sums` are those of `ends`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels.ends import (
    HIT_GRAD,
    MASS_GRAD,
    POWERS,
    PROBABILITIES,
    SHIFT,
    SMOOTH_GRAD,
    TOP,
    WEIGHTED,
    Z_TARGET,
)
from uncork.nn.kernels.logits import cap_slope, logits, padded, refine_list, refined_logit
from uncork.nn.kernels.math import (
    ENTMAX15,
    SOFTMAX,
    advance,
    finite,
    largest_shift,
    lowest_shift,
    newton_step,
    power_term,
    probability,
    rounded_reach,
    scaled,
    solve,
    terms,
)

SAMPLED = tl.constexpr(4)  # tiles of a wide row that a guess is made from

# --- top and shift known --------------------------------------------------------------------------


@triton.jit
def _share(weights, which, inside, WEIGHTS: tl.constexpr):
    """Label smoothing's weight of the classes `which`, 0 outside."""
    if WEIGHTS:
        return tl.load(weights + which, mask=inside, other=0.0).to(tl.float32)
    else:
        return tl.where(inside, 1.0, 0.0)


@triton.jit
def _target_residual(
    z, share, top, c, mass, hit, smooth, alpha, cap,
    KIND: tl.constexpr, SMOOTH: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """The residual of the target itself, from its logit z."""
    r = mass * probability((z - top) + c, alpha, KIND) - hit
    if SMOOTH:
        r -= smooth * share
    if CAP:
        r = r * cap_slope(z, cap)
    return r


@triton.jit
def _residual_row(
    own_slice, own_out, own_marks, own_sums, own_state, target, top, c, bias, weights,
    n, first, width, words, alpha, cap, slack,
    KIND: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr,
    SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr, GRADIENT: tl.constexpr, NARROWS: tl.constexpr,
    MARK: tl.constexpr, L: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One row. target counts from class 0, not from `first`. MARK: marks (words, L) of what may be
    positive if every logit may be off by `slack` of its size, as `_list_marks` reads them."""
    lanes = tl.arange(0, L)
    mass = tl.load(own_state + n * MASS_GRAD)
    hit = tl.load(own_state + n * HIT_GRAD)
    smooth = tl.load(own_state + n * SMOOTH_GRAD)
    power = tl.zeros([L], tl.float32)
    total = tl.zeros([L], tl.float32)
    weighted = tl.zeros([L], tl.float32)
    # The target is one entry: read before it is overwritten, corrected at the end.
    at_target = target - first
    here = (at_target >= 0) & (at_target < width)
    z_target = 0.0
    share_target = 1.0
    if here:
        z_target = logits(own_slice, bias, at_target, first, width, cap, BIAS, CAP, ODD)
        if SMOOTH:  # noqa: SIM102
            if WEIGHTS:
                share_target = tl.load(weights + target).to(tl.float32)
    line = -rounded_reach(top, c, alpha, slack, KIND)
    bits = tl.zeros([L], tl.int32)
    tl.debug_barrier()
    for k in tl.range(0, width, L, num_stages=STAGES):
        at = k + lanes
        z = logits(own_slice, bias, at, first, width, cap, BIAS, CAP, ODD)
        x = (z - top) + c
        p = probability(x, alpha, KIND)
        power += power_term(x, p, alpha, KIND)
        total += p
        r = mass * p
        if MARK:
            tile = k // L
            above = (at < width) & ~(x <= line)
            bits = bits | (above.to(tl.int32) << (tile % 32))
            if words > 1:  # noqa: SIM102
                if (tile % 32 == 31) & (k + L < width):
                    tl.store(own_marks + tile // 32 * L + lanes, bits)
                    bits = tl.zeros([L], tl.int32)
        if SMOOTH:
            share = _share(weights + first, at, at < width, WEIGHTS)
            weighted += tl.where(share == 0.0, 0.0, share * z)
            r -= smooth * share
        if GRADIENT:
            if CAP:
                r = r * cap_slope(z, cap)
            if NARROWS:
                # The store may overwrite what this or an earlier tile was read from: wait until
                # every thread has read it.
                tl.debug_barrier()
            tl.store(own_out + at, r.to(own_out.dtype.element_ty), mask=at < padded(width))
    if MARK:
        tl.store(own_marks + (words - 1) * L + lanes, bits.to(own_marks.dtype.element_ty))
    if here:
        tl.store(own_sums + Z_TARGET, z_target)
        if GRADIENT:
            r = _target_residual(
                z_target, share_target, top, c, mass, hit, smooth, alpha, cap, KIND, SMOOTH, CAP
            )
            tl.debug_barrier()
            tl.store(own_out + at_target, r.to(own_out.dtype.element_ty))
    tl.store(own_sums + POWERS, tl.load(own_sums + POWERS) + tl.sum(power))
    tl.store(own_sums + PROBABILITIES, tl.load(own_sums + PROBABILITIES) + tl.sum(total))
    if SMOOTH:
        tl.store(own_sums + WEIGHTED, tl.load(own_sums + WEIGHTED) + tl.sum(weighted))


@triton.jit(do_not_specialize=["begin"])
def residual_kernel(
    slice_, out, sums, state, targets, bias, weights,
    n, begin, first, width, stride, stride_out, alpha, cap,
    KIND: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr,
    SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr, GRADIENT: tl.constexpr, NARROWS: tl.constexpr,
    L: tl.constexpr,
):  # fmt: skip
    """slice_ (rows, width) of classes first … becomes mass·p − smooth·weight − hit·[c = target].

    The slice's rows are those from `begin`, at multiples of 16 entries (`padded`). out is the same
    memory; with NARROWS it has a narrower type, at the beginning of the same row. targets (n) are
    int64. sums are added to.
    """
    row = tl.program_id(0).to(tl.int64)
    known = row + begin
    top = tl.load(state + known + n * TOP)
    c = tl.load(state + known + n * SHIFT)
    _residual_row(
        slice_ + row * stride, out + row * stride_out, out, sums + known * 4, state + known,
        tl.load(targets + known), top, c, bias, weights, n, first, width, 1, alpha, cap, 0.0,
        KIND, BIAS, CAP, ODD, SMOOTH, WEIGHTS, GRADIENT, NARROWS, False, L, 1,
    )  # fmt: skip


# --- softmax's normaliser -------------------------------------------------------------------------


@triton.jit
def _lane_exponentials(
    row, bias, first, width, cap,
    BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr, G: tl.constexpr, L: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Of one row's slice, each lane's largest logit and Σ exp(z − that): one reduction is left."""
    tile = tl.arange(0, G)[:, None] * L + tl.arange(0, L)[None, :]
    tops = tl.full([L], -float("inf"), tl.float32)
    total = tl.zeros([L], tl.float32)
    for k in tl.range(0, width, G * L, num_stages=STAGES):
        z = logits(row, bias, k + tile, first, width, cap, BIAS, CAP, ODD)
        new = tl.maximum(tops, tl.max(z, 0))
        safe = finite(new)
        total = total * tl.exp(tops - safe) + tl.sum(tl.exp(z - safe[None, :]), 0)
        tops = new
    return tops, total


@triton.jit
def logsumexp_kernel(
    slice_, tops, totals, bias, first, width, stride, cap,
    BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr, G: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """slice_ (N, width) of classes first …; tops, totals (N): largest logit and Σ exp(z − top) so
    far."""
    row = tl.program_id(0).to(tl.int64)
    top, total = _lane_exponentials(
        slice_ + row * stride, bias, first, width, cap, BIAS, CAP, ODD, G, L, 3
    )
    before = tl.load(tops + row)
    whole = tl.maximum(tl.max(top), before)
    safe = finite(whole)
    sum_ = tl.sum(total * tl.exp(top - safe))
    sum_ += tl.load(totals + row) * tl.exp(before - safe)
    tl.store(tops + row, whole)
    tl.store(totals + row, sum_)


# --- whole rows in registers ----------------------------------------------------------------------


@triton.jit(do_not_specialize=["begin"])
def entmax_residual_kernel(
    slice_, marks, sums, state, targets, bias, weights,
    n, begin, width, stride, alpha, cap, slack, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, BIAS: tl.constexpr,
    CAP: tl.constexpr, ODD: tl.constexpr, SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr,
    GRADIENT: tl.constexpr, MARK: tl.constexpr, G: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """As `residual_kernel` for slice_ (rows, width) of all classes; finds tops and shifts."""
    row = tl.program_id(0).to(tl.int64)
    known = row + begin
    own_slice = slice_ + row * stride
    at = tl.arange(0, G)[:, None] * L + tl.arange(0, L)[None, :]
    inside = at < width
    target = tl.load(targets + known)
    z_target = logits(own_slice, bias, target, 0, width, cap, BIAS, CAP, ODD)
    z = logits(own_slice, bias, at, 0, width, cap, BIAS, CAP, ODD)
    maxima = tl.max(z, 0)
    top = finite(tl.max(maxima))
    size = tl.full([], width, tl.float32)
    if KIND == SOFTMAX:
        whole = tl.sum(tl.exp(z - top))
        c = tl.where(whole == 0.0, 0.0, -tl.log(whole))  # all −inf: every p is 0
    else:
        c = largest_shift(alpha, KIND)
        if G > 1 and not BRACKET:
            c = solve(maxima - top, c, size, alpha, tolerance * 16, KIND, BRACKET, STEPS)
        c = solve(z - top, c, size, alpha, tolerance, KIND, BRACKET, STEPS)
    own_state = state + known
    tl.store(own_state + n * TOP, top)
    tl.store(own_state + n * SHIFT, c)
    x = (z - top) + c
    p = probability(x, alpha, KIND)
    if MARK:
        above = inside & ~(x <= -rounded_reach(top, c, alpha, slack, KIND))
        bits = tl.sum(above.to(tl.int32) << tl.arange(0, G)[:, None], 0)
        tl.store(marks + row * L + tl.arange(0, L), bits.to(marks.dtype.element_ty))
    own_sums = sums + known * 4
    tl.store(own_sums + POWERS, tl.sum(power_term(x, p, alpha, KIND)))
    tl.store(own_sums + PROBABILITIES, tl.sum(p))
    tl.store(own_sums + Z_TARGET, z_target)
    mass = tl.load(own_state + n * MASS_GRAD)
    smooth = tl.load(own_state + n * SMOOTH_GRAD)
    hit = tl.load(own_state + n * HIT_GRAD)
    r = mass * p
    share_target = 1.0
    if SMOOTH:
        share = _share(weights, at, inside, WEIGHTS)
        if WEIGHTS:
            share_target = tl.load(weights + target).to(tl.float32)
        tl.store(own_sums + WEIGHTED, tl.sum(tl.where(share == 0.0, 0.0, share * z)))
        r -= smooth * share
    if GRADIENT:
        if CAP:
            r = r * cap_slope(z, cap)
        r_target = _target_residual(
            z_target, share_target, top, c, mass, hit, smooth, alpha, cap, KIND, SMOOTH, CAP
        )
        tl.debug_barrier()
        tl.store(own_slice + at, r.to(slice_.dtype.element_ty), mask=at < padded(width))
        tl.debug_barrier()
        tl.store(own_slice + target, r_target.to(slice_.dtype.element_ty))


# --- whole rows of any width ----------------------------------------------------------------------


@triton.jit
def _normaliser(
    row, bias, width, cap,
    BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr, G: tl.constexpr, L: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """(top, c) of softmax."""
    tops, total = _lane_exponentials(row, bias, 0, width, cap, BIAS, CAP, ODD, G, L, STAGES)
    top = finite(tl.max(tops))
    whole = tl.sum(total * tl.exp(tops - top))
    return top, tl.where(whole == 0.0, 0.0, -tl.log(whole))  # all −inf: every p is 0


@triton.jit
def _sums_at(
    row, bias, width, top, c, alpha, cap,
    KIND: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr, G: tl.constexpr,
    L: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of `terms` at c, how many are positive (for α = 1.5 only), and the lanes' maxima."""
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
        if KIND == ENTMAX15:
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
    # Tiles evenly spread, each entry of which stands for its share of the row.
    which = (tl.arange(0, SAMPLED) * tl.cdiv(width, L)) // SAMPLED
    at = which[:, None] * L + tl.arange(0, L)[None, :]
    x = logits(row, bias, at, 0, width, cap, BIAS, CAP, ODD)
    copies = size / tl.sum(tl.where(at < width, 1.0, 0.0))
    top = finite(tl.max(x))
    c = solve(x - top, highest, size, alpha, 1e-2, KIND, BRACKET, STEPS, copies)

    total, slope, there, tops = _sums_at(
        row, bias, width, top, c, alpha, cap, KIND, BIAS, CAP, ODD, G, L, STAGES
    )
    sampled = top
    top = finite(tl.max(tops))
    c += top - sampled
    low = lowest_shift(size, alpha, KIND)
    if BRACKET:
        c = tl.minimum(tl.maximum(c, low), highest)
    else:
        total, slope = scaled(total, slope, KIND)
        # From either side of the root a step leads to a c that is too large.
        c = tl.where(total > 0, c - newton_step(total, slope, alpha, KIND), highest)
        c = tl.minimum(c, highest)
        if (total > 4.0) | (total < 0.25):
            # The sample misled: the maxima of the lanes hold the largest entry.
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
    """As `residual_kernel` for slice_ (rows, width) of all classes; finds tops and shifts."""
    row = tl.program_id(0).to(tl.int64)
    known = row + begin
    own_slice = slice_ + row * stride
    own_sums = sums + known * 4
    target = tl.load(targets + known)
    if KIND == SOFTMAX:
        top, c = _normaliser(own_slice, bias, width, cap, BIAS, CAP, ODD, G, L, STAGES)
    else:
        top, c = _threshold(
            own_slice, bias, width, alpha, cap, tolerance,
            KIND, BRACKET, STEPS, BIAS, CAP, ODD, G, L, STAGES,
        )  # fmt: skip
    tl.store(state + known + n * TOP, top)
    tl.store(state + known + n * SHIFT, c)
    if GRADIENT or SMOOTH or KIND != SOFTMAX:
        _residual_row(
            own_slice, own_slice, marks + row * words * L, own_sums, state + known, target, top, c,
            bias, weights, n, 0, width, words, alpha, cap, slack,
            KIND, BIAS, CAP, ODD, SMOOTH, WEIGHTS, GRADIENT, False, MARK, L, STAGES,
        )  # fmt: skip
    else:
        z_target = logits(own_slice, bias, target, 0, width, cap, BIAS, CAP, ODD)
        tl.store(own_sums + POWERS, 1.0 + 0.0 * c)
        tl.store(own_sums + PROBABILITIES, 1.0 + 0.0 * c)
        tl.store(own_sums + Z_TARGET, z_target)


# --- rows with few positive entries, from refined logits ------------------------------------------
#
# A row is read tile by tile, and a lane's marks are the bits of one number: lanes exchange nothing
# while rows pass, which would take longer than everything else.


@triton.jit
def _popcount(bits):
    """How many bits of an int32 are set."""
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    return (((bits + (bits >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24


@triton.jit
def _count_marks(marks, words, N: tl.constexpr):
    """How many marks (words, N) one row has."""
    count = 0
    for word in range(words):
        count += tl.sum(_popcount(tl.load(marks + word * N + tl.arange(0, N))))
    return count


@triton.jit
def _list_marks(marks, words, classes, K: tl.constexpr, L: tl.constexpr, BITS: tl.constexpr):
    """classes (K) of at most K marks. Bit g of word w and lane l is class (w·BITS + g)·L + l; words
    of 8 and 16 bits are read four and two lanes at a time."""
    EACH: tl.constexpr = 32 // BITS
    N: tl.constexpr = L // EACH
    numbers = tl.arange(0, N)
    places = tl.arange(0, K)
    done = 0
    for word in range(words):
        # First the numbers that are not 0, then their bits: with few lanes this is quick.
        own = marks + word * N
        some = (tl.load(own + numbers) != 0).to(tl.int32)
        tl.store(classes + done + tl.cumsum(some, 0) - 1, numbers, mask=some > 0)
        tl.debug_barrier()
        inside = places < tl.sum(some)
        number = tl.load(classes + done + places, mask=inside, other=0)
        bits = tl.load(own + number, mask=inside, other=0)
        here = _popcount(bits)
        place = done + tl.cumsum(here, 0) - here
        done += tl.sum(here)
        tl.debug_barrier()
        while tl.max((bits != 0).to(tl.int32)) > 0:
            lowest = _popcount((bits & -bits) - 1)
            which = (word * BITS + lowest % BITS) * L + number * EACH + lowest // BITS
            tl.store(classes + place, which, mask=bits != 0)
            place += 1
            bits = bits & (bits - 1)
    tl.debug_barrier()


@triton.jit
def _refine_row(
    own_slice, own_x, weight, own_marks, own_classes, own_values, own_sums, own_state, target,
    bias, weights, n, words, features, stride_w, alpha, cap, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, SEARCH: tl.constexpr,
    BIAS: tl.constexpr, CAP: tl.constexpr, SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr,
    GRADIENT: tl.constexpr, K: tl.constexpr, E: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """One row, which with more than K marks stays as it is. SEARCH: α-entmax, whose threshold is
    found again; otherwise top and shift in its state are right."""
    own_marks = own_marks.to(tl.pointer_type(tl.int32))
    count = _count_marks(own_marks, words, L * BITS // 32)
    if count <= K:
        _list_marks(own_marks, words, own_classes, K, L, BITS)
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
            top = finite(tl.max(z))
            c = largest_shift(alpha, KIND) + 0.0 * top
            c = solve(z - top, c, 1.0 * K, alpha, tolerance, KIND, BRACKET, STEPS)
            tl.store(own_state + n * TOP, top)
            tl.store(own_state + n * SHIFT, c)
        else:
            top = tl.load(own_state + n * TOP)
            c = tl.load(own_state + n * SHIFT)
        x = (z - top) + c
        p = probability(x, alpha, KIND)
        tl.store(own_sums + POWERS, tl.sum(tl.where(valid, power_term(x, p, alpha, KIND), 0.0)))
        tl.store(own_sums + PROBABILITIES, tl.sum(tl.where(valid, p, 0.0)))
        tl.store(own_sums + Z_TARGET, z_target)
        if GRADIENT:
            mass = tl.load(own_state + n * MASS_GRAD)
            hit = tl.load(own_state + n * HIT_GRAD)
            smooth = tl.load(own_state + n * SMOOTH_GRAD)
            r = mass * p
            share_target = 1.0
            if SMOOTH:
                if WEIGHTS:
                    r -= smooth * tl.load(weights + which, mask=valid, other=0.0).to(tl.float32)
                    share_target = tl.load(weights + target).to(tl.float32)
                else:
                    r -= smooth
            if CAP:
                r = r * cap_slope(z, cap)
            r_target = _target_residual(
                z_target, share_target, top, c, mass, hit, smooth, alpha, cap, KIND, SMOOTH, CAP
            )
            element = own_slice.dtype.element_ty
            tl.store(own_slice + which, r.to(element), mask=valid & (which != target))
            tl.store(own_slice + target, r_target.to(element))


@triton.jit(do_not_specialize=["begin"])
def refined_rows_kernel(
    slice_, x, weight, marks, classes, values, sums, state, targets, bias, weights,
    n, begin, stride, words, features, stride_x, stride_w, alpha, cap, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, BIAS: tl.constexpr,
    CAP: tl.constexpr, SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr, GRADIENT: tl.constexpr,
    K: tl.constexpr, E: tl.constexpr, D: tl.constexpr, L: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """slice_ (rows, all classes) of α-entmax, as the kernels leave it that find thresholds, with
    marks (rows, words, L) of what may be positive. classes and values (rows, K) are room to work
    in. x (n, features) are all rows, those of the slice from `begin`."""
    row = tl.program_id(0).to(tl.int64)
    known = row + begin
    _refine_row(
        slice_ + row * stride, x + known * stride_x, weight, marks + row * words * L,
        classes + row * K, values + row * K, sums + known * 4, state + known,
        tl.load(targets + known), bias, weights,
        n, words, features, stride_w, alpha, cap, tolerance,
        KIND, BRACKET, STEPS, True, BIAS, CAP, SMOOTH, WEIGHTS, GRADIENT, K, E, D, L, BITS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["begin"])
def exact_residual_kernel(
    slice_, x, weight, marks, classes, values, sums, state, targets, bias, exact_bias, weights,
    n, begin, width, stride, words, features, stride_x, stride_w, alpha, cap, slack,
    KIND: tl.constexpr, BIAS: tl.constexpr, EXACT_BIAS: tl.constexpr, CAP: tl.constexpr,
    ODD: tl.constexpr, SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr, GRADIENT: tl.constexpr,
    K: tl.constexpr, E: tl.constexpr, D: tl.constexpr, L: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """`residual_kernel` for all classes at once, then rows with few positive entries again from
    refined logits, as `refined_rows_kernel`. exact_bias is the whole bias; `bias` is the part of it
    that the slice does not hold."""
    row = tl.program_id(0).to(tl.int64)
    known = row + begin
    own_slice = slice_ + row * stride
    own_marks = marks + row * words * L
    target = tl.load(targets + known)
    _residual_row(
        own_slice, own_slice, own_marks, sums + known * 4, state + known, target,
        tl.load(state + known + n * TOP), tl.load(state + known + n * SHIFT),
        bias, weights, n, 0, width, words, alpha, cap, slack,
        KIND, BIAS, CAP, ODD, SMOOTH, WEIGHTS, GRADIENT, False, True, L, 1,
    )  # fmt: skip
    tl.debug_barrier()
    _refine_row(
        own_slice, x + known * stride_x, weight, own_marks, classes + row * K, values + row * K,
        sums + known * 4, state + known, target, exact_bias, weights,
        n, words, features, stride_w, alpha, cap, 0.0,
        KIND, False, 0, False, EXACT_BIAS, CAP, SMOOTH, WEIGHTS, GRADIENT, K, E, D, L, BITS,
    )  # fmt: skip
