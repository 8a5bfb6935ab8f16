"""A look at an HDF5 file before the library opens it: heaps that it would read for ever.

Texts of attributes lie in global heaps, lists of objects with their sizes. The HDF5 library steps
from one to the next, and on free space of size zero it steps nowhere, without end and deaf to
Ctrl-C. Nothing that writes such files makes one, so a file that has one is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError

_MAGIC = b"GCOL\x01\x00\x00\x00"  # and its version
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HEADER = 16  # of a heap, and of an object in it
_PIECE = 1 << 20


def check_heaps(path: Path, file: Any) -> None:
    """Refuse a file with a heap that does not end; the file then stands at its beginning."""
    size = file.seek(0, 2)
    file.seek(0)
    start = file.read(min(16, size))
    widths = start[13:15] if start[8:9] < b"\x02" else start[9:11]  # of offsets and of lengths
    if start.startswith(_SIGNATURE) and widths != b"\x08\x08":
        raise UncorkError(f"{path} is an HDF5 file with numbers of {list(widths)} bytes: not read")
    at = 0
    while size - at >= len(_MAGIC):
        file.seek(at)
        piece = file.read(min(_PIECE, size - at))
        found = piece.find(_MAGIC)
        while found >= 0:
            _check_heap(path, file, at + found, size)
            found = piece.find(_MAGIC, found + 1)
        at += max(1, len(piece) - len(_MAGIC) + 1)
    file.seek(0)


def _check_heap(path: Path, file: Any, at: int, size: int) -> None:
    """Follow one heap as the library would."""
    file.seek(at + len(_MAGIC))
    end = min(size, at + int.from_bytes(file.read(8), "little"))
    at += _HEADER
    while at + _HEADER <= end:
        file.seek(at)
        header = file.read(_HEADER)
        number, length = int.from_bytes(header[:2], "little"), int.from_bytes(header[8:], "little")
        step = length if number == 0 else _HEADER + (length + 7) // 8 * 8
        if step == 0:
            raise UncorkError(f"{path} is damaged: a heap of its texts does not end (byte {at})")
        at += step
