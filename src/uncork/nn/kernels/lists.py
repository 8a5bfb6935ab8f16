"""Short lists of what may be positive in each row, and the loss and gradients from them.

- `candidates_kernel` keeps entries of a slice that may be positive. For α-ReLU the line that an
  entry must pass is given. For α-entmax the entries seen so far draw it: they alone give an S that
  is too small, and everything at or below S − 1/(α−1) is zero. After the last slice a list holds
  the whole support.
- `refine_kernel` replaces the listed logits by refined ones (see `logits`).
- `sparse_rows_kernel` finds each row's threshold on its list and turns the list into p − target.
- `flatten_kernel` and `gathered_sum_kernel` make the gradients of a linear layer from these lists.

`sums` is that of `ends`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels.ends import POWERS, PROBABILITIES, Z_TARGET
from uncork.nn.kernels.logits import cap_slope, logits, refine_list, refined_logit
from uncork.nn.kernels.math import (
    finite,
    largest_shift,
    power_term,
    probability,
    rounded_reach,
    solve,
)

# --- collecting -----------------------------------------------------------------------------------


@triton.jit
def _solved(
    entries, size, top, c, alpha, tolerance, KIND: tl.constexpr, BRACKET: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    """(top, c) of entries (−inf where there is none), from those of fewer entries."""
    new = tl.maximum(tl.max(entries), top)
    if BRACKET:
        c = largest_shift(alpha, KIND) + 0.0 * size
    else:
        c = tl.minimum(
            c + tl.where(top == -float("inf"), 0.0, new - top), largest_shift(alpha, KIND)
        )
    c = solve(entries - finite(new), c, size, alpha, tolerance, KIND, BRACKET, STEPS)
    return new, c


@triton.jit
def _pruned(
    own_values, own_classes, count, top, c, alpha, slack, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The list solved, and what cannot be positive dropped from it: (count, top, c)."""
    places = tl.arange(0, K)
    tl.debug_barrier()
    valid = places < count
    y = tl.load(own_values + places, mask=valid, other=-float("inf"))
    which = tl.load(own_classes + places, mask=valid, other=0)
    top, c = _solved(y, 1.0 * K, top, c, alpha, tolerance * 64, KIND, BRACKET, STEPS)
    stays = (valid & ~(y <= top - c - rounded_reach(top, c, alpha, slack, KIND))).to(tl.int32)
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
    """slice_ (rows, width) → values, classes (rows, K), counts (rows); more than K: overflowed.

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
        tl.store(sums + row * 4 + Z_TARGET, z_target)
    if count <= K:
        if SEARCH:  # noqa: SIM102
            if first == 0:
                z = logits(slice_ + row * stride, bias, lanes, first, width, cap, BIAS, CAP, ODD)
                top, c = _solved(z, 1.0 * L, top, c, alpha, tolerance * 64, KIND, BRACKET, STEPS)
        line = top - c - rounded_reach(top, c, alpha, slack, KIND)
        already = count
        # Prune a list when it is long and has doubled since the last time.
        limit = tl.minimum(tl.maximum(K // 4, 2 * count), 3 * K // 4)
        for k in tl.range(0, width, L, num_stages=STAGES):
            at = k + lanes
            z = logits(slice_ + row * stride, bias, at, first, width, cap, BIAS, CAP, ODD)
            above = ((at < width) & ~(z <= line)).to(tl.int32)  # NaN is kept and makes its row NaN
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
                        line = top - c - rounded_reach(top, c, alpha, slack, KIND)
                        limit = tl.minimum(tl.maximum(K // 4, 2 * count), 3 * K // 4)
                        already = 0
        if SEARCH:
            if (count != already) & (refresh != 0):  # noqa: SIM102
                if count <= K:
                    # Two steps: a line that is nearly as high as possible is as good.
                    count, top, c = _pruned(
                        own_values, own_classes, count, top, c, alpha, slack, tolerance,
                        KIND, BRACKET, STEPS if BRACKET else 2, K,
                    )  # fmt: skip
            tl.store(tops + row, top)
            tl.store(shifts + row, c)
        tl.store(counts + row, count)


# --- refining -------------------------------------------------------------------------------------


@triton.jit
def refine_kernel(
    x, weight, values, classes, counts, tops, shifts, targets, sums, bias,
    features, stride_x, stride_w, alpha, cap, slack, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, SEARCH: tl.constexpr,
    BIAS: tl.constexpr, CAP: tl.constexpr, K: tl.constexpr, E: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """values (rows, K) of classes that may still be positive, and z_target in sums, from refined
    logits.

    slack: the share of its size that a rounded logit may be off. Entries that can only be zero are
    dropped.
    """
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, K)
    own_values = values + row * K
    own_classes = classes + row * K
    count = tl.load(counts + row)
    valid = places < count
    z = tl.load(own_values + places, mask=valid, other=-float("inf"))
    which = tl.load(own_classes + places, mask=valid, other=0)
    top = tl.load(tops + row)
    c = tl.load(shifts + row)
    if SEARCH:
        top, c = _solved(z, 1.0 * K, top, c, alpha, tolerance * 64, KIND, BRACKET, STEPS)
        top = finite(top)
    stays = (valid & ~(z <= top - c - rounded_reach(top, c, alpha, slack, KIND))).to(tl.int32)
    place = tl.cumsum(stays, 0) - 1
    tl.debug_barrier()
    tl.store(own_values + place, z, mask=stays > 0)
    tl.store(own_classes + place, which, mask=stays > 0)
    kept = tl.sum(stays)
    tl.store(counts + row, kept)
    tl.debug_barrier()
    own_x = x + row * stride_x
    refine_list(
        own_x, weight, own_classes, own_values, kept, bias, features, stride_w, cap, BIAS, CAP, D, E
    )
    z_target = refined_logit(
        own_x, weight, tl.load(targets + row), bias, features, stride_w, cap, BIAS, CAP, D, E
    )
    tl.store(sums + row * 4 + Z_TARGET, z_target)
    # Refined logits may exceed the old top: the search begins again from a shift that cannot be too
    # small.
    if SEARCH:
        tl.store(tops + row, -float("inf"))
        tl.store(shifts + row, largest_shift(alpha, KIND) + 0.0 * c)


# --- thresholds -----------------------------------------------------------------------------------


@triton.jit
def sparse_rows_kernel(
    values, classes, counts, tops, shifts, targets, mass, hit, sums, alpha, cap, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, SEARCH: tl.constexpr,
    CAP: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """values, classes (rows, K), counts (rows) of logits → the same of p − target, without zeros.

    The target is among the entries whether or not its p is positive: the last place of a list is
    free for it (counts < K before). mass and hit are times upstream. sums has z_target already.
    """
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, K)
    own_values = values + row * K
    own_classes = classes + row * K
    count = tl.load(counts + row)
    valid = places < count
    z = tl.load(own_values + places, mask=valid, other=-float("inf"))
    which = tl.load(own_classes + places, mask=valid, other=-1)
    target = tl.load(targets + row)
    times = tl.load(mass + row)
    less = tl.load(hit + row)
    top = tl.load(tops + row)
    c = tl.load(shifts + row)
    if SEARCH:
        # The lists may have grown since the line was last raised.
        top, c = _solved(z, 1.0 * K, top, c, alpha, tolerance, KIND, BRACKET, STEPS)
        top = finite(top)
        tl.store(tops + row, top)
        tl.store(shifts + row, c)
    x = (z - top) + c
    p = probability(x, alpha, KIND)
    own = sums + row * 4
    tl.store(own + POWERS, tl.sum(tl.where(valid, power_term(x, p, alpha, KIND), 0.0)))
    tl.store(own + PROBABILITIES, tl.sum(p))
    hits = which == target
    found = tl.max(hits.to(tl.int32))
    r = times * p - tl.where(hits, less, 0.0)
    z_target = tl.load(own + Z_TARGET)
    if CAP:
        r = r * tl.where(valid, cap_slope(z, cap), 0.0)
        less = less * cap_slope(z_target, cap)
    stays = (valid & (~(p <= 0) | hits)).to(tl.int32)
    place = tl.cumsum(stays, 0) - 1
    kept = tl.sum(stays)
    tl.debug_barrier()
    tl.store(own_values + place, r, mask=stays > 0)
    tl.store(own_classes + place, which, mask=stays > 0)
    if found == 0:
        tl.store(own_values + kept, -less)
        tl.store(own_classes + kept, target.to(tl.int32))
        kept += 1
    tl.store(counts + row, kept)


# --- gradients ------------------------------------------------------------------------------------


@triton.jit
def gathered_sum_kernel(
    source, out, offsets, members, factors, order, base_scale, base, sums, features,
    stride_source, stride_out,
    ORDERED: tl.constexpr, BASE: tl.constexpr, SUMS: tl.constexpr,
    E: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """out[i] = Σ factors[e] · source[members[e]] over e in offsets[i] … offsets[i + 1].

    A row's hidden state sums over the classes in its list, a class's weight over the rows that list
    it; only listed rows of source are read. ORDERED: entry e is at order[e]. BASE: adds
    base_scale[i] · base (label smoothing). SUMS: also sums[i] = Σ factors[e] (the bias).
    """
    row = tl.program_id(0).to(tl.int64)
    entries = tl.arange(0, E)
    start = tl.load(offsets + row)
    end = tl.load(offsets + row + 1)
    weight = tl.zeros([E], tl.float32)
    for first in range(0, features, D):
        columns = first + tl.arange(0, D)
        inside = columns < features
        total = tl.zeros([D], tl.float32)
        begin = start
        while begin < end:
            e = begin + entries
            valid = e < end
            if ORDERED:
                e = tl.load(order + e, mask=valid, other=0)
            member = tl.load(members + e, mask=valid, other=0).to(tl.int64)
            factor = tl.load(factors + e, mask=valid, other=0.0)
            rows = tl.load(
                source + member[:, None] * stride_source + columns[None, :],
                mask=valid[:, None] & inside[None, :],
                other=0.0,
            ).to(tl.float32)
            total += tl.sum(factor[:, None] * rows, 0)
            if SUMS:  # noqa: SIM102
                if first == 0:
                    weight += factor
            begin += E
        if BASE:
            total += tl.load(base_scale + row) * tl.load(base + columns, mask=inside, other=0.0)
        tl.store(out + row * stride_out + columns, total.to(out.dtype.element_ty), mask=inside)
    if SUMS:
        extra = tl.sum(weight)
        if BASE:
            extra += tl.load(base_scale + row) * tl.load(base + features)
        tl.store(sums + row, extra)


@triton.jit
def flatten_kernel(
    values, classes, offsets, flat_values, flat_classes, flat_rows, K: tl.constexpr
):  # fmt: skip
    """Lists (rows, K) laid end to end."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, K)
    start = tl.load(offsets + row)
    valid = places < tl.load(offsets + row + 1) - start
    y = tl.load(values + row * K + places, mask=valid, other=0.0)
    which = tl.load(classes + row * K + places, mask=valid, other=0)
    tl.store(flat_values + start + places, y, mask=valid)
    tl.store(flat_classes + start + places, which, mask=valid)
    tl.store(flat_rows + start + places, row.to(tl.int32), mask=valid)
