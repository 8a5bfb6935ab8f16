"""Which inputs can arrive at the head of an ONNX graph: a walk back from its input.

The walk follows ops that have a rule until it meets one that has none (a convolution, attention) or
the model's own input. Then what is known of each value is worked out in the order of the graph,
from there to the head. Linear maps are folded in where nothing but other linear maps lies between
them and the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.core.text import printable
from uncork.domain import Domain
from uncork.loading.contents import Choice, FoundDomain, UnknownDomain
from uncork.loading.onnx.arriving.assumptions import Assumption
from uncork.loading.onnx.arriving.ranges import Ranges
from uncork.loading.onnx.arriving.value import Value, fresh
from uncork.loading.onnx.linear import HeadNode
from uncork.loading.onnx.rules.norms import norm_ending_in
from uncork.loading.onnx.rules.quantised import stands_for
from uncork.loading.onnx.rules.table import RULES, Nothing
from uncork.loading.onnx.shapes import Graph

_MOST_NODES = 4096
_NAMED = 6  # nodes of the way to the head that are named
_LINEAR = ("MatMul", "Gemm", "Conv")
# What goes into these does not matter.
_OWN_RANGE = {
    "Softmax", "Hardmax", "LSTM", "RNN", "com.microsoft::DynamicQuantizeLSTM", "ConstantOfShape",
    "LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization", "LpNormalization",
    "com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization",
}  # fmt: skip
_AFFINE = {
    "Identity", "Cast", "CastLike", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze",
    "Transpose", "Slice", "Gather", "Split", "GlobalAveragePool", "ReduceMean", *_LINEAR,
}  # fmt: skip


@dataclass(frozen=True)
class Arriving:
    """What is known of what arrives at a head: the domain (None: nothing), from what, and what was
    taken for granted."""

    domain: Domain | None
    value: Value | None
    why: str
    assumed: tuple[Assumption, ...] = ()


def domain_before(graph: Graph, head_node: HeadNode, choice: Choice) -> FoundDomain | UnknownDomain:
    """The inputs that can arrive at the head, as far as the graph shows, or what stopped it."""
    found = arriving(graph, head_node, int(choice.weight.shape[1]))
    if found.domain is None:
        return UnknownDomain(printable(found.why))
    texts = dict.fromkeys(assumption.text for assumption in found.assumed)
    return FoundDomain(found.domain, printable(found.why), printable("; ".join(texts)))


def arriving(graph: Graph, head_node: HeadNode, features: int) -> Arriving:
    """As `domain_before`, with everything it rests on."""
    ranges = Ranges(graph)
    order, complete = _needed(graph, head_node, ranges)
    for k in order:
        ranges.visit(graph.nodes[k])
    try:
        value = _at_the_head(ranges, head_node)
    except Nothing as nothing:
        return Arriving(None, None, f"nothing is known of what arrives there, {nothing}")
    found = None if head_node.axis is None else value.domain(head_node.axis, features)
    if found is None:
        return Arriving(None, value, f"nothing bounds what {value.stopped or 'arrives'} leaves")
    why = f"{_way(value)}, precedes the head"
    if not complete:
        why += f" (only the last {_MOST_NODES} nodes were looked at)"
    return Arriving(found, value, why, value.assumed)


def _at_the_head(ranges: Ranges, head_node: HeadNode) -> Value:
    """What is known of the head's x: of its input, or of what whole numbers there stand for."""
    graph, value = ranges.graph, ranges.of(head_node.input)
    if head_node.dynamic is not None:
        maker = graph.node_of(head_node.input)
        assert maker is not None
        given = ranges.of(maker.input[0])
        bounds = stands_for(given)
        if bounds is None:
            raise Nothing(f"as nothing bounds {given.stopped or 'what is rounded to 8 bits'}")
        return fresh("", given.kind, given.dims, bounds, given.nan, like=given,
                     label=f"{given.label}, rounded to 8 bits")  # fmt: skip
    names = head_node.quantised or head_node.in_steps
    if names is None:
        if not value.kind.is_float:
            raise Nothing(f"as its inputs are {value.kind.name}")
        return value
    zero = graph.number(names[1]) if names[1] else 0.0
    scale = graph.number(names[0]) if head_node.quantised is not None else 1.0
    if zero is None or scale is None or not scale > 0 or not np.isfinite(scale):
        raise Nothing("as its scale and zero point are not fixed")
    # Whole numbers of 16 bits times a float32 are exact in float64.
    ends = (value.lower - zero) * scale, (value.upper - zero) * scale
    label = value.label or f"{int(value.kind.most - value.kind.least) + 1} steps"
    if head_node.in_steps is not None:
        label = f"{label}, counted in steps"
    else:
        label = f"{label} of {scale:.6g}"
    return fresh("", value.kind, value.dims, ends, nan=False, like=value, label=label)


def _way(value: Value) -> str:
    """What the bounds come from, and the nodes between that and the head."""
    trail = value.trail
    if len(trail) > _NAMED:
        trail = (*trail[: _NAMED - 2], f"{len(trail) - _NAMED + 1} more nodes", trail[-1])
    return (value.label or "the graph") + (f", through {', '.join(trail)}" if trail else "")


def _needed(graph: Graph, head_node: HeadNode, ranges: Ranges) -> tuple[list[int], bool]:
    """The nodes whose values matter, in the order of the graph, and whether these are all."""
    start = graph.before(head_node.node, head_node.input)
    if start is None:
        return [], True
    seen: dict[int, bool] = {}  # node: whether all between it and the head is affine
    todo = [(start, True)]
    while todo and len(seen) < _MOST_NODES:
        k, affine = todo.pop()
        if seen.get(k, False) or (k in seen and not affine):
            continue
        node = graph.nodes[k]
        op = graph.op(node)
        if op not in RULES or (op in _LINEAR and not affine):
            continue
        seen[k] = affine
        if op in _LINEAR:
            ranges.folding.add(id(node))
        if op in ("Mul", "Div") and _ends_a_norm(ranges, node):
            continue
        for name in _inputs(op, node):
            maker = graph.before(k, name)
            if maker is not None and not graph.constants.is_fixed(name):
                todo.append((maker, affine and _is_affine(graph, op, node)))
    return sorted(seen), not todo


def _ends_a_norm(ranges: Ranges, node: Any) -> bool:
    try:
        return norm_ending_in(ranges, node) is not None
    except Nothing:
        return False
    finally:
        ranges.values.clear()  # what was looked at here was looked at too early


def _inputs(op: str, node: Any) -> list[str]:
    """The inputs that what is known of a node's results depends on."""
    if op in _OWN_RANGE:
        return []
    if op == "GRU":
        return [name for name in node.input[5:6] if name]
    if op == "Where":
        return [name for name in node.input[1:] if name]
    return [name for name in node.input if name]


def _is_affine(graph: Graph, op: str, node: Any) -> bool:
    if op in ("Add", "Sub", "Mul", "Div"):
        return any(graph.constants.is_fixed(name) for name in node.input)
    return op in _AFFINE
