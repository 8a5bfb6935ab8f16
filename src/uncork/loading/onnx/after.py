"""What follows the head on the way to an output: does the largest logit stay the largest?

A value after the head either rises with the logits, class by class and alike for all of a row, or
falls, or is one number for all classes of a row; or it is something else, and then the node that
made it so is named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from uncork.domain import Unbounded
from uncork.loading.onnx.arriving.ranges import Ranges
from uncork.loading.onnx.arriving.rows import Linear
from uncork.loading.onnx.arriving.value import fresh, node_name
from uncork.loading.onnx.kinds import NAMED
from uncork.loading.onnx.shapes import Graph
from uncork.loading.onnx.tensors import attribute

_RISING = {
    "Sigmoid": 1, "Exp": 1, "Softplus": 1, "Tanh": 0, "Erf": 0, "Atan": 0, "Softsign": 0,
    "Log": 0, "Sqrt": 1,
}  # the sign of what they leave  # fmt: skip
_FROM_POSITIVE = ("Log", "Sqrt")  # rise where they are given positive numbers
_WITH_ALPHA = ("LeakyRelu", "Elu", "Celu", "Selu")
_MOVES = {
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Split", "Expand",
    "Tile",
}  # fmt: skip
_REDUCE = {
    "ReduceMax": 1, "ReduceMin": 1, "ReduceSum": 1, "ReduceMean": 1, "ReduceL2": 1, "ReduceL1": 1,
    "ReduceLogSumExp": 0, "ReduceSumSquare": 1, "ReduceProd": 1,
}  # whether positive numbers leave a positive one  # fmt: skip
_ENDS_IN_TIES = ("Relu", "Clip", "HardSigmoid", "QuantizeLinear", "Round", "Floor", "Ceil",
                 "ThresholdedRelu", "HardSwish")  # fmt: skip


@dataclass(frozen=True)
class Order:
    """How a value goes with the logits: 1 rises, −1 falls, 0 one number for all classes of a row,
    None neither. `axis` is that of the classes, counted from the end; `sign` 1 where every number
    is positive, −1 where negative. `picked` is set once a class has been picked: the node."""

    way: int | None
    axis: int | None = None
    sign: int = 0
    cause: str = ""  # the node that left the order open, or turned it round
    picked: str = ""


@dataclass(frozen=True)
class Following:
    """What to say of an output: doubts, or why it cannot be about the largest logit at all."""

    doubts: tuple[str, ...] = ()
    refused: str = ""


def follow(
    graph: Graph, between: set[int], logits: str, axis: int | None, classes: int, output: str
) -> Following:
    """The order of the classes from the logits to an output."""
    known = _Orders(graph, classes)
    known.values[logits] = Order(1, axis)
    for k in sorted(between):
        known.visit(graph.nodes[k])
    last = known.of(output)
    if last.picked:
        if last.way == -1:
            return Following(refused=(
                f"output {output!r} is the class with the smallest logit ({last.picked}), and "
                "verdicts are about the largest"
            ))  # fmt: skip
        if last.way == 1:
            return Following()
    if last.way == 1:
        return Following()
    if last.way == -1:
        return Following((
            f"what follows the head turns the order round: {last.cause}; output {output!r} is "
            "largest where the logit is smallest, and verdicts are about the largest logit",
        ))  # fmt: skip
    if last.way == 0:
        return Following((
            f"output {output!r} has one number for all classes of a row, and shows no order: "
            "verdicts are about the logits",
        ))  # fmt: skip
    return Following((
        f"what follows the head may change the order of the classes: {last.cause}; verdicts are "
        "about the head's own argmax",
    ))  # fmt: skip


def axis_after(graph: Graph, node: Any, axis: int, size: int) -> int | None:
    """Where an axis of a node's first input lies after it, whole and in order; else None."""
    name, kind = node.input[0], graph.kinds.get(node.input[0], NAMED["float32"])
    dims, after = graph.dims.get(name), graph.dims.get(node.output[0])
    whole = len(node.input) < 2 and attribute(node, "axes", None) is None
    if graph.op(node) == "Squeeze" and whole and axis == -1 and size > 1:
        return -1  # only axes of length one go
    if dims is None:
        # Rows that are last stay rows where they are last.
        kept = graph.op(node) == "Reshape" and axis == -1 and after is not None
        return -1 if kept and after and after[-1] == size else None
    if len(dims) < -axis or dims[axis] != size:
        return None
    ranges = Ranges(graph)
    ends = np.asarray(-np.inf), np.asarray(np.inf)
    rows = Linear(axis, Unbounded(), np.empty((size, 0)))
    ranges.values[name] = fresh(name, kind, dims, ends, True, rows=rows)
    ranges.visit(node)
    found = ranges.values.get(node.output[0])
    return None if found is None or found.rows is None else found.rows.axis


