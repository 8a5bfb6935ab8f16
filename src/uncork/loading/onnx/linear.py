"""Linear nodes of an ONNX graph with a constant weight: which input it is, the matrix, the head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.loading.onnx.shapes import Graph
from uncork.loading.onnx.tensors import Constants, attribute

_QUANTISED = ("QLinearMatMul", "com.microsoft::QGemm")  # their weight is the fourth input
HEADS = "a Gemm, MatMul or 1×1 Conv"


@dataclass(frozen=True)
class HeadNode:
    """The head's linear node and the values around it.

    `axis` is the axis of the input that is summed over and `class_axis` that of the logits, both
    counted from the end (None where the rank is unknown). Where the node takes integers, the head's
    x is (input − zero point)·scale: `quantised` names scale and zero point as constants, and
    `dynamic` as values of the graph. With `in_steps` x is (input − zero point) alone; "" as a zero
    point is zero. `pooled` says that the logits are averaged over positions afterwards, and so are,
    in effect, the inputs.
    """

    node: int
    input: str
    axis: int | None
    logits: str
    class_axis: int | None
    quantised: tuple[str, str] | None = None
    dynamic: tuple[str, str] | None = None
    in_steps: tuple[str, str] | None = None
    pooled: bool = False


def weight_input(node: Any, constants: Constants) -> int | None:
    """Which input of a linear node is its constant weight; None where the node is none."""
    op = constants.op(node)
    if op in ("Gemm", "MatMul", "MatMulInteger") and len(node.input) >= 2:
        left, right = (constants.is_constant(name) for name in node.input[:2])
        if right and not left:
            return 1
        if left and not right and op == "MatMul":
            return 0
    if op in _QUANTISED and len(node.input) >= 6:
        rest = (*node.input[1:6],)
        if not constants.is_constant(node.input[0]) and all(map(constants.is_constant, rest)):
            return 3
    if op == "Conv" and len(node.input) >= 2 and _is_pointwise(node, constants):
        return 1
    return None


def data_input(node: Any, weight: int) -> int:
    """Which input of a linear node is the one that is not a weight."""
    return 1 if weight == 0 else 0


def data_axis(node: Any, weight: int, rank: int | None) -> int | None:
    """Along which axis of its input a linear node sums, counted from the end."""
    if node.op_type == "Conv":
        return None if rank is None else 1 - rank
    if node.op_type in ("Gemm", "QGemm"):
        return -2 if attribute(node, "transA", 0) else -1
    return -2 if weight == 0 else -1


def _is_pointwise(node: Any, constants: Constants) -> bool:
    """Whether a convolution is the same linear map at every position."""
    if not constants.is_constant(node.input[1]) or constants.is_constant(node.input[0]):
        return False
    shape = constants.shape(node.input[1])
    if len(shape) < 3 or shape[0] < 2 or any(n != 1 for n in shape[2:]):
        return False
    plain = attribute(node, "group", 1) == 1 and not any(attribute(node, "pads", [0]))
    return plain and not any(
        a.name == "auto_pad" and a.s not in (b"NOTSET", b"VALID") for a in node.attribute
    )


@dataclass(frozen=True)
class Dense:
    """matrix (out, in) applied along an axis of input `side`, then the offset (out,) added."""

    matrix: np.ndarray
    offset: np.ndarray | None
    side: int
    axis: int


def dense(node: Any, graph: Graph) -> Dense | None:
    """The map of a float linear node, exactly; None where it is none, is not exact or not fixed."""
    constants = graph.constants
    weight = weight_input(node, constants)
    if weight is None or constants.op(node) not in ("MatMul", "Gemm", "Conv"):
        return None
    if not all(constants.is_fixed(n) for k, n in enumerate(node.input) if n and k in (weight, 2)):
        return None
    side = data_input(node, weight)
    dims = graph.dims.get(node.input[side])
    axis = data_axis(node, weight, None if dims is None else len(dims))
    values = constants.value(node.input[weight])
    offset = None
    if node.op_type == "Conv":
        values = values.reshape(values.shape[:2])
    while values.ndim > 2 and values.shape[0] == 1:
        values = values[0]
    if values.ndim != 2 or axis is None or values.dtype.itemsize > 4:
        return None
    alpha = beta = 1.0
    if node.op_type == "Gemm":
        alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
        values = values if attribute(node, "transB", 0) else values.T
        if attribute(node, "transA", 0):
            return None
    elif weight == 1 and node.op_type == "MatMul":
        values = values.T
    if node.op_type != "MatMul" and len(node.input) > 2 and node.input[2]:
        bias = constants.value(node.input[2])
        along = bias.size == (bias.shape[-1] if bias.ndim else 1)
        if not along or bias.size not in (1, values.shape[0]) or bias.dtype.itemsize > 4:
            return None
        offset = np.broadcast_to(bias.reshape(-1), values.shape[:1]).astype(np.float64) * beta
    # Products of two float32 numbers are exact in float64.
    return Dense(values.astype(np.float64) * alpha, offset, side, axis)
