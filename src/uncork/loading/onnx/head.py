"""The head around one linear node of an ONNX graph: weight, scale and bias, exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.contents import Choice
from uncork.loading.onnx.after import axis_after
from uncork.loading.onnx.arriving.value import node_name
from uncork.loading.onnx.linear import HeadNode, data_axis, data_input, weight_input
from uncork.loading.onnx.shapes import Graph
from uncork.loading.onnx.tensors import Constants, attribute, dequantise

# One logit a class goes in, the same logits come out, perhaps in another shape.
_SAME_LOGITS = {"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Dropout"}


def build_head(graph: Graph, index: int, between: set[int]) -> tuple[Choice, set[int], HeadNode]:
    """The head of linear node `index`, which of the nodes `between` it and the output it took, and
    where it sits.

    Scales and biases that follow the node are folded in only where that is exact.
    """
    path, nodes, constants = graph.path, graph.nodes, graph.constants
    node = nodes[index]
    side = weight_input(node, constants)
    assert side is not None
    name = node.input[side]
    weight_name = constants.origin(name)
    weight = constants.value(name)
    if node.op_type == "Conv":  # 1×1: the same matrix at every position
        weight = weight.reshape(weight.shape[:2])
    weight = _matrix(path, weight_name, weight)
    notes: list[str] = []
    doubts: tuple[str, ...] = ()
    bias: np.ndarray | None = None
    bias_name: str | None = None
    if node.op_type == "Conv":
        if len(node.input) > 2 and node.input[2]:
            if not constants.is_constant(node.input[2]):
                raise UncorkError(f"{path}: the bias {node.input[2]!r} is not a constant")
            bias = _vector(path, node.input[2], constants.value(node.input[2]), len(weight))
            bias_name = constants.origin(node.input[2])
    elif node.op_type in ("QLinearMatMul", "QGemm"):
        weight, bias, bias_name = _quantised(path, node, constants, weight, weight_name)
        what = "steps of its scale" if node.op_type == "QGemm" else "numbers"
        notes.append(f"{weight_name} is quantised and used exactly, its inputs counted in {what}")
        if node.op_type == "QLinearMatMul" or (len(node.input) > 7 and node.input[7]):
            doubts = ("the model rounds the logits to 8 bits, where many classes can share first "
                      f"place: {node.op_type} ({node_name(node)})",)  # fmt: skip
    elif node.op_type == "Gemm":
        weight = weight if attribute(node, "transB", 0) else weight.T
        weight = _times(path, weight_name, weight, attribute(node, "alpha", 1.0))
        if len(node.input) > 2 and node.input[2]:
            bias_name = node.input[2]
            if not constants.is_constant(bias_name):
                raise UncorkError(f"{path}: the bias {bias_name!r} of the head is not a constant")
            added = constants.value(bias_name)
            if added.ndim == 2 and added.shape[1] == 1 < added.shape[0]:
                bias_name = None  # one number a row: alike for all its classes
            else:
                bias = _vector(path, bias_name, added, weight.shape[0])
                bias = _times(path, bias_name, bias, attribute(node, "beta", 1.0))
                bias_name = constants.origin(bias_name)
    elif node.op_type == "MatMulInteger":
        zero = None
        if len(node.input) > 3 and node.input[3]:
            zero = constants.value(node.input[3])
        quantised, weight = weight, dequantise(path, weight_name, weight, zero, np.float32(1)).T
        notes.append(
            f"{weight_name} is {quantised.dtype} and used exactly, as (q − zero point) × scale; "
            "the model also rounds the head's inputs to 8 bits, which verdicts do not count on"
        )
    elif side == 1:
        weight = weight.T

    logits = node.output[0]
    head_node = _head_node(graph, index, side, logits)
    follow = _Follower(graph, between, head_node, weight.shape[0])
    used: set[int] = set()
    value = logits
    while (step := follow.next(value, has_bias=bias is not None)) is not None:
        kind, k, constant_name, constant = step
        used.add(k)
        value = nodes[k].output[0]
        if kind != "same":
            logits = value
            head_node = replace(head_node, class_axis=follow.axis)
        if kind == "scale":
            weight = _times(path, weight_name, weight, constant)
        elif kind == "divide" and bias is None:
            follow.divisor = _positive(path, nodes[k], constant) * follow.divisor
        elif kind == "bias":
            added = np.broadcast_to(np.asarray(constant).reshape(-1), (weight.shape[0],))
            added = _times(path, constant_name, added, follow.divisor)
            bias = added if bias is None else _plus(path, bias, added)
            bias_name = constants.origin(constant_name)
    overridable = sorted({weight_name, bias_name or ""} & constants.overridable)
    if overridable:
        notes.append(
            f"{' and '.join(overridable)} can be overridden when the model is run: verdicts are "
            "about what is stored"
        )
    choice = Choice(
        np.ascontiguousarray(weight), bias, weight_name, bias_name, f"weight of a {node.op_type}",
        tuple(notes), doubts=doubts,
    )  # fmt: skip
    return choice, used, replace(head_node, logits=logits)


def _head_node(graph: Graph, index: int, side: int, logits: str) -> HeadNode:
    node, constants = graph.nodes[index], graph.constants
    rank = None
    if node.op_type == "Conv":
        rank = len(constants.shape(node.input[side]))
    axis = data_axis(node, side, rank)
    head_node = HeadNode(
        index, node.input[data_input(node, side)], axis, logits,
        axis if node.op_type == "Conv" or side == 0 else -1,
    )  # fmt: skip
    zero = node.input[2] if len(node.input) > 2 else ""
    if node.op_type == "QLinearMatMul":
        return replace(head_node, quantised=(node.input[1], zero))
    if node.op_type == "QGemm":
        return replace(head_node, in_steps=(node.input[1], zero))
    if node.op_type == "MatMulInteger":
        maker = graph.node_of(head_node.input)
        if maker is not None and graph.op(maker) == "DynamicQuantizeLinear":
            q, scale, point = maker.output
            if (q, point) == (head_node.input, zero):
                return replace(head_node, dynamic=(scale, point))
        return replace(head_node, in_steps=("", zero))
    return head_node


def _quantised(
    path: Path, node: Any, constants: Constants, weight: np.ndarray, name: str
) -> tuple[np.ndarray, np.ndarray | None, str | None]:
    """Weight and bias of QLinearMatMul and QGemm: (q − zero point)·scale, exactly.

    The bias of QGemm is counted in steps of both scales. So are its logits here, but for the
    weight's: that makes x the input's integers less their zero point, and nothing is rounded.
    """
    scale, zero = constants.value(node.input[4]), constants.value(node.input[5])
    turned = node.op_type == "QGemm" and attribute(node, "transB", 0)
    if turned:
        weight = weight.T
    matrix = dequantise(path, name, weight, zero, scale).T
    if node.op_type != "QGemm" or len(node.input) < 7 or not node.input[6]:
        return matrix, None, None
    if attribute(node, "alpha", 1.0) <= 0 or not constants.is_constant(node.input[6]):
        raise UncorkError(f"{path}: QGemm with a bias that is not a constant, or alpha below zero")
    bias = _vector(path, node.input[6], constants.value(node.input[6]), len(matrix))
    steps = np.broadcast_to(np.asarray(scale).reshape(-1), (len(matrix),))
    return matrix, _times(path, node.input[6], bias, steps), constants.origin(node.input[6])


class _Follower:
    """Steps from the linear node towards the output while the steps can be folded in."""

    def __init__(self, graph: Graph, between: set[int], head_node: HeadNode, classes: int) -> None:
        self.graph, self.path, self.classes = graph, graph.path, classes
        self.head_node, self.axis = head_node, head_node.class_axis
        # Logits counted in steps of the inputs' scale: a bias in numbers is not one of theirs.
        self.in_numbers = head_node.dynamic is None and not (
            head_node.in_steps and head_node.in_steps[0]
        )
        self.divisor = 1.0  # logits so far are (W x)/divisor: a later bias counts that much more
        self.users: dict[str, list[int]] = {}
        for k in sorted(between):
            for name in graph.nodes[k].input:
                self.users.setdefault(name, []).append(k)

    def next(self, value: str, has_bias: bool) -> tuple[str, int, str, Any] | None:
        users = self.users.get(value, [])
        if len(users) != 1 or self.axis is None:
            return None
        k = users[0]
        node = self.graph.nodes[k]
        op = self.graph.op(node)
        if node.input[0] == value and self._keeps(op, node):
            return "same", k, "", None
        if len(node.input) != 2 or node.input[0] == node.input[1]:
            return None
        other = node.input[1] if node.input[0] == value else node.input[0]
        if self.graph.constants.is_constant(other):
            return self._constant(op, node, k, value, other, has_bias)
        if op == "Mul" and self.head_node.dynamic is not None and not has_bias:
            # The inputs' scale (positive, the same for every class) times the weight's.
            factor = self._weight_scale(other)
            if factor is not None and not self.in_numbers:
                self.in_numbers = True
                return "scale", k, other, factor
        return None

    def _keeps(self, op: str, node: Any) -> bool:
        """Whether the same logits come out; the axis of the classes goes where they go."""
        if op == "Cast":
            kind = self.graph.kinds.get(node.output[0])
            return kind is not None and kind.is_float
        if op == "DequantizeLinear":  # rounded logits: the same, but for that
            scale = self.graph.constants.value(node.input[1])
            return scale.size == 1 and bool((scale > 0).all())
        if op not in _SAME_LOGITS:
            return False
        if op == "Identity" or (op == "Dropout" and len(node.input) < 3):
            return True
        assert self.axis is not None
        after = axis_after(self.graph, node, self.axis, self.classes)
        if after is None:
            return False
        self.axis = after
        return True

    def _constant(
        self, op: str, node: Any, k: int, value: str, other: str, has_bias: bool
    ) -> tuple[str, int, str, Any] | None:
        constant = self.graph.constants.value(other)
        if not self._fits(constant) or (op == "Add" and not self.in_numbers):
            return None
        if op == "Add":
            return "bias", k, other, constant
        if has_bias:
            # Scaling every logit alike changes no argmax; anything else is not a head's bias.
            first = op == "Mul" or (op == "Div" and node.input[0] == value)
            if first and constant.size == 1:
                number = _positive(self.path, node, constant)
                self._stretched(number if op == "Div" else 1 / number)
                return "same", k, "", None
            return None
        if op == "Mul":
            return "scale", k, other, constant
        if op == "Div" and node.input[0] == value and constant.size == 1:
            return "divide", k, other, constant
        return None

    def _stretched(self, divisor: float) -> None:
        """A scale after a bias: another bias would count that much more, exactly or not at all."""
        self.divisor *= divisor
        self.in_numbers &= float(np.abs(np.frexp(divisor)[0])) == 0.5

    def _fits(self, constant: np.ndarray) -> bool:
        """Whether a constant is one number for all, or one a class along the classes' axis."""
        axis = self.axis
        assert axis is not None
        if constant.size == 1:
            return True
        along = constant.ndim >= -axis and constant.shape[axis] == self.classes
        return along and constant.size == self.classes

    def _weight_scale(self, name: str) -> np.ndarray | None:
        """The constant in the inputs' scale times a constant; None where it is not that."""
        assert self.head_node.dynamic is not None
        scale = self.head_node.dynamic[0]
        if name == scale:
            return np.ones(())
        node = self.graph.node_of(name)
        if node is None or self.graph.op(node) != "Mul" or len(node.input) != 2:
            return None
        for mine, factor in (node.input, node.input[::-1]):
            if mine == scale and self.graph.constants.is_constant(factor):
                found = self.graph.constants.value(factor)
                return found if self._fits(found) else None
        return None


