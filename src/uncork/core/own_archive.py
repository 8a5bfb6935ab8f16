"""Our own archives: named arrays in a zip (`.npz`, no pickle), written and opened in one place.

A file may come from anywhere. So what it holds is looked at before anything is made room for: only
members that the format names, only arrays of the type and shape that belong there, and nothing
that unpacks to far more than the file is long. Floats are stored as they are, so a file that
claims many numbers has to bring them.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.whole_file import whole_file

Shape = tuple[int | None, ...]  # None: any length

_FREE = 16 << 20  # bytes that any packed member may unpack to
_MOST_PACKED = 64  # and beyond that, so many times its packed size
_PIECE = 1 << 20
_TEXT = 64 << 20  # characters of a header, besides what its format allows for every class
_PARTS = 2 << 20  # lists, objects and entries of a header's JSON, likewise


def write_archive(path: str | os.PathLike[str], members: Mapping[str, np.ndarray]) -> None:
    """Write the arrays, whole or not at all; the same arrays give the same bytes."""
    with (
        whole_file(path) as target,
        target.open("wb") as file,  # zipfile itself would want to read a pipe as well
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
    ):
        for name, array in members.items():
            # Whole numbers and text shrink well; floats do not, and stored ones can be mapped.
            packed = zipfile.ZIP_DEFLATED if array.dtype.kind in "iuU" else zipfile.ZIP_STORED
            info = zipfile.ZipInfo(name + ".npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = packed
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


@contextmanager
def open_archive(
    path: str | os.PathLike[str], what: str, names: Sequence[str]
) -> Iterator[OwnArchive]:
    """The archive at `path`, which is to be `what` ("a certificate file"). `names` are the members
    that it may have, as regular expressions. Whatever is wrong ends in one line."""
    source = Path(path)
    if not source.is_file():
        raise UncorkError(f"{source}: no such file")
    if not zipfile.is_zipfile(source):  # NumPy would take it for a pickle, and advise to run it
        raise UncorkError(f"{source}: not {what}: no zip archive, or a damaged one")
    try:
        with source.open("rb") as file, zipfile.ZipFile(file) as archive:
            yield OwnArchive(source, archive, what, names)
    except UncorkError as error:
        raise UncorkError(f"{source}: {_one_line(str(error))}") from None
    except Exception as error:  # whatever a damaged file makes NumPy or zipfile stumble over
        why = _one_line(str(error) or type(error).__name__)
        raise UncorkError(f"{source}: not {what}, or a damaged one ({why})") from None


def _one_line(text: str) -> str:
    """Short, and with nothing of the file's that would move the cursor."""
    short = " ".join(text[:1000].split())[:300]
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in short)


