"""Which way a linear loss is computed: kernels, blocks in plain torch, or one share of many."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from uncork.nn import kernels
from uncork.nn._rows import under_autocast
from uncork.nn._torch import torch
from uncork.nn.linear_blocks import compute as compute_blocks
from uncork.nn.linear_rows import LinearOptions, LinearResult, LinearTensors, Wanted

Tensor = torch.Tensor

# Rows up to which the kernels count the targets and add up the losses themselves: few launches,
# and not much waiting for programs that read all rows.
COUNTED_ROWS = 1 << 15


def compute(
    tensors: LinearTensors,
    upstream: Tensor | None,
    options: LinearOptions,
    wanted: Wanted,
    reduction: str | None = None,
) -> LinearResult:
    """Losses of the rows and the gradients wanted, by whichever way the tensors allow.

    upstream (N): dL/d(loss of a row). reduction "mean" or "sum", in its place: only where `adds_up`
    says so.
    """
    with torch.no_grad(), _without_autocast(tensors.input.device.type):
        if options.shard is not None:
            from uncork.nn.vocab_parallel import compute as compute_shard

            return compute_shard(tensors, upstream, options, wanted)
        if kernels.usable(tensors.input, tensors.weight):
            from uncork.nn.linear_slices import compute as compute_slices

            return compute_slices(tensors, upstream, options, wanted, reduction)
        return compute_blocks(tensors, upstream, options, wanted)


def adds_up(tensors: LinearTensors, options: LinearOptions) -> bool:
    """Whether the kernels make the reduced loss too."""
    small = len(tensors.input) <= COUNTED_ROWS and options.shard is None
    return small and kernels.usable(tensors.input, tensors.weight)


def _without_autocast(device: str) -> AbstractContextManager[None]:
    """Autocast switched off, which takes time a small problem has not got: only where it is on."""
    if under_autocast(device):
        off: AbstractContextManager[None] = torch.autocast(device, enabled=False)
        return off
    return nullcontext()
