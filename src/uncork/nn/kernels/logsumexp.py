"""The logarithm of the sum of exponentials, slice after slice: what cross entropy needs first."""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn.kernels._logits import logits


@triton.jit
def lane_exponentials(
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
        safe = tl.where(new == -float("inf"), 0.0, new)
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
    top, total = lane_exponentials(
        slice_ + row * stride, bias, first, width, cap, BIAS, CAP, ODD, G, L, 3
    )
    before = tl.load(tops + row)
    whole = tl.maximum(tl.max(top), before)
    safe_whole = tl.where(whole == -float("inf"), 0.0, whole)
    sum_ = tl.sum(total * tl.exp(top - safe_whole))
    sum_ += tl.load(totals + row) * tl.exp(before - safe_whole)
    tl.store(tops + row, whole)
    tl.store(totals + row, sum_)
