"""Cursor: reading a binary file front to back, never past its end and never more than is there."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError


class Cursor:
    """A place in the bytes of a file, from `start` up to `end`.

    Everything read is checked against what is left first, so that no length a file announces can
    make its reader allocate more than the file's own size. `order` is "<" or ">".
    """

    def __init__(
        self, path: Path, data: Any, start: int = 0, end: int | None = None, order: str = "<"
    ) -> None:
        self.path = path
        self.data = data
        self.at = start
        self.end = len(data) if end is None else end
        self.order = order

    @property
    def left(self) -> int:
        return self.end - self.at

    def skip(self, size: int, what: str) -> int:
        """Step over `size` bytes; returns where they began."""
        begin = self.at
        if size < 0 or size > self.left:
            raise UncorkError(
                f"{self.path} is truncated or damaged: {what} at byte {begin} takes {size} bytes "
                f"by its own account, and {self.left} are left"
            )
        self.at += size
        return begin

    def take(self, size: int, what: str) -> bytes:
        begin = self.skip(size, what)
        return bytes(self.data[begin : begin + size])

    def unpack(self, layout: str, what: str) -> tuple[Any, ...]:
        """Values by a `struct` layout, in this cursor's byte order and without padding."""
        layout = self.order + layout
        return struct.unpack_from(layout, self.data, self.skip(struct.calcsize(layout), what))

    def number(self, layout: str, what: str) -> Any:
        """The single value of a one-letter layout."""
        return self.unpack(layout, what)[0]

    def array(self, dtype: Any, count: int, what: str) -> np.ndarray:
        """`count` values, copied out of the file."""
        kind = np.dtype(dtype).newbyteorder(self.order)
        if count < 0:
            raise UncorkError(f"{self.path} is damaged: {what} has {count} values by its account")
        begin = self.skip(count * kind.itemsize, what)
        values = np.frombuffer(self.data, kind, count, begin)
        return values.astype(kind.newbyteorder("="))


@contextmanager
def opened(path: Path) -> Iterator[Cursor]:
    """A cursor at the first byte of a file, which is mapped rather than read."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise UncorkError(f"{path} is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield Cursor(path, data)


def mapped(path: Path, dtype: Any, shape: tuple[int, ...], offset: int) -> np.ndarray:
    """An array that lies in a file at that byte, as a view of the mapped file."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size == 0:
        return np.zeros(shape, kind)
    if offset + size > path.stat().st_size:
        raise UncorkError(f"{path} is truncated: {size} bytes expected at byte {offset}")
    # Mapped as bytes, because an array may begin anywhere.
    return (
        np.memmap(path, np.uint8, "r", offset, (size,)).view(np.ndarray).view(kind).reshape(shape)
    )
