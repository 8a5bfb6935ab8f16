"""TensorFlow Lite: the last fully connected layer, dequantised, and what precedes it."""

from __future__ import annotations

import functools
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from uncork.domain import Box
from uncork.errors import UncorkError
from uncork.load.activation_ranges import RANGES
from uncork.load.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    Tensor,
    Vocabulary,
    listing,
)
from uncork.load.decisions import sigmoids
from uncork.load.tflite.graph import Graph, Operator, TensorInfo, read_graph
from uncork.load.vocabulary.labels import lines_of_text

_AFTER = ("SOFTMAX", "LOG_SOFTMAX", "LOGISTIC", "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "QUANTIZE",
          "DEQUANTIZE", "CAST")  # fmt: skip
_PASSED = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "MEAN", "AVERAGE_POOL_2D", "MAX_POOL_2D",
           "REDUCE_MAX", "TRANSPOSE", "QUANTIZE", "DEQUANTIZE", "STRIDED_SLICE", "SLICE",
           "GATHER")  # fmt: skip
_SLACK = 2.0**-20  # what float32 run-times are off by, and a little more
_RANGES = {
    "RELU": RANGES["relu"], "RELU6": RANGES["relu6"], "RELU_N1_TO_1": (-1.0, 1.0),
    "RELU_0_TO_1": (0.0, 1.0), "TANH": RANGES["tanh"], "LOGISTIC": RANGES["sigmoid"],
    "SOFTMAX": (0.0, 1.0), "HARD_SWISH": RANGES["hardswish"], "GELU": RANGES["gelu_new"],
    "ELU": (-1.0, math.inf),
}  # fmt: skip
_FUSED = {"relu": "RELU", "relu6": "RELU6", "relu_n1_to_1": "RELU_N1_TO_1", "tanh": "TANH"}
_SILU = RANGES["silu"]
_MOST_STEPS = 64
_MOST_LABELS_BYTES = 16 << 20
_INTEGERS = {3: (0, 255), 7: (-32768, 32767), 9: (-128, 127)}  # uint8, int16, int8


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
        domain=functools.partial(_domain, graph, tensors),
    )


def _value(graph: Graph, tensor: int) -> np.ndarray:
    """A constant's values: dequantised exactly where they are integers with a scale."""
    info, stored = graph.tensors[tensor], graph.stored(tensor)
    if info.quantisation is None or info.type not in _INTEGERS:
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


def _heads(graph: Graph) -> list[Operator]:
    """The linear layer behind each output, each once."""
    heads: list[Operator] = []
    ends: list[str] = []
    for output in graph.outputs:
        tensor = output
        for _ in range(_MOST_STEPS):
            operator = graph.producer(tensor)
            if operator is None or operator.kind not in _AFTER or not operator.inputs:
                break
            tensor = operator.inputs[0]
        if operator is not None and _weight_of(graph, operator) is not None:
            if operator not in heads:
                heads.append(operator)
        else:
            ends.append(operator.kind if operator is not None else "an input")
    if not heads:
        raise AmbiguousError(
            f"{graph.path}: no output comes from a fully connected layer with constant weights; "
            f"they come from {', '.join(dict.fromkeys(ends)) or 'nowhere'}: name a weight with "
            "--weight"
        )
    return heads


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
        found = [graph.tensors[w] for head in heads if (w := _weight_of(graph, head)) is not None]
        tensors = [Tensor(i.name, i.shape, "", functools.partial(np.zeros, 0)) for i in found]
        raise AmbiguousError(
            f"{graph.path} has {len(heads)} outputs that end in a layer of their own: "
            f"{listing(tensors)}: name one with --weight"
        )
    return _choice(graph, heads[0], f"{heads[0].kind} is the last linear layer before the output")


def _around(graph: Graph, name: str) -> Choice | None:
    for operator in graph.operators:
        weight = _weight_of(graph, operator)
        if weight is not None and graph.tensors[weight].name == name:
            return _choice(graph, operator, f"the weight of a {operator.kind}")
    return None


def _choice(graph: Graph, operator: Operator, why: str) -> Choice:
    weight = _weight_of(graph, operator)
    assert weight is not None
    info = graph.tensors[weight]
    matrix = _value(graph, weight)
    matrix = matrix.reshape(matrix.shape[0], matrix.shape[-1])
    notes = []
    inputs = graph.tensors[operator.inputs[0]] if operator.inputs[0] >= 0 else None
    if info.type in _INTEGERS and (inputs is None or inputs.type not in _INTEGERS):
        notes.append(
            "the weights are quantised and the inputs are not: the run-time rounds the head's "
            "inputs to 8 bits, so near ties can fall differently there"
        )
    if operator.activation != "none":
        notes.append(
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
    return Choice(matrix, bias, info.name, bias_name, why, tuple(notes))


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


def _domain(graph: Graph, tensors: Mapping[str, Tensor], choice: Choice) -> FoundDomain | None:
    for operator in graph.operators:
        weight = _weight_of(graph, operator)
        if weight is not None and graph.tensors[weight].name == choice.weight_name:
            break
    else:
        return None
    tensor = operator.inputs[0]
    if tensor < 0:
        return None
    info = graph.tensors[tensor]
    # An integer between 0 and 255 with a scale cannot be more than it can be.
    if info.type in _INTEGERS and info.quantisation is not None:
        scale, zero = float(info.quantisation.scales[0]), int(info.quantisation.zeros[0])
        least, most = _INTEGERS[info.type]
        if scale > 0 and math.isfinite(scale):
            why = f"the head's inputs are {info.dtype} with scale {scale:g} and zero point {zero}"
            return FoundDomain(Box((least - zero) * scale, (most - zero) * scale), why)
        return None
    found = _range(graph, tensor, _MOST_STEPS)
    if found is None:
        return None
    (lower, upper), what = found
    box = Box(lower - _SLACK * abs(lower), upper + _SLACK * abs(upper))
    return FoundDomain(box, f"{what} precedes the head")


def _range(graph: Graph, tensor: int, steps: int) -> tuple[tuple[float, float], str] | None:
    through: list[str] = []
    for _ in range(steps):
        operator = graph.producer(tensor)
        if operator is None or not operator.inputs:
            return None
        way = f", through {' and '.join(dict.fromkeys(reversed(through)))}," if through else ""
        if operator.activation in _FUSED:
            name = _FUSED[operator.activation]
            return _RANGES[name], f"{operator.kind} with {operator.activation}{way}"
        if operator.kind in _RANGES:
            return _RANGES[operator.kind], f"{operator.kind}{way}"
        if operator.kind == "MUL" and _is_silu(graph, operator):
            return _SILU, f"x·sigmoid(x){way}"
        if operator.kind == "CONCATENATION" and operator.activation == "none":
            parts = [_range(graph, part, steps // 4) for part in operator.inputs[:64]]
            sides = [part[0] for part in parts if part is not None]
            if len(sides) != len(operator.inputs):
                return None
            hull = min(s[0] for s in sides), max(s[1] for s in sides)
            return hull, f"CONCATENATION{way}"
        if operator.kind not in _PASSED or operator.activation != "none":
            return None
        through.append(operator.kind)
        tensor = operator.inputs[0]
    return None


def _is_silu(graph: Graph, operator: Operator) -> bool:
    """Whether this is x · sigmoid(x), as converters write SiLU."""
    if len(operator.inputs) != 2 or operator.activation != "none":
        return False
    for x, gate in (operator.inputs, operator.inputs[::-1]):
        other = graph.producer(gate)
        if other is not None and other.kind == "LOGISTIC" and other.inputs[:1] == (x,):
            return True
    return False


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
