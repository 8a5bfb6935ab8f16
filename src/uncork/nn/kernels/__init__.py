"""Triton kernels for CUDA: one file a kernel, each held to a torch twin by the tests.

Nothing here is public. `uncork.nn.functional` calls a kernel where :func:`usable` says so and its
torch version elsewhere; the caller sees no difference but time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from uncork.nn._torch import torch

Tensor = torch.Tensor

_HAS_TRITON = find_spec("triton") is not None
_forced = False


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels can take these tensors: on CUDA, floating point, Triton installed.

    Tracing (torch.compile) may ask too: nothing is read but device and dtype.
    """
    if not _HAS_TRITON:
        return False
    device = "cpu" if _forced else "cuda"
    return all(
        tensor.device.type == device and tensor.dtype in _DTYPES and tensor.numel() > 0
        for tensor in tensors
    )


_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def plain(*tensors: Tensor) -> bool:
    """Neither traced nor batched: a kernel may be launched on the memory itself."""
    if torch.compiler.is_compiling():
        return False
    return all(
        type(tensor) in (Tensor, torch.nn.Parameter)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        for tensor in tensors
    )


def launches(*tensors: Tensor) -> bool:
    """`usable` and `plain`: a kernel can be launched on these tensors here and now."""
    return usable(*tensors) and plain(*tensors)


@contextmanager
def interpreted() -> Iterator[None]:
    """CPU tensors take the kernels' way while this lasts: for tests under Triton's interpreter
    (TRITON_INTERPRET=1 before Triton is first imported)."""
    global _forced
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("set TRITON_INTERPRET=1 before the kernels are imported")
    before, _forced = _forced, True
    try:
        yield
    finally:
        _forced = before


def multiprocessors(device: torch.device) -> int:
    """How many rows can be worked on at once (a few, under the interpreter)."""
    if device.type != "cuda":
        return 2
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
