"""Element types of an ONNX graph's values: which numbers each of them holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uncork.loading.onnx.intervals import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Arithmetic, Bounds


@dataclass(frozen=True)
class Kind:
    """An element type: floats with their arithmetic, or whole numbers from `least` to `most`."""

    name: str
    number: int  # TensorProto.DataType
    arithmetic: Arithmetic | None
    least: float
    most: float

    @property
    def is_float(self) -> bool:
        return self.arithmetic is not None

    @property
    def floats(self) -> Arithmetic:
        assert self.arithmetic is not None
        return self.arithmetic


def _whole(name: str, number: int) -> Kind:
    limits = np.iinfo(name)
    return Kind(name, number, None, float(limits.min), float(limits.max))


def _float(name: str, number: int, arithmetic: Arithmetic) -> Kind:
    return Kind(name, number, arithmetic, -arithmetic.largest, arithmetic.largest)


_EVERY = (
    _float("float32", 1, FLOAT32), _float("float16", 10, FLOAT16),
    _float("float64", 11, FLOAT64), _float("bfloat16", 16, BFLOAT16),
    _whole("uint8", 2), _whole("int8", 3), _whole("uint16", 4), _whole("int16", 5),
    _whole("int32", 6), _whole("int64", 7), _whole("uint32", 12), _whole("uint64", 13),
    Kind("bool", 9, None, 0.0, 1.0),
)  # fmt: skip
KINDS = {kind.number: kind for kind in _EVERY}  # types that are not here are not known
NAMED = {kind.name: kind for kind in _EVERY}


def cast(bounds: Bounds, nan: bool, source: Kind, target: Kind) -> tuple[Bounds, bool]:
    """Bounds after a conversion, and whether NaN can still be there.

    Floats are rounded to the nearest, which is monotone. Whole numbers are cut off towards zero;
    what the type does not hold, NaN too, becomes whatever the run-time makes of it.
    """
    lower, upper = bounds
    if target.is_float:
        return target.floats.outward(lower, upper), nan and source.is_float
    full = np.full_like(lower, target.least), np.full_like(upper, target.most)
    if target.name == "bool" or nan:
        return full, False
    lower, upper = np.trunc(lower), np.trunc(upper)
    holds = (lower >= target.least) & (upper <= target.most)
    return (np.where(holds, lower, full[0]), np.where(holds, upper, full[1])), False
