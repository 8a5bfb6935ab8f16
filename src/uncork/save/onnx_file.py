"""Writing .onnx: the head's constants replaced in the graph, all else left as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.onnx.head import build_head
from uncork.loading.onnx.linear import weight_input
from uncork.loading.onnx.shapes import Graph
from uncork.loading.onnx.tensors import Constants, attribute
from uncork.loading.source import Found
from uncork.save.write import rounded

_EXTERNAL = 1  # TensorProto.DataLocation
_INPUTS_LISTED = 4  # before this version of the format, constants had to be listed as inputs too
_MOST_BYTES = 2**31 - 1
_WRITTEN = ("Gemm", "MatMul", "Conv")  # the others are quantised
_OWN_BIAS = ("Gemm", "Conv")  # third input


def write_onnx(found: Found, weight: np.ndarray, bias: np.ndarray | None, out: Path) -> None:
    """The graph with new constants at the head's node; a bias is added as the graph needs it.

    The new weight belongs to that node alone: where the old one also served another (a tied
    embedding), that other keeps it.
    """
    import onnx

    path = found.contents.path
    model = onnx.ModelProto()
    model.ParseFromString(path.read_bytes())
    _check_external(path, model, out)
    graph = model.graph
    edit = _Edit(path, model, Constants(path, model))
    index, used = _head_node(found, graph, edit.constants)
    node = graph.node[index]
    side = weight_input(node, edit.constants)
    assert side is not None
    old = edit.constants.value(node.input[side])
    new = rounded(weight, old.dtype, f"{path}: {found.weight_name}")
    if node.op_type == "Gemm":
        turned = not attribute(node, "transB", 0)
        _set_one(node, "alpha")
    else:
        turned = node.op_type == "MatMul" and side == 1
    laid_out = np.ascontiguousarray(new.T if turned else new).reshape(old.shape)
    node.input[side] = edit.add(found.weight_name, laid_out)
    values = np.zeros(len(weight)) if bias is None else bias
    if found.bias_name is not None:
        _replace_bias(edit, found, node, [graph.node[k] for k in sorted(used)], values)
    elif bias is not None:
        _add_bias(edit, graph, index, side, rounded(values, old.dtype, f"{path}: bias"))
    edit.finish()
    if model.ByteSize() > _MOST_BYTES:
        raise UncorkError(f"{path} would exceed the 2 GiB of an ONNX file: write .npz instead")
    out.write_bytes(model.SerializeToString())


def _head_node(found: Found, graph: Any, constants: Constants) -> tuple[int, set[int]]:
    """The head's linear node, and the nodes after it that are part of the head."""
    path, nodes = found.contents.path, list(graph.node)
    refused = f"{path}: {found.weight_name} is not used as it is stored"
    shapes = Graph(constants)
    for k in reversed(range(len(nodes))):
        side = weight_input(nodes[k], constants)
        if side is None or constants.origin(nodes[k].input[side]) != found.weight_name:
            continue
        if nodes[k].op_type not in _WRITTEN:
            refused = f"{path}: the head is quantised"
            continue
        choice, used, *_ = build_head(shapes, k, set(range(k + 1, len(nodes))))
        raw = constants.value(nodes[k].input[side])
        matrix = raw.reshape(raw.shape[:2] if nodes[k].op_type == "Conv" else raw.shape[-2:])
        if not np.array_equal(choice.weight, found.head.weight):
            continue
        plain = any(
            m.shape == choice.weight.shape and np.array_equal(m, choice.weight)
            for m in (matrix, matrix.T)
        )
        # A scale of Gemm's own is set to 1; scales elsewhere in the graph are not taken apart.
        if plain or (nodes[k].op_type == "Gemm" and not _scaled(nodes, used, constants)):
            stored = constants.stored[found.weight_name]
            if raw.dtype == np.float64 and stored.data_type != 11:  # dequantised, in float64 here
                refused = f"{path}: the head is quantised"
                continue
            return k, used
    raise UncorkError(f"{refused}, so it cannot be replaced in the graph: write .npz instead")


def _scaled(nodes: list[Any], used: set[int], constants: Constants) -> bool:
    return any(nodes[k].op_type in ("Mul", "Div") for k in used)


