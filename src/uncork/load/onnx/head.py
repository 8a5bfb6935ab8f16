"""The head around one linear node of an ONNX graph: weight, scale and bias, exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from uncork.errors import UncorkError
from uncork.load.contents import Choice
from uncork.load.onnx.linear import data_axis, data_input, weight_input
from uncork.load.onnx.site import Site
from uncork.load.onnx.tensors import Constants, attribute, dequantise

# One logit a class goes in, the same logits come out, perhaps in another shape or type.
_SAME_LOGITS = {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Dropout"}


def build_head(
    path: Path, nodes: list[Any], constants: Constants, index: int, between: set[int]
) -> tuple[Choice, set[int], Site]:
    """The head of linear node `index`, which of the nodes `between` it and the output it took, and
    where it sits.

    Scales and biases that follow the node are folded in only where that is exact.
    """
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
    bias: np.ndarray | None = None
    bias_name: str | None = None
    if node.op_type == "Conv":
        if len(node.input) > 2 and node.input[2]:
            if not constants.is_constant(node.input[2]):
                raise UncorkError(f"{path}: the bias {node.input[2]!r} of the head is no constant")
            bias = _vector(path, node.input[2], constants.value(node.input[2]), len(weight))
            bias_name = constants.origin(node.input[2])
    elif node.op_type in ("QLinearMatMul", "QGemm"):
        weight, bias, bias_name = _quantised(path, node, constants, weight, weight_name)
        what = "steps of its scale" if node.op_type == "QGemm" else "numbers"
        notes.append(
            f"{weight_name} is quantised and used exactly, its inputs counted in {what}; the model "
            "also rounds the logits to 8 bits, where many classes can share first place"
        )
    elif node.op_type == "Gemm":
        weight = weight if attribute(node, "transB", 0) else weight.T
        weight = _times(path, weight_name, weight, attribute(node, "alpha", 1.0))
        if len(node.input) > 2 and node.input[2]:
            bias_name = node.input[2]
            if not constants.is_constant(bias_name):
                raise UncorkError(f"{path}: the bias {bias_name!r} of the head is no constant")
            bias = _vector(path, bias_name, constants.value(bias_name), weight.shape[0])
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

    follow = _Follower(path, nodes, constants, between, integer=node.op_type == "MatMulInteger")
    used: set[int] = set()
    value = logits = node.output[0]
    while (step := follow.next(value, weight.shape[0], has_bias=bias is not None)) is not None:
        kind, k, constant_name, constant = step
        used.add(k)
        value = nodes[k].output[0]
        if kind != "same":
            logits = value
        if kind == "scale":
            weight = _times(path, weight_name, weight, constant)
        elif kind == "divide" and bias is None:
            follow.divisor = _positive(path, nodes[k], constant) * follow.divisor
        elif kind == "bias":
            added = _vector(path, constant_name, constant, weight.shape[0])
            added = _times(path, constant_name, added, follow.divisor)
            bias = added if bias is None else _plus(path, bias, added)
            bias_name = constants.origin(constant_name)
    choice = Choice(
        np.ascontiguousarray(weight), bias, weight_name, bias_name, f"weight of a {node.op_type}",
        tuple(notes),
    )  # fmt: skip
    return choice, used, _site(nodes, constants, index, side, logits)


def _site(nodes: list[Any], constants: Constants, index: int, side: int, logits: str) -> Site:
    node = nodes[index]
    rank = None
    if node.op_type == "Conv":
        rank = len(constants.shape(node.input[side]))
    axis = data_axis(node, side, rank)
    site = Site(
        index, node.input[data_input(node, side)], axis, logits,
        axis if node.op_type == "Conv" or side == 0 else -1,
    )  # fmt: skip
    zero = node.input[2] if len(node.input) > 2 else ""
    if node.op_type == "QLinearMatMul":
        return replace(site, quantised=(node.input[1], zero))
    if node.op_type == "QGemm":
        return replace(site, in_steps=(node.input[1], zero))
    if node.op_type == "MatMulInteger":
        maker = {o: n for n in nodes for o in n.output}.get(site.input)
        if maker is not None and maker.op_type == "DynamicQuantizeLinear":
            return replace(site, dynamic=(maker.output[1], maker.output[2]))
    return site


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
        raise UncorkError(f"{path}: QGemm with a bias that is no constant, or alpha below zero")
    bias = _vector(path, node.input[6], constants.value(node.input[6]), len(matrix))
    steps = np.broadcast_to(np.asarray(scale).reshape(-1), (len(matrix),))
    return matrix, _times(path, node.input[6], bias, steps), constants.origin(node.input[6])


class _Follower:
    """Steps from the linear node towards the output while the steps can be folded in."""

    def __init__(
        self, path: Path, nodes: list[Any], constants: Constants, between: set[int], integer: bool
    ) -> None:
        self.path, self.nodes, self.constants, self.integer = path, nodes, constants, integer
        self.divisor = (
            1.0  # the logits so far are (W x)/divisor: a later bias counts that much more
        )
        self.users: dict[str, list[int]] = {}
        self.producer = {o: node for node in nodes for o in node.output if o}
        for k in sorted(between):
            for name in nodes[k].input:
                self.users.setdefault(name, []).append(k)

    def next(self, value: str, classes: int, has_bias: bool) -> tuple[str, int, str, Any] | None:
        users = self.users.get(value, [])
        if len(users) != 1:
            return None
        k = users[0]
        node = self.nodes[k]
        if node.op_type in _SAME_LOGITS and node.input[0] == value:
            return "same", k, "", None
        if node.op_type == "DequantizeLinear" and node.input[0] == value:
            scale = self.constants.value(node.input[1])  # rounded logits: the same, but for that
            return ("same", k, "", None) if scale.size == 1 else None
        if len(node.input) != 2:
            return None
        other = node.input[1] if node.input[0] == value else node.input[0]
        if self.constants.is_constant(other):
            constant = self.constants.value(other)
            if node.op_type == "Add":
                if constant.size not in (1, classes):
                    return None
                return "bias", k, other, constant
            if has_bias:
                # Scaling every logit alike changes no argmax; anything else is not a head's bias.
                if node.op_type in ("Mul", "Div") and constant.size == 1:
                    _positive(self.path, node, constant)
                    return "same", k, "", None
                return None
            if node.op_type == "Mul":
                return "scale", k, other, constant
            if node.op_type == "Div" and node.input[0] == value and constant.size == 1:
                return "divide", k, other, constant
            return None
        if node.op_type == "Mul" and self.integer and not has_bias:
            # The inputs' scale (positive, the same for every class) times the weight's.
            return "scale", k, other, self._constant_factor(other)
        return None

    def _constant_factor(self, name: str) -> np.ndarray:
        node = self.producer.get(name)
        if node is not None and node.op_type == "Mul" and len(node.input) == 2:
            for factor in node.input:
                if self.constants.is_constant(factor):
                    return self.constants.value(factor)
        return np.ones(())


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
