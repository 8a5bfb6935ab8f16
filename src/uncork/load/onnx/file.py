"""ONNX: the last linear node with a constant weight, found by walking back from the outputs."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from uncork.errors import UncorkError
from uncork.load.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    listing,
)
from uncork.load.decisions import sigmoids
from uncork.load.onnx.domain import domain_before
from uncork.load.onnx.graph import Graph
from uncork.load.onnx.head import build_head
from uncork.load.onnx.linear import HEADS, weight_input
from uncork.load.onnx.site import Site
from uncork.load.onnx.tensors import Constants
from uncork.load.vocabulary.labels import labels_from_metadata

_MOST_BYTES = 2**31 - 1  # a protobuf message cannot be longer

# The prediction passes through these with only their first input; the others are shapes and axes.
_FIRST_INPUT = {
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast", "CastLike",
    "Dropout", "Softmax", "LogSoftmax", "Hardmax", "Sigmoid", "Exp", "Log", "Neg", "Tanh", "Relu",
    "Expand", "Tile", "Slice", "Gather", "Split", "Clip", "ArgMax", "TopK", "ReduceMax",
    "ReduceSum", "ReduceLogSumExp", "ReduceMean", "Softplus", "Sqrt", "Reciprocal",
    "GlobalAveragePool", "QuantizeLinear", "DequantizeLinear",
}  # fmt: skip
_EVERY_INPUT = {"Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Where", "Concat", "Pow"}
# After these the largest logit is still the largest value.
_KEEPS_ARGMAX = {
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast", "CastLike",
    "Dropout", "Softmax", "LogSoftmax", "Hardmax", "Sigmoid", "Exp", "Log", "Tanh", "Expand",
    "ArgMax", "TopK", "Softplus", "QuantizeLinear", "DequantizeLinear",
    "ReduceMax", "ReduceSum", "ReduceLogSumExp", "Sub", "Div", "Add", "Mul", "Max",
}  # fmt: skip
_MOST_OUTPUTS = 1000
_PREFERRED_OUTPUTS = ("logits", "logit", "scores", "probabilities", "probs", "output")


class OnnxModel:
    """A parsed model: its graph, its constants, and where the heads found so far sit."""

    def __init__(self, path: Path, model: Any) -> None:
        self.path, self.model = path, model
        self.constants = Constants(path, model.graph)
        self.sites: dict[str, Site] = {}  # by the name of the weight

    def site(self, weight: str | None = None) -> tuple[Choice, Site]:
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
        choice, site = _choose(self.path, self.model.graph, self.constants)
        self.sites[choice.weight_name] = site
        return choice

    def around(self, name: str) -> Choice | None:
        found = _around(self.path, self.model.graph, self.constants, name)
        if found is None:
            return None
        self.sites[name] = found[1]
        return found[0]

    def domain(self, choice: Choice) -> FoundDomain | None:
        """What precedes the head, where the graph shows it and uses the weight as chosen."""
        if choice.weight_name not in self.sites and self.around(choice.weight_name) is None:
            return None
        site = self.sites[choice.weight_name]
        graph = Graph(self.path, self.model.graph, self.constants)
        return domain_before(graph, site, choice)


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
    opened = open_onnx(path)
    metadata = {entry.key: entry.value for entry in opened.model.metadata_props}
    return Contents(
        path,
        "onnx",
        opened.constants.tensors(),
        opened.choose,
        opened.around,
        functools.partial(labels_from_metadata, metadata),
        opened.domain,
    )


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


def _choose(path: Path, graph: Any, constants: Constants) -> tuple[Choice, Site]:
    """The one linear map that the outputs come from."""
    nodes = list(graph.node)
    producer = {output: k for k, node in enumerate(nodes) for output in node.output if output}
    if len(graph.output) > _MOST_OUTPUTS:
        raise UncorkError(f"{path} has {len(graph.output)} outputs: too many for a model")
    found: dict[str, tuple[set[int], set[int], set[str]]] = {}
    for output in graph.output:
        if output.name in producer:
            found[output.name] = _walk_back(path, nodes, producer, constants, output.name)
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
    _, between, ends_of_output = found[output]
    choice, used, site = build_head(path, nodes, constants, heads.pop(), between)
    later = sorted(between - used)
    pooled = _averaged(nodes, later, site)
    after = [nodes[k] for k in later if k != pooled]
    changes = {node.op_type for node in after if not _keeps_argmax(node, constants)}
    site = replace(site, pooled=pooled is not None)
    # A quantised head multiplies by the scale of its inputs: positive, and alike for all classes.
    odd = sorted(changes | (ends_of_output - {"DynamicQuantizeLinear"}))
    notes = choice.notes
    if odd:
        notes += (
            f"output {output!r} depends on {', '.join(odd)} besides the head: verdicts are about "
            "the head's own argmax",
        )
    if any(node.op_type == "Sigmoid" for node in after):
        notes += (sigmoids(f"output {output!r}"),)
    why = f"{choice.why}, the last linear layer before output {output!r}"
    if pooled is not None:
        notes += (
            "the logits are averaged over positions, which is the head of the averaged input: "
            "that lies in every convex domain the inputs lie in",
        )
    return replace(choice, why=why, notes=notes), site


def _averaged(nodes: list[Any], later: list[int], site: Site) -> int | None:
    """The node that averages a 1×1 convolution's logits over all positions, if nothing but steps
    that keep their values comes before it."""
    value = site.logits
    for k in later:
        node = nodes[k]
        if not node.input or node.input[0] != value:
            continue
        if node.op_type == "GlobalAveragePool" and nodes[site.node].op_type == "Conv":
            return k
        if node.op_type not in ("Identity", "Cast", "Dropout"):
            return None
        value = node.output[0]
    return None


def _walk_back(
    path: Path, nodes: list[Any], producer: dict[str, int], constants: Constants, output: str
) -> tuple[set[int], set[int], set[str]]:
    """From an output: the linear layers met first, what lies between, what else it comes from."""
    heads: set[int] = set()
    between: set[int] = set()
    ends: set[str] = set()
    todo = [producer[output]]
    while todo:
        k = todo.pop()
        if k in between or k in heads:
            continue
        node = nodes[k]
        if weight_input(node, constants) is not None:
            heads.add(k)
            continue
        if node.op_type in _FIRST_INPUT:
            inputs = list(node.input[:1])
        elif node.op_type in _EVERY_INPUT:
            inputs = list(node.input)
        else:
            if node.op_type not in ("Shape", "Constant", "ConstantOfShape", "Range"):
                ends.add(node.op_type)
            continue
        between.add(k)
        for name in inputs:
            if not name or constants.is_constant(name):
                continue
            if name not in producer:
                ends.add(f"input {name!r}")
            else:
                # ONNX demands that a value is made before it is used, which rules out cycles.
                if producer[name] >= k:
                    raise UncorkError(
                        f"{path}: the graph uses {name!r} before it is made: it has a cycle or is "
                        "damaged"
                    )
                todo.append(producer[name])
    return heads, between, ends


def _keeps_argmax(node: Any, constants: Constants) -> bool:
    """Whether the class with the largest value stays the same through this node."""
    if node.op_type in _EVERY_INPUT:
        fixed = [constants.value(i) for i in node.input if i and constants.is_constant(i)]
        if any(value.size > 1 for value in fixed):  # a constant of its own for each class
            return False
    return node.op_type in _KEEPS_ARGMAX


def _around(path: Path, graph: Any, constants: Constants, name: str) -> tuple[Choice, Site] | None:
    """The head whose weight is that tensor, as the graph uses it; None where no layer does."""
    nodes = list(graph.node)
    for k in reversed(range(len(nodes))):
        side = weight_input(nodes[k], constants)
        if side is not None and constants.origin(nodes[k].input[side]) == name:
            choice, _, site = build_head(path, nodes, constants, k, set(range(k + 1, len(nodes))))
            return choice, site
    return None
