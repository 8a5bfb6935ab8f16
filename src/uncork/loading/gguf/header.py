"""The header of a GGUF file: its metadata, and where each tensor lies. Nothing is allocated on
a header's word alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.loading.bounded.cursor import Cursor, opened

_VERSIONS = (2, 3)
_MOST_ENTRIES = 1 << 20  # metadata entries, and tensors
_MOST_STRINGS = 1 << 23  # the longest list of strings: merges of the largest vocabularies are 2¹⁹
_MOST_DIMENSIONS = 8
_MOST_VALUES = 1 << 62
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
# The names and numbers of ggml's types are part of the format.
TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """One tensor: `shape` with the rows first, as NumPy has it; `offset` from the file's start."""

    path: Path
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    order: str  # "<" or ">", the file's byte order

    @property
    def type_name(self) -> str:
        return TYPES.get(self.kind, f"ggml type {self.kind}")


@dataclass(frozen=True)
class Header:
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Place]


def read_header(path: Path) -> Header:
    """The metadata and the places of all tensors."""
    with opened(path) as cursor:
        cursor.skip(4, "the magic")
        version = cursor.number("I", "the version")
        if version & 0xFFFF == 0:  # written on a big-endian machine
            cursor.order = ">"
            version = int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in _VERSIONS:
            raise UncorkError(
                f"{path} is GGUF version {version}, and versions 2 and 3 are read: convert it again"
            )
        tensor_count, entry_count = cursor.unpack("QQ", "the counts")
        # A metadata entry takes 13 bytes at least, a tensor's 24.
        for count, least, what in (
            (entry_count, 13, "metadata entries"),
            (tensor_count, 24, "tensors"),
        ):
            if count > min(_MOST_ENTRIES, cursor.left // least):
                raise UncorkError(
                    f"{path} is damaged: its header announces {count} {what}, more than can be in "
                    f"{cursor.end} bytes"
                )
        metadata: dict[str, Any] = {}
        for _ in range(entry_count):
            key = _text(cursor, "a metadata key")
            if key in metadata:
                raise UncorkError(f"{path} is damaged: metadata {key[:80]!r} appears twice")
            metadata[key] = _value(cursor, cursor.number("I", f"the type of {key[:80]!r}"), key)
        entries = [_entry(cursor) for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 30 or alignment & alignment - 1:
            raise UncorkError(f"{path} is damaged: its alignment is {alignment!r}")
        begin = -(-cursor.at // alignment) * alignment
        size, order = cursor.end, cursor.order
    tensors: dict[str, Place] = {}
    for name, shape, kind, offset in entries:
        if name in tensors:
            raise UncorkError(f"{path} is damaged: tensor {name[:80]!r} appears twice")
        if begin + offset > size:
            raise UncorkError(
                f"{path}: tensor {name[:80]!r} lies at byte {begin + offset} of a file of {size}: "
                "truncated or damaged"
            )
        tensors[name] = Place(path, name, shape, kind, begin + offset, order)
    return Header(metadata, tensors)


def _text(cursor: Cursor, what: str) -> str:
    data = cursor.take(cursor.number("Q", what), what)
    # A token can be any bytes: those that are not UTF-8 stay visible as escapes.
    return data.decode("utf-8", "backslashreplace")


def _value(cursor: Cursor, kind: int, key: str) -> Any:
    what = f"metadata {key[:80]!r}"
    if kind == _STRING:
        return _text(cursor, what)
    if kind in _SCALARS:
        return cursor.number(_SCALARS[kind], what)
    if kind != _ARRAY:
        raise UncorkError(f"{cursor.path} is damaged: {what} is of the unknown type {kind}")
    inner, count = cursor.unpack("IQ", what)
    if inner == _STRING:
        if count > min(_MOST_STRINGS, cursor.left // 8):
            raise UncorkError(f"{cursor.path} is damaged: {what} announces {count} strings")
        return [_text(cursor, what) for _ in range(count)]
    if inner not in _SCALARS:
        raise UncorkError(f"{cursor.path}: {what} is a list of lists, which no model file needs")
    return cursor.array(_SCALARS[inner], count, what)


def _entry(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = _text(cursor, "a tensor's name")
    what = f"tensor {name[:80]!r}"
    count = cursor.number("I", what)
    if count > _MOST_DIMENSIONS:
        raise UncorkError(f"{cursor.path} is damaged: {what} has {count} dimensions")
    shape = tuple(reversed(cursor.unpack(f"{count}Q", what)))
    kind, offset = cursor.unpack("IQ", what)
    if math.prod(shape) > _MOST_VALUES:
        raise UncorkError(f"{cursor.path} is damaged: {what} has shape {list(shape)}")
    return name, shape, kind, offset
