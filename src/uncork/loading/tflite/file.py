"""TensorFlow Lite: the last fully connected layer, dequantised, and what precedes it."""

from __future__ import annotations

import functools
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    Tensor,
    UnknownDomain,
    Vocabulary,
    listing,
)
from uncork.loading.decisions import sigmoids
from uncork.loading.tflite.domain import INTEGERS, domain_before
from uncork.loading.tflite.graph import Graph, Operator, TensorInfo, read_graph
from uncork.loading.vocabulary.labels import lines_of_text

_AFTER = ("SOFTMAX", "LOG_SOFTMAX", "LOGISTIC", "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "QUANTIZE",
          "DEQUANTIZE", "CAST")  # fmt: skip
_FLOATS = (0, 1, 10)  # float32, float16, float64
_MOST_STEPS = 64
_MOST_LABELS_BYTES = 16 << 20


def read_tflite(path: Path) -> Contents:
    """The constants of the main graph, and the layer its outputs come from."""
    graph = read_graph(path)
    tensors = {}
    for index, info in enumerate(graph.tensors):
        if info.data is not None and info.shape:
            kind = info.dtype.name if info.dtype is not None else f"tflite type {info.type}"
            name = info.name if info.name and info.name not in tensors else f"{info.name}#{index}"
            tensors[name] = Tensor(name, info.shape, kind, functools.partial(_value, graph, index))
    return Contents(
        path,
        "tflite",
        tensors,
        functools.partial(_choose, graph),
        functools.partial(_around, graph),
        vocabulary=functools.partial(_vocabulary, path),
        domain=functools.partial(_domain, graph),
    )


def _value(graph: Graph, tensor: int) -> np.ndarray:
    """A constant's values: dequantised exactly where they are integers with a scale."""
    info, stored = graph.tensors[tensor], graph.stored(tensor)
    if info.quantisation is None or info.type not in INTEGERS:
        return stored
    scales, zeros, axis = info.quantisation.scales, info.quantisation.zeros, 0
    if scales.size > 1:
        axis = info.quantisation.axis
        if not 0 <= axis < stored.ndim or stored.shape[axis] != scales.size:
            raise UncorkError(
                f"{graph.path}: {info.name[:80]!r} has {scales.size} scales along axis {axis} of "
                f"shape {list(stored.shape)}: damaged"
            )
    if np.abs(zeros).max() > 1 << 16:
        raise UncorkError(f"{graph.path}: {info.name[:80]!r} has a zero point beyond its type")
    form = tuple(-1 if k == axis else 1 for k in range(stored.ndim)) if scales.size > 1 else ()
    # At most 18 bits times float32's 24: exact in float64.
    whole = stored.astype(np.float64) - zeros.reshape(form)
    return np.asarray(whole * scales.astype(np.float64).reshape(form))


@dataclass(frozen=True)
class _Use:
    """A head, and the operators between it and an output."""

    head: Operator
    after: tuple[Operator, ...]


def _heads(graph: Graph) -> list[list[_Use]]:
    """The linear layer behind each output: each once, with its uses."""
    heads: dict[int, list[_Use]] = {}
    ends: list[str] = []
    for output in graph.outputs:
        tensor, after = output, []
        for _ in range(_MOST_STEPS):
            operator = graph.producer(tensor)
            if operator is None or operator.kind not in _AFTER or not operator.inputs:
                break
            after.append(operator)
            tensor = operator.inputs[0]
        if operator is not None and _weight_of(graph, operator) is not None:
            heads.setdefault(id(operator), []).append(_Use(operator, tuple(after)))
        else:
            ends.append(operator.kind if operator is not None else "an input")
    if not heads:
        raise AmbiguousError(
            f"{graph.path}: no output comes from a fully connected layer with constant weights; "
            f"they come from {', '.join(dict.fromkeys(ends)) or 'nowhere'}: name a weight with "
            "--weight"
        )
    return list(heads.values())


def _reordering(graph: Graph, uses: Sequence[_Use], classes: int) -> Iterator[str]:
    """Doubts about what follows the head and may put another class first."""
    for operator in (one for use in uses for one in use.after):
        info = graph.tensors[operator.outputs[0]] if operator.outputs else None
        scales = None if info is None else info.quantisation
        if info is None or not info.shape or info.shape[-1] != classes:
            yield f"{operator.kind} follows the head and moves its classes off the last axis"
        if operator.kind == "SOFTMAX" and not operator.beta > 0:
            yield f"SOFTMAX follows the head with β = {operator.beta:g} and changes its order"
        if operator.kind == "CAST" and (info is None or info.type not in _FLOATS):
            yield "CAST follows the head and makes integers of its scores"
        if scales is not None and (scales.scales.size != 1 or not scales.scales[0] > 0):
            yield f"{operator.kind} follows the head with a scale for each class"


def _weight_of(graph: Graph, operator: Operator) -> int | None:
    """The constant that a linear layer multiplies by; float16 ones stand behind a DEQUANTIZE."""
    if operator.kind not in ("FULLY_CONNECTED", "CONV_2D") or len(operator.inputs) < 2:
        return None
    weight = _constant(graph, operator.inputs[1])
    if weight is None:
        return None
    shape = graph.tensors[weight].shape
    flat = len(shape) == 2 if operator.kind == "FULLY_CONNECTED" else (
        len(shape) == 4 and shape[1:3] == (1, 1)
    )  # fmt: skip
    return weight if flat and operator.format == 0 else None


