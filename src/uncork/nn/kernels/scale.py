"""Gradients times the number from upstream, in place; nothing is touched if that is 1."""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn._torch import torch
from uncork.nn.kernels import ceiling, on_its_device
from uncork.nn.kernels.launch import launch

_BLOCK = 4096


@on_its_device
def scale(values: torch.Tensor, others: torch.Tensor | None, factor: torch.Tensor) -> None:
    """values, and others if there are any, times factor (one value), in place: one launch."""
    numel, more = values.numel(), 0 if others is None else others.numel()
    programs = ceiling(numel, _BLOCK)
    launch(scale_kernel, programs + ceiling(more, _BLOCK), {
        "values": values, "others": values if others is None else others, "factor": factor,
        "programs": programs, "numel": numel, "numel_of_others": more, "L": _BLOCK, "num_warps": 4,
    })  # fmt: skip


@triton.jit
def _scale_block(values, times, block, numel, L: tl.constexpr):
    at = block.to(tl.int64) * L + tl.arange(0, L)
    inside = at < numel
    scaled = tl.load(values + at, mask=inside).to(tl.float32) * times
    tl.store(values + at, scaled.to(values.dtype.element_ty), mask=inside)


@triton.jit
def scale_kernel(values, others, factor, programs, numel, numel_of_others, L: tl.constexpr):
    """values (numel) and others times factor (one value), without the host having to know it.
    The first `programs` programs see to values."""
    times = tl.load(factor).to(tl.float32)
    if times != 1.0:
        block = tl.program_id(0)
        if block < programs:
            _scale_block(values, times, block, numel, L)
        else:
            _scale_block(others, times, block - programs, numel_of_others, L)