class OwnArchive(Mapping[str, np.ndarray]):
    """The members of an archive by name, each read when it is asked for."""

    def __init__(
        self, path: Path, archive: zipfile.ZipFile, what: str, names: Sequence[str]
    ) -> None:
        self.path, self.archive, self.what = path, archive, what
        self._infos: dict[str, zipfile.ZipInfo] = {}
        known = re.compile("|".join(f"(?:{name})" for name in names))
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if not info.filename.endswith(".npy") or not known.fullmatch(name):
                raise UncorkError(
                    f"not {what}: it holds {info.filename[:60]!r}, which is not part of one"
                )
            if name in self._infos:
                raise UncorkError(f"it holds {name} twice")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise UncorkError(f"{name} is packed in a way that the format does not use")
            self._infos[name] = info
        self._size = path.stat().st_size

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.array(name)

    def count(self, name: str) -> int:
        """The length of a member's first axis, as it announces it."""
        shape, _, _ = self._announced(name)
        return shape[0] if shape else 1

    def array(self, name: str, shape: Shape | None = None, dtype: Any = None) -> np.ndarray:
        """A member, of this shape and type where they are given; refused before it is read."""
        info = self._info(name)
        size, kind = self._checked(name, shape, dtype)
        with self.archive.open(info) as file:
            self._head(file, name)
            data = _read(file)  # never more than it announced, and its checksum is checked
        if len(data) != math.prod(size) * kind.itemsize:
            raise UncorkError(f"{name} ends too early")
        return np.frombuffer(data, kind).reshape(size)

    def ids(self, name: str, length: int | None, count: int) -> np.ndarray:
        """A member of whole numbers from 0 to count − 1, so many of them."""
        values = self.array(name, (length,))
        if not are_ids(values, count):
            raise UncorkError(f"{name} names what does not exist")
        return values

    def mapped(self, name: str, shape: Shape | None = None, dtype: Any = None) -> np.ndarray:
        """As `array`, mapped where the file holds it as it is: inputs can be as many as a head's
        weights, and need not all be in memory at once."""
        info = self._info(name)
        if info.compress_type != zipfile.ZIP_STORED:
            return self.array(name, shape, dtype)
        size, kind = self._checked(name, shape, dtype)
        with self.path.open("rb") as file:
            file.seek(info.header_offset + 26)  # past the fixed part of the member's local header
            lengths = file.read(4)
            names = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
            file.seek(names, os.SEEK_CUR)
            if self._head(file, name) != (size, False, kind):
                raise UncorkError(f"{name} is damaged")
            start = file.tell()
        if not math.prod(size):
            return np.empty(size, kind)
        return np.memmap(self.path, kind, "r", start, size)

    def text(self, name: str, most: int) -> str:
        """A member that is one text, of at most so many characters."""
        shape, _, dtype = self._announced(name)
        if shape or dtype.kind != "U" or dtype.byteorder == ">":
            raise UncorkError(f"{name} is not text")
        if dtype.itemsize > 4 * most:
            raise UncorkError(
                f"{name} has {dtype.itemsize // 4:,} characters: in such a file it has at most "
                f"{most:,}"
            )
        decode = codecs.getincrementaldecoder("utf-32-le")().decode
        with self.archive.open(self._info(name)) as file:
            self._head(file, name)
            pieces = [decode(piece) for piece in iter(lambda: file.read(_PIECE), b"")]
        return "".join([*pieces, decode(b"", True)]).rstrip("\0")

    def header(self, kind: str, each: int = 0, classes: int = 0) -> dict[str, Any]:
        """The JSON of the member `header`, of that kind. Its format needs `each` characters at
        most for one of the `classes`."""
        if "header" not in self:
            raise UncorkError(f"not {self.what}")
        text = self.text("header", _TEXT + each * classes)
        parts = text.count(",") + text.count("[") + text.count("{")
        if parts > _PARTS + 8 * classes:
            raise UncorkError(f"the header has {parts:,} entries, more than such a file can need")
        header = json.loads(text)
        if not isinstance(header, dict) or header.get("kind") != kind:
            raise UncorkError(f"not {self.what}")
        return header

    def _info(self, name: str) -> zipfile.ZipInfo:
        if name not in self._infos:
            raise UncorkError(f"{name} is missing")
        return self._infos[name]

    def _announced(self, name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
        with self.archive.open(self._info(name)) as file:
            return self._head(file, name)

    def _head(self, file: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
        if np.lib.format.read_magic(file) != (1, 0):
            raise UncorkError(f"{name} is damaged")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        if fortran and len(shape) < 2:
            fortran = False
        if fortran or dtype.hasobject or dtype.kind not in "iufU" or min(shape, default=0) < 0:
            raise UncorkError(f"{name} is damaged")
        return shape, fortran, dtype

    def _checked(
        self, name: str, shape: Shape | None, dtype: Any
    ) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and type of a member that may be read."""
        info = self._info(name)
        with self.archive.open(info) as file:
            found, _, kind = self._head(file, name)
            announced = file.tell() + math.prod(found) * kind.itemsize
        fits = shape is None or (
            len(found) == len(shape)
            and all(want is None or want == got for want, got in zip(shape, found, strict=True))
        )
        if not fits or (dtype is not None and kind != np.dtype(dtype)):
            wanted = "" if dtype is None else f"{np.dtype(dtype)} "
            expected = tuple("any" if n is None else n for n in shape or ())
            raise UncorkError(f"{name} is {kind} {found}: expected {wanted}{expected}")
        if announced != info.file_size:
            raise UncorkError(f"{name} announces {announced:,} bytes and has {info.file_size:,}")
        stored = info.compress_type == zipfile.ZIP_STORED
        if stored and (info.compress_size != info.file_size or info.file_size > self._size):
            raise UncorkError(f"{name} announces more than the file holds")
        settled = shape is not None and None not in shape and kind.kind in "iu"
        if not stored and not settled and announced > _FREE + _MOST_PACKED * info.compress_size:
            raise UncorkError(
                f"{name} would unpack {announced / max(1, info.compress_size):,.0f}-fold to "
                f"{announced:,} bytes, which nothing that uncork writes does"
            )
        return found, kind


def _read(file: IO[bytes]) -> bytearray:
    """What is left of an opened member, piece by piece."""
    data = bytearray()
    while piece := file.read(_PIECE):
        data += piece
    return data


def are_ids(values: np.ndarray, count: int) -> bool:
    """Whether these are whole numbers from 0 to count − 1, in one dimension."""
    if values.ndim != 1 or values.dtype.kind not in "iu":
        return False
    return not len(values) or (int(values.min()) >= 0 and int(values.max()) < count)
