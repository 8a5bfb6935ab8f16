"""A TensorFlow checkpoint: the table of its tensors (.index) and the files of their bytes (.data).

The table is LevelDB's: blocks of sorted keys, each written as what differs from the one before, and
at the end a footer that says where the block of blocks lies.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.bounded.cursor import mapped
from uncork.loading.bounded.protobuf import Message, varint
from uncork.loading.tensorflow.graph import DTYPES

END = struct.pack("<Q", 0xDB4775248B80FB57)  # the last bytes of every table
_FOOTER = 48
_MOST_BYTES = 1 << 28
_MOST_DIMENSIONS = 32
_MOST_SHARDS = 100_000


@dataclass(frozen=True)
class Saved:
    """One tensor of a checkpoint."""

    name: str
    dtype: np.dtype | None
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray] = field(repr=False, compare=False)


def read_bundle(folder: Path, prefix: str) -> dict[str, Saved]:
    """The tensors of the checkpoint whose files begin with this prefix, by key."""
    index = folder / f"{prefix}.index"
    if not index.is_file():
        raise UncorkError(f"{index} is not there: the variables' values lie in it and beside it")
    if index.stat().st_size > _MOST_BYTES:
        raise UncorkError(f"{index} has {index.stat().st_size} bytes: too many for a table")
    try:
        return _tensors(folder, prefix, dict(_table(memoryview(index.read_bytes()))))
    except UncorkError as error:
        raise UncorkError(f"{index} is no table of a checkpoint, or is damaged: {error}") from error


def _tensors(folder: Path, prefix: str, table: dict[bytes, memoryview]) -> dict[str, Saved]:
    header = Message(table.pop(b"", memoryview(b"")))
    shards = header.whole(1, 1)
    if not 0 < shards <= _MOST_SHARDS or header.whole(2):
        raise UncorkError(f"{shards} files, byte order {header.whole(2)}")
    found = {}
    for key, value in table.items():
        name, entry = key.decode("utf-8", "backslashreplace"), Message(value)
        dtype = DTYPES.get(entry.whole(1))
        shape = tuple(one.whole(1) for one in entry.message(2).messages(2))
        if len(shape) > _MOST_DIMENSIONS or any(n < 0 for n in shape):
            raise UncorkError(f"{name[:80]!r} has shape {list(shape)}")
        shard, offset, size = entry.whole(3), entry.whole(4), entry.whole(5)
        path = folder / f"{prefix}.data-{shard:05d}-of-{shards:05d}"
        read = functools.partial(
            _values, path, name, dtype, shape, offset, size, 7 in entry, entry.whole(1)
        )
        found[name] = Saved(name, dtype, shape, read)
    return found


def _values(
    path: Path, name: str, dtype: np.dtype | None, shape: tuple[int, ...], offset: int, size: int,
    sliced: bool, number: int,
) -> np.ndarray:  # fmt: skip
    if sliced:
        raise UncorkError(f"{path}: {name[:80]!r} is kept in slices: not read")
    if dtype is None:
        raise UncorkError(f"{path}: {name[:80]!r} is of TensorFlow's type {number}: not read")
    if not path.is_file():
        raise UncorkError(f"{path} is not there: {name[:80]!r} lies in it")
    if size != math.prod(shape) * dtype.itemsize or not 0 <= offset <= path.stat().st_size - size:
        raise UncorkError(
            f"{path}: {name[:80]!r} of shape {list(shape)} takes {size} bytes at {offset} by the "
            f"table, and the file has {path.stat().st_size}: truncated or damaged"
        )
    return mapped(path, dtype, shape, offset)


def _table(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Keys and values of a table, in order."""
    if len(data) < _FOOTER or data[-8:] != END:
        raise UncorkError("its last bytes are not a table's")
    footer = data[-_FOOTER:]
    _, at = varint(footer, 0)
    _, at = varint(footer, at)
    offset, at = varint(footer, at)
    size, _ = varint(footer, at)
    total = 0
    for _, handle in _block(data, offset, size):
        offset, at = varint(handle, 0)
        size, _ = varint(handle, at)
        total += size
        if total > len(data):
            raise UncorkError("its blocks are longer than the file")
        yield from _block(data, offset, size)


def _block(data: memoryview, offset: int, size: int) -> Iterator[tuple[bytes, memoryview]]:
    """Keys and values of one block: each key shares its beginning with the one before."""
    if offset + size + 5 > len(data) or size < 4:
        raise UncorkError(f"a block of {size} bytes at {offset} reaches past the end")
    if data[offset + size] != 0:
        raise UncorkError("its blocks are compressed, which is not read")
    block = data[offset : offset + size]
    restarts = struct.unpack("<I", block[-4:])[0]
    end = size - 4 - 4 * restarts
    if end < 0:
        raise UncorkError(f"a block of {size} bytes has {restarts} restarts")
    at, key = 0, b""
    while at < end:
        shared, at = varint(block, at)
        own, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + own + length > end or len(key) > 1 << 16:
            raise UncorkError(f"an entry at byte {offset + at} does not fit")
        key = key[:shared] + bytes(block[at : at + own])
        yield key, block[at + own : at + own + length]
        at += own + length
