"""What the ops of an ONNX graph do to ranges: one small method for each kind of op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from uncork.load.onnx.functions import BINARY, RISING, Expression, combine, spelled_out
from uncork.load.onnx.graph import Graph, one_axis
from uncork.load.onnx.intervals import Arithmetic
from uncork.load.onnx.layers import (
    LINEAR,
    POOLS,
    RECURRENT,
    batch_norm,
    linear,
    pool,
    recurrent,
    reduce,
    softmax,
    zeros,
)
from uncork.load.onnx.norms import Norm, norm_by_name, norm_spelled_out
from uncork.load.onnx.quantised import dequantised, dynamically_quantised, quantised
from uncork.load.onnx.ranges import (
    Linear,
    Value,
    binary,
    fresh,
    fresh_from,
    joined,
    node_name,
    normed,
    product_of_terms,
    unary,
    unknown,
    with_number,
)
from uncork.load.onnx.shape_ops import SHAPE_OPS, moved
from uncork.load.onnx.tensors import attribute, attribute_text

_MOST_SEARCHES = 32  # branch and bound takes up to half a second each
NORMS = (
    "LayerNormalization", "SkipLayerNormalization", "SimplifiedLayerNormalization",
    "RMSNormalization", "SkipSimplifiedLayerNormalization", "LpNormalization",
)  # fmt: skip
_SELU = (1.6732631921768188, 1.0507010221481323)
_DEFAULTS: dict[str, tuple[tuple[str, float], ...]] = {
    "LeakyRelu": (("alpha", 0.01),), "Elu": (("alpha", 1.0),), "Celu": (("alpha", 1.0),),
    "Selu": (("alpha", _SELU[0]), ("gamma", _SELU[1])),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)), "ThresholdedRelu": (("alpha", 1.0),),
}  # fmt: skip


class Ranges:
    """The values of the nodes asked for so far, by name; the nodes must come in order."""

    def __init__(self, graph: Graph, arithmetic: Arithmetic) -> None:
        self.graph, self.arithmetic = graph, arithmetic
        self.values: dict[str, Value] = {}
        self.notes: list[str] = []
        self.searches = _MOST_SEARCHES

    def of(self, name: str) -> Value:
        """What is known of a value; constants are known exactly."""
        found = self.values.get(name)
        if found is not None:
            return found
        if name and self.graph.constants.is_constant(name):
            return self._constant(name)
        return unknown(name)

    def visit(self, node: Any) -> None:
        """Work out the range of a node's (first) output, and of others where they are alike."""
        handler = _HANDLERS.get(node.op_type)
        value = handler(self, node) if handler is not None else None
        if value is None:
            value = unknown(node.output[0])
        self.values[node.output[0]] = value
        if node.op_type in ("Split", *RECURRENT):
            for output in node.output[1:2] if node.op_type in RECURRENT else node.output[1:]:
                if output:
                    self.values[output] = fresh_from(value, output)

    def _constant(self, name: str) -> Value:
        array = self.graph.constants.value(name)
        if array.dtype.kind not in "fiuV" or not array.size:
            return unknown(name)
        line = one_axis(array)
        if line is None:
            wide = np.asarray(array, dtype=np.float64)
            return fresh("", (wide.min(), wide.max()))
        return fresh("", (line[0], line[0]), axis=line[1])

    def is_constant(self, name: str) -> bool:
        return bool(name) and self.graph.constants.is_constant(name)

    # Element by element

    def same(self, node: Any) -> Value:
        value = self.of(node.input[0])
        return value if node.op_type == "Identity" else value.through(node.op_type)

    def one(self, node: Any) -> Value:
        op = node.op_type
        numbers = tuple(float(attribute(node, k, v)) for k, v in _DEFAULTS.get(op, ()))
        label = f"{op} ({node_name(node)})"
        return unary(self.arithmetic, op, self.of(node.input[0]), node.output[0], label, numbers)

    def clip(self, node: Any) -> Value | None:
        ends = []
        for place, name, default in ((1, "min", -np.inf), (2, "max", np.inf)):
            if len(node.input) > place and node.input[place]:
                number = self.graph.number(node.input[place])
                if number is None:
                    return None
                ends.append(number)
            else:
                ends.append(float(attribute(node, name, default)))
        label = f"Clip ({node_name(node)})"
        if not ends[0] <= ends[1]:
            return None
        value = self.of(node.input[0])
        return unary(self.arithmetic, "Clip", value, node.output[0], label, (ends[0], ends[1]))

    def prelu(self, node: Any) -> Value | None:
        slope, value = self.of(node.input[1]), self.of(node.input[0])
        number = self.graph.number(node.input[1])
        label = f"PRelu ({node_name(node)})"
        if number is not None:
            return unary(self.arithmetic, "PRelu", value, node.output[0], label, (number,))
        if slope.hull[0] >= 0 and value.hull[0] >= 0:
            return value
        return None

    def power(self, node: Any) -> Value | None:
        exponent = self.graph.number(node.input[1])
        if exponent is None:
            return None
        label = f"Pow ({node_name(node)})"
        return unary(
            self.arithmetic, "Pow", self.of(node.input[0]), node.output[0], label, (exponent,)
        )

    def gated(self, node: Any) -> Value | None:
        """GELU, SiLU, Mish and HardSwish as ops of their own."""
        op, value = node.op_type, self.of(node.input[0])
        if self.searches <= 0:
            return None
        self.searches -= 1
        if op == "BiasGelu" and len(node.input) > 1:
            bias = self.of(node.input[1])
            value = binary(self.arithmetic, "Add", value, bias, node.output[0], "")
        numbers: tuple[float, ...] = ()
        if op == "FastGelu" or (op == "Gelu" and attribute_text(node, "approximate") == "tanh"):
            numbers = (1.0,)
        if op == "FastGelu" and len(node.input) > 1 and node.input[1]:
            bias = self.of(node.input[1])
            value = binary(self.arithmetic, "Add", value, bias, node.output[0], "")
        if op in ("Swish", "QuickGelu"):
            numbers = (float(attribute(node, "alpha", 1.702 if op == "QuickGelu" else 1.0)),)
        kind = {"FastGelu": "Gelu", "BiasGelu": "Gelu", "QuickGelu": "Swish"}.get(op, op)
        # A function of its own: it starts from a value of its own.
        start = fresh(f"{node.output[0]} of", value.bounds, axis=value.axis, stretch=value.stretch)
        free = replace(
            start, lower=np.full_like(start.lower, -np.inf), upper=np.full_like(start.upper, np.inf)
        )
        term = spelled_out(kind, start.expression, numbers)
        return product_of_terms(
            self.arithmetic, free, term, node.output[0], f"{op} ({node_name(node)})"
        )

    def two(self, node: Any) -> Value | None:
        """Add, Sub, Mul, Div, Max, Min."""
        if node.op_type in ("Mul", "Div"):
            norm = norm_spelled_out(self.graph, node)
            if norm is not None:
                return self._normed(node, norm, "spelled out, ending in " + node_name(node))
        if node.op_type in ("Max", "Min", "Sum") and len(node.input) != 2:
            return self._many(node)
        op = "Add" if node.op_type == "Sum" else node.op_type
        a, b = node.input[0], node.input[1]
        if self.is_constant(a) or self.is_constant(b):
            swapped = self.is_constant(a)
            return self._with_constant(node, op, b if swapped else a, a if swapped else b, swapped)
        left, right = self.of(a), self.of(b)
        name = node.output[0]
        together = left.root == right.root
        if together:
            term = combine(op, left.expression, right.expression)
            label = f"{_activation(term)} ({node_name(node)})"
        elif left.known and right.known:
            label = f"{left.label} {_SIGN[op]} {right.label}"
        else:
            label = f"{op} ({node_name(node)})"
        search = together and self.searches > 0
        self.searches -= search
        return binary(self.arithmetic, op, left, right, name, label, search)

    def _many(self, node: Any) -> Value | None:
        op = "Add" if node.op_type == "Sum" else node.op_type
        if not node.input or len(node.input) > 16:
            return None
        total = self.of(node.input[0])
        for name in node.input[1:]:
            label = f"{node.op_type} ({node_name(node)})"
            total = binary(self.arithmetic, op, total, self.of(name), node.output[0], label)
        return total

    def _with_constant(self, node: Any, op: str, name: str, constant: str, swapped: bool) -> Value:
        value, line = self.of(name), one_axis(self.graph.constants.value(constant))
        rows = self._affine_rows(value, op, line, swapped)
        if line is not None and line[1] is None:
            number = float(line[0])
            found = with_number(self.arithmetic, op, value, number, node.output[0], swapped)
        else:
            fixed = self._constant(constant)
            pair = (fixed, value) if swapped else (value, fixed)
            found = binary(self.arithmetic, op, *pair, node.output[0], value.label)
            found = replace(found, trail=value.trail)
        if rows is not None:
            found = replace(found, rows=rows, axis=value.axis)
            bounds = rows.bounds(self.arithmetic) if isinstance(rows, Norm) else None
            if bounds is not None:  # a gain shows how many features there are
                found = fresh(node.output[0], bounds, axis=value.axis, rows=rows,
                              label=value.label, trail=value.trail)  # fmt: skip
        plain = line is not None and line[1] is None and _is_one(op, float(line[0]))
        return found if plain or rows is not None else found.through(f"{op} by a constant")

    def _affine_rows(
        self, value: Value, op: str, line: tuple[np.ndarray, int | None] | None, swapped: bool
    ) -> Norm | Linear | None:
        """The rows after a constant was added to or multiplied with them, feature by feature."""
        if value.rows is None or line is None or line[1] not in (None, value.axis):
            return None
        number = line[0]
        size = value.rows.size if isinstance(value.rows, Norm) else len(value.rows.matrix)
        if number.ndim and size is not None and number.size != size:
            return None
        if op == "Add":
            return value.rows.shifted(number)
        if op == "Sub":
            rows = value.rows.scaled(np.asarray(-1.0)) if swapped else value.rows
            return rows.shifted(number if swapped else -number)
        if op == "Mul" or (op == "Div" and not swapped):
            if op == "Div":
                mantissa, _ = np.frexp(number)
                if not (np.abs(mantissa) == 0.5).all():  # only powers of two divide exactly
                    return None
                number = 1 / number
            return value.rows.scaled(number)
        return None

    # Rows

    def norm(self, node: Any) -> Value | None:
        norm = norm_by_name(self.graph, node)
        return None if norm is None else self._normed(node, norm, node_name(node))

    def _normed(self, node: Any, norm: Norm, place: str) -> Value:
        kind = {"layer": "LayerNorm", "rms": "RMSNorm", "unit": "division by the length"}
        if norm.cancels:
            self.notes.append(
                "the variance is computed as E[x²] − E[x]², which in floats can be too small by "
                "far more than one rounding"
            )
        return normed(node.output[0], norm, self.arithmetic, f"{kind[norm.kind]} ({place})")

    def where(self, node: Any) -> Value:
        return joined(self.of(node.input[1]), self.of(node.input[2]), node.output[0])


