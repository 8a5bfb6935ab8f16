"""Safetensors: memory-mapped, every type as it is stored (bfloat16 and float8 too)."""

from __future__ import annotations

import functools
import json
import math
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.codes.decoded import decoded
from uncork.loading.contents import Contents, Tensor, require_file
from uncork.loading.hugging_face.remote import remote
from uncork.loading.naming import choose_by_name, choose_columns

_TYPES: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
_MOST_HEADER = 100_000_000  # the format's own limit


def looks_like_safetensors(start: bytes, size: int) -> bool:
    """Whether these first bytes of a file of that size open a safetensors header."""
    return (
        len(start) > 8
        and start[8:9] == b"{"
        and 2 <= struct.unpack("<Q", start[:8])[0] <= _MOST_HEADER
    )


def read_safetensors(path: Path) -> Contents:
    """Every tensor of the file as a view of the mapped file: nothing is copied."""
    require_file(path)
    elsewhere = remote(path)
    if elsewhere is not None:
        elsewhere.safetensors_header()
    size = path.stat().st_size if elsewhere is None else elsewhere.size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > min(size - 8, _MOST_HEADER):
            raise UncorkError(
                f"{path} is truncated or damaged: its header is {length} bytes long by its own "
                f"account, and the file has {size}"
            )
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise UncorkError(f"{path} has no readable safetensors header: {error}") from error
    if not isinstance(header, dict):
        raise UncorkError(f"{path} has no readable safetensors header: it is not a table")
    begin = 8 + length
    stored = {}
    for name, entry in header.items():
        if name != "__metadata__":
            stored[name] = _tensor(path, name, entry, begin, size)
    if not stored:
        raise UncorkError(f"{path} holds no tensors")
    tensors = decoded(path, stored)
    choose = functools.partial(choose_by_name, path, tensors)
    return Contents(
        path, "safetensors", tensors, choose, functools.partial(choose_columns, path, tensors)
    )


def _tensor(path: Path, name: str, entry: Any, begin: int, size: int) -> Tensor:
    try:
        kind, shape = str(entry["dtype"]), tuple(entry["shape"])
        first, last = entry["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (*shape, first, last)):
            raise ValueError("a size or an offset is not a natural number")
    except (KeyError, TypeError, ValueError) as error:
        raise UncorkError(f"{path}: the entry of tensor {name!r} is damaged: {error}") from error
    if last < first or begin + last > size:
        raise UncorkError(
            f"{path}: tensor {name!r} lies at bytes {begin + first} to {begin + last} of a file of "
            f"{size}: truncated or damaged"
        )
    if kind not in _TYPES:
        # Listed all the same: one exotic tensor must not hide the others.
        return Tensor(name, shape, kind.lower(), functools.partial(_refuse, path, name, kind))
    dtype = np.dtype(_TYPES[kind])
    if math.prod(shape) * dtype.itemsize != last - first:
        raise UncorkError(
            f"{path}: tensor {name!r} has shape {list(shape)} and type {kind}, which is not "
            f"{last - first} bytes: damaged"
        )
    read = functools.partial(_map, path, dtype, shape, begin + first)
    return Tensor(name, shape, dtype.name, read)


def _map(path: Path, dtype: np.dtype, shape: tuple[int, ...], offset: int) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return np.zeros(shape, dtype)
    elsewhere = remote(path)
    if elsewhere is not None:
        path, offset = elsewhere.range(offset, offset + size)
    mapped = np.memmap(path, np.uint8, "r", offset, (size,))
    return mapped.view(np.ndarray).view(dtype).reshape(shape)


def _refuse(path: Path, name: str, kind: str) -> np.ndarray:
    raise UncorkError(
        f"{path}: tensor {name!r} is of type {kind}, which is not read: convert it to F32"
    )
