"""Datasets of an HDF5 file as tensors: nothing outside the file is read, nothing is expanded."""

from __future__ import annotations

import functools
import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.bounded.archive import read_member
from uncork.loading.contents import Tensor
from uncork.loading.keras.hdf5_heaps import check_heaps

_MOST_OBJECTS = 200_000
_LARGE = 256 << 20  # as in .npz files: a large array that shrank a hundredfold is not a weight
_MOST_COMPRESSION = 100
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_LOCAL_HEADER = 30  # bytes of a zip member's own header before its name


@contextmanager
def opened_hdf5(path: Path, member: str | None = None, check: bool = True) -> Iterator[Any]:
    """The h5py file at a path, or inside a zip archive there; `check` it the first time."""
    try:
        import h5py
    except ImportError:
        raise UncorkError(
            f"{path} is an HDF5 file, and reading it needs h5py: pip install 'uncork[keras]'"
        ) from None
    with (
        path.open("rb") as raw,
        _member(path, raw, member) as inside,
    ):
        if check:
            check_heaps(path, inside)
        with h5py.File(inside, "r") as file:
            yield file


def hdf5_tensors(path: Path, file: Any, member: str | None = None) -> dict[str, Tensor]:
    """Every array of numbers, by its path in the file; links to other files are not followed."""
    found: dict[str, Tensor] = {}
    visited = 0

    def visit(name: str, node: Any) -> bool | None:
        nonlocal visited
        visited += 1
        if visited > _MOST_OBJECTS:
            return True  # ends the visit
        shape = getattr(node, "shape", None)
        dtype = _dtype(node) if shape else None
        if dtype is not None and (dtype.kind in "fiub" or dtype == _BFLOAT16):
            read = functools.partial(_read, path, member, name)
            found[name] = Tensor(name, tuple(map(int, node.shape)), dtype.name, read)
        return None

    if file.visititems(visit):
        raise UncorkError(f"{path} holds more than {_MOST_OBJECTS} objects: too many for a model")
    return found


def attribute(node: Any, name: str) -> Any:
    """An attribute as text or numbers; None where there is none."""
    value = node.attrs.get(name)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _read(path: Path, member: str | None, name: str) -> np.ndarray:
    with opened_hdf5(path, member, check=False) as file:
        node = file[name]
        where = f"{path}: {name}"
        # Either would make this file read others.
        if node.external or node.is_virtual:
            raise UncorkError(f"{where} keeps its values in another file: refused")
        size, stored = math.prod(node.shape) * node.dtype.itemsize, node.id.get_storage_size()
        if stored > path.stat().st_size:
            raise UncorkError(
                f"{where} takes {stored} bytes by its own account, more than the whole file: "
                "truncated or damaged"
            )
        if size > _LARGE and size > _MOST_COMPRESSION * stored:
            raise UncorkError(
                f"{where} grows from {stored} to {size} bytes when unpacked, which no trained "
                "weight does: refused"
            )
        return np.asarray(node[()]).view(_dtype(node))


def _dtype(node: Any) -> np.dtype:
    # Keras writes bfloat16 as two plain bytes, with a word about it.
    if attribute(node, "dtype") == "bfloat16" and node.dtype.itemsize == 2:
        return _BFLOAT16
    return np.dtype(node.dtype)


@contextmanager
def _member(path: Path, raw: IO[bytes], name: str | None) -> Iterator[io.IOBase]:
    """The file itself, or a member of an archive as a file: a window where it is stored as it is.

    HDF5 reads through it rather than by itself, because of what it asks for when a file is
    damaged: gigabytes that are not there, which it then fills with zeros.
    """
    if name is None:
        yield _Window(raw, 0, path.stat().st_size)
        return
    with zipfile.ZipFile(raw) as archive:
        info = archive.getinfo(name)
        if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
            raw.seek(info.header_offset)
            header = raw.read(_LOCAL_HEADER)
            if len(header) < _LOCAL_HEADER:
                raise UncorkError(f"{path}: {name} is truncated")
            start = info.header_offset + _LOCAL_HEADER
            start += int.from_bytes(header[26:28], "little")  # its name
            start += int.from_bytes(header[28:30], "little")  # and its further fields
            if start + info.file_size > path.stat().st_size:
                raise UncorkError(f"{path}: {name} is truncated")
            yield _Window(raw, start, info.file_size)
            return
        if info.file_size > max(_LARGE, _MOST_COMPRESSION * info.compress_size):
            raise UncorkError(
                f"{path}: {name} grows from {info.compress_size} to {info.file_size} bytes when "
                "unpacked, which no trained weight does: refused"
            )
        yield io.BytesIO(read_member(archive, info))


class _Window(io.RawIOBase):
    """Part of a file as a file of its own, for reading."""

    def __init__(self, file: IO[bytes], start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if len(view) > self._size:
            raise OSError("more is asked for than the whole file: damaged")
        count = max(0, min(len(view), self._size - self._at))
        self._file.seek(self._start + self._at)
        data = self._file.read(count)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
