"""Fields of a protobuf message, straight from its bytes: no length is believed beyond its end.

A message is a list of numbered fields. Which number means what is its reader's business; what is
not asked for is stepped over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Field = int | memoryview
_Float = float  # types, and also what fields are called
_Bytes = bytes


def fields(data: memoryview) -> Iterator[tuple[int, Field]]:
    """(number, value) of each field of a message: a number, or bytes not yet looked into."""
    place, end = 0, len(data)
    while place < end:
        key, place = varint(data, place)
        wire = key & 7
        if wire == _VARINT:
            value, place = varint(data, place)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            size, place = varint(data, place)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise UncorkError(f"byte {place} is not a protobuf")
        if size > end - place:
            raise UncorkError(f"a field at byte {place} reaches past the end")
        yield key >> 3, data[place : place + size]
        place += size


def varint(data: memoryview, place: int) -> tuple[int, int]:
    """The number that begins at a byte, and where the next thing begins."""
    value = shift = 0
    while place < len(data) and shift < 64:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise UncorkError(f"a number at byte {place} does not end")


class Message:
    """A message with its fields by number, in the order in which they were found."""

    def __init__(self, data: memoryview) -> None:
        self.found: dict[int, list[Field]] = {}
        for number, value in fields(data):
            self.found.setdefault(number, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self.found

    def messages(self, number: int) -> Iterator[Message]:
        for part in self.parts(number):
            yield Message(part)

    def message(self, number: int) -> Message:
        """The message in a field, an empty one where there is none."""
        parts = self.parts(number)
        return Message(parts[-1]) if parts else Message(memoryview(b""))

    def parts(self, number: int) -> list[memoryview]:
        """What the fields of that number hold, as bytes."""
        return [value for value in self.found.get(number, ()) if isinstance(value, memoryview)]

    def bytes(self, number: int) -> _Bytes:
        parts = self.parts(number)
        return _Bytes(parts[-1]) if parts else b""

    def text(self, number: int) -> str:
        return self.bytes(number).decode("utf-8", "backslashreplace")

    def texts(self, number: int) -> list[str]:
        return [_Bytes(part).decode("utf-8", "backslashreplace") for part in self.parts(number)]

    def whole(self, number: int, default: int = 0) -> int:
        """A whole number with its sign."""
        values = [value for value in self.found.get(number, ()) if isinstance(value, int)]
        return _signed(values[-1]) if values else default

    def wholes(self, number: int) -> list[int]:
        """A list of whole numbers, one a field or packed into one."""
        every: list[int] = []
        for value in self.found.get(number, ()):
            if isinstance(value, int):
                every.append(_signed(value))
                continue
            place = 0
            while place < len(value):
                one, place = varint(value, place)
                every.append(_signed(one))
        return every

    def float(self, number: int, default: _Float = 0.0) -> _Float:
        parts = [part for part in self.parts(number) if len(part) == 4]
        return _Float(struct.unpack("<f", parts[-1])[0]) if parts else default

    def double(self, number: int, default: _Float = 0.0) -> _Float:
        parts = [part for part in self.parts(number) if len(part) == 8]
        return _Float(struct.unpack("<d", parts[-1])[0]) if parts else default

    def array(self, number: int, dtype: Any) -> np.ndarray:
        """Numbers of a fixed size, one a field or packed into one."""
        kind = np.dtype(dtype)
        parts = self.parts(number)
        if any(len(part) % kind.itemsize for part in parts):
            raise UncorkError(f"field {number} is not made of {kind.itemsize}-byte numbers")
        if len(parts) == 1:
            return np.frombuffer(parts[0], kind)
        return np.frombuffer(b"".join(parts), kind)


def _signed(value: int) -> int:
    """Negative numbers are stored as 64 bits in two's complement."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
