"""What arrives at the last layer of a TensorFlow Lite model: one rule a builtin operator.

Integers with a scale need no rule: whatever computed them, they are no more than their type holds.
For floats the operator's own limits count, and what it does with those of its inputs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

from uncork.core.text import printable
from uncork.loading.arriving.activation_ranges import COMPARED, MORE_RANGES, Sides, computed
from uncork.loading.arriving.known import Known, Stopped, found_by
from uncork.loading.contents import FoundDomain, UnknownDomain
from uncork.loading.tflite.graph import Graph, Operator, TensorInfo

INTEGERS = {3: (0, 255), 7: (-32768, 32767), 9: (-128, 127)}  # uint8, int16, int8
_FLOAT32 = 0
_CLIPPED: dict[str, Sides] = {"relu": (0.0, math.inf), "relu6": (0.0, 6.0),
                              "relu_n1_to_1": (-1.0, 1.0)}  # fmt: skip
_MOST_OPERATORS = 256  # looked at on the way back
_MOST_INPUTS = 64


def domain_before(graph: Graph, head: Operator, rounded: bool) -> FoundDomain | UnknownDomain:
    """The inputs that can arrive at a linear layer; `rounded`, where it rounds them to 8 bits."""

    def walk() -> Known:
        known = _Walk(graph).value(head.inputs[0])
        if rounded:
            left_out = "the run-time's rounding of the head's inputs to 8 bits is left out"
            known = replace(known, assumed=(*known.assumed, left_out))
        return known

    return found_by(walk)


class _Walk:
    """One walk back from the head."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.seen = 0

    def value(self, tensor: int) -> Known:
        """What is known of a tensor."""
        self.seen += 1
        if self.seen > _MOST_OPERATORS:
            raise Stopped(f"{_MOST_OPERATORS} operators before the head were looked at")
        info = self.graph.tensors[tensor] if tensor >= 0 else None
        if info is None or info.data is not None:
            raise Stopped("the head is given a constant, or nothing")
        if info.type in INTEGERS:
            return _integers(info)
        operator = self.graph.producer(tensor)
        if operator is None:
            raise Stopped("the model's own input arrives, which can be anything")
        if info.type != _FLOAT32 or operator.outputs != (tensor,):
            raise Stopped(f"{operator.kind} gives a value of a type that is not known")
        if operator.activation in _CLIPPED:
            what = f"{operator.kind} with {operator.activation}"
            return Known(what, _CLIPPED[operator.activation])
        rule = _RULES.get(operator.kind)
        if rule is None or operator.activation != "none" or not operator.inputs:
            raise Stopped(f"{operator.kind} precedes the head, and what it gives is not bounded")
        return rule(self, operator)

    def passed(self, operator: Operator) -> Known:
        return self.value(operator.inputs[0]).rearranged(operator.kind)

    def mean(self, operator: Operator) -> Known:
        return self.value(operator.inputs[0]).averaged(operator.kind, None)

    def dequantised(self, operator: Operator) -> Known:
        """(stored − zero point) × scale, rounded once."""
        known = self.value(operator.inputs[0]).passed(operator.kind)
        return replace(known, sides=computed(known.sides or (0.0, 0.0), "float32"))

    def joined(self, operator: Operator) -> Known:
        if len(operator.inputs) > _MOST_INPUTS:
            raise Stopped(f"{operator.kind} joins {len(operator.inputs)} values")
        parts = [self.value(part) for part in operator.inputs]
        known = functools.reduce(lambda a, b: a.hull(b, operator.kind), parts)
        return replace(known, what=operator.kind, through=())

    def product(self, operator: Operator) -> Known:
        """x · sigmoid(x), as converters write SiLU."""
        pairs = (operator.inputs, operator.inputs[::-1]) if len(operator.inputs) == 2 else ()
        for x, gate in pairs:
            other = self.graph.producer(gate)
            gated = other is not None and other.kind == "LOGISTIC" and other.inputs == (x,)
            if gated and self.graph.tensors[gate].type == _FLOAT32:
                return Known("x·sigmoid(x)", computed(MORE_RANGES["silu"], "float32"))
        raise Stopped("MUL precedes the head, and what it gives is not bounded")


def _function(name: str, walk: _Walk, operator: Operator) -> Known:
    sides = MORE_RANGES[name]
    return Known(operator.kind, sides if name in COMPARED else computed(sides, "float32"))


def _clipped(name: str, walk: _Walk, operator: Operator) -> Known:
    return Known(operator.kind, _CLIPPED[name])


def _integers(info: TensorInfo) -> Known:
    scales = info.quantisation
    least, most = INTEGERS[info.type]
    name = printable(info.name)[:80]
    if scales is None or scales.scales.size != 1:
        raise Stopped(f"the integers of {name!r} have no scale of their own")
    scale, zero = float(scales.scales[0]), int(scales.zeros[0])
    if not (scale > 0 and math.isfinite(scale)) or not least <= zero <= most:
        raise Stopped(f"the integers of {name!r} have scale {scale:g} and zero point {zero}")
    what = f"{info.dtype} with scale {scale:g} and zero point {zero}"
    # At most 17 bits times float32's 24: exact in float64.
    return Known(what, ((least - zero) * scale, (most - zero) * scale))


_RULES: dict[str, Callable[[_Walk, Operator], Known]] = {
    **{kind: functools.partial(_function, name) for kind, name in {
        "RELU": "relu", "RELU6": "relu6", "TANH": "tanh", "LOGISTIC": "sigmoid",
        "SOFTMAX": "softmax", "LOG_SOFTMAX": "log_softmax", "HARD_SWISH": "hardswish",
        "GELU": "gelu_new",  # either form: the wider range
    }.items()},
    "RELU_N1_TO_1": functools.partial(_clipped, "relu_n1_to_1"),
    "RELU_0_TO_1": lambda walk, operator: Known(operator.kind, (0.0, 1.0)),
    "ELU": lambda walk, operator: Known(operator.kind, computed((-1.0, math.inf), "float32")),
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "STRIDED_SLICE", "SLICE",
                     "GATHER", "MAX_POOL_2D", "REDUCE_MAX"), _Walk.passed),
    **dict.fromkeys(("MEAN", "AVERAGE_POOL_2D"), _Walk.mean),
    "DEQUANTIZE": _Walk.dequantised, "CONCATENATION": _Walk.joined, "MUL": _Walk.product,
}  # fmt: skip
