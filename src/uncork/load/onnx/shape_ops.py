"""Ops of an ONNX graph that move elements about: where a feature axis goes, and what joins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.load.onnx.norms import Norm
from uncork.load.onnx.ranges import Linear, Value, fresh, joined
from uncork.load.onnx.tensors import attribute

if TYPE_CHECKING:
    from uncork.load.onnx.ops import Ranges

SHAPE_OPS = (
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Concat", "Split",
    "Expand", "Tile", "Pad", "Resize", "Upsample",
)  # fmt: skip
_MOST_JOINED = 64


def moved(ranges: Ranges, node: Any) -> Value | None:
    """The value after the op, with its axis where the op put it, or as one range for all."""
    op = node.op_type
    if op == "Concat":
        return _concatenated(ranges, node)
    value = ranges.of(node.input[0])
    if op == "Pad":
        return _padded(ranges, node, value)
    if op in ("Resize", "Upsample") and not _between_neighbours(node):
        return None
    axis = None if value.axis is None else _axis_after(ranges, node, value)
    kept = value.whole() if axis is None else replace(value, axis=axis)
    if op in ("Resize", "Upsample"):
        kept = replace(kept, rows=None)
    if axis is not None and op in ("Reshape", "Flatten"):
        sized = not isinstance(value.rows, Norm) or value.rows.size is not None
        if value.stretch or not sized:  # how long a run is must be known before runs are joined
            kept = value.whole()
        else:
            kept = replace(kept, stretch="all" if value.axis == -1 else "each")
    return kept.through(op, node.output[0])


def _axis_after(ranges: Ranges, node: Any, value: Value) -> int | None:
    """Where the value's axis lies after the op, counted from the end; None where it is lost."""
    assert value.axis is not None
    graph, op, name = ranges.graph, node.op_type, node.input[0]
    axis: int = value.axis
    rank = graph.ranks.get(name)
    if op == "Transpose":
        perm = attribute(node, "perm", None)
        if not perm:
            return -1 - axis - rank if rank is not None else None
        place = axis + len(perm)
        return perm.index(place) - len(perm) if place in perm else None
    if op in ("Squeeze", "Unsqueeze"):
        axes = graph.integers(node, "axes", 1)
        if axes is None:
            return None
        if op == "Unsqueeze":
            after = None if rank is None else rank + len(axes)
            if after is None and any(a >= 0 for a in axes):
                return None
            new = {a if a < 0 else a - (after or 0) for a in axes}
            old = (place for place in range(-1, -64, -1) if place not in new)
            return next(place for k, place in enumerate(old) if k == -1 - axis)
        gone = graph.from_end(axes, name)
        if gone is None or axis in gone:
            return None
        return axis + sum(a > axis for a in gone)
    if op in ("Slice", "Gather", "Split", "Tile", "Resize", "Upsample"):
        return _axis_beside(ranges, node, axis)
    if op == "Expand":
        return axis if value.lower.size > 1 or value.rows is not None else None
    if op == "Flatten":
        at = int(attribute(node, "axis", 1))
        front = None if rank is None else axis + rank
        if rank is not None and at < 0:
            at += rank
        # What was the first flattened axis, or the last, leads or ends each run.
        return -1 if axis == -1 or front == at else None
    if op == "Reshape":
        return _axis_reshaped(ranges, node, value)
    return None


def _axis_beside(ranges: Ranges, node: Any, axis: int) -> int | None:
    """Slices, picks and copies along other axes leave ours as it is."""
    graph, op, name = ranges.graph, node.op_type, node.input[0]
    if op == "Slice":
        axes = graph.integers(node, "axes", 3)
        found = None if axes is None else graph.from_end(axes, name)
        return None if found is None or axis in found else axis
    if op in ("Gather", "Split"):
        found = graph.from_end([int(attribute(node, "axis", 0))], name)
        if found is None or axis in found:
            return None
        if op == "Split" or found[0] < axis:  # what happens further in front moves nothing
            return axis
        indices = graph.ranks.get(node.input[1])
        return None if indices is None else axis + 1 - indices
    repeats = graph.integers(node, "repeats", 1) if op == "Tile" else None
    if op == "Tile":
        return axis if repeats is not None and repeats[axis:][:1] == [1] else None
    rank = graph.ranks.get(name)
    return axis if rank is not None and axis == 1 - rank else None  # resizing is over positions


