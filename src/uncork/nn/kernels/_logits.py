"""Logits as the kernels of the linear losses read them: a slice of them, with what its type could
not hold of the bias, and the cap."""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._math import expm1


@triton.jit
def tanh(x):
    """By way of exp, and without cancellation near 0: a large cap changes small logits little."""
    e = expm1(2.0 * x)
    return tl.where(tl.abs(x) < 0.125, e / (e + 2.0), 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))


@triton.jit
def padded(width):
    """Entries a row has in memory, where all rows begin at multiples of 16: a mask that ends there
    lets a thread read and write 16 bytes at a time, whatever the width."""
    return (width + 15) // 16 * 16


@triton.jit
def logits(
    products, bias, at, first, width, cap,
    BIAS: tl.constexpr, CAP: tl.constexpr, ODD: tl.constexpr,
):  # fmt: skip
    """Entries `at` of one row of a slice of `width` classes from `first`; −inf beyond. ODD: the
    width is no multiple of 16."""
    z = tl.load(products + at, mask=at < padded(width), other=-float("inf")).to(tl.float32)
    inside = at < width
    if ODD:
        z = tl.where(inside, z, -float("inf"))
    if BIAS:
        z += tl.load(bias + first + at, mask=inside, other=0.0).to(tl.float32)
    if CAP:
        z = tl.where(inside, cap * tanh(z / cap), -float("inf"))
    return z


@triton.jit
def cap_slope(z, cap):
    """d(capped)/d(raw) in terms of the capped logit."""
    t = z / cap
    return 1.0 - t * t
