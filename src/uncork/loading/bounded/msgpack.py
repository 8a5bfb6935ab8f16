"""MessagePack, decoded as plain values: nothing is run, and no more is made than the file holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.loading.bounded.cursor import Cursor

_DEEPEST = 64
_MOST_VALUES = 1 << 22  # a value takes at least a byte in the file, and far more in Python
_NUMBERS = {0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q",
            0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_TEXTS = {0xD9: "B", 0xDA: "H", 0xDB: "I"}
_BYTES = {0xC4: "B", 0xC5: "H", 0xC6: "I"}
_LISTS = {0xDC: "H", 0xDD: "I"}
_TABLES = {0xDE: "H", 0xDF: "I"}
_EXTENSIONS = {0xC7: "B", 0xC8: "H", 0xC9: "I"}
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


@dataclass(frozen=True)
class Raw:
    """Bytes of the file, known by where they lie; `kind` is an extension's number."""

    begin: int
    size: int
    kind: int | None = None


def decode(cursor: Cursor) -> Any:
    """The value at the cursor: numbers, texts, lists and tables; bytes as `Raw`."""
    return _Decoder(cursor).value(0)


def decode_whole(cursor: Cursor) -> Any:
    """The one value that takes up all that is left of the cursor."""
    found = decode(cursor)
    if cursor.left:
        raise UncorkError(
            f"{cursor.path} is damaged: {cursor.left} bytes are left after its last value"
        )
    return found


def decode_bytes(path: Path, data: bytes) -> Any:
    """The value that these bytes of a file spell."""
    return decode_whole(Cursor(path, data, order=">"))


class _Decoder:
    def __init__(self, cursor: Cursor) -> None:
        self.cursor = Cursor(cursor.path, cursor.data, cursor.at, cursor.end, ">")
        self.outer = cursor
        self.count = 0

    def value(self, depth: int) -> Any:
        found = self._value(depth)
        self.outer.at = self.cursor.at
        return found

    def _value(self, depth: int) -> Any:
        cursor = self.cursor
        self.count += 1
        if depth > _DEEPEST or self.count > _MOST_VALUES:
            what = "nested without end" if depth > _DEEPEST else f"more than {_MOST_VALUES:,}"
            raise UncorkError(f"{cursor.path} is damaged: its values are {what}")
        tag = cursor.number("B", "a value")
        if tag <= 0x7F:
            return tag
        if tag >= 0xE0:
            return tag - 0x100
        if tag <= 0x8F:
            return self._table(tag & 0x0F, depth)
        if tag <= 0x9F:
            return self._list(tag & 0x0F, depth)
        if tag <= 0xBF:
            return self._text(tag & 0x1F)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _NUMBERS:
            return cursor.number(_NUMBERS[tag], "a number")
        if tag in _TEXTS:
            return self._text(cursor.number(_TEXTS[tag], "a text's length"))
        if tag in _BYTES:
            size = cursor.number(_BYTES[tag], "a length")
            return Raw(cursor.skip(size, "a run of bytes"), size)
        if tag in _LISTS:
            return self._list(cursor.number(_LISTS[tag], "a list's length"), depth)
        if tag in _TABLES:
            return self._table(cursor.number(_TABLES[tag], "a table's length"), depth)
        if tag in _EXTENSIONS or tag in _FIXED_EXTENSIONS:
            size = _FIXED_EXTENSIONS.get(tag, 0)
            if tag in _EXTENSIONS:
                size = cursor.number(_EXTENSIONS[tag], "a length")
            kind = cursor.number("b", "an extension's type")
            return Raw(cursor.skip(size, "an extension"), size, kind)
        raise UncorkError(f"{cursor.path} is damaged: byte {cursor.at - 1} begins no value")

    def _text(self, size: int) -> str:
        return self.cursor.take(size, "a text").decode("utf-8", "backslashreplace")

    def _list(self, count: int, depth: int) -> list[Any]:
        self._fits(count)
        return [self._value(depth + 1) for _ in range(count)]

    def _table(self, count: int, depth: int) -> dict[Any, Any]:
        self._fits(2 * count)
        found = {}
        for _ in range(count):
            key = self._value(depth + 1)
            if isinstance(key, Raw):  # short keys are texts, whichever way they were written
                begin, size = key.begin, min(key.size, 256)
                key = bytes(self.cursor.data[begin : begin + size]).decode("latin-1")
            if isinstance(key, list | dict):
                raise UncorkError(f"{self.cursor.path} is damaged: a table has a list for a key")
            found[key] = self._value(depth + 1)
        return found

    def _fits(self, values: int) -> None:
        if values > self.cursor.left:
            raise UncorkError(
                f"{self.cursor.path} is truncated or damaged: a list at byte {self.cursor.at} "
                f"announces {values} values, and {self.cursor.left} bytes are left"
            )
