"""The logarithm of the sum of exponentials, slice after slice: what cross entropy needs first."""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._logits import logits


@triton.jit
def logsumexp_kernel(
    slice_, sums, tops, totals, targets, bias, weights, begin, first, width, stride, cap,
    BIAS: tl.constexpr, CAP: tl.constexpr, SMOOTH: tl.constexpr, WEIGHTS: tl.constexpr,
    G: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """tops, totals (N): largest logit and Σ exp(z − top) so far; the rest as in `residual`."""
    row = tl.program_id(0).to(tl.int64)
    known = row + begin
    tile = tl.arange(0, G)[:, None] * L + tl.arange(0, L)[None, :]
    target = tl.load(targets + known) - first
    # Each lane has its own maximum and sum: one reduction at the end.
    top = tl.full([L], -float("inf"), tl.float32)
    total = tl.zeros([L], tl.float32)
    weighted = tl.zeros([L], tl.float32)
    for k in range(0, width, G * L):
        at = k + tile
        inside = at < width
        z = logits(slice_ + row * stride, bias, at, first, inside, cap, BIAS, CAP)
        new = tl.maximum(top, tl.max(z, 0))
        safe = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(top - safe) + tl.sum(tl.exp(z - safe[None, :]), 0)
        top = new
        if SMOOTH:
            if WEIGHTS:
                share = tl.load(weights + first + at, mask=inside, other=0.0).to(tl.float32)
            else:
                share = tl.where(inside, 1.0, 0.0)
            weighted += tl.sum(tl.where(share == 0.0, 0.0, share * z), 0)
    before = tl.load(tops + known)
    whole = tl.maximum(tl.max(top), before)
    safe_whole = tl.where(whole == -float("inf"), 0.0, whole)
    sum_ = tl.sum(total * tl.exp(top - safe_whole))
    sum_ += tl.load(totals + known) * tl.exp(before - safe_whole)
    tl.store(tops + known, whole)
    tl.store(totals + known, sum_)
    own = sums + known * 4
    if SMOOTH:
        tl.store(own + 2, tl.load(own + 2) + tl.sum(weighted))
    if (target >= 0) & (target < width):
        z_target = logits(slice_ + row * stride, bias, target, first, True, cap, BIAS, CAP)
        tl.store(own + 3, z_target)
