"""Kaldi's streams: tokens, numbers, vectors and matrices, in its binary and its text form.

Both forms hold the same tokens in the same order. In the binary one a number has its size before
it and an array its type; arrays are left where they lie in the file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.bounded.cursor import Cursor, mapped

BINARY = b"\0B"
_LONGEST_TOKEN = 1000
_LONGEST_LINE = 1 << 20
_ARRAYS = {b"FV": ("<f4", 1), b"FM": ("<f4", 2), b"DV": ("<f8", 1), b"DM": ("<f8", 2)}
_COMPRESSED = (b"CM", b"CM2", b"CM3")
_WORD = re.compile(rb"\S+")
_SPACE = re.compile(rb"[ \t\n\r]*")


@dataclass(frozen=True)
class Array:
    """A vector or matrix: its shape, and how its values are read."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]


@dataclass(frozen=True)
class Number:
    """A number whose kind only its reader knows: the same four bytes are an int or a float."""

    raw: bytes

    def integer(self) -> int:
        return int.from_bytes(self.raw, "little", signed=True)

    def real(self) -> float:
        layout = {4: "<f", 8: "<d"}.get(len(self.raw))
        return float("nan") if layout is None else float(struct.unpack(layout, self.raw)[0])


@dataclass(frozen=True)
class Text(Number):
    """The same where it was written out."""

    def integer(self) -> int:
        try:
            return int(self.raw)
        except ValueError:
            return -1

    def real(self) -> float:
        try:
            with np.errstate(all="ignore"):
                return float(np.float32(float(self.raw)))
        except ValueError:
            return float("nan")


class Stream:
    """A place in a file of either form."""

    def __init__(self, path: Path, data: Any) -> None:
        self.cursor = Cursor(path, data)
        self.path = path
        self.binary = bytes(data[:2]) == BINARY
        if self.binary:
            self.cursor.at = 2

    @property
    def data(self) -> Any:
        return self.cursor.data

    def token(self) -> str:
        """The next word, with the one space after it."""
        self._skip_space()
        begin = self.cursor.at
        found = _WORD.match(self.data, begin, min(self.cursor.end, begin + _LONGEST_TOKEN))
        if found is None or found.end() - begin == _LONGEST_TOKEN:
            self._damaged(f"a word is expected at byte {begin}")
        self.cursor.at = min(found.end() + 1, self.cursor.end)
        return found.group().decode("utf-8", "backslashreplace")

    def expect(self, token: str) -> None:
        found = self.token()
        if found != token:
            self._damaged(f"{token} is expected at byte {self.cursor.at}, not {found[:40]!r}")

    def line(self) -> str:
        end = self.data.find(b"\n", self.cursor.at, min(self.cursor.end, self.cursor.at
                                                        + _LONGEST_LINE))  # fmt: skip
        if end < 0:
            self._damaged("a line has no end")
        text = bytes(self.data[self.cursor.at : end]).decode("utf-8", "backslashreplace")
        self.cursor.at = end + 1
        return text

    def past(self, token: str) -> None:
        """Step over everything up to and with a token."""
        found = self.data.find(token.encode(), self.cursor.at, self.cursor.end)
        if found < 0:
            self._damaged(f"{token} is missing")
        self.cursor.at = min(found + len(token.encode()) + 1, self.cursor.end)

    def integer(self, what: str) -> int:
        found = self.value(what)
        if not isinstance(found, Number):
            self._damaged(f"{what} is not a number")
        return found.integer()

    def at_token(self) -> bool:
        """Whether a tag comes next."""
        if not self.binary:
            self._skip_space()
        at = self.cursor.at
        return at >= self.cursor.end or bytes(self.data[at : at + 1]) == b"<"

    def value(self, what: str) -> Number | Array | bool:
        """A number, a truth value, a vector or a matrix."""
        return self._binary_value(what) if self.binary else self._text_value(what)

    def integers(self, what: str) -> list[int]:
        """A list of integers, which the binary form writes without a type of its own."""
        if self.binary:
            size = self.cursor.number("b", what)
            count = self.cursor.number("i", what)
            if size != 4:
                self._damaged(f"{what} has integers of {size} bytes")
            return [int(n) for n in self.cursor.array("i4", count, what)]
        found = self._text_value(what)
        if not isinstance(found, Array):
            self._damaged(f"{what} is not a list")
        return [int(n) for n in found.read().reshape(-1)]

    def _binary_value(self, what: str) -> Number | Array | bool:
        start = bytes(self.data[self.cursor.at : self.cursor.at + 4])
        word = start.split(b" ")[0]
        if word in _ARRAYS and b" " in start:
            self.cursor.skip(3, what)
            kind, dimensions = _ARRAYS[word]
            shape = tuple(self.integer(what) for _ in range(dimensions))
            if any(n < 0 for n in shape):
                self._damaged(f"{what} has the shape {shape}")
            size = int(np.prod(shape, dtype=object)) * np.dtype(kind).itemsize
            begin = self.cursor.skip(size, what)
            path = self.path
            return Array(shape, np.dtype(kind).name, lambda: mapped(path, kind, shape, begin))
        if word in _COMPRESSED and b" " in start:
            raise UncorkError(f"{self.path}: {what} is a compressed matrix, which is not read")
        if start[:1] in (b"T", b"F"):
            self.cursor.skip(1, what)
            return start[:1] == b"T"
        size = abs(self.cursor.number("b", what))
        if size not in (1, 2, 4, 8):
            self._damaged(f"{what} at byte {self.cursor.at} is of a kind that is not read")
        return Number(self.cursor.take(size, what))

    def _text_value(self, what: str) -> Number | Array | bool:
        word = self.token()
        if not word.startswith("["):
            return word == "T" if word in ("T", "F") else Text(word.encode("utf-8", "replace"))
        # A matrix begins on a line of its own.
        begin = self.cursor.at - 1
        end = self.data.find(b"]", begin, self.cursor.end)
        if end < 0:
            self._damaged(f"{what} has no end")
        text = bytes(self.data[begin:end])
        self.cursor.at = min(end + 1, self.cursor.end)
        rows = [line.split() for line in text.split(b"\n") if line.strip()]
        matrix = b"\n" in text[: len(text) - len(text.lstrip())]
        try:
            with np.errstate(all="ignore"):
                values = np.array([[float(one) for one in row] for row in rows], np.float32)
        except ValueError:
            self._damaged(f"{what} is not made of numbers in rows of one length")
        if not matrix:
            values = values.reshape(-1)
        return Array(values.shape, "float32", lambda: values)

    def _skip_space(self) -> None:
        found = _SPACE.match(self.data, self.cursor.at, self.cursor.end)
        assert found is not None
        self.cursor.at = found.end()

    def _damaged(self, what: str) -> NoReturn:
        raise UncorkError(f"{self.path} is truncated or damaged: {what}")
