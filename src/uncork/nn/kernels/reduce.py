"""The mean or sum of the rows' losses, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def reduce_kernel(
    losses, targets, total, share, rows, ignore_index, MEAN: tl.constexpr, L: tl.constexpr
):  # fmt: skip
    """total (1) of losses (rows), and share (1): what each row that counts has in it."""
    added = tl.zeros([L], tl.float32)
    counted = tl.zeros([L], tl.float32)
    for k in range(0, rows, L):
        at = k + tl.arange(0, L)
        inside = at < rows
        added += tl.load(losses + at, mask=inside, other=0.0)
        target = tl.load(targets + at, mask=inside, other=ignore_index)
        counted += tl.where(target != ignore_index, 1.0, 0.0)
    one = 1.0
    if MEAN:
        one = 1.0 / tl.sum(counted)  # none: infinite, and the mean NaN
    tl.store(total, tl.sum(added) * one)
    tl.store(share, one)
