"""Members of zip archives, read so that memory grows with what is there, not with what is said."""

from __future__ import annotations

import io
import struct
import zipfile
from dataclasses import dataclass
from typing import IO, Any

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


@dataclass(frozen=True)
class Storage:
    """Where a run of bytes lies in the file; `problem` says why they cannot be had."""

    offset: int
    size: int
    problem: str = ""


def place_of(file: IO[bytes], member: zipfile.ZipInfo, size: int, begin: int = 0) -> Storage:
    """Where a member's bytes lie: its local header has names and padding of its own length.

    `file` has `size` bytes; `begin` is where it lies in another, whose places are meant.
    """
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        return Storage(0, 0, "is compressed: unpack the archive and zip it again without")
    file.seek(member.header_offset)
    header = file.read(30)
    if len(header) < 30 or header[:4] != b"PK\x03\x04":
        return Storage(0, 0, "is missing: the file is damaged")
    name, extra = struct.unpack("<HH", header[26:30])
    start = member.header_offset + 30 + name + extra
    if start + member.file_size > size:
        return Storage(0, 0, "lies outside the file: truncated or damaged")
    return Storage(begin + start, member.file_size)


class Section(io.RawIOBase):
    """A part of an opened file as a file of its own: an archive inside an archive."""

    def __init__(self, file: IO[bytes], place: Storage) -> None:
        self.file, self.place, self.at = file, place, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        start = {0: 0, 1: self.at, 2: self.place.size}[whence]
        self.at = max(0, start + offset)
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: Any) -> int:
        self.file.seek(self.place.offset + self.at)
        data = self.file.read(max(0, min(len(buffer), self.place.size - self.at)))
        buffer[: len(data)] = data
        self.at += len(data)
        return len(data)
