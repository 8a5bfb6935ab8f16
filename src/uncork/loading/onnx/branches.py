"""Graphs whose outputs come from an If: each branch as a graph of its own, and what both share.

Decoders are exported so, merged: one branch begins a sequence and the other goes on with it. The
head is read where both branches end in the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from uncork.loading.contents import AmbiguousError, Choice, FoundDomain, UnknownDomain

T = TypeVar("T")
_BRANCHES = ("then_branch", "else_branch")


def branches(model: Any) -> tuple[Any, Any] | None:
    """The model with its last If replaced by either branch; None where no output comes from one."""
    ends = {output.name for output in model.graph.output}
    for k in reversed(range(len(model.graph.node))):
        node = model.graph.node[k]
        if node.op_type != "If" or node.domain not in ("", "ai.onnx"):
            continue
        inner = {one.name: one.g for one in node.attribute if one.name in _BRANCHES}
        if len(inner) != 2 or not ends & set(node.output):
            continue
        if any(len(one.output) != len(node.output) for one in inner.values()):
            continue
        return _inlined(model, k, inner[_BRANCHES[0]]), _inlined(model, k, inner[_BRANCHES[1]])
    return None


def _inlined(model: Any, k: int, branch: Any) -> Any:
    """The model with node k, an If, replaced by the nodes of a branch."""
    found = type(model)()
    found.ir_version = model.ir_version
    found.opset_import.extend(model.opset_import)
    found.functions.extend(model.functions)
    graph, outer = found.graph, model.graph
    graph.node.extend(outer.node[:k])
    graph.node.extend(branch.node)
    for inside, outside in zip(branch.output, outer.node[k].output, strict=True):
        if outside and inside.name != outside:
            same = graph.node.add()
            same.op_type = same.name = "Identity"
            same.input.append(inside.name)
            same.output.append(outside)
    graph.node.extend(outer.node[k + 1 :])
    for one in (outer, branch):
        graph.initializer.extend(one.initializer)
        graph.value_info.extend(one.value_info)
    graph.value_info.extend(branch.output)
    graph.input.extend(outer.input)
    graph.output.extend(outer.output)
    return found


def in_both(path: object, ask: Callable[[int], Choice]) -> Choice:
    """What both branches are found to end in, if that is the same head."""
    one, other = ask(0), ask(1)
    same = np.array_equal(one.weight, other.weight) and (
        np.array_equal(one.bias, other.bias)
        if one.bias is not None and other.bias is not None
        else one.bias is other.bias
    )
    if not same:
        raise AmbiguousError(
            f"{path}: the two branches of the If before the outputs end in different heads, "
            f"{one.weight_name} and {other.weight_name}: name one with --weight"
        )
    note = "the outputs come from an If, both branches of which end in this head"
    doubts = tuple(dict.fromkeys((*one.doubts, *other.doubts)))
    notes = tuple(dict.fromkeys((*one.notes, *other.notes, note)))
    return replace(one, notes=notes, doubts=doubts)


def seen_by_both(
    one: FoundDomain | UnknownDomain | None, other: FoundDomain | UnknownDomain | None
) -> FoundDomain | UnknownDomain | None:
    """What arrives in either branch, if that is the same set."""
    if isinstance(one, FoundDomain) and isinstance(other, FoundDomain):
        if one.domain == other.domain:
            return one
        return UnknownDomain("what arrives differs between the branches of the If")
    return one if isinstance(one, UnknownDomain) else other
