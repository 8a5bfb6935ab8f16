"""SentencePiece models: the pieces and their types, straight from the protobuf's bytes.

The format is two levels of fields deep, so that the sentencepiece package is not needed, and no
length in the file is believed beyond the file's end.
"""

from __future__ import annotations

from collections.abc import Iterator

from uncork.core.errors import UncorkError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_MOST_PIECES = 4 << 20
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PIECES = 1  # ModelProto.pieces; a piece has the text in field 1 and its type in field 3


def pieces_of(data: bytes) -> list[tuple[str, int]]:
    """(piece, type) by id."""
    found: list[tuple[str, int]] = []
    for number, value in _fields(memoryview(data)):
        if number != _PIECES or not isinstance(value, memoryview):
            continue
        text, kind = "", NORMAL
        for inner, part in _fields(value):
            if inner == 1 and isinstance(part, memoryview):
                text = bytes(part).decode("utf-8", "backslashreplace")
            elif inner == 3 and isinstance(part, int):
                kind = part
        found.append((text, kind))
        if len(found) > _MOST_PIECES:
            raise UncorkError(f"more than {_MOST_PIECES} pieces: no vocabulary")
    if not found:
        raise UncorkError("there are no pieces in it")
    return found


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value) of each field of a message: a number, or bytes not yet looked into."""
    place, end = 0, len(data)
    while place < end:
        key, place = _varint(data, place)
        wire = key & 7
        if wire == _VARINT:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            size, place = _varint(data, place)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise UncorkError(f"byte {place} is not a protobuf")
        if size > end - place:
            raise UncorkError(f"a field at byte {place} reaches past the end")
        yield key >> 3, data[place : place + size]
        place += size


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(data) and shift < 64:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise UncorkError(f"a number at byte {place} does not end")
