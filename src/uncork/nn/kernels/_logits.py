"""Logits as the kernels of the linear losses read them: a slice of products, bias and cap added."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def logits(
    products, bias, at, first, inside, cap, BIAS: tl.constexpr, CAP: tl.constexpr
):  # fmt: skip
    """Entries `at` of one row of a slice whose first class is `first`; −inf outside."""
    z = tl.load(products + at, mask=inside, other=-float("inf")).to(tl.float32)
    if BIAS:
        z += tl.load(bias + first + at, mask=inside, other=0.0).to(tl.float32)
    if CAP:
        # tanh by way of exp; its absolute error, a few units of float32, is what counts here.
        t = 1.0 - 2.0 / (tl.exp(2.0 * z / cap) + 1.0)
        z = tl.where(inside, cap * t, -float("inf"))
    return z


@triton.jit
def cap_slope(z, cap):
    """d(capped)/d(raw) in terms of the capped logit."""
    t = z / cap
    return 1.0 - t * t
