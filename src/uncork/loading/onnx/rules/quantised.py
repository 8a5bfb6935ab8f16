"""Rules of quantised values: whole numbers within their type, and what they stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.loading.onnx.arriving.value import ENDLESS, Pair, Value, fresh
from uncork.loading.onnx.intervals import Bounds
from uncork.loading.onnx.kinds import NAMED
from uncork.loading.onnx.rules.table import Nothing, rule
from uncork.loading.onnx.tensors import attribute

if TYPE_CHECKING:
    from uncork.loading.onnx.arriving.ranges import Ranges

_NARROW = ("uint8", "int8", "uint16", "int16")


def _scale(ranges: Ranges, node: Any, value: Value) -> tuple[np.ndarray, np.ndarray, Any]:
    """Scale and zero point, shaped to be set against the value, and the zero point's own array."""
    scale = ranges.fixed(node.input[1]) if ranges.given(node, 1) else None
    zero: Any = np.zeros(())
    if ranges.given(node, 2):
        zero = ranges.fixed(node.input[2])
    if scale is None or zero is None:
        raise Nothing("its scale or zero point is not fixed")
    wide, point = scale.astype(np.float64), zero.astype(np.float64)
    if not (np.isfinite(wide).all() and (wide > 0).all()):
        raise Nothing("its scale is not a positive number")
    return _along(node, wide, value), _along(node, point, value), zero


def _along(node: Any, numbers: np.ndarray, value: Value) -> np.ndarray:
    if numbers.size == 1:
        return numbers.reshape(())
    axis = int(attribute(node, "axis", 1))
    if value.dims is None or numbers.ndim != 1 or not -len(value.dims) <= axis < len(value.dims):
        raise Nothing("its scales are not one number for all or one along an axis")
    shape = [1] * len(value.dims)
    shape[axis] = numbers.size
    if value.dims[axis] != numbers.size:
        raise Nothing("its scales do not fit the axis")
    return numbers.reshape(shape)


@rule("QuantizeLinear", since=10, until=27, attributes=("axis", "saturate", "output_dtype"))
def quantised(ranges: Ranges, node: Any) -> Value:
    """round(x/scale) + zero point, cut off at the ends of its type: monotone. The result is a whole
    number, in whole numbers. NaN becomes any of them."""
    value, kind = ranges.inputs(node, 0)[0], ranges.graph.kinds.get(node.output[0])
    if kind is None or kind.name not in _NARROW or not value.kind.is_float:
        raise Nothing("the types it rounds between are not known")
    full = np.asarray(kind.least), np.asarray(kind.most)
    steps = f"{int(kind.most - kind.least) + 1} steps"
    if value.nan or not value.known:
        label = steps if not value.label else f"{value.label}, in {steps}"
        return fresh(node.output[0], kind, value.dims, full, nan=False, label=label,
                     assumed=value.assumed, pairs=value.pairs)  # fmt: skip
    scale, point, _ = _scale(ranges, node, value)
    with np.errstate(all="ignore"):
        low, high = value.lower / scale, value.upper / scale
        # Run-times divide, or multiply with 1/scale: the tolerance is for that.
        low = np.ceil(low - 0.5 - np.abs(low) * 2.0**-16 - 2.0**-16) + point
        high = np.floor(high + 0.5 + np.abs(high) * 2.0**-16 + 2.0**-16) + point
    bounds = np.clip(low, *full), np.clip(high, *full)
    return fresh(node.output[0], kind, value.dims, bounds, nan=False, assumed=value.assumed,
                 label=f"{value.label}, in {steps}", trail=value.trail,
                 pairs=value.pairs)  # fmt: skip


@rule("DequantizeLinear", since=10, until=27, attributes=("axis", "output_dtype"))
def dequantised(ranges: Ranges, node: Any) -> Value:
    """(q − zero point)·scale for whole numbers q within their type, rounded outward.

    After another quantisation a run-time may replace both by one of its own (onnxruntime does): its
    range is where theirs meet, up to half of its step, and its step is at most either. So the
    result is off by at most half of each of the three steps, which the sum of both covers."""
    value, kind = ranges.inputs(node, 0)[0], ranges.graph.kinds.get(node.output[0])
    if kind is None or not kind.is_float or value.kind.name not in _NARROW:
        raise Nothing("the types it converts between are not known")
    scale, point, zero = _scale(ranges, node, value)
    if ranges.given(node, 2) and zero.dtype.name != value.kind.name:
        raise Nothing("its zero point is of another type than its numbers")
    low, high = (value.lower - point) * scale, (value.upper - point) * scale
    pairs = (*value.pairs, Pair(value.kind.name, float(scale.max()), float(point.max()),
                                bool((point == value.kind.least).all())))  # fmt: skip
    if len(set(pairs)) > 1 or (value.pairs and scale.size > 1):
        steps = sum(pair.step for pair in pairs)
        low = np.maximum(low - steps, 0.0) if any(pair.from_zero for pair in pairs) else low - steps
        high = high + steps
    if kind.name == "float64":
        low, high = np.nextafter(low, -np.inf), np.nextafter(high, np.inf)
    bounds = kind.floats.outward(low, high)
    label = value.label or f"{int(value.kind.most - value.kind.least) + 1} steps"
    if np.size(scale) == 1:
        label = f"{label} of {float(scale):.6g}"
    made = fresh(node.output[0], kind, value.dims, bounds, nan=False, label=label,
                 trail=value.trail, assumed=value.assumed, pairs=pairs)  # fmt: skip
    return made.through(node, "DequantizeLinear")


@rule("DynamicQuantizeLinear", since=11)
def dynamically_quantised(ranges: Ranges, node: Any) -> list[Value | None]:
    """Its whole numbers lie in 0 to 255, and so does its zero point; of its scale nothing is known.
    What they stand for is worked out where a head takes all three."""
    value = ranges.inputs(node, 0)[0]
    ends = np.asarray(0.0), np.asarray(255.0)
    uint8 = NAMED["uint8"]
    made = fresh(node.output[0], uint8, value.dims, ends, nan=False, label="256 steps")
    return [made, None, fresh(node.output[2], uint8, (), ends, nan=False)]


def stands_for(value: Value) -> Bounds | None:
    """What the 8-bit numbers of DynamicQuantizeLinear stand for, (q − zero point)·scale.

    Its steps divide the range of the data at hand, zero included, by 255, and its zero is rounded
    to a step: so a step joins the range at both ends. Without a finite range the step is unknown;
    but what is never negative stays so, as its zero point is then 0. NaN becomes any of the 256.
    """
    if value.nan:
        ends = [np.asarray(end) for end in value.hull]
        value = replace(value, lower=ends[0], upper=ends[1])
    lower, upper = np.minimum(value.lower, 0.0), np.maximum(value.upper, 0.0)
    low, high = float(lower.min()), float(upper.max())
    if low > -ENDLESS and high < ENDLESS:
        step = (high - low) / 255 * 1.01
        return lower - np.where(lower < 0, step, 0.0), upper + step
    if low >= 0:
        return lower, np.full_like(upper, np.inf)
    return None