class _Orders:
    """The orders of the values visited so far; the nodes must come in order."""

    def __init__(self, graph: Graph, classes: int) -> None:
        self.graph, self.classes = graph, classes
        self.values: dict[str, Order] = {}

    def of(self, name: str) -> Order:
        """The order of a value; of a constant or another value what its shape shows."""
        found = self.values.get(name)
        return Order(None, cause=f"{name!r}") if found is None else found

    def visit(self, node: Any) -> None:
        op = self.graph.op(node)
        if not any(name in self.values for name in node.input):
            return
        made = self._order(op, node)
        if made.way in (None, -1) and not made.cause:
            made = replace(made, cause=f"{op} ({node_name(node)})")
        for output in node.output:
            if output:
                self.values[output] = made

    def _order(self, op: str, node: Any) -> Order:
        first = self.of(node.input[0]) if node.input else Order(None)
        if any(self.of(name).picked for name in node.input if name in self.values):
            return next(self.of(n) for n in node.input if n in self.values and self.of(n).picked)
        if op in ("Add", "Sub", "Mul", "Div", "Sum", "Max", "Min") and len(node.input) == 2:
            return self._two("Add" if op == "Sum" else op, node)
        if first.way is None:
            return first if node.input[0] in self.values else Order(None)
        rule = _KNOWN.get(op)
        if rule is not None:
            return rule(self, op, node, first)
        if op in _ENDS_IN_TIES:
            return Order(None, cause=f"{op} ({node_name(node)}), after which classes can tie")
        return Order(None)

    # Two values

    def _flat(self, name: str, other: str, axis: int | None) -> bool:
        """Whether a value is one number for all classes of a row, set against another."""
        if name in self.values and self.values[name].way == 0 and self.values[name].axis == axis:
            return True  # copied along the classes
        dims = self.graph.dims.get(name)
        constant = self.graph.constants.is_fixed(name)
        if constant:
            dims = tuple(self.graph.constants.shape(name))
        if dims is None or axis is None:
            return False
        return len(dims) < -axis or dims[axis] == 1

    def _sign(self, name: str) -> int:
        if name in self.values:
            return self.values[name].sign
        if self.graph.constants.is_fixed(name):
            values = np.asarray(self.graph.constants.value(name), dtype=np.float64)
            if values.size and np.isfinite(values).all():
                return int((values > 0).all()) - int((values < 0).all())
        return 0

    def _two(self, op: str, node: Any) -> Order:
        a, b = node.input
        orders = [self.of(name) for name in (a, b)]
        moving = [k for k in (0, 1) if node.input[k] in self.values and orders[k].way != 0]
        label = self._described(op, node)
        if any(orders[k].way is None for k in moving):
            return next(orders[k] for k in moving if orders[k].way is None)
        signs = [self._sign(name) for name in (a, b)]
        if not moving:
            flat = all(self._flat_alone(name) for name in (a, b))
            sign = 1 if op in ("Add", "Mul", "Div", "Max", "Min") and signs == [1, 1] else 0
            sign = 1 if op == "Max" and 1 in signs else sign
            return Order(0 if flat else None, sign=sign, cause="" if flat else label)
        if len(moving) == 2:
            return self._both(op, orders, signs, label)
        k = moving[0]
        value, other = orders[k], node.input[1 - k]
        if not self._flat(other, node.input[k], value.axis) or op in ("Max", "Min"):
            tie = ", after which classes can tie" if op in ("Max", "Min") else ""
            return Order(None, cause=label + tie)
        way = value.way or 0
        if op == "Add":
            return replace(value, sign=1 if signs == [1, 1] else 0)
        if op == "Sub":
            turned = k == 1
            return replace(value, way=-way if turned else way, sign=0,
                           cause=label if turned else value.cause)  # fmt: skip
        sign = signs[1 - k]
        if sign == 0 or (op == "Div" and k == 1 and value.sign == 0):
            return Order(None, cause=label)
        if op == "Div" and k == 1:  # a number over the value
            way = -way
        way *= sign
        cause = label if way == -(value.way or 0) else value.cause
        return replace(value, way=way, sign=value.sign * sign, cause=cause)

    def _flat_alone(self, name: str) -> bool:
        """Whether a value that stands beside a row's own number is one too."""
        if name in self.values:
            return self.values[name].way == 0
        return self.graph.number(name) is not None

    def _both(self, op: str, orders: list[Order], signs: list[int], label: str) -> Order:
        """Two values that both go with the logits."""
        a, b = orders
        if a.axis == b.axis and a.way == b.way:
            if op == "Add":
                return replace(a, sign=1 if signs == [1, 1] else 0)
            if op == "Mul" and signs == [1, 1]:
                return a
        return Order(None, cause=label)

    def _described(self, op: str, node: Any) -> str:
        by = ""
        for name in node.input:
            number = self.graph.number(name)
            if number is not None:
                by = f" by {number:g}" if op in ("Mul", "Div") else f" with {number:g}"
            elif name in self.graph.inputs:
                by = f" with the input {name!r}"
        return f"{op}{by} ({node_name(node)})"

    # One value

    def same(self, op: str, node: Any, value: Order) -> Order:
        return value

    def cast(self, op: str, node: Any, value: Order) -> Order:
        kind = self.graph.kinds.get(node.output[0])
        if kind is None or not kind.is_float:
            return Order(None, cause=f"{op} ({node_name(node)}), after which classes can tie")
        return value

    def dropout(self, op: str, node: Any, value: Order) -> Order:
        training = node.input[2] if len(node.input) > 2 else ""
        return value if not training or self.graph.number(training) == 0 else Order(None)

    def rising(self, op: str, node: Any, value: Order) -> Order:
        if op in _FROM_POSITIVE and value.sign != 1:
            return Order(None)
        return replace(value, sign=_RISING[op])

    def with_alpha(self, op: str, node: Any, value: Order) -> Order:
        rises = all(float(attribute(node, name, 1.0)) > 0 for name in ("alpha", "gamma"))
        return replace(value, sign=0) if rises else Order(None)

    def negated(self, op: str, node: Any, value: Order) -> Order:
        way = -(value.way or 0)
        return replace(value, way=way, sign=-value.sign, cause=f"{op} ({node_name(node)})")

    def reciprocal(self, op: str, node: Any, value: Order) -> Order:
        if value.sign == 0:
            return Order(None)
        return replace(value, way=-(value.way or 0), cause=f"{op} ({node_name(node)})")

    def power(self, op: str, node: Any, value: Order) -> Order:
        exponent = self.graph.number(node.input[1])
        if exponent is None or exponent <= 0 or value.sign != 1:
            return Order(None)
        return value

    def softmax(self, op: str, node: Any, value: Order) -> Order:
        """Divided by one number for all classes of a row, if it is over the classes."""
        if value.way == 0 or value.axis is None:
            return Order(None)
        dims = self.graph.dims.get(node.input[0])
        new = self.graph.constants.opset >= 13
        axis = int(attribute(node, "axis", -1 if new else 1))
        if axis >= 0:
            if dims is None:
                return Order(None)
            axis -= len(dims)
        over = value.axis == axis if new else value.axis >= axis
        sign = {"Softmax": 1, "LogSoftmax": -1}.get(op, 0)
        return replace(value, sign=sign) if over else Order(
            None, cause=f"{op} along another axis ({node_name(node)})")  # fmt: skip

    def moved(self, op: str, node: Any, value: Order) -> Order:
        if value.way == 0 and value.axis is None:
            if op == "Expand":
                return self._expanded(node, value)
            return value
        if value.axis is None:
            return Order(None)
        after = axis_after(self.graph, node, value.axis, self.classes)
        return Order(None) if after is None else replace(value, axis=after)

    def _expanded(self, node: Any, value: Order) -> Order:
        """Copies of a row's own number along what may be the classes."""
        dims = self.graph.dims.get(node.input[0])
        after = self.graph.dims.get(node.output[0])
        if dims is None or after is None or len(dims) != len(after):
            return Order(None)
        changed = [k - len(after) for k in range(len(after)) if dims[k] != after[k]]
        if changed and (len(changed) > 1 or dims[changed[0]] != 1):
            return value  # by its shape it is not one number a row any more, or still is
        return replace(value, axis=changed[0]) if changed else value

    def reduced(self, op: str, node: Any, value: Order) -> Order:
        dims = self.graph.dims.get(node.input[0])
        given = self.graph.integers(node, "axes", 1)
        if given is None and len(node.input) > 1 and node.input[1]:
            return Order(None)
        if not given and attribute(node, "noop_with_empty_axes", 0):
            return Order(None)
        if value.axis is None or not given:
            over = not given
        elif all(axis < 0 for axis in given):
            over = value.axis in given
        else:
            over = dims is not None and value.axis in [
                axis if axis < 0 else axis - len(dims) for axis in given
            ]
        sign = 1 if _REDUCE[op] and value.sign == 1 else 0
        if op == "ReduceL2" and value.sign:
            sign = 1
        return Order(0, sign=sign) if over or value.way == 0 else Order(None)

    def picks(self, op: str, node: Any, value: Order) -> Order:
        """ArgMax, ArgMin, TopK: the class itself."""
        dims = self.graph.dims.get(node.input[0])
        axis = int(attribute(node, "axis", -1 if op == "TopK" else 0))
        if axis >= 0:
            axis = axis - len(dims) if dims is not None else 0
        if axis != value.axis or value.way == 0:
            return Order(None, cause=f"{op} along another axis ({node_name(node)})")
        least = op == "ArgMin" or (op == "TopK" and not attribute(node, "largest", 1))
        way = -(value.way or 0) if least else value.way
        return replace(value, way=way, picked=f"{op} ({node_name(node)})")

    def dequantised(self, op: str, node: Any, value: Order) -> Order:
        scale = self.graph.number(node.input[1])
        return value if scale is not None and scale > 0 else Order(None)


_KNOWN: dict[str, Callable[[_Orders, str, Any, Order], Order]] = {
    "Identity": _Orders.same, "Cast": _Orders.cast, "CastLike": _Orders.cast,
    "Dropout": _Orders.dropout, "Neg": _Orders.negated, "Reciprocal": _Orders.reciprocal,
    "Pow": _Orders.power, "DequantizeLinear": _Orders.dequantised,
    **dict.fromkeys(_RISING, _Orders.rising), **dict.fromkeys(_WITH_ALPHA, _Orders.with_alpha),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _Orders.softmax),
    **dict.fromkeys(_MOVES, _Orders.moved), **dict.fromkeys(_REDUCE, _Orders.reduced),
    **dict.fromkeys(("ArgMax", "ArgMin", "TopK"), _Orders.picks),
}  # fmt: skip
