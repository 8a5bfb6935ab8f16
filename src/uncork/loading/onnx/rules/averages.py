"""Rules of ops that take many elements together: averages, and the largest or smallest of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.loading.onnx.arriving import moves
from uncork.loading.onnx.arriving.assumptions import Assumption
from uncork.loading.onnx.arriving.rows import Linear, Rows
from uncork.loading.onnx.arriving.value import ENDLESS, Move, Value, fresh
from uncork.loading.onnx.intervals import Bounds
from uncork.loading.onnx.rules.table import Nothing, rule
from uncork.loading.onnx.shapes import Dims
from uncork.loading.onnx.tensors import attribute, attribute_text

if TYPE_CHECKING:
    from uncork.loading.onnx.arriving.ranges import Ranges

_MOST_TERMS = 4096
_FEW = Assumption(f"averages are over at most {_MOST_TERMS} values where the graph does not say")
_WINDOW = ("kernel_shape", "strides", "pads", "auto_pad", "ceil_mode", "dilations")


def _averaged(value: Value, name: str, dims: Dims | None, move: Move | None, terms: int | None,
              zero: bool = False) -> Value:  # fmt: skip
    """An average lies where its terms do, up to the rounding of a sum: n units of the terms."""
    if not value.kind.is_float:
        raise Nothing(f"its rule covers floats, not {value.kind.name}")
    moved = value.moved(name, dims, move)
    lower, upper = moved.bounds
    if zero:
        lower, upper = np.minimum(lower, 0.0), np.maximum(upper, 0.0)
    # The error of a sum of n terms is n units of the sum of their sizes; at an end of the range
    # that is n units of the end. Half-size floats are added up in float32, and rounded once.
    count = min(terms or _MOST_TERMS, 1 << 22) + 8
    slack = count * 2.0**-24 + 2 * value.kind.floats.unit
    # Sums of such large numbers may overflow.
    lower = np.where(lower < -ENDLESS, -np.inf, lower - np.abs(lower) * slack)
    upper = np.where(upper > ENDLESS, np.inf, upper + np.abs(upper) * slack)
    lower, upper = value.kind.floats.outward(lower, upper)
    nan = value.nan or not (np.isfinite(lower).all() and np.isfinite(upper).all())
    matters = terms is None and (_matters(lower) or _matters(upper))
    assumed = (*value.assumed, _FEW) if matters and _FEW not in value.assumed else value.assumed
    rows = None if zero or moved.rows is None else _averaged_rows(moved.rows, slack)
    return fresh(name, value.kind, dims, (lower, upper), nan, like=value, assumed=assumed,
                 rows=rows)  # fmt: skip


def _averaged_rows(rows: Rows, slack: float) -> Rows:
    """A convex set holds the averages of its points; rounding adds to the error."""
    if isinstance(rows, Linear):
        return rows
    low, high = rows.bounds()
    return replace(rows, error=rows.error + np.maximum(np.abs(low), np.abs(high)) * slack)


def _matters(end: np.ndarray) -> bool:
    return bool((np.isfinite(end) & (end != 0)).any())


def _count(dims: Dims | None, axes: list[int]) -> int | None:
    sizes = [dims[axis] for axis in axes] if dims is not None else [None]
    numbers = [size for size in sizes if isinstance(size, int)]
    return math.prod(numbers) if len(numbers) == len(sizes) else None


def _positions(value: Value) -> list[int]:
    if value.dims is None or len(value.dims) < 3:
        raise Nothing("the shape of what it pools is not known")
    return list(range(2, len(value.dims)))


@rule("GlobalAveragePool")
def global_average(ranges: Ranges, node: Any) -> Value:
    """The mean over positions lies between the least and the largest, channel by channel, up to n
    units for n terms."""
    value = ranges.inputs(node, 0)[0]
    axes = _positions(value)
    made = _averaged(value, node.output[0], ranges.dims(node), moves.any_along(axes),
                     _count(value.dims, axes))  # fmt: skip
    return made.through(node, "GlobalAveragePool")


@rule("AveragePool", attributes=(*_WINDOW, "count_include_pad"))
def average(ranges: Ranges, node: Any) -> Value:
    """As for the mean over all positions; zero joins where padding is counted."""
    value = ranges.inputs(node, 0)[0]
    kernel = attribute(node, "kernel_shape", None)
    if not kernel:
        raise Nothing("it has no kernel")
    pads = attribute(node, "pads", [0])
    padded = any(pads) or attribute_text(node, "auto_pad") not in ("", "NOTSET", "VALID")
    if attribute(node, "ceil_mode", 0):
        raise Nothing("its rule does not cover ceil_mode")
    if not attribute(node, "count_include_pad", 0) and max(pads) < min(kernel):
        padded = False  # every window has an element of its own
    made = _averaged(value, node.output[0], ranges.dims(node), moves.any_along(_positions(value)),
                     math.prod(kernel), zero=padded)  # fmt: skip
    return made.through(node, "AveragePool")


@rule("ReduceMean", attributes=("axes", "keepdims", "noop_with_empty_axes"))
def reduce_mean(ranges: Ranges, node: Any) -> Value:
    """The mean over some axes lies between the least and the largest, up to n units for n terms."""
    value = ranges.inputs(node, 0)[0]
    move, axes = _reduction(ranges, node, value)
    terms = None if axes is None else _count(value.dims, axes)
    made = _averaged(value, node.output[0], ranges.dims(node), move, terms)
    return made.through(node, "ReduceMean")


@rule("ReduceMax", "ReduceMin", attributes=("axes", "keepdims", "noop_with_empty_axes"))
def reduce_extreme(ranges: Ranges, node: Any) -> Value:
    """One of the elements; where NaN can be among them, any number."""
    value = ranges.inputs(node, 0)[0]
    move, _ = _reduction(ranges, node, value)
    return _extreme(ranges, node, value, move)


def _reduction(ranges: Ranges, node: Any, value: Value) -> tuple[Move | None, list[int] | None]:
    dims, graph = value.dims, ranges.graph
    if dims is None:
        return None, None
    given = graph.integers(node, "axes", 1)
    if given is None and ranges.given(node, 1):
        return None, None
    axes: list[int] | None = list(range(len(dims)))
    if given:
        axes = graph.axes(node, len(dims))
    elif attribute(node, "noop_with_empty_axes", 0):
        raise Nothing("it may reduce nothing")
    if axes is None:
        return None, None
    whole = axes
    reduced = moves.any_along(whole)
    if attribute(node, "keepdims", 1):
        return reduced, whole
    return (lambda bounds, reduce: np.squeeze(reduced(bounds, reduce), tuple(whole))), whole


@rule("GlobalMaxPool")
def global_largest(ranges: Ranges, node: Any) -> Value:
    """One of the elements of each channel; where NaN can be among them, any number."""
    value = ranges.inputs(node, 0)[0]
    return _extreme(ranges, node, value, moves.any_along(_positions(value)))


@rule("MaxPool", attributes=(*_WINDOW, "storage_order"))
def largest(ranges: Ranges, node: Any) -> list[Value | None]:
    """One of the elements of each channel, where no window is of padding alone; where NaN can be
    among them, any number."""
    value = ranges.inputs(node, 0)[0]
    pads = attribute(node, "pads", [0])
    if any(pads) or attribute(node, "ceil_mode", 0) or (
        attribute_text(node, "auto_pad") not in ("", "NOTSET", "VALID")
    ):  # fmt: skip
        kernel = attribute(node, "kernel_shape", [])
        plain = not attribute(node, "ceil_mode", 0) and set(
            attribute(node, "dilations", [1])
        ) == {1}  # fmt: skip
        if not plain or not kernel or 2 * max(pads) > min(kernel):
            raise Nothing("its windows may be of padding alone")
    return [_extreme(ranges, node, value, moves.any_along(_positions(value))), None]


def _extreme(ranges: Ranges, node: Any, value: Value, move: Move | None) -> Value:
    bounds: Bounds = value.bounds
    if value.nan:  # a comparison with NaN is false: what the search began with may be left
        bounds = value.open_bounds
        if not value.kind.is_float:
            raise Nothing("NaN among whole numbers")
        # The search begins with an element, the lowest number or minus infinity.
        end = 1 if node.op_type == "ReduceMin" else 0
        keep = value.upper if end == 0 else value.lower
        bounds = (bounds[0], keep) if end == 0 else (keep, bounds[1])
    start = fresh("", value.kind, value.dims, bounds, value.nan, like=value)
    made = start.moved(node.output[0], ranges.dims(node), move)
    return made.through(node, str(node.op_type))
