"""Large results on huge pages: where memory is the bottleneck, half of it is page faults."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import cache

from uncork.nn._torch import torch

Tensor = torch.Tensor

LARGE = 32 << 20  # bytes; what is smaller comes from the heap, whose pages are there already
PAGE = mmap.PAGESIZE
HUGEPAGE = 14  # MADV_HUGEPAGE of Linux


def empty_like(z: Tensor) -> Tensor:
    """A contiguous tensor to be filled, for z on the CPU, read and written eagerly."""
    out = torch.empty_like(z, memory_format=torch.contiguous_format)
    if out.nbytes >= LARGE and out.device.type == "cpu":
        advise = _madvise()
        if advise is not None:
            first = -(-out.data_ptr() // PAGE) * PAGE
            length = (out.data_ptr() + out.nbytes - first) // PAGE * PAGE
            # Advice only. A kernel that does not take it answers with an error that means nothing
            # here: the pages stay small.
            advise(first, length, HUGEPAGE)
    return out


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    advise.restype = ctypes.c_int
    return advise
