"""Rules of ops that move elements about: bounds go where their elements go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.loading.onnx.arriving import moves
from uncork.loading.onnx.arriving.value import Move, Value, fresh
from uncork.loading.onnx.rules.table import Nothing, rule
from uncork.loading.onnx.shapes import picked, slices, split_sizes
from uncork.loading.onnx.tensors import attribute, attribute_text

if TYPE_CHECKING:
    from uncork.loading.onnx.arriving.ranges import Ranges

_MOST_JOINED = 64


def _moved(ranges: Ranges, node: Any, value: Value, move: Move | None) -> Value:
    return value.moved(node.output[0], ranges.dims(node), move).through(node, str(node.op_type))


@rule("Reshape", attributes=("allowzero",))
@rule("Flatten", attributes=("axis",))
def reshaped(ranges: Ranges, node: Any) -> Value:
    """Elements keep their order, so axes at both ends that agree, or divide one another, keep
    their bounds; what is left in the middle has one for all."""
    value, dims = ranges.inputs(node, 0)[0], ranges.dims(node)
    known = value.dims is not None and dims is not None
    move = moves.reshaped(value.dims, dims) if known else None  # type: ignore[arg-type]
    return _moved(ranges, node, value, move)


@rule("Squeeze", attributes=("axes",))
def squeezed(ranges: Ranges, node: Any) -> Value:
    """Axes of length one go; the others stay in order."""
    value = ranges.inputs(node, 0)[0]
    axes = None if value.dims is None else ranges.graph.axes(node, len(value.dims))
    if axes is None or any(value.lower.shape[axis] != 1 for axis in axes):
        return _moved(ranges, node, value, None)
    return _moved(ranges, node, value, moves.squeezed(axes))


@rule("Unsqueeze", attributes=("axes",))
def unsqueezed(ranges: Ranges, node: Any) -> Value:
    """Axes of length one come; the others stay in order."""
    value, dims = ranges.inputs(node, 0)[0], ranges.dims(node)
    axes = None if dims is None else ranges.graph.axes(node, len(dims))
    return _moved(ranges, node, value, None if axes is None else moves.unsqueezed(axes))


@rule("Transpose", attributes=("perm",))
def transposed(ranges: Ranges, node: Any) -> Value:
    """Axes change places, and bounds with them."""
    value = ranges.inputs(node, 0)[0]
    if value.dims is None:
        return _moved(ranges, node, value, None)
    perm = attribute(node, "perm", None) or list(range(len(value.dims)))[::-1]
    if sorted(perm) != list(range(len(value.dims))):
        raise Nothing("its perm does not fit")
    return _moved(ranges, node, value, moves.transposed(perm))


@rule("Slice", attributes=("starts", "ends", "axes"))
def sliced(ranges: Ranges, node: Any) -> Value:
    """Entries along some axes: those picked where fixed numbers say which, else any of them."""
    value = ranges.inputs(node, 0)[0]
    parts = None if value.dims is None else slices(ranges.graph, node, len(value.dims))
    if value.dims is None or parts is None:
        return _moved(ranges, node, value, None)
    steps: list[Move] = []
    for axis, start, end, step in parts:
        size = value.dims[axis]
        if isinstance(size, int):
            places = np.array(picked(size, start, end, step), dtype=np.int64)
            if not len(places):
                raise Nothing("it is empty")
            steps.append(moves.along(axis, places))
        else:
            steps.append(moves.any_along([axis]))
    return _moved(ranges, node, value, _one_after_another(steps))


def _one_after_another(steps: list[Move]) -> Move:
    def move(bounds: np.ndarray, reduce: Any) -> np.ndarray:
        for step in steps:
            bounds = step(bounds, reduce)
        return bounds

    return move


@rule("Gather", attributes=("axis",))
def gathered(ranges: Ranges, node: Any) -> Value:
    """Entries along an axis: those picked where fixed numbers say which, else any of them."""
    value, indices = ranges.inputs(node, 0, 1)
    axis = int(attribute(node, "axis", 0))
    if value.dims is None or indices.dims is None or not -len(value.dims) <= axis < len(value.dims):
        return _moved(ranges, node, value, None)
    axis %= len(value.dims)
    size, fixed = value.dims[axis], ranges.fixed(node.input[1])
    if isinstance(size, int) and fixed is not None and fixed.size:
        if fixed.min() < -size or fixed.max() >= size:
            raise Nothing("its indices are out of range")
        move = moves.along(axis, np.asarray(fixed, dtype=np.int64) % size)
    else:
        move = moves.any_along([axis], len(indices.dims))
        if not indices.dims:
            move = _one_after_another([moves.any_along([axis]), moves.squeezed([axis])])
    return _moved(ranges, node, value, move)


@rule("Split", attributes=("axis", "split", "num_outputs"))
def split(ranges: Ranges, node: Any) -> list[Value | None]:
    """Parts of an axis, one after the other."""
    value = ranges.inputs(node, 0)[0]
    axis = int(attribute(node, "axis", 0))
    dims = value.dims
    sizes = None
    if dims is not None and -len(dims) <= axis < len(dims):
        sizes = split_sizes(ranges.graph, node, dims[axis])
        axis %= len(dims)
    made: list[Value | None] = []
    start = 0
    for k, name in enumerate(node.output):
        move: Move | None = None
        if dims is not None and sizes is not None and isinstance(dims[axis], int):
            move = moves.along(axis, np.arange(start, start + sizes[k]))
            start += sizes[k]
            if not sizes[k] or start > int(dims[axis]):
                made.append(None)
                continue
        elif dims is not None:
            move = moves.any_along([axis])
        made.append(value.moved(name, ranges.dims(node, k), move).through(node, "Split"))
    return made


@rule("Concat", attributes=("axis",))
def concatenated(ranges: Ranges, node: Any) -> Value:
    """Values one after the other along an axis: their bounds likewise, or the hull of them all."""
    if not 1 <= len(node.input) <= _MOST_JOINED:
        raise Nothing(f"its rule covers {_MOST_JOINED} inputs at most")
    values = ranges.inputs(node, *range(len(node.input)))
    dims = ranges.dims(node)
    first, nan = values[0], any(value.nan for value in values)
    label = " beside ".join(list(dict.fromkeys(v.label for v in values if v.label))[:3])
    words: dict[str, Any] = {
        "label": label, "trail": tuple(dict.fromkeys(t for v in values for t in v.trail)),
        "assumed": tuple(a for v in values for a in v.assumed),
    }  # fmt: skip
    if dims is None or any(value.dims is None or len(value.dims) != len(dims) for value in values):
        hull = min(v.hull[0] for v in values), max(v.hull[1] for v in values)
        made = fresh(node.output[0], first.kind, dims, tuple(map(np.asarray, hull)), nan, **words)
        return made.through(node, "Concat")
    axis = int(attribute(node, "axis", 0)) % len(dims)
    sizes = [value.dims[axis] for value in values if value.dims is not None]
    exact = all(isinstance(size, int) for size in sizes) and isinstance(dims[axis], int)
    lowers, uppers = [], []
    shape = list(np.broadcast_shapes(*(
        tuple(1 if k == axis else n for k, n in enumerate(v.lower.shape)) for v in values
    )))  # fmt: skip
    for value, size in zip(values, sizes, strict=True):
        ends = value.lower, value.upper
        if exact:
            shape[axis] = int(size)
        else:
            ends = ends[0].min(axis=axis, keepdims=True), ends[1].max(axis=axis, keepdims=True)
        lowers.append(np.broadcast_to(ends[0], shape))
        uppers.append(np.broadcast_to(ends[1], shape))
    lower, upper = np.concatenate(lowers, axis=axis), np.concatenate(uppers, axis=axis)
    if not exact:
        lower, upper = lower.min(axis=axis, keepdims=True), upper.max(axis=axis, keepdims=True)
    made = fresh(node.output[0], first.kind, dims, (lower, upper), nan, **words)
    return made.through(node, "Concat")


@rule("Expand", since=8)
def expanded(ranges: Ranges, node: Any) -> Value:
    """Copies: bounds are broadcast as their elements are."""
    value, dims = ranges.inputs(node, 0)[0], ranges.dims(node)
    if value.dims is None or dims is None or len(dims) < len(value.dims):
        return _moved(ranges, node, value, None)
    return _moved(ranges, node, value, moves.widened(len(dims)))


@rule("Tile")
def tiled(ranges: Ranges, node: Any) -> Value:
    """Copies along axes, one after the other."""
    value, dims = ranges.inputs(node, 0)[0], ranges.dims(node)
    repeats = ranges.graph.integers(node, "repeats", 1)
    if value.dims is None or dims is None or repeats is None or len(repeats) != len(dims):
        return _moved(ranges, node, value, None)
    if min(repeats, default=1) < 1:
        raise Nothing("it repeats something no times")
    return _moved(ranges, node, value, moves.tiled(repeats))


@rule("Pad", attributes=("mode", "pads", "value"))
def padded(ranges: Ranges, node: Any) -> Value:
    """Elements, copies of them or a fixed number: the hull of these, one for all."""
    value = ranges.inputs(node, 0)[0]
    low, high = value.hull
    if attribute_text(node, "mode") in ("", "constant"):
        fill: float | None = float(attribute(node, "value", 0.0))
        if ranges.given(node, 2):
            fill = ranges.graph.number(node.input[2])
        if fill is None:
            raise Nothing("what it fills with is not fixed")
        low, high = min(low, fill), max(high, fill)
    ends = np.asarray(low), np.asarray(high)
    made = fresh(node.output[0], value.kind, ranges.dims(node), ends, value.nan, like=value)
    return made.through(node, "Pad")


@rule("Resize", since=11, attributes=(
    "mode", "coordinate_transformation_mode", "nearest_mode", "keep_aspect_ratio_policy", "axes",
    "cubic_coeff_a", "extrapolation_value", "exclude_outside"))  # fmt: skip
def resized(ranges: Ranges, node: Any) -> Value:
    """Copies (nearest) or averages (linear) of elements: the hull of their bounds, for averages
    with a few roundings more. Cubic interpolation overshoots, and cropping fills in numbers of its
    own: of these nothing is known."""
    value = ranges.inputs(node, 0)[0]
    mode = attribute_text(node, "mode") or "nearest"
    if mode not in ("nearest", "linear"):
        raise Nothing(f"its rule does not cover {mode} interpolation")
    if attribute_text(node, "coordinate_transformation_mode") == "tf_crop_and_resize":
        raise Nothing("its rule does not cover cropping")
    if not value.kind.is_float and mode == "linear":
        raise Nothing(f"its rule covers averages of floats, not of {value.kind.name}")
    low, high = value.hull
    if mode == "linear":
        size = max(abs(low), abs(high)) * 2.0**-18 + value.kind.floats.tiny
        slack = size if value.kind.floats.bits >= 24 else size * 2.0**8
        low, high = low - slack, high + slack
    ends = np.asarray(low), np.asarray(high)
    nan = value.nan or (mode == "linear" and not np.isfinite(ends).all())
    made = fresh(node.output[0], value.kind, ranges.dims(node), ends, nan, like=value)
    return replace(made, rows=None).through(node, "Resize")
