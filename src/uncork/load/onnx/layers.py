"""Layers of an ONNX graph and the ranges they leave: linear maps, pooling, recurrence, softmax."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.domain import Box, Domain, Unbounded
from uncork.load.onnx.linear import dense
from uncork.load.onnx.ranges import Linear, Value, binary, fresh, joined, node_name
from uncork.load.onnx.tensors import attribute, attribute_text, attribute_texts

if TYPE_CHECKING:
    from uncork.load.onnx.ops import Ranges

_MOST_MATRIX = 1 << 26  # elements of a linear map that is folded in
_SUMS = 2.0**-12  # rounding of a float32 sum of up to 4,096 terms of one sign, relative
RECURRENT = ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM")
LINEAR = ("MatMul", "Gemm", "Conv")
POOLS = ("GlobalAveragePool", "AveragePool", "GlobalMaxPool", "MaxPool")


def batch_norm(ranges: Ranges, node: Any) -> Value | None:
    """(x − mean)/√(variance + ε)·scale + offset for each channel, all constants."""
    if attribute(node, "training_mode", 0) or not all(map(ranges.is_constant, node.input[1:5])):
        return None
    scale, offset, mean, variance = (
        ranges.graph.constants.value(name).reshape(-1).astype(np.float64)
        for name in node.input[1:5]
    )
    value, rank = ranges.of(node.input[0]), ranges.graph.ranks.get(node.input[0])
    if rank is None or rank < 2 or not value.known:
        return None
    epsilon = float(attribute(node, "epsilon", 1e-5))
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + epsilon)
        shift = offset - mean * factor
    slack = 2.0**-20  # the run-time folds these in its own type
    line = fresh("", (factor - np.abs(factor) * slack, factor + np.abs(factor) * slack),
                 axis=1 - rank)  # fmt: skip
    size = np.abs(offset) + np.abs(mean * factor)
    shifts = fresh("", (shift - size * slack, shift + size * slack), axis=1 - rank)
    name = node.output[0]
    scaled = binary(ranges.arithmetic, "Mul", value, line, name, value.label)
    found = binary(ranges.arithmetic, "Add", scaled, shifts, name, value.label)
    return replace(found, trail=value.trail).through(node.op_type)


def linear(ranges: Ranges, node: Any) -> Value | None:
    """A linear map with constant weights: rows of what goes in, mapped."""
    found = dense(node, ranges.graph.constants, ranges.graph.ranks)
    if found is None or found.matrix.size > _MOST_MATRIX:
        return None
    value, (rows, features) = ranges.of(node.input[found.side]), found.matrix.shape
    axis, matrix = found.axis, found.matrix
    inner: Domain | None = value.domain(axis, features)
    if inner is None and features >= rows:
        return None  # every output can be had: nothing is known
    label = value.label or f"{features} values"
    name = node.output[0]
    bounds = np.asarray(-np.inf), np.asarray(np.inf)
    if isinstance(inner, Box):
        bounds = _products(ranges, matrix, found.offset, inner, features)
    return fresh(
        name, bounds, axis=axis, label=label, trail=value.trail,
        rows=Linear(inner or Unbounded(), matrix, found.offset),
    ).through(f"{node.op_type} ({node_name(node)})")  # fmt: skip


def _products(
    ranges: Ranges, matrix: np.ndarray, offset: np.ndarray | None, box: Box, features: int
) -> tuple[np.ndarray, np.ndarray]:
    low, high = box.bounds(features)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return np.asarray(-np.inf), np.asarray(np.inf)
    positive, negative = np.maximum(matrix, 0.0), np.minimum(matrix, 0.0)
    lower, upper = positive @ low + negative @ high, positive @ high + negative @ low
    size = np.abs(matrix) @ np.maximum(np.abs(low), np.abs(high))
    if offset is not None:
        lower, upper, size = lower + offset, upper + offset, size + np.abs(offset)
    slack = (features + 4) * 2 * ranges.arithmetic.unit * size
    return ranges.arithmetic.outward(lower - slack, upper + slack)


def softmax(ranges: Ranges, node: Any) -> Value:
    label, one = f"{node.op_type} ({node_name(node)})", 1 + 16 * ranges.arithmetic.unit
    return fresh(node.output[0], (np.asarray(0.0), np.asarray(one)), label=label)


def recurrent(ranges: Ranges, node: Any) -> Value | None:
    """LSTM, GRU and RNN with their usual activations: a gate times tanh, within ±1."""
    activations = attribute_texts(node, "activations")
    usual = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
    op = node.op_type.replace("DynamicQuantize", "")
    given = [text.lower() for text in activations]
    if given and given not in (usual[op], usual[op] * 2):
        return None
    if op == "GRU":  # an average of tanh and the state before: the first one counts
        start = node.input[5] if len(node.input) > 5 else ""
        if start and ranges.of(start).hull != (0.0, 0.0):
            return None
    one = 1 + 64 * ranges.arithmetic.unit
    label = f"{node.op_type} ({node_name(node)})"
    return fresh(node.output[0], (np.asarray(-one), np.asarray(one)), label=label)


def zeros(ranges: Ranges, node: Any) -> Value | None:
    for given in node.attribute:
        if given.name == "value":
            return None
    return fresh(node.output[0], (np.asarray(0.0), np.asarray(0.0)))


def pool(ranges: Ranges, node: Any) -> Value | None:
    """Over positions, channel by channel."""
    name, value = node.input[0], ranges.of(node.input[0])
    rank = ranges.graph.ranks.get(name)
    kept = value if rank is not None and value.axis == 1 - rank else value.whole()
    if "Average" in node.op_type:
        kept = _averaged(kept)
        pads = attribute(node, "pads", [0])
        auto = attribute_text(node, "auto_pad") not in ("", "NOTSET", "VALID")
        padded = auto or any(pads) or attribute(node, "ceil_mode", 0)
        if node.op_type == "AveragePool" and attribute(node, "count_include_pad", 0) and padded:
            zero = np.asarray(0.0)
            kept = joined(kept, fresh("", (zero, zero)), node.output[0])
    else:
        kept = replace(kept, rows=None)
    return kept.through(node.op_type, node.output[0])


def _averaged(value: Value) -> Value:
    """An average lies where its terms do, up to the rounding of a sum."""
    lower = value.lower - np.abs(value.lower) * _SUMS
    upper = value.upper + np.abs(value.upper) * _SUMS
    return replace(value, lower=lower, upper=upper)


def reduce(ranges: Ranges, node: Any) -> Value | None:
    name, value = node.input[0], ranges.of(node.input[0])
    axes = ranges.graph.integers(node, "axes", 1)
    found = None if axes is None else ranges.graph.from_end(axes, name)
    kept = value.whole()
    if found is not None and value.axis is not None and value.axis not in found:
        kept = value
        if not attribute(node, "keepdims", 1):
            shift = sum(axis > value.axis for axis in found)
            kept = replace(value, axis=value.axis + shift)
    if node.op_type == "ReduceMean":
        kept = _averaged(kept)
    else:
        kept = replace(kept, rows=None)
    return kept.through(node.op_type, node.output[0])