_SIGN = {"Add": "+", "Sub": "−", "Mul": "×", "Div": "÷", "Max": "or", "Min": "or"}


def _is_one(op: str, number: float) -> bool:
    return number == 1 if op in ("Mul", "Div") else number == 0


def _activation(term: Expression) -> str:
    """What people call a product of x and something of x."""
    ops = term.operations()
    if "Softplus" in ops:
        return "Mish"
    if ops & {"Erf", "OnePlusErf"}:
        return "GELU"
    if ops & {"Tanh", "OnePlusTanh"} and "Sigmoid" not in ops:
        return "GELU by tanh"
    if "Sigmoid" in ops:
        return "SiLU"
    if ops & {"HardSigmoid", "Clip"}:
        return "HardSwish"
    return "a function of one value"


_HANDLERS: dict[str, Callable[[Ranges, Any], Value | None]] = {
    **dict.fromkeys(("Identity", "Cast", "CastLike", "Dropout"), Ranges.same),
    **dict.fromkeys((*RISING, *_DEFAULTS, "Relu", "Neg", "Abs", "Reciprocal"), Ranges.one),
    **dict.fromkeys(("Gelu", "FastGelu", "BiasGelu", "QuickGelu", "Swish", "Mish", "HardSwish"),
                    Ranges.gated),
    **dict.fromkeys((*BINARY, "Sum"), Ranges.two),
    **dict.fromkeys(NORMS, Ranges.norm),
    **dict.fromkeys(LINEAR, linear),
    **dict.fromkeys(("Softmax", "Hardmax"), softmax),
    **dict.fromkeys(RECURRENT, recurrent),
    **dict.fromkeys(POOLS, pool),
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin"), reduce),
    **dict.fromkeys(SHAPE_OPS, moved),
    "Clip": Ranges.clip, "PRelu": Ranges.prelu, "Pow": Ranges.power, "Where": Ranges.where,
    "BatchNormalization": batch_norm, "ConstantOfShape": zeros,
    "QuantizeLinear": quantised, "DequantizeLinear": dequantised,
    "DynamicQuantizeLinear": dynamically_quantised,
}  # fmt: skip
KNOWN_OPS = frozenset(_HANDLERS)
