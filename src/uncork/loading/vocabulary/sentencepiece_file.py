"""SentencePiece models: the pieces and their types, straight from the protobuf's bytes.

The format is two levels of fields deep, so that the sentencepiece package is not needed, and no
length in the file is believed beyond the file's end.
"""

from __future__ import annotations

from uncork.core.errors import UncorkError
from uncork.loading.bounded.protobuf import fields

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_MOST_PIECES = 4 << 20
_PIECES = 1  # ModelProto.pieces; a piece has the text in field 1 and its type in field 3


def pieces_of(data: bytes) -> list[tuple[str, int]]:
    """(piece, type) by id."""
    found: list[tuple[str, int]] = []
    for number, value in fields(memoryview(data)):
        if number != _PIECES or not isinstance(value, memoryview):
            continue
        text, kind = "", NORMAL
        for inner, part in fields(value):
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
