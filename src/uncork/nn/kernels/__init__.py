"""Triton kernels for CUDA: one file a kernel, each held to a torch twin by the tests.

Nothing here is public. `uncork.nn.functional` calls a kernel where :func:`usable` says so and its
torch version elsewhere; the caller sees no difference but time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib.util import find_spec
from typing import Concatenate, ParamSpec, TypeVar

from uncork.nn._torch import torch

Tensor = torch.Tensor
Others = ParamSpec("Others")
Made = TypeVar("Made")

_HAS_TRITON = find_spec("triton") is not None
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
OLDEST = (8, 0)  # compute capability: what Triton is made for
_forced = False


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels can take these tensors: floating point, on a GPU that Triton runs on.

    Tracing (torch.compile) may ask too, and is told by device and dtype alone: what runs in the
    end asks again.
    """
    if not _HAS_TRITON:
        return False
    device = "cpu" if _forced else "cuda"
    believed = _forced or torch.compiler.is_compiling()
    return all(
        tensor.device.type == device
        and tensor.dtype in _DTYPES
        and tensor.numel() > 0
        and (believed or _runs_triton(tensor.device.index))
        for tensor in tensors
    )


@cache
def _runs_triton(index: int) -> bool:
    """The kernels were written for, and seen on, NVIDIA's GPUs; others have torch's versions."""
    return torch.version.hip is None and torch.cuda.get_device_capability(index) >= OLDEST


def on_its_device(
    launcher: Callable[Concatenate[Tensor, Others], Made],
) -> Callable[Concatenate[Tensor, Others], Made]:
    """A function that launches kernels, on the device of its first tensor.

    Triton launches on the current device, which in a process with several need not be the
    tensors' own; torch's operators look for themselves.
    """

    @wraps(launcher)
    def launched(first: Tensor, *others: Others.args, **named: Others.kwargs) -> Made:
        device = first.device
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return launcher(first, *others, **named)
        with torch.cuda.device(device):
            return launcher(first, *others, **named)

    return launched


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
    return plain(*tensors) and usable(*tensors)


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


# triton.cdiv and triton.next_power_of_2 do the same, and take ten times as long about it.


def ceiling(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The least that is n or more."""
    return 1 << max(0, n - 1).bit_length()


def multiprocessors(device: torch.device) -> int:
    """How many rows can be worked on at once (a few, under the interpreter)."""
    if device.type != "cuda":
        return 2
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
