"""Reading FlatBuffers without a schema compiler: tables by field number, every access checked."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError

_MOST_TABLES = 1 << 20  # tables of one list


class Buffer:
    """The bytes of a FlatBuffers file."""

    def __init__(self, path: Path, data: Any) -> None:
        self.path = path
        self.data = data
        self.size = len(data)

    def number(self, layout: str, at: int) -> Any:
        """One number, by the letter `struct` has for it."""
        if not 0 <= at <= self.size - struct.calcsize("<" + layout):
            raise UncorkError(
                f"{self.path} is truncated or damaged: something in it lies at byte {at} of "
                f"{self.size}"
            )
        return struct.unpack_from("<" + layout, self.data, at)[0]

    def vector(self, at: int, itemsize: int) -> tuple[int, int]:
        """Where the items of the list that is referred to there begin, and how many there are."""
        begin = at + self.number("I", at)
        count = self.number("I", begin)
        if begin + 4 + count * itemsize > self.size:
            raise UncorkError(
                f"{self.path} is truncated or damaged: a list at byte {begin} announces {count} "
                "items"
            )
        return begin + 4, count

    def text(self, at: int) -> str:
        """The text that is referred to there."""
        begin, count = self.vector(at, 1)
        return bytes(self.data[begin : begin + count]).decode("utf-8", "backslashreplace")

    def root(self) -> Table:
        return Table(self, self.number("I", 0))


class Table:
    """A table of a FlatBuffers file; fields that are not there have the default value."""

    def __init__(self, buffer: Buffer, at: int) -> None:
        self.buffer = buffer
        self.at = at
        self._layout = at - buffer.number("i", at)
        self._length = buffer.number("H", self._layout)

    def _field(self, number: int) -> int | None:
        place = 4 + 2 * number
        if place + 2 > self._length:
            return None
        offset = self.buffer.number("H", self._layout + place)
        return self.at + offset if offset else None

    def number(self, field: int, layout: str, default: Any = 0) -> Any:
        at = self._field(field)
        return default if at is None else self.buffer.number(layout, at)

    def table(self, field: int) -> Table | None:
        at = self._field(field)
        return None if at is None else Table(self.buffer, at + self.buffer.number("I", at))

    def vector(self, field: int, itemsize: int) -> tuple[int, int]:
        """Where the items of a list begin, and how many there are."""
        at = self._field(field)
        return (0, 0) if at is None else self.buffer.vector(at, itemsize)

    def numbers(self, field: int, dtype: str) -> np.ndarray:
        kind = np.dtype(dtype).newbyteorder("<")
        begin, count = self.vector(field, kind.itemsize)
        return np.frombuffer(self.buffer.data, kind, count, begin).copy()

    def text(self, field: int) -> str:
        at = self._field(field)
        return "" if at is None else self.buffer.text(at)

    def texts(self, field: int) -> list[str]:
        begin, count = self.vector(field, 4)
        if count > _MOST_TABLES:
            raise UncorkError(f"{self.buffer.path} is damaged: it announces a list of {count}")
        return [self.buffer.text(at) for at in range(begin, begin + 4 * count, 4)]

    def tables(self, field: int) -> Iterator[Table]:
        begin, count = self.vector(field, 4)
        if count > _MOST_TABLES:
            raise UncorkError(f"{self.buffer.path} is damaged: it announces a list of {count}")
        for place in range(begin, begin + 4 * count, 4):
            yield Table(self.buffer, place + self.buffer.number("I", place))
