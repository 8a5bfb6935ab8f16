"""The logits of listed classes once more, in float32: what a 16-bit product rounded away.

α-entmax and α-ReLU feel their few largest logits to the last bit. These are known by now, and
computing a few of them again costs little.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._math import largest_shift, reach, solve


@triton.jit
def _product(x, w, features, inside_rows, stride_w, D: tl.constexpr, E: tl.constexpr):
    """x (features) times the rows w (E) points at, in float32."""
    total = tl.zeros([E], tl.float32)
    for first in range(0, features, D):
        columns = first + tl.arange(0, D)
        inside = columns < features
        part = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
        rows = tl.load(
            w[:, None] + columns[None, :], mask=inside_rows[:, None] & inside[None, :], other=0.0
        ).to(tl.float32)
        total += tl.sum(rows * part[None, :], 1)
    return total


@triton.jit
def _finished(z, bias, which, valid, cap, BIAS: tl.constexpr, CAP: tl.constexpr):
    if BIAS:
        z += tl.load(bias + which, mask=valid, other=0.0).to(tl.float32)
    if CAP:
        z = cap * (1.0 - 2.0 / (tl.exp(2.0 * z / cap) + 1.0))
    return z


@triton.jit
def refine_kernel(
    x, weight, values, classes, counts, tops, shifts, targets, sums, bias,
    features, stride_x, stride_w, alpha, cap, slack, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, SEARCH: tl.constexpr,
    BIAS: tl.constexpr, CAP: tl.constexpr, K: tl.constexpr, E: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """values (rows, K) of classes that may still be positive, and z_target in sums, made exact.

    slack: how much of its size a rounded logit may be off. Entries that can only be zero are
    dropped.
    """
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, K)
    entries = tl.arange(0, E)
    own_values = values + row * K
    own_classes = classes + row * K
    count = tl.load(counts + row)
    valid = places < count
    z = tl.load(own_values + places, mask=valid, other=-float("inf"))
    which = tl.load(own_classes + places, mask=valid, other=0)
    top = tl.load(tops + row)
    c = tl.load(shifts + row)
    if SEARCH:
        new = tl.maximum(tl.max(z), top)
        most = largest_shift(alpha, KIND)
        c = tl.minimum(c + tl.where(top == -float("inf"), 0.0, new - top), most)
        if BRACKET:
            c = most
        top = tl.where(new == -float("inf"), 0.0, new)
        c = solve(z - top, c, 1.0 * K, alpha, tolerance * 64, KIND, BRACKET, STEPS)
    length = reach(alpha, KIND)
    line = top - c - length - slack * (tl.abs(top) + tl.abs(c) + length)
    stays = (valid & ~(z <= line)).to(tl.int32)
    place = tl.cumsum(stays, 0) - 1
    tl.debug_barrier()
    tl.store(own_values + place, z, mask=stays > 0)
    tl.store(own_classes + place, which, mask=stays > 0)
    kept = tl.sum(stays)
    tl.store(counts + row, kept)
    tl.debug_barrier()
    own_x = x + row * stride_x
    first = 0
    while first < kept:
        at = first + entries
        inside = at < kept
        wanted = tl.load(own_classes + at, mask=inside, other=0)
        pointers = weight + wanted.to(tl.int64) * stride_w
        y = _product(own_x, pointers, features, inside, stride_w, D, E)
        y = _finished(y, bias, wanted, inside, cap, BIAS, CAP)
        tl.store(own_values + at, y, mask=inside)
        first += E
    target = tl.load(targets + row)
    alone = entries == 0
    pointers = weight + (target + tl.zeros_like(entries).to(tl.int64)) * stride_w
    y = _product(own_x, pointers, features, alone, stride_w, D, E)
    y = _finished(y, bias, target + tl.zeros_like(entries), alone, cap, BIAS, CAP)
    tl.store(sums + row * 4 + 3, tl.sum(tl.where(alone, y, 0.0)))
    # Exact entries may lie above what was the largest: start again from what cannot be too small.
    if SEARCH:
        tl.store(tops + row, -float("inf"))
        tl.store(shifts + row, largest_shift(alpha, KIND) + 0.0 * c)
