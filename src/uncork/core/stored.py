"""Arrays as they are stored: no value changed, each finite and exact in float64.

Heads and items are made of these. A verdict is a statement about exactly these numbers, so what
float64 cannot hold is refused and not rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError

# Types whose every value is exact in float64. Wider integers are checked value by value.
_EXACT = {
    np.dtype(t)
    for t in (
        np.float64, np.float32, np.float16, ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
        np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.bool_,
    )
}  # fmt: skip
_WIDE = {np.dtype(np.int64), np.dtype(np.uint64)}
# Types of torch that its arrays have not: read bit for bit as integers, and named again.
_BITS: dict[str, tuple[str, Any]] = {
    "torch.bfloat16": ("uint16", ml_dtypes.bfloat16),
    "torch.float8_e4m3fn": ("uint8", ml_dtypes.float8_e4m3fn),
    "torch.float8_e5m2": ("uint8", ml_dtypes.float8_e5m2),
}
_BLOCK_BYTES = 64 << 20  # how much of the weight is looked at in one go


def as_stored(values: Any, name: str) -> np.ndarray:
    """The array behind what was given, without changing a value."""
    if hasattr(values, "detach"):  # a torch tensor, without importing torch
        values = _from_torch(values.detach(), name)
    array = np.asarray(values)
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and not np.little_endian):
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype not in _EXACT | _WIDE:
        raise UncorkError(
            f"{name} holds {array.dtype} values, which float64 cannot hold exactly: "
            "expected floats of at most 64 bits or integers"
        )
    return array


def _from_torch(values: Any, name: str) -> np.ndarray:
    import torch

    bits, kind = _BITS.get(str(values.dtype), ("", None))
    try:
        values = values.cpu()
        if kind is None:
            return np.asarray(values.numpy())
        return np.asarray(values.view(getattr(torch, bits)).numpy().view(kind))
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise UncorkError(f"{name} is a tensor that cannot be read: {error}") from error


def row_blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    row_bytes = max(1, array.nbytes // max(1, array.shape[0]))
    step = max(1, _BLOCK_BYTES // row_bytes)
    for start in range(0, array.shape[0], step):
        yield array[start : start + step]


def largest(block: np.ndarray) -> float:
    """The largest magnitude in a block, without a copy of it in a wider type."""
    if block.dtype.kind == "V" or block.dtype == np.float16:  # narrow floats: NumPy widens them
        bits = np.ascontiguousarray(block).view(f"u{block.dtype.itemsize}")
        # Magnitudes are ordered as their bits are, once the sign is taken away.
        largest = (bits & (2 ** (8 * block.dtype.itemsize - 1) - 1)).max()
        return float(np.array([largest], dtype=bits.dtype).view(block.dtype)[0])
    return max(abs(float(block.max())), abs(float(block.min())))


def check_values(array: np.ndarray, name: str) -> None:
    if array.dtype.kind in "iub":
        if array.dtype in _WIDE:
            for block in row_blocks(array):
                if (block > 2**53).any() or (block < -(2**53)).any():
                    raise UncorkError(f"{name} holds integers beyond 2**53: not exact in float64")
        return
    first = 0
    for block in row_blocks(array):
        finite = np.isfinite(block)
        if not finite.all():
            where = np.argwhere(~finite)[0]
            value = block[tuple(where)]
            place = ", ".join(
                str(int(i) + (first if axis == 0 else 0)) for axis, i in enumerate(where)
            )
            raise UncorkError(f"{name}[{place}] is {float(value)}: every value must be finite")
        first += len(block)


def digest_array(digest: Any, name: str, array: np.ndarray) -> None:
    """Add an array's name, type, shape and bytes (little-endian, row by row) to a hash."""
    digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
    for block in row_blocks(array):
        digest.update(np.ascontiguousarray(block).view(np.uint8).data)
