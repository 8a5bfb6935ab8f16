"""Constants of an OpenVINO model: where they lie in its .bin, and codes with their scales decoded.

Compressed weights are written as integers that a Convert, a Subtract of zero points and a Multiply
by scales turn into floats at run time. Here that is done in float64, which holds the products of
integers of 8 bits and scales of 24 exactly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.cursor import mapped
from uncork.loading.openvino.network import Layer

TYPES: dict[str, np.dtype] = {
    "f64": np.dtype("float64"), "f32": np.dtype("float32"), "f16": np.dtype("float16"),
    "bf16": np.dtype(ml_dtypes.bfloat16), "i8": np.dtype("int8"), "u8": np.dtype("uint8"),
    "i16": np.dtype("int16"), "u16": np.dtype("uint16"), "i32": np.dtype("int32"),
    "u32": np.dtype("uint32"), "i64": np.dtype("int64"), "u64": np.dtype("uint64"),
    "boolean": np.dtype("bool"),
}  # fmt: skip
_HALVES = {"u4": np.dtype("uint8"), "i4": np.dtype("int8")}  # two to a byte, the lower half first
_SHORT = [TYPES[name] for name in ("f32", "f16", "bf16")]  # products with them are exact
_MOST_RANK = 32


@dataclass(frozen=True)
class Constant:
    """A constant, or what a few operations make of one; `made` says how, "" for a plain one.

    `whole`: its values are integers, converted to floats or not.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]
    whole: bool = False
    made: str = ""


def numbers(text: str) -> tuple[int, ...] | None:
    """A list of integers as the format writes it, "8, 7"; None where it is none."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if any(not part.lstrip("-").isdigit() or len(part) > 18 for part in parts):
        return None
    return tuple(int(part) for part in parts)


def stored(path: Path, size: int, layer: Layer) -> Constant:
    """The constant of a Const layer, checked against the size of the file it lies in."""
    name = printable(layer.name)[:80]
    kind = layer.data.get("element_type", "")
    shape = numbers(layer.data.get("shape", ""))
    places = [numbers(layer.data.get(key, "")) for key in ("offset", "size")]
    if shape is None or len(shape) > _MOST_RANK or any(n < 0 for n in shape) or any(
        place is None or len(place) != 1 or place[0] < 0 for place in places
    ):  # fmt: skip
        raise UncorkError(f"{path}: constant {name!r} does not say its shape and place: damaged")
    offset, length = (place[0] for place in places if place is not None)
    dtype = TYPES.get(kind) or _HALVES.get(kind)
    if dtype is None:
        read = functools.partial(_unread, path, name, kind)
        return Constant(layer.name, shape, np.dtype("V1"), read)
    count = math.prod(shape)
    needs = -(-count // 2) if kind in _HALVES else count * dtype.itemsize
    if needs != length or offset + length > size:
        raise UncorkError(
            f"{path}: constant {name!r} of shape {list(shape)[:8]} in {printable(kind)[:20]} needs "
            f"{needs} bytes, and has {length} at {offset} of {size}: truncated or damaged"
        )
    read = functools.partial(mapped, path, dtype, shape, offset)
    if kind in _HALVES:
        read = functools.partial(_halves, path, kind, shape, offset)
    return Constant(layer.name, shape, dtype, read, whole=dtype.kind in "iu")


def _unread(path: Path, name: str, kind: str) -> np.ndarray:
    raise UncorkError(f"{path}: constant {name!r} is of type {printable(kind)[:20]!r}: not read")


def _halves(path: Path, kind: str, shape: tuple[int, ...], offset: int) -> np.ndarray:
    count = math.prod(shape)
    pairs = mapped(path, np.uint8, (-(-count // 2),), offset)
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(-1)[:count]
    if kind == "i4":
        codes = ((codes ^ 8).astype(np.int8) - 8).astype(np.int8)
    return codes.reshape(shape)


def converted(one: Constant, dtype: np.dtype) -> Constant | None:
    """Integers, or what was decoded from them, in a float type: the values are kept as they are."""
    if one.whole and dtype.kind not in "iu":
        return replace(one, dtype=np.dtype("float64"), read=lambda: one.read().astype(np.float64))
    return one if one.made and dtype.kind not in "iu" else None


def less(codes: Constant, zero: Constant) -> Constant | None:
    """Integers less their zero points."""
    if not codes.whole or codes.made or not _within(zero.shape, codes.shape):
        return None

    def read() -> np.ndarray:
        return codes.read().astype(np.float64) - zero.read().astype(np.float64)

    made = f"{codes.name} less {zero.name}"
    return replace(codes, dtype=np.dtype("float64"), read=read, made=made)


def times(codes: Constant, scale: Constant) -> Constant | None:
    """Integers, less zero points or not, times their scales."""
    short = scale.dtype in _SHORT and not scale.whole
    if not (codes.whole and short and _within(scale.shape, codes.shape)):
        return None

    def read() -> np.ndarray:
        with np.errstate(over="ignore"):  # Head names the value it ends in
            return codes.read().astype(np.float64) * scale.read().astype(np.float64)

    made = f"dequantised: {codes.made or codes.name} times {scale.name}, in float64"
    return replace(codes, dtype=np.dtype("float64"), read=read, made=made, whole=False)


def reshaped(one: Constant, shape: np.ndarray, zero_copies: bool) -> Constant | None:
    """What was decoded, in another shape."""
    wanted = [int(n) for n in shape.reshape(-1)]
    if len(wanted) > _MOST_RANK:
        return None
    if zero_copies:
        wanted = [one.shape[k] if n == 0 and k < len(one.shape) else n
                  for k, n in enumerate(wanted)]  # fmt: skip
    rest = math.prod(n for n in wanted if n >= 0)
    if wanted.count(-1) == 1 and rest:
        wanted[wanted.index(-1)] = math.prod(one.shape) // rest
    if any(n < 0 for n in wanted) or math.prod(wanted) != math.prod(one.shape):
        return None
    return replace(one, shape=tuple(wanted), read=lambda: one.read().reshape(wanted))


def _within(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    """Whether a shape spreads over another without making it larger."""
    if len(small) > len(large):
        return False
    return all(n in (1, large[k - len(small)]) for k, n in enumerate(small))
