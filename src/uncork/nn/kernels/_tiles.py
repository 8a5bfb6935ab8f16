"""A row of any length as tiles of L entries that begin at multiples of 16 bytes.

The row's first entry lies `off` entries into tile 0. Tiles 1 … whole − 1 lie inside entirely and
are read and written without a mask, 16 bytes a thread; tile 0 and tile `whole` are the two ends.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def inner(base, k, lanes, L: tl.constexpr):
    """Tile k of a row, one that lies inside entirely: 16 bytes a thread."""
    return tl.load(base + k * L + lanes).to(tl.float32)


@triton.jit
def edge_at(end, whole, lanes, L: tl.constexpr):
    """Places of the two tiles that may lie in part outside: the first, and what follows the whole
    ones."""
    return end * whole * L + lanes


@triton.jit
def edge_inside(at, end, off, n, whole):
    """Which of those places are in the row, each in one of the two tiles only."""
    return (at >= off) & (at < n + off) & ((end == 0) | (whole > 0))


@triton.jit
def edge(base, end, off, n, whole, lanes, L: tl.constexpr):
    at = edge_at(end, whole, lanes, L)
    inside = edge_inside(at, end, off, n, whole)
    return tl.load(base + at, mask=inside, other=-float("inf")).to(tl.float32)
