"""Triton kernels for CUDA, and which tensors they take. The tests hold each to a torch twin.

Nothing here is public. `uncork.nn.functional` calls a kernel where :func:`usable` allows it and
the torch version elsewhere; the caller sees no difference except in time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

from uncork.nn._rows import are_values
from uncork.nn._torch import torch

Tensor = torch.Tensor

_HAS_TRITON = find_spec("triton") is not None
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_OLDEST = (8, 0)  # compute capability that Triton supports
_forced = False


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels can take these tensors: floating point, on a GPU that Triton runs on.

    While torch.compile traces, device and dtype alone decide: the compiled code asks again when
    it runs.
    """
    if not _HAS_TRITON:
        return False
    device = "cpu" if _forced else "cuda"
    assumed = _forced or torch.compiler.is_compiling()
    return all(
        tensor.device.type == device
        and tensor.dtype in _DTYPES
        and tensor.numel() > 0
        and (assumed or _runs_triton(tensor.device.index))
        for tensor in tensors
    )


@cache
def _runs_triton(index: int) -> bool:
    """The kernels are written for NVIDIA's GPUs and tested there; others use torch's versions."""
    return torch.version.hip is None and torch.cuda.get_device_capability(index) >= _OLDEST


def launches(*tensors: Tensor) -> bool:
    """Whether a kernel can be launched on the memory of these tensors here and now: they are
    `usable`, and nothing but their values."""
    return are_values(*tensors) and usable(*tensors)


def take_entmax(alpha: float | Tensor) -> bool:
    """Whether they have α-entmax of this α. Beyond 3 the last bit of a float32 threshold moves
    probabilities by thousandths and more, and the torch version goes between two thresholds."""
    return not isinstance(alpha, Tensor) and 1 < alpha <= 3


@contextmanager
def interpreted() -> Iterator[None]:
    """Run the kernels on CPU tensors inside this context, in Triton's interpreter: for tests. Set
    TRITON_INTERPRET=1 before Triton is first imported."""
    global _forced
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("set TRITON_INTERPRET=1 before the kernels are imported")
    before, _forced = _forced, True
    try:
        yield
    finally:
        _forced = before
