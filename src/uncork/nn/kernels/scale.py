"""A gradient times the number from upstream, in place; nothing is touched if that is 1."""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn._torch import torch
from uncork.nn.kernels import ceiling, on_its_device

_BLOCK = 4096


@on_its_device
def scale(values: torch.Tensor, factor: torch.Tensor) -> None:
    """values times factor (one value), in place."""
    programs = ceiling(values.numel(), _BLOCK)
    scale_kernel[(programs,)](values, factor, values.numel(), L=_BLOCK, num_warps=4)


@triton.jit
def scale_kernel(values, factor, numel, L: tl.constexpr):
    """values (numel) times factor (one value), without the host having to know it."""
    times = tl.load(factor).to(tl.float32)
    if times != 1.0:
        at = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
        inside = at < numel
        scaled = tl.load(values + at, mask=inside).to(tl.float32) * times
        tl.store(values + at, scaled.to(values.dtype.element_ty), mask=inside)
