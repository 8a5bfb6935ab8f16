"""Weights of TensorFlow.js: a manifest of names, shapes and codes, and the files of their bytes.

The files of a group are read as one, in which the weights lie one after the other.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable

_TYPES = {"float32": np.dtype("<f4"), "int32": np.dtype("<i4"), "bool": np.dtype(np.bool_),
          "uint8": np.dtype(np.uint8), "float16": np.dtype("<f2")}  # fmt: skip
_CODES: dict[str, np.dtype] = {
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype("<u2"),
    "float16": np.dtype("<f2"),
}
_COMPLEX = 8  # bytes of a complex64
_MOST_FILES, _MOST_WEIGHTS, _MOST_DIMENSIONS = 10_000, 100_000, 16
_MOST_TEXTS = 1 << 20


@dataclass(frozen=True)
class Weight:
    """One weight: `folded` says how it is made where it is stored as codes."""

    name: str
    dtype: np.dtype | None
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray] = field(repr=False, compare=False)
    folded: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Bytes:
    """The files of a group as one run of bytes."""

    files: tuple[tuple[Path, int], ...]  # and their sizes

    @property
    def size(self) -> int:
        return sum(size for _, size in self.files)

    def take(self, begin: int, size: int) -> bytes:
        parts = []
        for path, length in self.files:
            if begin < length and size:
                with path.open("rb") as file:
                    file.seek(begin)
                    parts.append(file.read(min(size, length - begin)))
                size -= len(parts[-1])
            begin = max(begin - length, 0)
        return b"".join(parts)


def read_manifest(path: Path, groups: Any) -> dict[str, Weight]:
    """The weights that a manifest lists, by name; nothing is read yet but texts' lengths."""
    found: dict[str, Weight] = {}
    for group in groups:
        run = _opened(path, group["paths"])
        at = 0
        for entry in group["weights"]:
            weight, size = _weight(path, run, at, entry)
            at += size
            if at > run.size or len(found) > _MOST_WEIGHTS:
                raise UncorkError(
                    f"{path}: weight {weight.name[:80]!r} ends at byte {at}, and its files hold "
                    f"{run.size}: truncated or damaged"
                )
            found[weight.name] = weight
        if at != run.size:
            raise UncorkError(
                f"{path}: the files of a group hold {run.size} bytes and its weights take {at}: "
                "they are of another model, or damaged"
            )
    return found


def _opened(path: Path, names: list[str]) -> _Bytes:
    folder, files = path.resolve().parent, []
    if len(names) > _MOST_FILES:
        raise UncorkError(f"{path} names {len(names)} files of weights: too many")
    for name in names:
        file = (folder / str(name)).resolve()
        if folder not in file.parents:
            raise UncorkError(
                f"{path} asks for weights outside its folder ({str(name)[:80]!r}): refused"
            )
        if not file.is_file():
            raise UncorkError(f"{path}: its weights lie in {str(name)[:80]!r}, which is not there")
        files.append((file, file.stat().st_size))
    return _Bytes(tuple(files))


def _weight(path: Path, run: _Bytes, at: int, entry: dict[str, Any]) -> tuple[Weight, int]:
    name, kind = str(entry["name"]), str(entry["dtype"])
    shape = tuple(int(n) for n in entry["shape"])
    what = f"{path}: weight {printable(name)[:80]!r}"
    if len(shape) > _MOST_DIMENSIONS or any(n < 0 for n in shape):
        raise UncorkError(f"{what} has shape {list(shape)}: damaged")
    count = math.prod(shape)
    if kind == "string":
        return Weight(name, None, shape, functools.partial(_refused, what)), _texts(run, at, count)
    if kind == "complex64":
        return Weight(name, None, shape, functools.partial(_refused, what)), count * _COMPLEX
    dtype, codes = _TYPES.get(kind), entry.get("quantization")
    if dtype is None:
        raise UncorkError(f"{what} is of type {kind[:40]!r}, which is not read")
    if codes is None:
        size = count * dtype.itemsize
        read = functools.partial(_plain, run, at, size, dtype, shape)
        return Weight(name, dtype, shape, read), size
    stored = _CODES.get(str(codes["dtype"]))
    if stored is None:
        raise UncorkError(f"{what} is stored as {str(codes['dtype'])[:40]!r}, which is not read")
    size = count * stored.itemsize
    if stored.kind == "f":
        read = functools.partial(_halves, run, at, size, stored, shape)
        return Weight(name, np.dtype("<f4"), shape, read, ("stored as float16",)), size
    scale, least = float(codes["scale"]), float(codes["min"])
    if not (math.isfinite(scale) and math.isfinite(least)):
        raise UncorkError(f"{what} has scale {scale} and least value {least}: damaged")
    read = functools.partial(_decoded, run, at, size, stored, shape, scale, least, dtype)
    said = f"dequantised: {stored} codes times {scale:.6g} plus {least:.6g}, rounded to {dtype}"
    return Weight(name, dtype, shape, read, (said,)), size


def _plain(run: _Bytes, at: int, size: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(run.take(at, size), dtype).reshape(shape)


def _halves(run: _Bytes, at: int, size: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    return _plain(run, at, size, dtype, shape).astype(np.float32)


def _decoded(
    run: _Bytes, at: int, size: int, stored: np.dtype, shape: tuple[int, ...], scale: float,
    least: float, dtype: np.dtype,
) -> np.ndarray:  # fmt: skip
    """As TensorFlow.js does it: in JavaScript's numbers, which are float64, then rounded once."""
    values = _plain(run, at, size, stored, shape).astype(np.float64) * scale + least
    if dtype.kind == "f":
        return values.astype(dtype)
    return np.floor(values + 0.5).astype(dtype)


def _refused(what: str) -> np.ndarray:
    raise UncorkError(f"{what} holds no plain numbers")


def _texts(run: _Bytes, at: int, count: int) -> int:
    """How many bytes texts take, each with its length before it."""
    begin = at
    if count > _MOST_TEXTS:
        raise UncorkError(f"{count} texts among the weights: too many")
    data = run.take(at, run.size - at)
    at = 0
    for _ in range(count):
        if at + 4 > len(data):
            raise UncorkError(f"a text among the weights at byte {begin + at} reaches past the end")
        at += 4 + struct.unpack_from("<I", data, at)[0]
    return at
