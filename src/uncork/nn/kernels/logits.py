"""Rows of logits as the kernels read them: in tiles, as slices of a product, or made again.

*Tiles.* A row of any length lies in tiles of L entries that begin at multiples of 16 bytes. Its
first entry is `off` entries into tile 0. Tiles 1 … whole − 1 lie inside the row and are read and
written without a mask, 16 bytes a thread. Tile 0 and tile `whole` are its two ends.

*Slices.* The kernels of the linear losses read the product of hidden states and some classes'
weights, and add what its type could not hold of the bias, and the cap.

*Refined logits.* α-entmax and α-ReLU depend on the last bits of their few largest logits, which a
16-bit product rounds away. Once these classes are known, computing their logits again in float32
costs little.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels.math import expm1

# --- tiles ----------------------------------------------------------------------------------------


@triton.jit
def aligned(z, p, row, n, stride_z, stride_p, L: tl.constexpr, ALIGN: tl.constexpr):
    """Tile 0 of a row of z and of p, `off`, and `whole`. Rows of z and p begin at the same place
    modulo ALIGN entries (16 bytes, or 1 where they do not)."""
    start = row * stride_z
    off = (start % ALIGN).to(tl.int32)
    base = z + tl.multiple_of(start - off, ALIGN)
    out = p + tl.multiple_of(row * stride_p - off, ALIGN)
    return base, out, off, (n + off) // L


@triton.jit
def inner(base, k, lanes, L: tl.constexpr):
    """Tile k of a row, inside it entirely: 16 bytes a thread."""
    return tl.load(base + k * L + lanes).to(tl.float32)


@triton.jit
def edge_at(end, whole, lanes, L: tl.constexpr):
    """Places of the first tile (end 0) and of the one after the whole tiles (end 1)."""
    return end * whole * L + lanes


@triton.jit
def edge_inside(at, end, off, n, whole):
    """Which of those places are in the row. Each counts in one of the two tiles only."""
    return (at >= off) & (at < n + off) & ((end == 0) | (whole > 0))


@triton.jit
def edge(base, end, off, n, whole, lanes, L: tl.constexpr):
    """One of the two end tiles, −inf outside the row."""
    at = edge_at(end, whole, lanes, L)
    inside = edge_inside(at, end, off, n, whole)
    return tl.load(base + at, mask=inside, other=-float("inf")).to(tl.float32)


@triton.jit
def entry_at(row, target, n):
    """row[target] of n entries in float32; NaN where there is no such entry."""
    there = (target >= 0) & (target < n)
    return tl.load(row + target, mask=there, other=float("nan")).to(tl.float32)


# --- slices ---------------------------------------------------------------------------------------


@triton.jit
def tanh(x):
    """From exp, without cancellation near 0: a large cap must change small logits little."""
    e = expm1(2.0 * x)
    return tl.where(tl.abs(x) < 0.125, e / (e + 2.0), 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))


@triton.jit
def cap_slope(z, cap):
    """d(capped)/d(raw) in terms of the capped logit."""
    t = z / cap
    return 1.0 - t * t


@triton.jit
def padded(width):
    """Entries from one row in memory to the next, a multiple of 16. A mask that ends there lets
    every thread read and write 16 bytes at a time, whatever the width."""
    return (width + 15) // 16 * 16


@triton.jit
def logits(
    products, bias, at, first, width, cap,
    BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr,
):  # fmt: skip
    """Entries `at` of one row of a slice: `width` classes from `first`, −inf beyond. ODD: width is
    not a multiple of 16."""
    z = tl.load(products + at, mask=at < padded(width), other=-float("inf")).to(tl.float32)
    inside = at < width
    if ODD:
        z = tl.where(inside, z, -float("inf"))
    if BIAS:
        z += tl.load(bias + first + at, mask=inside, other=0.0).to(tl.float32)
    if CAP:
        z = tl.where(inside, cap * tanh(z / cap), -float("inf"))
    return z


# --- refined logits -------------------------------------------------------------------------------


@triton.jit
def _refined(
    x, weight, which, inside, bias, features, stride_w, cap,
    BIAS: tl.constexpr, CAP: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Logits of the classes `which` (E) where `inside`, D features at a time; x points at the
    hidden state."""
    w = weight + which.to(tl.int64) * stride_w
    z = tl.zeros([E], tl.float32)
    for first in range(0, features, D):
        columns = first + tl.arange(0, D)
        known = columns < features
        part = tl.load(x + columns, mask=known, other=0.0).to(tl.float32)
        rows = tl.load(
            w[:, None] + columns[None, :], mask=inside[:, None] & known[None, :], other=0.0
        ).to(tl.float32)
        z += tl.sum(rows * part[None, :], 1)
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
    """Write the logits of one row's `count` listed classes into values."""
    first = 0
    while first < count:
        at = first + tl.arange(0, E)
        inside = at < count
        which = tl.load(classes + at, mask=inside, other=0)
        z = _refined(x, weight, which, inside, bias, features, stride_w, cap, BIAS, CAP, D, E)
        tl.store(values + at, z, mask=inside)
        first += E


@triton.jit
def refined_logit(
    x, weight, which, bias, features, stride_w, cap,
    BIAS: tl.constexpr, CAP: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """The logit of one class."""
    inside = tl.arange(0, E) == 0
    several = which + tl.zeros([E], tl.int64)
    z = _refined(x, weight, several, inside, bias, features, stride_w, cap, BIAS, CAP, D, E)
    return tl.sum(tl.where(inside, z, 0.0))
