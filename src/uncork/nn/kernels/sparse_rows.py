"""From lists of candidates to lists of p − target: each row's threshold, once and to the end."""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._logits import cap_slope
from uncork.nn.kernels._math import largest_shift, power_term, probability, solve


@triton.jit
def sparse_rows_kernel(
    values, classes, counts, tops, shifts, targets, mass, hit, sums, alpha, cap, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, SEARCH: tl.constexpr,
    CAP: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """values, classes (rows, K), counts (rows) → the same, of p − target and without zeros.

    The target is one of the entries whether or not its p is positive: the last place of a list is
    kept free for it (counts < K before). sums as in `residual`, with z_target known.
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
        # The lists may hold more since the line was last raised.
        new = tl.maximum(tl.max(z), top)
        c = tl.minimum(
            c + tl.where(top == -float("inf"), 0.0, new - top), largest_shift(alpha, KIND)
        )
        top = tl.where(new == -float("inf"), 0.0, new)
        tl.store(tops + row, top)
        if BRACKET:
            c = largest_shift(alpha, KIND) + 0.0 * c
        c = solve(z - top, c, 1.0 * K, alpha, tolerance, KIND, BRACKET, STEPS)
        tl.store(shifts + row, c)
    x = (z - top) + c
    p = probability(x, alpha, KIND)
    own = sums + row * 4
    tl.store(own, tl.sum(tl.where(valid, power_term(x, p, alpha, KIND), 0.0)))
    tl.store(own + 1, tl.sum(p))
    hits = which == target
    found = tl.max(hits.to(tl.int32))
    r = times * p - tl.where(hits, less, 0.0)
    z_target = tl.load(own + 3)
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