def _replace_bias(
    edit: _Edit, found: Found, node: Any, after: list[Any], values: np.ndarray
) -> None:
    holders = [node] if node.op_type in _OWN_BIAS and len(node.input) > 2 else []
    holders += [n for n in after if n.op_type == "Add"]
    places = []
    for holder in holders:
        for place, name in enumerate(holder.input):
            is_bias = place == 2 if holder.op_type in _OWN_BIAS else True
            if is_bias and name and edit.constants.is_constant(name):
                places.append((holder, place))
    if len(places) != 1 or any(n.op_type in ("Mul", "Div") for n in after):
        raise UncorkError(
            f"{found.contents.path}: the graph does more with the bias {found.bias_name} than add "
            "it: write .npz instead"
        )
    holder, place = places[0]
    old = edit.constants.value(holder.input[place])
    shape = old.shape if old.size == values.size else values.shape
    new = rounded(values, old.dtype, f"{found.contents.path}: {found.bias_name}").reshape(shape)
    if holder.op_type == "Gemm":
        _set_one(holder, "beta")
    holder.input[place] = edit.add(found.bias_name or "bias", new)


def _add_bias(edit: _Edit, graph: Any, index: int, side: int, values: np.ndarray) -> None:
    """As the third input of Gemm and Conv, or as an Add after the MatMul."""
    from onnx import helper

    node = graph.node[index]
    if node.op_type in _OWN_BIAS:
        name = edit.add("head_bias", values)
        if len(node.input) > 2:
            node.input[2] = name
        else:
            node.input.append(name)
        _set_one(node, "beta")
        return
    # With the weight on the left the classes are rows of what comes out.
    name = edit.add("head_bias", values if side == 1 else values[:, None])
    output = node.output[0]
    node.output[0] = edit.fresh("head_without_bias")
    added = helper.make_node("Add", [node.output[0], name], [output], edit.fresh("add_head_bias"))
    graph.node.insert(index + 1, added)


class _Edit:
    """New constants under names nothing else has, and old ones dropped once nothing uses them."""

    def __init__(self, path: Path, model: Any, constants: Constants) -> None:
        self.path, self.model, self.constants = path, model, constants
        self.taken = set(_names(model.graph))
        self.before = set(_used(model.graph))
        self.wishes: dict[str, str] = {}  # new name → the name it would like to have

    def fresh(self, wish: str) -> str:
        name, k = wish, 1
        while name in self.taken:
            name, k = f"{wish}_{k}", k + 1
        self.taken.add(name)
        return name

    def add(self, wish: str, values: np.ndarray) -> str:
        from onnx import helper, numpy_helper

        name = self.fresh(wish)
        self.wishes[name] = wish
        tensor = numpy_helper.from_array(values, name)
        self.model.graph.initializer.append(tensor)
        if self.model.ir_version < _INPUTS_LISTED:
            listed = helper.make_tensor_value_info(name, tensor.data_type, values.shape)
            self.model.graph.input.append(listed)
        return name

    def finish(self) -> None:
        """Drop what was used before and no longer is: constants, and nodes that made them."""
        graph = self.model.graph
        outputs = {output.name for output in graph.output}
        stored = set(self.constants.stored)
        while True:
            unused = self.before - set(_used(graph)) - outputs
            dead = [
                node
                for node in graph.node
                if node.output and all(o in unused for o in node.output)
                and all(self.constants.is_constant(o) for o in node.output)
            ]  # fmt: skip
            for kept in (graph.initializer, graph.input):
                for entry in [e for e in kept if e.name in unused and e.name in stored]:
                    kept.remove(entry)
            if not dead:
                break
            for node in dead:
                self.before |= set(node.input)
                graph.node.remove(node)
        left = set(_names(graph))
        for name, wish in self.wishes.items():
            if wish not in left:
                self._rename(name, wish)

    def _rename(self, old: str, new: str) -> None:
        graph = self.model.graph
        for entry in (*graph.initializer, *graph.input):
            if entry.name == old:
                entry.name = new
        for node in graph.node:
            for place, name in enumerate(node.input):
                if name == old:
                    node.input[place] = new


def _used(graph: Any) -> Iterator[str]:
    """Every value that a node takes, in subgraphs too."""
    for node in graph.node:
        yield from node.input
        for found in node.attribute:
            for inner in (*([found.g] if found.HasField("g") else []), *found.graphs):
                yield from _used(inner)
                yield from (output.name for output in inner.output)


def _names(graph: Any) -> Iterator[str]:
    yield from _used(graph)
    for node in graph.node:
        yield from node.output
        yield node.name
    for entries in (graph.initializer, graph.input, graph.output, graph.value_info):
        yield from (entry.name for entry in entries)


def _set_one(node: Any, name: str) -> None:
    """Gemm's scale back to 1, its default."""
    for found in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(found)


def _check_external(path: Path, model: Any, out: Path) -> None:
    external = any(tensor.data_location == _EXTERNAL for tensor in model.graph.initializer)
    if external and out.resolve().parent != path.resolve().parent:
        raise UncorkError(
            f"{path} keeps tensors in files beside it: write into the same folder, "
            f"{path.resolve().parent}, so that they are found"
        )
