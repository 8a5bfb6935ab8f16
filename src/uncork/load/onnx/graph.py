"""What can be said of the values of an ONNX graph without running it: makers, ranks, constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from uncork.errors import UncorkError
from uncork.load.onnx.tensors import Constants, attribute

_MOST_RANK = 32
# Ops whose result has the rank of their first input.
_SAME_RANK = {
    "Identity", "Cast", "CastLike", "Dropout", "Softmax", "LogSoftmax", "Hardmax", "Slice",
    "Concat", "BatchNormalization", "InstanceNormalization", "GroupNormalization",
    "LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "LpNormalization",
    "AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool", "LRN", "Pad", "Tile", "Split",
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Trilu", "CumSum", "Resize",
    "Gelu", "FastGelu", "BiasGelu", "QuickGelu", "Upsample",
}  # fmt: skip
_BROADCAST = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Where", "PRelu"}
_REDUCE = {
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSumExp", "ReduceProd",
}  # fmt: skip
_ELEMENTWISE = {
    "Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Neg", "Abs", "Clip", "LeakyRelu",
    "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "Softplus", "Softsign", "Mish",
    "Reciprocal", "Floor", "Ceil", "Round", "Sign", "Atan", "Not", "ThresholdedRelu", "Sin", "Cos",
    "Swish",
}  # fmt: skip


class Graph:
    """A graph's nodes, which node makes which value, and the rank of values where it shows."""

    def __init__(self, path: Path, graph: Any, constants: Constants) -> None:
        self.path, self.constants = path, constants
        self.nodes = list(graph.node)
        self.maker = {o: k for k, node in enumerate(self.nodes) for o in node.output if o}
        self.ranks = self._ranks(graph)

    def node_of(self, name: str) -> Any | None:
        """The node that makes a value; None for inputs and constants."""
        k = self.maker.get(name)
        return None if k is None else self.nodes[k]

    def before(self, k: int, name: str) -> int | None:
        """Which node makes an input of node k: an earlier one, or the graph has a cycle."""
        maker = self.maker.get(name)
        if maker is not None and maker >= k:
            raise UncorkError(
                f"{self.path}: the graph uses {name!r} before it is made: it has a cycle or is "
                "damaged"
            )
        return maker

    def number(self, name: str) -> float | None:
        """A constant of one element, as a number."""
        if not name or not self.constants.is_constant(name):
            return None
        value = self.constants.value(name)
        return float(value.reshape(-1)[0]) if value.size == 1 else None

    def integers(self, node: Any, name: str, place: int) -> list[int] | None:
        """Axes and their like: an attribute in older graphs, a constant input in newer ones."""
        given = attribute(node, name, None)
        if given is not None:
            return [int(n) for n in given] if isinstance(given, list) else [int(given)]
        if len(node.input) <= place or not node.input[place]:
            return None
        if not self.constants.is_constant(node.input[place]):
            return None
        return [int(n) for n in self.constants.value(node.input[place]).reshape(-1)]

    def from_end(self, axes: list[int], name: str) -> list[int] | None:
        """Axes of a value counted from its end: −1 is the last. None where its rank is unknown."""
        if all(axis < 0 for axis in axes):
            return axes
        rank = self.ranks.get(name)
        return None if rank is None else [a if a < 0 else a - rank for a in axes]

    def last_entry(self, name: str) -> int | None:
        """The last entry of a shape, where it is known."""
        for _ in range(_MOST_RANK):
            if self.constants.is_constant(name):
                value = self.constants.value(name).reshape(-1)
                return int(value[-1]) if value.size else None
            node = self.node_of(name)
            if node is None or not node.input:
                return None
            if node.op_type == "Concat":
                name = node.input[-1]
            elif node.op_type in ("Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape"):
                name = node.input[0]
            else:
                return None
        return None

    def _ranks(self, graph: Any) -> dict[str, int]:
        ranks: dict[str, int] = {}
        for info in (*graph.input, *graph.value_info, *graph.output):
            if info.type.HasField("tensor_type") and info.type.tensor_type.HasField("shape"):
                ranks[info.name] = len(info.type.tensor_type.shape.dim)
        for name, stored in self.constants.stored.items():
            ranks[name] = len(stored.dims)
        for node in self.nodes:  # what a value is used for can show its rank, too
            perm = attribute(node, "perm", None) if node.op_type == "Transpose" else None
            if perm:
                ranks.setdefault(node.input[0], len(perm))
            if node.op_type == "Conv" and len(node.input) > 1 and node.input[1] in ranks:
                ranks.setdefault(node.input[0], ranks[node.input[1]])
        for node in self.nodes:
            rank = self._rank(node, ranks) if node.input else None
            if rank is not None and 0 <= rank <= _MOST_RANK:
                several = node.op_type == "Split"  # other ops' further outputs are of other shapes
                for output in node.output if several else node.output[:1]:
                    if output:
                        ranks.setdefault(output, rank)
        return ranks

    def _rank(self, node: Any, ranks: dict[str, int]) -> int | None:
        op, first = node.op_type, ranks.get(node.input[0])
        if op in _SAME_RANK or op in _ELEMENTWISE:
            return first
        if op in _BROADCAST:
            every = [ranks.get(name) for name in node.input if name]
            return None if None in every else max(r for r in every if r is not None)
        if op == "Transpose":
            perm = attribute(node, "perm", None)
            return len(perm) if perm else first
        if op in ("Reshape", "Expand"):
            shape = node.input[1] if len(node.input) > 1 else ""
            if shape and self.constants.is_constant(shape):
                return int(self.constants.value(shape).size)
            return None
        if op == "Flatten" or op == "Gemm":
            return 2
        if op == "Conv":
            return ranks.get(node.input[1]) if len(node.input) > 1 else None
        if op in ("MatMul", "MatMulInteger", "QLinearMatMul"):
            other = ranks.get(node.input[3 if op == "QLinearMatMul" else 1])
            return None if first is None or other is None else max(first, other, 2)
        if op == "Gather":
            indices = ranks.get(node.input[1]) if len(node.input) > 1 else None
            return None if first is None or indices is None else first + indices - 1
        if op in ("Squeeze", "Unsqueeze"):
            axes = self.integers(node, "axes", 1)
            if first is None or axes is None:
                return None
            return first + len(axes) if op == "Unsqueeze" else first - len(axes)
        if op in _REDUCE:
            if attribute(node, "keepdims", 1):
                return first
            axes = self.integers(node, "axes", 1)
            return None if first is None or axes is None else first - len(axes)
        return None


def one_axis(value: np.ndarray) -> tuple[np.ndarray, int | None] | None:
    """A constant as numbers along one axis, counted from the end; None where it has several."""
    if value.size == 1:
        return value.reshape(()).astype(np.float64), None
    long = [axis for axis, n in enumerate(value.shape) if n > 1]
    if len(long) != 1:
        return None
    return value.reshape(-1).astype(np.float64), long[0] - value.ndim
