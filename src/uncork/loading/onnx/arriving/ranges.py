"""What is known of the values of an ONNX graph, node after node, by the table of rules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

import uncork.loading.onnx.rules.averages
import uncork.loading.onnx.rules.elementwise
import uncork.loading.onnx.rules.layers
import uncork.loading.onnx.rules.moving
import uncork.loading.onnx.rules.norms
import uncork.loading.onnx.rules.quantised  # noqa: F401
from uncork.loading.onnx.arriving.value import Value, fresh, node_name, unknown
from uncork.loading.onnx.kinds import Kind
from uncork.loading.onnx.rules.table import Nothing, rule_for
from uncork.loading.onnx.shapes import Dims, Graph

_MOST_SEARCHES = 32  # branch and bound takes up to half a second each
_MOST_CONSTANT = 1 << 24  # elements of a constant that is looked at


class Ranges:
    """The values of the nodes visited so far, by name; the nodes must come in order."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: dict[str, Value] = {}
        self.searches = _MOST_SEARCHES
        self.folding: set[int] = set()  # nodes with nothing but linear maps between them and head

    def of(self, name: str) -> Value:
        """What is known of a value; `Nothing` where not even its type is."""
        found = self.values.get(name)
        if found is not None:
            return found
        kind, dims = self.graph.kinds.get(name), self.graph.dims.get(name)
        if not name or kind is None:
            raise Nothing(f"the type of {name!r} is not known" if name else "an input is missing")
        if self.graph.constants.is_fixed(name):
            found = self._constant(name, kind)
        elif name in self.graph.inputs:
            # What a caller gives is taken to be finite.
            ends = np.asarray(kind.least), np.asarray(kind.most)
            found = fresh(name, kind, dims, ends, nan=False, stopped=f"the input {name!r}")
        else:
            maker = self.graph.node_of(name)
            place = f"{name!r}" if maker is None else f"{self.graph.op(maker)} ({node_name(maker)})"
            found = unknown(name, kind, dims, place)
        self.values[name] = found
        return found

    def _constant(self, name: str, kind: Kind) -> Value:
        shape = self.graph.constants.shape(name)
        if not 0 < math.prod(shape) <= _MOST_CONSTANT:
            return unknown(name, kind, tuple(shape), f"the constant {name!r}")
        wide = np.asarray(self.graph.constants.value(name), dtype=np.float64)
        if not np.isfinite(wide).all():
            return unknown(name, kind, tuple(shape), f"the constant {name!r}")
        # A constant that is dequantised here is exact, in the run-time it is rounded.
        ends = kind.floats.outward(wide, wide) if kind.is_float else (wide, wide)
        return fresh(name, kind, tuple(shape), ends, nan=False)

    def inputs(self, node: Any, *places: int) -> list[Value]:
        """What is known of some inputs of a node."""
        if max(places) >= len(node.input):
            raise Nothing("an input is missing")
        return [self.of(node.input[place]) for place in places]

    def given(self, node: Any, place: int) -> bool:
        """Whether a node has an input there."""
        return len(node.input) > place and bool(node.input[place])

    def fixed(self, name: str) -> np.ndarray | None:
        """A constant that nobody can override, None where it is none."""
        return self.graph.constants.value(name) if self.graph.constants.is_fixed(name) else None

    def dims(self, node: Any, place: int = 0) -> Dims | None:
        """The shape of a node's result."""
        return self.graph.dims.get(node.output[place])

    def visit(self, node: Any) -> None:
        """Work out what is known of a node's results."""
        op = self.graph.op(node)
        why = ""
        found: list[Value | None] = []
        try:
            chosen = rule_for(op, self.graph.constants.opset, {a.name for a in node.attribute})
            with np.errstate(all="ignore"):  # infinities are bounds like any other
                made = chosen.function(self, node)
            found = made if isinstance(made, list) else [made]
        except Nothing as nothing:
            why = f": {nothing}"
        for k, output in enumerate(node.output):
            value = found[k] if k < len(found) else None
            kind = self.graph.kinds.get(output)
            if output and value is not None and (kind is None or value.kind == kind):
                self.values[output] = self._with_reason(node, op, value)
            elif output and kind is not None:
                stopped = f"{op} ({node_name(node)}){why}"
                self.values[output] = unknown(output, kind, self.graph.dims.get(output), stopped)

    def _with_reason(self, node: Any, op: str, value: Value) -> Value:
        if value.known:
            return replace(value, stopped="")
        for name in node.input:
            given = self.values.get(name)
            if given is not None and given.stopped and not given.known:
                return replace(value, stopped=given.stopped)
        return replace(value, stopped=value.stopped or f"{op} ({node_name(node)})")