def _matrix(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    while values.ndim > 2 and values.shape[0] == 1:
        values = values[0]
    if values.ndim != 2:
        raise UncorkError(
            f"{path}: the last linear layer's weight {name!r} has shape {list(values.shape)}; a "
            "head's has two dimensions: name another with --weight"
        )
    return values


def _vector(path: Path, name: str, values: np.ndarray, classes: int) -> np.ndarray:
    if values.size == 1:
        return np.full(classes, values.reshape(-1)[0])
    if values.size != classes or max(values.shape) != classes:
        raise UncorkError(
            f"{path}: bias {name!r} has shape {list(values.shape)} but there are {classes} classes"
        )
    return values.reshape(-1)


def _positive(path: Path, node: Any, constant: np.ndarray) -> float:
    number = float(np.asarray(constant).reshape(-1)[0])
    if not number > 0 or not np.isfinite(number):
        raise UncorkError(
            f"{path}: the logits meet {node.op_type} by {number:g}, which does not keep their order"
        )
    return number


def _times(path: Path, name: str, values: np.ndarray, factor: Any) -> np.ndarray:
    """values × factor with no rounding: in float64, where up to 29 bits × 24 bits are exact.

    `factor` is a number, or one number a class.
    """
    factor = np.asarray(factor)
    if factor.size > 1:
        factor = factor.reshape(-1)
        if factor.size != len(values):
            raise UncorkError(
                f"{path}: {name!r} is scaled by {factor.size} numbers for {len(values)} classes"
            )
        factor = factor.reshape((-1,) + (1,) * (values.ndim - 1))
    else:
        factor = factor.reshape(())
    if (factor == 1).all():
        return values
    wide, factor = np.asarray(values, dtype=np.float64), np.asarray(factor, dtype=np.float64)
    product = np.asarray(wide * factor)
    narrow = _bits(wide) + _bits(factor) <= 53
    if not narrow or not np.isfinite(product).all() or _underflows(product, wide, factor):
        raise UncorkError(
            f"{path}: {name!r} times its scale is not exact in float64: export the model with the "
            "scale already in the weight"
        )
    return product


def _bits(values: np.ndarray) -> int:
    """How many bits the widest significand takes."""
    mantissa, _ = np.frexp(values[np.isfinite(values)])
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    whole = whole[whole > 0]
    if not whole.size:
        return 0
    # The lowest set bit of all of them together is the last that any needs.
    together = int(np.bitwise_or.reduce(whole))
    return 53 - ((together & -together).bit_length() - 1)


def _underflows(product: np.ndarray, wide: np.ndarray, factor: np.ndarray) -> bool:
    tiny = np.abs(product) < np.finfo(np.float64).tiny
    return bool((tiny & (wide != 0) & (factor != 0)).any())


def _plus(path: Path, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """first + second, refused where float64 would round."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    total = a + b
    back = total - a
    if ((a - (total - back)) + (b - back)).any():  # the rounding error, exactly (Knuth's TwoSum)
        raise UncorkError(
            f"{path}: the head has two biases whose sum is not exact in float64: export the model "
            "with one"
        )
    return total
