"""Rules of layers: linear maps, batch normalisation, recurrence, softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.domain import Unbounded
from uncork.domain.outline import Outline
from uncork.loading.onnx.arriving.assumptions import Assumption
from uncork.loading.onnx.arriving.rows import Linear
from uncork.loading.onnx.arriving.value import Value, fresh, node_name
from uncork.loading.onnx.linear import dense
from uncork.loading.onnx.rules.table import Nothing, rule
from uncork.loading.onnx.tensors import attribute, attribute_texts, decode

if TYPE_CHECKING:
    from uncork.loading.onnx.arriving.ranges import Ranges

_MOST_MATRIX = 1 << 26  # elements of a linear map that is folded in
_MOST_STEPS = 4096
_EXACT = Assumption("linear maps before the head are taken in real numbers, without rounding")
_SHORT = Assumption(f"sequences have at most {_MOST_STEPS} steps")


def _label(node: Any) -> str:
    return f"{node.op_type} ({node_name(node)})"


@rule("Softmax", "Hardmax", attributes=("axis",))
def softmax(ranges: Ranges, node: Any) -> Value:
    """Non-negative numbers with the sum 1: each lies in [0, 1], up to 16 units."""
    value = ranges.inputs(node, 0)[0]
    if not value.kind.is_float:
        raise Nothing(f"its rule covers floats, not {value.kind.name}")
    ends = np.asarray(0.0), np.asarray(1 + 16 * value.kind.floats.unit)
    return fresh(node.output[0], value.kind, value.dims, ends, True, label=_label(node))


@rule("BatchNormalization", attributes=("epsilon", "momentum", "training_mode", "spatial"))
def batch_norm(ranges: Ranges, node: Any) -> list[Value | None]:
    """(x − mean)/√(variance + ε)·scale + offset for each channel, all of them fixed: an affine map,
    by intervals, its constants widened by 2⁻²⁰ as run-times fold them in their own type."""
    if attribute(node, "training_mode", 0) or not attribute(node, "spatial", 1):
        raise Nothing("it is in training mode")
    value = ranges.inputs(node, 0)[0]
    if len(node.output) > 1 and any(node.output[1:]):
        raise Nothing("it is in training mode")
    fixed = [ranges.fixed(name) for name in node.input[1:5]]
    if len(fixed) != 4 or value.dims is None or len(value.dims) < 2:
        raise Nothing("its shape is not known")
    if value.kind.name not in ("float32", "float64"):
        raise Nothing(f"its rule does not cover {value.kind.name}")
    wide = [np.zeros(0) if f is None else f.reshape(-1).astype(np.float64) for f in fixed]
    if any(f is None for f in fixed) or len({len(w) for w in wide}) != 1:
        raise Nothing("its numbers are not fixed")
    scale, offset, mean, variance = wide
    shape = [1] * len(value.dims)
    shape[1] = len(scale)
    if value.lower.shape[1] not in (1, len(scale)):
        raise Nothing("its numbers do not fit the channels")
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + float(attribute(node, "epsilon", 1e-5)))
        shift = offset - mean * factor
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        raise Nothing("its numbers are not finite")
    slack, a = 2.0**-20, value.kind.floats
    size = (np.abs(offset) + np.abs(mean * factor)) * slack
    near = np.abs(factor) * slack
    ends = [
        end.reshape(shape) for end in (factor - near, factor + near, shift - size, shift + size)
    ]
    with np.errstate(all="ignore"):
        bounds = a.add(a.multiply(value.bounds, (ends[0], ends[1])), (ends[2], ends[3]))
    # x·factor may be far larger than the result.
    reach = np.maximum(np.abs(value.lower), np.abs(value.upper)) * np.abs(factor).reshape(shape)
    rounding = np.where(np.isfinite(reach), reach, 0.0) * slack
    bounds = bounds[0] - rounding, bounds[1] + rounding
    nan = value.nan or not np.isfinite(value.bounds).all()
    made = fresh(node.output[0], value.kind, ranges.dims(node), bounds, nan, like=value)
    return [made.through(node, "BatchNormalization")]


@rule("LSTM", "GRU", "RNN", attributes=(
    "activations", "direction", "hidden_size", "input_forget", "layout", "linear_before_reset",
    "clip"))  # fmt: skip
@rule("com.microsoft::DynamicQuantizeLSTM", attributes=(
    "activations", "direction", "hidden_size", "input_forget"))  # fmt: skip
def recurrent(ranges: Ranges, node: Any) -> list[Value | None]:
    """With the standard's own activations: an LSTM leaves a gate in [0, 1] times tanh, an RNN tanh,
    a GRU averages of tanh and the state before, which must itself begin within ±1. So all of it
    lies within ±1, up to 64 units, and for a GRU 8 units more a step."""
    activations = [text.lower() for text in attribute_texts(node, "activations")]
    op = node.op_type.replace("DynamicQuantize", "")
    usual = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}[op]
    if activations and activations not in (usual, usual * 2):
        raise Nothing("its activations are not the usual ones")
    value = ranges.inputs(node, 0)[0]
    if not value.kind.is_float:
        raise Nothing(f"its rule covers floats, not {value.kind.name}")
    unit = value.kind.floats.unit
    assumed: tuple[Assumption, ...] = ()
    one = 1 + 64 * unit
    if op == "GRU":
        if ranges.given(node, 5):
            low, high = ranges.inputs(node, 5)[0].hull
            if not -1 <= low <= high <= 1 or ranges.inputs(node, 5)[0].nan:
                raise Nothing("its first state is not within ±1")
        time = 1 if attribute(node, "layout", 0) else 0
        steps = value.dims[time] if value.dims is not None and len(value.dims) == 3 else None
        known = isinstance(steps, int)
        one += 8 * unit * (int(steps) if isinstance(steps, int) else _MOST_STEPS)
        assumed = () if known else (_SHORT,)
    ends = np.asarray(-one), np.asarray(one)
    made: list[Value | None] = []
    for k, output in enumerate(node.output[:2]):
        # The last state of an empty sequence is not computed but taken over.
        if k == 1 and (ranges.given(node, 4) or ranges.given(node, 5)):
            made.append(None)
            continue
        made.append(fresh(output, value.kind, ranges.dims(node, k), ends, True, label=_label(node),
                          assumed=assumed))  # fmt: skip
    return made


@rule("ConstantOfShape", since=9, attributes=("value",))
def constant(ranges: Ranges, node: Any) -> Value:
    """One number everywhere, zero where none is named."""
    kind = ranges.graph.kinds.get(node.output[0])
    stored = next((a.t for a in node.attribute if a.name == "value"), None)
    number = 0.0
    if stored is not None:
        number = float(decode(ranges.graph.path, node.output[0], stored).reshape(-1)[0])
    if kind is None or not np.isfinite(number):
        raise Nothing("its number is not known")
    ends = np.asarray(number), np.asarray(number)
    return fresh(node.output[0], kind, ranges.dims(node), ends, nan=False)


@rule("MatMul")
@rule("Gemm", attributes=("alpha", "beta", "transA", "transB"))
@rule("Conv", attributes=("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"))
def linear(ranges: Ranges, node: Any) -> Value:
    """A fixed matrix along one axis, with nothing but affine maps between it and the head: the
    image of its input's domain, in real numbers. A map to more features than it is given bounds
    what arrives even where nothing is known of its input."""
    if id(node) not in ranges.folding:
        raise Nothing("sums of unbounded numbers are not bounded")
    graph = ranges.graph
    place = 1 if node.op_type == "MatMul" and graph.constants.is_fixed(node.input[0]) else 0
    value = ranges.inputs(node, place)[0]
    found = dense(node, graph)
    if found is None or found.matrix.size > _MOST_MATRIX:
        raise Nothing("its weight is not a fixed matrix of one axis")
    rows, features = found.matrix.shape
    inner = value.domain(found.axis, features)
    if inner is None and features >= rows:
        raise Nothing("nothing is known of what it is given, and it lets everything through")
    dims = ranges.dims(node)
    if dims is None or value.dims is None or value.dims[found.axis] != features:
        raise Nothing("its shape is not known")
    label = value.label if inner is not None and value.label else f"{features} values"
    bounds = np.asarray(-np.inf), np.asarray(np.inf)
    outline = None if inner is None else inner.outline(features)
    if outline is not None and outline.is_box and outline.has_sides:
        bounds = _products(value, found.matrix, found.offset, outline)
        shape = [1] * len(dims)
        shape[found.axis] = rows if bounds[0].ndim else 1
        bounds = bounds[0].reshape(shape), bounds[1].reshape(shape)
    assumed = value.assumed if _EXACT in value.assumed else (*value.assumed, _EXACT)
    made = fresh(
        node.output[0], value.kind, dims, bounds, True, label=label, trail=value.trail,
        rows=Linear(found.axis, inner or Unbounded(), found.matrix, found.offset), assumed=assumed,
    )  # fmt: skip
    return made.through(node, str(node.op_type))


def _products(
    value: Value, matrix: np.ndarray, offset: np.ndarray | None, box: Outline
) -> tuple[np.ndarray, np.ndarray]:
    low, high = box.lower, box.upper
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return np.asarray(-np.inf), np.asarray(np.inf)
    positive, negative = np.maximum(matrix, 0.0), np.minimum(matrix, 0.0)
    lower, upper = positive @ low + negative @ high, positive @ high + negative @ low
    size = np.abs(matrix) @ np.maximum(np.abs(low), np.abs(high))
    if offset is not None:
        lower, upper, size = lower + offset, upper + offset, size + np.abs(offset)
    a = value.kind.floats
    slack = (len(low) + 8) * 4 * a.unit * size
    return a.outward(lower - slack, upper + slack)
