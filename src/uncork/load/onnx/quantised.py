"""Ranges of quantised values: what an 8-bit number can stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.load.onnx.ranges import Value, fresh

if TYPE_CHECKING:
    from uncork.load.onnx.graph import Graph
    from uncork.load.onnx.ops import Ranges


def steps(graph: Graph, scale: str, zero: str) -> tuple[float, int, int, int] | None:
    """Scale, zero point, least and largest integer, all from constants; None where they are not."""
    size = graph.number(scale)
    if size is None or not size > 0 or not np.isfinite(size):
        return None
    if not zero:
        return size, 0, 0, 255
    if not graph.constants.is_constant(zero):
        return None
    point = graph.constants.value(zero)
    if point.size != 1 or point.dtype.kind not in "iu":
        return None
    limits = np.iinfo(point.dtype)
    return size, int(point.reshape(-1)[0]), int(limits.min), int(limits.max)


def in_8_bits(graph: Graph, scale: str, zero: str, name: str) -> Value | None:
    """What integers of that scale and zero point can stand for, whatever was rounded to them."""
    found = steps(graph, scale, zero)
    if found is None or found[3] - found[2] > 65535:  # 32 bits hold sums, not rounded values
        return None
    size, point, least, most = found
    label = f"{most - least + 1} steps of {size:.6g}"
    # Integers of 16 bits times a float32: exact in float64.
    ends = np.asarray(size * (least - point)), np.asarray(size * (most - point))
    return fresh(name, ends, label=label)


def quantised(ranges: Ranges, node: Any) -> Value | None:
    """QuantizeLinear: its integers as what they stand for."""
    zero = node.input[2] if len(node.input) > 2 else ""
    found = in_8_bits(ranges.graph, node.input[1], zero, node.output[0])
    if found is None:
        return None
    value = ranges.of(node.input[0])
    if not value.known:
        return found
    half = 0.51 * (ranges.graph.number(node.input[1]) or 0.0)  # rounding is monotone
    low, high = found.hull
    lower = np.where(value.lower >= 0, np.maximum(value.lower - half, 0.0), value.lower - half)
    bounds = np.clip(lower, low, high), np.clip(value.upper + half, low, high)
    return fresh(
        node.output[0], ranges.arithmetic.outward(*bounds), axis=value.axis,
        stretch=value.stretch, label=f"{value.label}, in {found.label}",
    )  # fmt: skip


def dequantised(ranges: Ranges, node: Any) -> Value | None:
    """DequantizeLinear: (q − zero point)·scale, where q holds so many integers and no more."""
    graph, zero = ranges.graph, node.input[2] if len(node.input) > 2 else ""
    maker = graph.node_of(node.input[0])
    if maker is not None and maker.op_type == "QuantizeLinear":
        before = steps(graph, maker.input[1], maker.input[2] if len(maker.input) > 2 else "")
        if before is not None and before == steps(graph, node.input[1], zero):
            value = ranges.of(node.input[0])
            ends = ranges.arithmetic.outward(*value.bounds)
            return fresh(node.output[0], ends, axis=value.axis, stretch=value.stretch,
                         label=value.label)  # fmt: skip
    found = in_8_bits(graph, node.input[1], zero, node.output[0])
    if found is None:
        return None
    ends = ranges.arithmetic.outward(*found.bounds)
    return fresh(node.output[0], ends, label=found.label)


def dynamically_quantised(ranges: Ranges, node: Any) -> Value | None:
    """What the 8-bit numbers of DynamicQuantizeLinear stand for.

    Its steps divide the range of the data at hand, zero included, by 255, and its zero is rounded
    to a step: so half a step joins the range at both ends. Without a finite range the step is
    unknown; but what is never negative stays so.
    """
    value = ranges.of(node.input[0])
    lower, upper = np.minimum(value.lower, 0.0), np.maximum(value.upper, 0.0)
    low, high = float(lower.min()), float(upper.max())
    if np.isfinite(low) and np.isfinite(high):
        step = (high - low) / 255 * 1.01
        edges = lower - np.where(lower < 0, step, 0.0), upper + step
    elif low >= 0:
        edges = lower, np.full_like(upper, np.inf)
    else:
        return None
    return fresh(
        node.output[0], ranges.arithmetic.outward(*edges), axis=value.axis,
        stretch=value.stretch, label=f"{value.label}, rounded to 8 bits",
    )  # fmt: skip
