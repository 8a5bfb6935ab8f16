"""Members of zip archives, read so that memory grows with what is there, not with what is said."""

from __future__ import annotations

import zipfile
from typing import IO

_PIECE = 1 << 20  # zipfile makes room for all it is asked for before it looks at the file


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo | str) -> bytes:
    """A member's bytes: at most as many as its entry announces, with its checksum checked."""
    with archive.open(member) as file:
        return bytes(read_rest(file))


def read_rest(file: IO[bytes]) -> bytearray:
    """What is left of an opened member, piece by piece."""
    data = bytearray()
    while piece := file.read(_PIECE):
        data += piece
    return data