def _axis_reshaped(ranges: Ranges, node: Any, value: Value) -> int | None:
    graph, shape = ranges.graph, node.input[1] if len(node.input) > 1 else ""
    rank, size = graph.ranks.get(node.input[0]), value.lower.size
    if isinstance(value.rows, Linear):
        size = len(value.rows.matrix)
    elif value.rows is not None:
        size = value.rows.size or size
    if not shape:
        return None
    last = graph.last_entry(shape)
    if value.axis == -1:
        # Elements keep their order: runs of n stay runs of n where the last axis has n, or a
        # multiple (then tiled), which is for whoever knows the number of features to say.
        if last == size or last is None or last == -1:
            return -1
        return -1 if size > 1 and last > 0 and last % size == 0 else None
    if rank is None or value.axis != 1 - rank or not graph.constants.is_constant(shape):
        return None
    wanted = [int(n) for n in graph.constants.value(shape).reshape(-1)]
    if len(wanted) < 2 or attribute(node, "allowzero", 0):
        return None
    # (N, C, H, W) keeps its channels in order only where N stays N; or H and W are one.
    if wanted[0] != 0 and not (wanted[0] == -1 and _single_positions(ranges, node.input[0])):
        return None
    if len(wanted) == 2:
        return -1 if wanted[1] == -1 or wanted[1] % max(size, 1) == 0 else None
    return 1 - len(wanted) if wanted[1] == size else None


def _single_positions(ranges: Ranges, name: str) -> bool:
    """Whether a value comes from pooling over all positions, and has one of each."""
    for _ in range(_MOST_JOINED):
        node = ranges.graph.node_of(name)
        if node is None:
            return False
        if node.op_type in ("GlobalAveragePool", "GlobalMaxPool"):
            return True
        if node.op_type not in ("Identity", "Cast", "Dropout", "Relu", "Clip", "HardSwish"):
            return False
        name = node.input[0]
    return False


def _concatenated(ranges: Ranges, node: Any) -> Value | None:
    if not 0 < len(node.input) <= _MOST_JOINED:
        return None
    name, values = node.output[0], [ranges.of(given) for given in node.input]
    at = ranges.graph.from_end([int(attribute(node, "axis", 0))], node.input[0])
    axes = {value.axis for value in values}
    if at is not None and axes == {at[0]} and all(v.lower.ndim and not v.stretch for v in values):
        ends = [np.concatenate([getattr(v, end) for v in values]) for end in ("lower", "upper")]
        label = " beside ".join(dict.fromkeys(v.label for v in values if v.label))
        return fresh(name, (ends[0], ends[1]), axis=at[0], label=label).through("Concat")
    if at is None or at[0] in axes:
        values = [value.whole() for value in values]
    total = values[0]
    for value in values[1:]:
        total = joined(total, value, name)
    return total.through("Concat", name)


def _padded(ranges: Ranges, node: Any, value: Value) -> Value | None:
    mode = next((a.s for a in node.attribute if a.name == "mode"), b"constant")
    if mode != b"constant":
        return value.whole().through("Pad", node.output[0])
    if len(node.input) > 2 and node.input[2]:
        number = ranges.graph.number(node.input[2])
        if number is None:
            return None
        fill = number
    else:
        fill = float(attribute(node, "value", 0.0))
    filled = fresh("", (np.asarray(fill), np.asarray(fill)))
    return joined(value.whole(), filled, node.output[0]).through("Pad", node.output[0])


def _between_neighbours(node: Any) -> bool:
    """Whether resizing only copies or averages: cubic overshoots."""
    mode = next((a.s for a in node.attribute if a.name == "mode"), b"nearest")
    return mode in (b"nearest", b"linear")
