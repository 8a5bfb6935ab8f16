"""Weights that an ML Program keeps as codes, with the operators that decode them (constexpr_…)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Decoded = tuple[tuple[int, ...], np.dtype, Callable[[], np.ndarray], str]
_FLOAT64 = np.dtype("float64")
_LINEAR = "dequantised: (code − zero point) times scale, in float64"
_BITS = {2: 1, 4: 2, 16: 4, 64: 6, 256: 8}  # entries of a table to bits of a code


def dequantised(kind: str, given: Mapping[str, Any]) -> Decoded | None:
    """Shape, type, values and how they were made; None where the operator is not known here."""
    decode = {"constexpr_affine_dequantize": _affine, "constexpr_lut_to_dense": _table,
              "constexpr_cast": _cast}.get(kind)  # fmt: skip
    return None if decode is None else decode(given)


def _array(one: Any) -> Any:
    return getattr(one, "array", None)


def _affine(given: Mapping[str, Any]) -> Decoded | None:
    """scale · (code − zero point), one for all or one for each place of an axis."""
    codes = _array(given.get("quantized_data"))
    if codes is None or codes.dtype.name not in ("int8", "uint8"):
        return None
    axis = getattr(given.get("axis"), "value", None)
    sides = [1] * len(codes.shape)
    if type(axis) is int and -len(sides) <= axis < len(sides):
        sides[axis] = codes.shape[axis]
    scale, zero = (_numbers(given.get(name)) for name in ("scale", "zero_point"))
    if scale is None or zero is None:
        return None
    if any(one.size not in (1, math.prod(sides)) for one in (scale, zero)):
        return None

    def spread(one: np.ndarray) -> np.ndarray:
        return one.reshape(sides) if one.size > 1 else one.reshape(())

    def read() -> np.ndarray:
        with np.errstate(all="ignore"):  # Head names the value it ends in
            return (codes.read().astype(np.float64) - spread(zero)) * spread(scale)

    return codes.shape, _FLOAT64, read, _LINEAR


def _numbers(one: Any) -> np.ndarray | None:
    """Scales or zero points in float64, which holds both exactly; None where there are none."""
    if _array(one) is not None:
        return np.asarray(_array(one).read(), np.float64).reshape(-1)
    value = getattr(one, "value", None)
    if isinstance(value, int | float):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(n, int | float) for n in value):
        return None
    return np.asarray(value, np.float64)


def _table(given: Mapping[str, Any]) -> Decoded | None:
    """Codes of a few bits, packed from the lowest, that pick from one table."""
    codes, table = _array(given.get("indices")), _array(given.get("lut"))
    shape = getattr(given.get("shape"), "value", None)
    if codes is None or table is None or codes.dtype.name != "uint8" or len(table.shape) != 1:
        return None
    bits = _BITS.get(table.shape[0])
    if bits is None or not isinstance(shape, list) or any(type(n) is not int for n in shape):
        return None
    count = math.prod(shape)
    if min(shape, default=0) < 1 or math.prod(codes.shape) != -(-count * bits // 8):
        return None

    def read() -> np.ndarray:
        raw = np.asarray(codes.read()).reshape(-1)
        if bits < 8:
            single = np.unpackbits(raw, bitorder="little")[: count * bits].reshape(count, bits)
            raw = (single << np.arange(bits, dtype=np.uint8)).sum(1, dtype=np.uint8)
        return np.asarray(table.read())[raw].reshape(shape)

    return tuple(shape), table.dtype, read, f"picked from a table by codes of {bits} bits"


def _cast(given: Mapping[str, Any]) -> Decoded | None:
    """Halves that are used as floats: the values are the same."""
    source = _array(given.get("source_val"))
    if source is None or source.dtype.name != "float16":
        return None
    return source.shape, source.dtype, source.read, "stored in float16"
