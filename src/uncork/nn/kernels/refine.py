"""The logits of listed classes once more, in float32: what a 16-bit product rounded away.

α-entmax and α-ReLU feel their few largest logits to the last bit. These are known by now, and
computing a few of them again costs little.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._logits import tanh
from uncork.nn.kernels._math import largest_shift, margin, solve


@triton.jit
def _product(x, w, features, inside_rows, D: tl.constexpr, E: tl.constexpr):
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
def _logits_of(
    x, weight, which, inside, bias, features, stride_w, cap,
    BIAS: tl.constexpr, CAP: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Logits of the classes `which` (E), where `inside`."""
    z = _product(x, weight + which.to(tl.int64) * stride_w, features, inside, D, E)
    if BIAS:
        z += tl.load(bias + which, mask=inside, other=0.0).to(tl.float32)
    if CAP:
        z = cap * tanh(z / cap)
    return z


@triton.jit
def refine_list(
    x, weight, classes, values, count, bias, features, stride_w, cap,
    BIAS: tl.constexpr, CAP: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """values of one row's `count` listed classes; x points at its hidden state."""
    first = 0
    while first < count:
        at = first + tl.arange(0, E)
        inside = at < count
        which = tl.load(classes + at, mask=inside, other=0)
        z = _logits_of(x, weight, which, inside, bias, features, stride_w, cap, BIAS, CAP, D, E)
        tl.store(values + at, z, mask=inside)
        first += E


@triton.jit
def refined_logit(
    x, weight, which, bias, features, stride_w, cap,
    BIAS: tl.constexpr, CAP: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """The logit of one class."""
    alone = tl.arange(0, E) == 0
    several = which + tl.zeros([E], tl.int64)
    z = _logits_of(x, weight, several, alone, bias, features, stride_w, cap, BIAS, CAP, D, E)
    return tl.sum(tl.where(alone, z, 0.0))


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
    stays = (valid & ~(z <= top - c - margin(top, c, alpha, slack, KIND))).to(tl.int32)
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
    tl.store(sums + row * 4 + 3, z_target)
    # Exact entries may lie above what was the largest: start again from what cannot be too small.
    if SEARCH:
        tl.store(tops + row, -float("inf"))
        tl.store(shifts + row, largest_shift(alpha, KIND) + 0.0 * c)
