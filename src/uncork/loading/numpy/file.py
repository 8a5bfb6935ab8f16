"""NumPy's own files: .npy (memory-mapped) and .npz. Never unpickles."""

from __future__ import annotations

import functools
import io
import math
import struct
import warnings
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.bounded.archive import read_rest
from uncork.loading.codes.decoded import decoded
from uncork.loading.contents import Contents, Tensor
from uncork.loading.marian.head import with_marian
from uncork.loading.naming import choose_by_name, choose_columns
from uncork.loading.vectors.factors import with_factors

# Trained weights hardly compress, so a large member that shrank a hundredfold is not a weight but a
# file made to fill the memory.
_LARGE_MEMBER = 256 << 20
_MOST_COMPRESSION = 100
_MOST_MEMBERS = 20_000
_LONGEST_HEADER = 10_000  # as in NumPy itself
_HEADER_LENGTHS = {(1, 0): "<H", (2, 0): "<I"}


def read_npy(path: Path) -> Contents:
    """A single array; its name is `array`."""
    size = path.stat().st_size
    with path.open("rb") as file:
        shape, fortran, dtype = _header(file, str(path))
        start = file.tell()
    if start + math.prod(shape) * dtype.itemsize > size:
        raise UncorkError(
            f"{path} is truncated: its header promises {_text(shape, dtype)} but the file ends "
            f"after {size} bytes"
        )

    def read() -> np.ndarray:
        if math.prod(shape) == 0:
            return np.zeros(shape, dtype)
        order = "F" if fortran else "C"
        return np.memmap(path, dtype, "r", start, shape or (1,), order).reshape(shape)  # type: ignore[call-overload]

    tensors = decoded(path, {"array": Tensor("array", shape, _name(dtype), read)})
    return Contents(path, "npy", tensors, functools.partial(choose_by_name, path, tensors))


def read_npz(path: Path) -> Contents:
    """The named arrays of a zip archive; each is decompressed only when it is read."""
    stored: dict[str, Tensor] = {}
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > _MOST_MEMBERS:
            raise UncorkError(f"{path} holds {len(members)} members: too many for a model")
        for member in members:
            if not member.filename.endswith(".npy"):
                continue
            name = member.filename.removesuffix(".npy")
            where = f"{path}: {name}"
            with archive.open(member) as file:
                shape, _, dtype = _header(file, where)
                size = file.tell() + math.prod(shape) * dtype.itemsize
            if size != member.file_size:
                raise UncorkError(
                    f"{where}: its header promises {_text(shape, dtype)}, {size} bytes with the "
                    f"header, but it holds {member.file_size}: the file is damaged"
                )
            read = functools.partial(_read_member, path, member.filename, where)
            stored[name] = Tensor(name, shape, _name(dtype), read)
    if not stored:
        raise UncorkError(f"{path} is a zip archive without NumPy arrays: is it an .npz file?")
    tensors = decoded(path, stored)
    choose = functools.partial(choose_by_name, path, tensors)
    around = functools.partial(choose_columns, path, tensors)
    return with_factors(with_marian(Contents(path, "npz", tensors, choose, around)))


def _read_member(path: Path, member_name: str, where: str) -> np.ndarray:
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(member_name)
        ratio = member.file_size / max(1, member.compress_size)
        if member.file_size > _LARGE_MEMBER and ratio > _MOST_COMPRESSION:
            raise UncorkError(
                f"{where} grows {ratio:.0f}-fold to {member.file_size} bytes when unpacked, which "
                "no trained weight does: unpack it yourself if you trust it, and load the .npy"
            )
        with archive.open(member) as file:
            shape, fortran, dtype = _header(file, where)
            data = read_rest(file)  # stops at the size it announced, and checks the CRC
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise UncorkError(f"{where} is truncated: {_text(shape, dtype)} expected")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _header(file: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether it is in Fortran order, and type; the file then stands at the data."""
    try:
        # NumPy reads a header whole before it looks at its length, so that is looked at first.
        start = file.read(8)
        version = np.lib.format.read_magic(io.BytesIO(start))
        if version not in _HEADER_LENGTHS:
            raise UncorkError(
                f"{where}: NumPy format {version[0]}.{version[1]} is for records, not weights"
            )
        start += file.read(struct.calcsize(_HEADER_LENGTHS[version]))
        (length,) = struct.unpack(_HEADER_LENGTHS[version], start[8:])
        if length > _LONGEST_HEADER:
            raise UncorkError(f"{where} has a NumPy header of {length} bytes: damaged")
        header = io.BytesIO(start + file.read(length))
        header.seek(8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers written by Python 2 are fine
            if version == (1, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(header)
            else:
                shape, fortran, dtype = np.lib.format.read_array_header_2_0(header)
    except UncorkError:
        raise
    except (ValueError, TypeError, SyntaxError, EOFError, RecursionError, struct.error) as error:
        raise UncorkError(
            f"{where} has no readable NumPy header (truncated or damaged): {_one_line(error)}"
        ) from error
    if dtype.hasobject:
        raise UncorkError(
            f"{where} holds Python objects, a pickle, and opening a pickle runs its code: "
            "save plain numbers instead"
        )
    if any(n < 0 for n in shape):
        raise UncorkError(f"{where} has a negative dimension in shape {shape}: damaged")
    return tuple(int(n) for n in shape), bool(fortran), dtype


def _text(shape: tuple[int, ...], dtype: np.dtype) -> str:
    return f"{' × '.join(map(str, shape)) or 'one'} {_name(dtype)} values"


def _name(dtype: np.dtype) -> str:
    # bfloat16 and float8 leave np.save as nameless bytes: say what happened to them.
    return f"raw {dtype.itemsize}-byte" if dtype.kind == "V" else dtype.name


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