def _constant(graph: Graph, tensor: int) -> int | None:
    for _ in range(4):
        if tensor < 0:
            return None
        if graph.tensors[tensor].data is not None:
            return tensor
        operator = graph.producer(tensor)
        if operator is None or operator.kind != "DEQUANTIZE" or not operator.inputs:
            return None
        tensor = operator.inputs[0]
    return None


def _choose(graph: Graph) -> Choice:
    heads = _heads(graph)
    if len(heads) > 1:
        weights = [_weight_of(graph, uses[0].head) for uses in heads]
        found = [graph.tensors[w] for w in weights if w is not None]
        tensors = [Tensor(i.name, i.shape, "", functools.partial(np.zeros, 0)) for i in found]
        raise AmbiguousError(
            f"{graph.path} has {len(heads)} outputs that end in a layer of their own: "
            f"{listing(tensors)}: name one with --weight"
        )
    kind = heads[0][0].head.kind
    return _choice(graph, heads[0], f"{kind} is the last linear layer before the output")


def _around(graph: Graph, name: str) -> Choice | None:
    for operator in graph.operators:
        weight = _weight_of(graph, operator)
        if weight is not None and graph.tensors[weight].name == name:
            ends = [uses for uses in _ends(graph) if uses[0].head is operator]
            uses = ends[0] if ends else [_Use(operator, ())]
            return _choice(graph, uses, f"the weight of a {operator.kind}")
    return None


def _ends(graph: Graph) -> list[list[_Use]]:
    try:
        return _heads(graph)
    except AmbiguousError:
        return []


def _choice(graph: Graph, uses: Sequence[_Use], why: str) -> Choice:
    operator = uses[0].head
    weight = _weight_of(graph, operator)
    assert weight is not None
    info = graph.tensors[weight]
    matrix = _value(graph, weight)
    matrix = matrix.reshape(matrix.shape[0], matrix.shape[-1])
    notes: list[str] = []
    doubts = list(dict.fromkeys(_reordering(graph, uses, len(matrix))))
    inputs = graph.tensors[operator.inputs[0]] if operator.inputs[0] >= 0 else None
    if info.type in INTEGERS and (inputs is None or inputs.type not in INTEGERS):
        notes.append(
            "the weights are quantised and the inputs are not: the run-time rounds the head's "
            "inputs to 8 bits, so near ties can fall differently there"
        )
    if operator.activation != "none":
        doubts.append(
            f"the layer ends in {operator.activation}, which can make several scores equal: "
            "verdicts are about its values before that"
        )
    if any(o.kind == "LOGISTIC" and o.inputs[:1] == operator.outputs for o in graph.operators):
        notes.append(sigmoids("the graph"))
    bias, bias_name = None, None
    index = operator.inputs[2] if len(operator.inputs) > 2 else -1
    constant = _constant(graph, index)
    if constant is not None:
        bias, bias_name = _bias(graph, constant, info, inputs), graph.tensors[constant].name
        if graph.tensors[constant].type == 2:
            notes.append(
                "the bias is an integer times the scales of weight and input, rounded to float64 "
                "(one part in 2⁵³)"
            )
    elif index >= 0:
        raise UncorkError(f"{graph.path}: the head's bias is computed by the graph: not read")
    return Choice(matrix, bias, info.name, bias_name, why, notes=tuple(notes), doubts=tuple(doubts))


def _bias(graph: Graph, constant: int, weight: TensorInfo, inputs: TensorInfo | None) -> np.ndarray:
    stored = graph.stored(constant).reshape(-1)
    if stored.dtype.kind != "i":
        return stored
    own, given = weight.quantisation, None if inputs is None else inputs.quantisation
    if own is None or given is None or given.scales.size != 1:
        raise UncorkError(
            f"{graph.path}: the bias {graph.tensors[constant].name[:80]!r} is an integer, and the "
            "scales it needs are missing"
        )
    # float32 × float32 is exact in float64, the integer is rounded in.
    return stored * (own.scales.astype(np.float64) * float(given.scales[0]))


def _domain(graph: Graph, choice: Choice) -> FoundDomain | UnknownDomain | None:
    users = []
    for operator in graph.operators:
        weight = _weight_of(graph, operator)
        if weight is not None and graph.tensors[weight].name == choice.weight_name:
            users.append((operator, graph.tensors[weight]))
    if len(users) > 1:
        return UnknownDomain(f"{len(users)} layers have weights called {choice.weight_name[:80]!r}")
    if not users:
        return None
    operator, stored = users[0]
    inputs = graph.tensors[operator.inputs[0]] if operator.inputs[0] >= 0 else None
    rounded = stored.type in INTEGERS and (inputs is None or inputs.type not in INTEGERS)
    return domain_before(graph, operator, rounded)


def _vocabulary(path: Path, classes: int) -> Vocabulary:
    """Labels that the metadata tools of TensorFlow Lite append to a model, as a zip archive."""
    if not zipfile.is_zipfile(path):
        return Vocabulary()
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist()[:100]:
            if not info.filename.endswith(".txt") or info.file_size > _MOST_LABELS_BYTES:
                continue
            text = archive.read(info).decode("utf-8", "backslashreplace")
            labels, how = lines_of_text(text, classes)
            if len(labels) == classes:
                return Vocabulary(tuple(labels), f"{info.filename!r} in the model's metadata{how}")
    return Vocabulary(None, f"no list of {classes} labels in the model's metadata")
