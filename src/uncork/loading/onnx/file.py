"""ONNX: the last linear node with a constant weight, found by walking back from the outputs."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    UnknownDomain,
    listing,
)
from uncork.loading.decisions import sigmoids
from uncork.loading.onnx.after import follow
from uncork.loading.onnx.arriving.domain import domain_before
from uncork.loading.onnx.branches import branches, in_both, seen_by_both
from uncork.loading.onnx.head import build_head
from uncork.loading.onnx.linear import HEADS, HeadNode, weight_input
from uncork.loading.onnx.shapes import Graph
from uncork.loading.onnx.tensors import Constants
from uncork.loading.vocabulary.labels import labels_from_metadata

_MOST_BYTES = 2**31 - 1  # a protobuf message cannot be longer

# The prediction passes through these with only their first input; the others are shapes and axes.
_FIRST_INPUT = {
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast", "CastLike",
    "Dropout", "Softmax", "LogSoftmax", "Hardmax", "Sigmoid", "Exp", "Log", "Neg", "Tanh", "Relu",
    "Expand", "Tile", "Slice", "Gather", "Split", "Clip", "ArgMax", "ArgMin", "TopK", "ReduceMax",
    "ReduceMin", "ReduceSum", "ReduceLogSumExp", "ReduceMean", "ReduceL2", "Softplus", "Sqrt",
    "Reciprocal", "GlobalAveragePool", "QuantizeLinear", "DequantizeLinear", "Erf", "Atan",
    "Softsign", "LeakyRelu", "Elu", "Celu", "Selu", "HardSigmoid", "Abs", "paddle::crf_decoding",
}  # fmt: skip
_EVERY_INPUT = {"Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Where", "Concat", "Pow"}
_MOST_OUTPUTS = 1000
_PREFERRED_OUTPUTS = ("logits", "logit", "scores", "probabilities", "probs", "output")


class OnnxModel:
    """A parsed model: its graph, its constants, and where the heads found so far sit."""

    def __init__(self, path: Path, model: Any) -> None:
        self.path, self.model = path, model
        self.constants = Constants(path, model)
        self.graph = Graph(self.constants)
        self.sites: dict[str, HeadNode] = {}  # by the name of the weight

    def head_node(self, weight: str | None = None) -> tuple[Choice, HeadNode]:
        """The head, or the one of that weight, and where it sits."""
        if weight is None:
            choice = self.choose()
        else:
            around = self.around(weight)
            if around is None:
                raise UncorkError(f"{self.path}: no linear layer of the graph uses {weight!r}")
            choice = around
        return choice, self.sites[choice.weight_name]

    def choose(self) -> Choice:
        choice, head_node = _choose(self.graph)
        self.sites[choice.weight_name] = head_node
        return choice

    def around(self, name: str) -> Choice | None:
        found = _around(self.graph, name)
        if found is None:
            return None
        self.sites[name] = found[1]
        return found[0]

    def domain(self, choice: Choice) -> FoundDomain | UnknownDomain | None:
        """What precedes the head, where the graph shows it and uses the weight as chosen."""
        if choice.weight_name not in self.sites and self.around(choice.weight_name) is None:
            return None
        return domain_before(self.graph, self.sites[choice.weight_name], choice)


def open_onnx(path: Path) -> OnnxModel:
    """Parse a model file; nothing of it is run."""
    try:
        import onnx
    except ImportError:
        raise UncorkError(
            "reading ONNX needs the onnx package: pip install 'uncork[onnx]'"
        ) from None
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise UncorkError(f"{path} has {size} bytes: an ONNX file ends at 2 GiB, so this is none")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except Exception as error:  # protobuf has several of its own
        raise UncorkError(f"{path} is no ONNX model, or is truncated: {error}") from error
    if not model.graph.node:
        raise UncorkError(f"{path} is no ONNX model: it has no graph")
    _check_text(path, model)
    return OnnxModel(path, model)


def read_onnx(path: Path) -> Contents:
    """The constants of the graph, and the head that its outputs come from."""
    return contents_of(open_onnx(path), "onnx")


def contents_of(opened: OnnxModel, form: str) -> Contents:
    """What a reader hands back of a graph, in whichever format it was."""
    metadata = {entry.key: entry.value for entry in opened.model.metadata_props}
    whole = Contents(
        opened.path,
        form,
        opened.constants.tensors(),
        opened.choose,
        opened.around,
        functools.partial(labels_from_metadata, metadata),
        opened.domain,
    )
    split = branches(opened.model)
    return (
        whole if split is None else _of_branches(whole, [OnnxModel(opened.path, m) for m in split])
    )


def _of_branches(whole: Contents, either: list[OnnxModel]) -> Contents:
    """The same of a graph whose outputs come from an If: what both of its branches share."""

    def around(name: str) -> Choice | None:
        found = whole.around(name)
        each = [choice for one in either if (choice := one.around(name)) is not None]
        if found is None and len(each) == 2:
            return in_both(whole.path, each.__getitem__)
        return found or next(iter(each), None)

    def domain(choice: Choice) -> FoundDomain | UnknownDomain | None:
        seen = []
        for one in either:
            own = choice if one.around(choice.weight_name) is not None else _chosen(one)
            if own is choice or (own is not None and np.array_equal(own.weight, choice.weight)):
                seen.append(one.domain(own))
        return functools.reduce(seen_by_both, seen) if seen else None

    return replace(
        whole,
        tensors={**either[1].constants.tensors(), **either[0].constants.tensors()},
        choose=lambda: in_both(whole.path, lambda k: either[k].choose()),
        around=around,
        domain=domain,
    )


def _chosen(model: OnnxModel) -> Choice | None:
    try:
        return model.choose()
    except AmbiguousError:
        return None


def _check_text(path: Path, model: Any) -> None:
    """Names that are not UTF-8 arrive as bytes, in a damaged file only."""
    texts = [text for entry in model.metadata_props for text in (entry.key, entry.value)]
    texts += [tensor.name for tensor in model.graph.initializer]
    texts += [output.name for output in model.graph.output]
    for node in model.graph.node:
        texts += [node.op_type, *node.input, *node.output]
    for text in texts:
        if not isinstance(text, str):
            raise UncorkError(f"{path} holds a name that is not UTF-8, {text[:40]!r}: damaged")


def _choose(graph: Graph) -> tuple[Choice, HeadNode]:
    """The one linear map that the outputs come from."""
    path, constants, nodes = graph.path, graph.constants, graph.nodes
    outputs = constants.model.graph.output
    if len(outputs) > _MOST_OUTPUTS:
        raise UncorkError(f"{path} has {len(outputs)} outputs: too many for a model")
    found: dict[str, tuple[set[int], set[int], set[str]]] = {}
    for output in outputs:
        if output.name in graph.maker:
            found[output.name] = _walk_back(graph, output.name)
    reached = {name: heads for name, (heads, _, _) in found.items() if heads}
    for name in _PREFERRED_OUTPUTS:
        if name in reached:
            reached = {name: reached[name]}
            break
    heads = set().union(*reached.values()) if reached else set()
    if not heads:
        ends = sorted(set().union(*(ends for _, _, ends in found.values())))
        raise AmbiguousError(
            f"{path}: no output comes from {HEADS} with a constant weight"
            + (f" (the last layers are {', '.join(ends)})" if ends else "")
            + ": name the weight with --weight"
        )
    if len(heads) > 1:
        tensors = constants.tensors()
        names = {
            constants.origin(nodes[k].input[weight_input(nodes[k], constants) or 0]) for k in heads
        }
        raise AmbiguousError(
            f"{path}: the outputs come from {len(heads)} linear layers: "
            f"{listing(tensors[n] for n in sorted(names) if n in tensors)}: "
            "name one with --weight"
        )
    output = next(name for name, reached_heads in reached.items() if reached_heads == heads)
    between = found[output][1]
    choice, used, head_node = build_head(graph, heads.pop(), between)
    return _followed(graph, choice, head_node, used, between, output)


def _followed(
    graph: Graph,
    choice: Choice,
    head_node: HeadNode,
    used: set[int],
    between: set[int],
    output: str,
) -> tuple[Choice, HeadNode]:
    """The head with what is to be said of the way from its logits to the output."""
    pooled, logits, axis = _averaged(graph, sorted(between - used), head_node)
    head_node = replace(head_node, pooled=pooled)
    end = follow(graph, between, logits, axis, len(choice.weight), output)
    if end.refused:
        raise AmbiguousError(
            f"{graph.path}: {end.refused}: name the weight with --weight to audit it all the same"
        )
    notes = choice.notes
    if any(graph.op(graph.nodes[k]) == "Sigmoid" for k in between - used):
        notes += (sigmoids(f"output {output!r}"),)
    if pooled:
        notes += (
            "the logits are averaged over positions, which is the head of the averaged input: "
            "that lies in every convex domain the inputs lie in",
        )
    why = f"{choice.why}, the last linear layer before output {output!r}"
    return replace(choice, why=why, notes=notes, doubts=choice.doubts + end.doubts), head_node


def _averaged(graph: Graph, later: list[int], head_node: HeadNode) -> tuple[bool, str, int | None]:
    """Whether a 1×1 convolution's logits are averaged over all positions, with nothing but steps
    that keep their values before that; and the logits from there on, with their axis."""
    value = head_node.logits
    for k in later:
        node = graph.nodes[k]
        if not node.input or node.input[0] != value:
            continue
        op = graph.op(node)
        if op == "GlobalAveragePool" and graph.nodes[head_node.node].op_type == "Conv":
            return True, node.output[0], head_node.class_axis
        if op not in ("Identity", "Cast", "Dropout"):
            break
        value = node.output[0]
    return False, head_node.logits, head_node.class_axis


def _walk_back(graph: Graph, output: str) -> tuple[set[int], set[int], set[str]]:
    """From an output: the linear layers met first, what lies between, what else it comes from."""
    heads: set[int] = set()
    between: set[int] = set()
    ends: set[str] = set()
    todo = [graph.maker[output]]
    while todo:
        k = todo.pop()
        if k in between or k in heads:
            continue
        node = graph.nodes[k]
        if weight_input(node, graph.constants) is not None:
            heads.add(k)
            continue
        op = graph.op(node)
        if op in _FIRST_INPUT:
            inputs = list(node.input[:1])
        elif op in _EVERY_INPUT:
            inputs = list(node.input)
        else:
            if op not in ("Shape", "Constant", "ConstantOfShape", "Range"):
                ends.add(op)
            continue
        between.add(k)
        for name in inputs:
            if not name or graph.constants.is_constant(name):
                continue
            maker = graph.before(k, name)
            if maker is None:
                ends.add(f"input {name!r}")
            else:
                todo.append(maker)
    return heads, between, ends


def _around(graph: Graph, name: str) -> tuple[Choice, HeadNode] | None:
    """The head whose weight is that tensor, as the graph uses it; None where no layer does."""
    nodes, constants = graph.nodes, graph.constants
    for k in reversed(range(len(nodes))):
        side = weight_input(nodes[k], constants)
        if side is not None and constants.origin(nodes[k].input[side]) == name:
            choice, _, head_node = build_head(graph, k, set(range(k + 1, len(nodes))))
            return choice, head_node
    return None
