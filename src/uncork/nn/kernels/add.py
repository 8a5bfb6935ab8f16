"""Several 16-bit tensors added up at once: rounded once, and not with every one of them."""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn._torch import torch
from uncork.nn.kernels import ceiling, on_its_device
from uncork.nn.kernels.launch import launch

_BLOCK = 4096


@on_its_device
def add(total: torch.Tensor, others: torch.Tensor) -> None:
    """total += others[0] + others[1] + …; all contiguous."""
    numel = total.numel()
    launch(add_kernel, ceiling(numel, _BLOCK), {
        "total": total, "others": others, "numel": numel, "COUNT": others.shape[0], "L": _BLOCK,
        "num_warps": 4,
    })  # fmt: skip


@triton.jit
def add_kernel(total, others, numel, COUNT: tl.constexpr, L: tl.constexpr):
    """total (numel) += the sum of others (COUNT, numel), in float32."""
    at = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
    inside = at < numel
    value = tl.load(total + at, mask=inside).to(tl.float32)
    for k in tl.static_range(COUNT):
        # The step is 64 bits wide: k · numel may not fit into 32.
        value += tl.load(others + at + tl.full([], k, tl.int64) * numel, mask=inside).to(tl.float32)
    tl.store(total + at, value.to(total.dtype.element_ty), mask=inside)
