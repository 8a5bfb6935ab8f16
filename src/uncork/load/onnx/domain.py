"""Which inputs can arrive at the head of an ONNX graph: a walk back from its input.

The walk follows shape ops, activations, sums and products until it meets what it knows nothing
about (a convolution, attention, the model's own input). Then ranges are worked out in the order of
the graph, from there to the head. Linear maps are folded in where nothing but other linear maps
lies between them and the head.
"""

from __future__ import annotations

from typing import Any

from uncork.domain import Box
from uncork.load.contents import Choice, FoundDomain, printable
from uncork.load.onnx.graph import Graph
from uncork.load.onnx.intervals import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Arithmetic
from uncork.load.onnx.layers import LINEAR, RECURRENT
from uncork.load.onnx.norms import norm_spelled_out
from uncork.load.onnx.ops import KNOWN_OPS, NORMS, Ranges
from uncork.load.onnx.quantised import in_8_bits, steps
from uncork.load.onnx.site import Site
from uncork.load.onnx.tensors import attribute

_MOST_NODES = 4096
_OWN_RANGE = ("Softmax", "Hardmax", *NORMS, *RECURRENT)  # what goes in does not matter
_AFFINE = {
    "Identity", "Cast", "CastLike", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze",
    "Transpose", "Slice", "Gather", "Split", "GlobalAveragePool", "ReduceMean", *LINEAR,
}  # fmt: skip
_TYPES: dict[str, Arithmetic] = {
    "float64": FLOAT64, "float16": FLOAT16, "bfloat16": BFLOAT16,
}  # fmt: skip
_CASTS = {10: FLOAT16, 16: BFLOAT16}  # TensorProto.DataType


def domain_before(graph: Graph, site: Site, choice: Choice) -> FoundDomain | None:
    """The inputs that can arrive at the head, as far as the graph shows; None where it does not."""
    features = int(choice.weight.shape[1])
    axis = site.axis
    if site.in_steps is not None:
        return _in_steps(graph, site)
    order, complete = _needed(graph, site)
    ranges = Ranges(graph, _arithmetic(graph, choice, order))
    for k in order:
        ranges.visit(graph.nodes[k])
    value = ranges.of(site.input)
    if site.quantised is not None and not value.known:
        value = in_8_bits(graph, *site.quantised, site.input) or value
    found = None if axis is None else value.domain(axis, features)
    if found is None:
        return None
    through = f", through {', '.join(value.trail)}" if value.trail else ""
    why = f"{value.label or 'the graph'}{through}, precedes the head"
    notes = list(dict.fromkeys(ranges.notes))
    if not complete:
        notes.append(f"only the last {_MOST_NODES} nodes were looked at")
    return FoundDomain(found, printable(why), printable("; ".join(notes)))


def _needed(graph: Graph, site: Site) -> tuple[list[int], bool]:
    """The nodes whose ranges matter, in the order of the graph, and whether these are all."""
    start = graph.maker.get(site.input)
    if start is None or start >= site.node:
        graph.before(site.node, site.input)
        return [], True
    seen: dict[int, bool] = {}  # node: whether all between it and the head is affine
    todo = [(start, True)]
    while todo:
        k, affine = todo.pop()
        if seen.get(k, False) or (k in seen and not affine):
            continue
        if len(seen) >= _MOST_NODES:
            return sorted(seen), False
        node = graph.nodes[k]
        if node.op_type not in KNOWN_OPS or (node.op_type in LINEAR and not affine):
            continue
        seen[k] = affine
        if node.op_type in ("Mul", "Div") and norm_spelled_out(graph, node) is not None:
            continue
        for name in _inputs(graph, node):
            maker = graph.before(k, name)
            if maker is not None and not graph.constants.is_constant(name):
                todo.append((maker, affine and _is_affine(graph, node)))
    return sorted(seen), True


def _inputs(graph: Graph, node: Any) -> list[str]:
    """The inputs a node's range depends on."""
    if node.op_type == "GRU":
        return [name for name in node.input[5:6] if name]
    if node.op_type in _OWN_RANGE or node.op_type == "ConstantOfShape":
        return []
    if node.op_type == "Where":
        return [name for name in node.input[1:] if name]
    if node.op_type in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Concat", *LINEAR):
        return [name for name in node.input if name]
    return [name for name in node.input[:1] if name]


def _is_affine(graph: Graph, node: Any) -> bool:
    if node.op_type in ("Add", "Sub", "Mul", "Div"):
        return any(graph.constants.is_constant(name) for name in node.input)
    return node.op_type in _AFFINE


def _arithmetic(graph: Graph, choice: Choice, order: list[int]) -> Arithmetic:
    """The coarsest float type that anything on the way is computed in."""
    types = [_TYPES.get(choice.weight.dtype.name, FLOAT32)]
    if choice.weight.dtype.name == "float64":  # dequantised here, or scaled: float32 in the graph
        types = [FLOAT32]
    for k in order:
        node = graph.nodes[k]
        if node.op_type == "Cast":
            types.append(_CASTS.get(int(attribute(node, "to", 1)), FLOAT32))
        for name in node.input:
            stored = graph.constants.stored.get(name)
            if stored is not None:
                types.append(_CASTS.get(int(stored.data_type), FLOAT32))
    return min(types, key=lambda a: a.bits)


def _in_steps(graph: Graph, site: Site) -> FoundDomain | None:
    """Inputs counted in steps of a quantised layer: integers of 8 bits, less the zero point."""
    assert site.in_steps is not None
    found = steps(graph, *site.in_steps)
    if found is None:
        return None
    scale, zero, least, most = found
    why = f"inputs are counted in steps of {scale:.6g}, of which 8 bits hold {most - least + 1}"
    return FoundDomain(Box(least - zero, most - zero), why)
