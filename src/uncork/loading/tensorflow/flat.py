"""A TensorFlow graph with its functions put in place of their calls, and its variables found.

Values are called "node:slot". A variable's values are those of the checkpoint's entry that the
model's own restoring nodes assign to it; one that the graph also assigns elsewhere while it is run
is no constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.tensorflow.graph import Function, Node, TensorFlowGraph, Value

_MOST_NODES = 100_000
_MOST_DEPTH = 64
_MOST_SMALL = 1 << 12
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_ASSIGNS = ("AssignVariableOp", "Assign", "AssignAddVariableOp", "AssignSubVariableOp",
            "AssignAdd", "AssignSub", "ResourceScatterAdd", "ResourceScatterUpdate")  # fmt: skip
_PASSES = ("Identity", "StopGradient", "Cast")
# Where the results of an op begin, by what functions call them; any other op has one result.
_RESULTS = {
    "TopKV2": {"values": 0, "indices": 1}, "FusedBatchNorm": {"y": 0}, "FusedBatchNormV2": {"y": 0},
    "FusedBatchNormV3": {"y": 0}, "Split": {"output": 0}, "SplitV": {"output": 0},
    "Unpack": {"output": 0}, "IdentityN": {"output": 0}, "RestoreV2": {"tensors": 0},
}  # fmt: skip
_ONE = dict.fromkeys(("output", "product", "y", "z", "x", "value", "activations", "softmax",
                      "logsoftmax", "sum"), 0)  # fmt: skip


@dataclass
class Flat:
    """Every node once, under a name of its own."""

    graph: TensorFlowGraph
    nodes: dict[str, Node] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._add(self.graph.nodes, "", {}, inside=False, depth=0)

    def _add(
        self, nodes: Iterable[Node], prefix: str, given: dict[str, str], inside: bool, depth: int
    ) -> None:
        nodes = tuple(nodes)
        ops = {node.name: node.op for node in nodes}
        for node in nodes:
            if len(self.nodes) >= _MOST_NODES:
                raise UncorkError(f"{self.graph.path}: more than {_MOST_NODES} nodes: damaged")
            name = prefix + node.name
            inputs = tuple(_reference(one, prefix, given, ops, inside) for one in node.inputs)
            called = self._called(node)
            self.nodes[name] = Node(name, node.op, inputs, node.settings)
            if called is None or depth >= _MOST_DEPTH or len(called.inputs) != len(inputs):
                continue
            bound = dict(zip(called.inputs, inputs, strict=True))
            self._add(called.nodes, f"{name}/", bound, inside=True, depth=depth + 1)
            inner = {one.name: one.op for one in called.nodes}
            for place, result in enumerate(called.outputs):
                leads = _reference(result, f"{name}/", bound, inner, inside=True)
                self.aliases[f"{name}:{place}"] = leads

    def _called(self, node: Node) -> Function | None:
        if node.op in _CALLS:
            name = node.settings.get("f")
            return self.graph.functions.get(name) if isinstance(name, str) else None
        return self.graph.functions.get(node.op)

    def reference(self, name: str) -> str:
        """A value as signatures and frozen graphs call it."""
        return self.follow(_reference(name, "", {}, {}, inside=False))

    def follow(self, value: str) -> str:
        """The value itself, behind the calls that hand it on."""
        for _ in range(4 * _MOST_DEPTH):
            if value not in self.aliases:
                return value
            value = self.aliases[value]
        raise UncorkError(f"{self.graph.path}: {value[:80]!r} leads back to itself: damaged")

    def maker(self, value: str) -> Node | None:
        """The node that a value comes from."""
        return self.nodes.get(self.follow(value).rpartition(":")[0])

    def ordered(self, outputs: Sequence[str]) -> list[tuple[Node, list[str]]]:
        """The nodes that these values come from, each after those it needs, with its inputs.

        A loop is cut where it closes: the input there is "".
        """
        order: list[tuple[Node, list[str]]] = []
        state: dict[str, int] = {}  # 1 while what it needs is looked at, 2 once it is in order
        todo = [name for value in outputs if (name := self._name(value))]
        while todo:
            name = todo[-1]
            node = self.nodes[name]
            if state.get(name) == 2:
                todo.pop()
                continue
            every = [self.follow(value) for value in node.inputs]
            if name not in state:
                state[name] = 1
                needed = [self._name(value) for value in every]
                todo += [one for one in reversed(needed) if one and one not in state]
                continue
            todo.pop()
            state[name] = 2
            order.append((node, [v if state.get(self._name(v)) == 2 else "" for v in every]))
        return order

    def _name(self, value: str) -> str:
        name = self.follow(value).rpartition(":")[0]
        return name if name in self.nodes else ""

    def variables(self) -> dict[str, str]:
        """The entry of the checkpoint that each variable takes its values from."""
        found: dict[str, set[str]] = {}
        served = self._served()
        for node in self.nodes.values():
            if node.op not in _ASSIGNS or not node.inputs:
                continue
            variable = self.maker(node.inputs[0])
            if variable is None or variable.op not in VARIABLES:
                continue
            key = self._restored(node.inputs[1]) if len(node.inputs) > 1 else None
            # Values that it begins training with are not those that it is saved with.
            if key is not None or any(node.name.startswith(f"{name}/") for name in served):
                found.setdefault(variable.name, set()).add(key or "")
        return {
            name: next(iter(keys))
            for name, keys in found.items()
            if len(keys) == 1 and "" not in keys
        }

    def _served(self) -> set[str]:
        """The nodes of the main graph that signatures call."""
        return {
            value.partition(":")[0]
            for signature in self.graph.signatures.values()
            for value in signature.outputs.values()
        }

    def _restored(self, value: str) -> str | None:
        """The entry of the checkpoint that a value is read from; None where it is not."""
        for _ in range(8):
            value = self.follow(value)
            node = self.nodes.get(value.rpartition(":")[0])
            if node is None or not node.inputs:
                return None
            if node.op == "RestoreV2" and len(node.inputs) == 3:
                place = value.rpartition(":")[2]
                names, slices = (self._texts(one) for one in node.inputs[1:])
                k = int(place) if place.isdigit() else len(names)
                if k >= len(names) or (k < len(slices) and slices[k]):
                    return None
                return names[k].decode("utf-8", "backslashreplace")
            if node.op not in _PASSES:
                return None
            value = node.inputs[0]
        return None

    def _texts(self, value: str) -> list[bytes]:
        node = self.maker(value)
        stored = None if node is None else node.settings.get("value")
        return stored.texts() if isinstance(stored, Value) else []

    def small(self, value: str, depth: int = 0) -> np.ndarray | None:
        """A constant of few numbers, perhaps joined from several; None where it is none."""
        node = self.maker(value)
        if node is None or depth > 8:
            return None
        if node.op == "Identity" and node.inputs:
            return self.small(node.inputs[0], depth + 1)
        if node.op == "ConcatV2" and 2 <= len(node.inputs) <= 16:
            parts = [self.small(one, depth + 1) for one in node.inputs]
            lines = [one for one in parts[:-1] if one is not None and one.ndim == 1]
            return np.concatenate(lines) if len(lines) == len(parts) - 1 else None
        stored = node.settings.get("value") if node.op == "Const" else None
        if not isinstance(stored, Value) or stored.dtype is None or len(stored.shape) > 2:
            return None
        return stored.read() if math.prod(stored.shape) <= _MOST_SMALL else None


def _reference(
    name: str, prefix: str, given: dict[str, str], ops: dict[str, str], inside: bool
) -> str:
    """What an input stands for, as "node:slot".

    In a function that is "node:result:place", or the name of an argument; elsewhere "node:place",
    the first place being left out.
    """
    parts = name.split(":")
    if not inside:
        return f"{prefix}{parts[0]}:{parts[1] if len(parts) > 1 else '0'}"
    if len(parts) < 2:
        return given.get(name, f"{prefix}{name}:0")
    node, result, place = parts[0], parts[1], parts[2] if len(parts) > 2 else "0"
    op = ops.get(node, "")
    begin = _RESULTS.get(op, _ONE if op not in _CALLS else {"output": 0}).get(result)
    if begin is None or not place.isdigit():
        return f"{prefix}{node}:{result}.{place}"
    return f"{prefix}{node}:{begin + int(place)}"
