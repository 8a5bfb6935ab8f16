"""OpenVINO's operations written down as ONNX's, where they mean the same.

An operation without a rule here, or with a setting that ONNX has no word for, keeps its own name:
the walk from an output to the head stops there, and nothing is known of what it leaves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.onnx.made import Draft
from uncork.loading.onnx.tensors import NUMBERS
from uncork.loading.openvino import constants
from uncork.loading.openvino.constants import TYPES, Constant, numbers
from uncork.loading.openvino.network import Layer, Network

_DOMAIN = "openvino"
_PRECISIONS = {"FP64": TYPES["f64"], "FP32": TYPES["f32"], "FP16": TYPES["f16"],
               "BF16": TYPES["bf16"]}  # fmt: skip
_ENDLESS = 2**62
_MOST_ENTRIES = 1 << 12  # of an axis list or a shape


class _Own(Exception):
    """The operation keeps its own name."""


class Translation:
    """A network on its way to being an ONNX graph; `decoded` names the weights made of codes."""

    def __init__(self, network: Network, weights: Path, size: int) -> None:
        self.network, self.weights, self.size = network, weights, size
        self.draft = Draft(network.path, _DOMAIN)
        self.values: dict[tuple[str, str], str] = {}
        self.constants: dict[str, Constant] = {}
        self.decoded: dict[str, str] = {}
        self.ranks: dict[str, int] = {}
        if len({layer.id for layer in network.layers}) < len(network.layers):
            raise UncorkError(f"{network.path} is damaged: two layers have one number")
        for layer in network.layers:
            self._add(layer)

    def _add(self, layer: Layer) -> None:
        if layer.type == "Const":
            self._keep(layer, constants.stored(self.weights, self.size, layer))
            return
        if layer.type == "Result":
            self.draft.output(self.given(layer, 0))
            return
        if layer.type == "Parameter":
            name = self.draft.new(self._name(layer))
            for port, about in layer.outputs.items():
                self._made(layer, port, name)
                self.draft.input(name, TYPES.get(layer.data.get("element_type", "")), about.dims)
            return
        try:
            rule = _RULES.get(layer.type)
            if rule is None or not layer.version.startswith("opset"):
                raise _Own
            rule(self, layer)
        except _Own:
            made = [self._made(layer, port, self.draft.new(self._name(layer, port)))
                    for port in layer.outputs]  # fmt: skip
            inputs = [self.given(layer, k) for k in range(len(layer.inputs))]
            self.draft.add(layer.type, inputs, made, name=layer.name, domain=_DOMAIN)
            for name, about in zip(made, layer.outputs.values(), strict=True):
                self.draft.declare(name, _PRECISIONS.get(about.precision))

    def _name(self, layer: Layer, port: str | None = None) -> str:
        """What a value is called: as the model names it, else as its layer."""
        found = layer.outputs.get(port) if port is not None else next(
            iter(layer.outputs.values()), None
        )  # fmt: skip
        return found.names[0] if found is not None and found.names else layer.name

    def _made(self, layer: Layer, port: str, name: str) -> str:
        self.values[layer.id, port] = name
        self.ranks[name] = len(layer.outputs[port].dims)
        return name

    def _keep(self, layer: Layer, constant: Constant) -> None:
        """A constant, under its layer's name."""
        name = self.draft.stored(layer.name, constant.shape, constant.dtype, constant.read)
        self.constants[name] = constant
        if constant.made:
            self.decoded[name] = constant.made
        for port in layer.outputs:
            self._made(layer, port, name)
        self.ranks[name] = len(constant.shape)

    def given(self, layer: Layer, k: int) -> str:
        """The value at an input, "" where there is none."""
        if k >= len(layer.inputs):
            return ""
        feed = self.network.feeds.get((layer.id, layer.inputs[k]))
        return self.values.get(feed, "") if feed is not None else ""

    def constant(self, layer: Layer, k: int) -> Constant | None:
        return self.constants.get(self.given(layer, k))

    def whole(self, layer: Layer, k: int) -> list[int]:
        """The integers of a small constant input; without it the operation keeps its name."""
        found = self.constant(layer, k)
        if found is None or found.dtype.kind not in "iu" or math.prod(found.shape) > _MOST_ENTRIES:
            raise _Own
        return [int(n) for n in found.read().reshape(-1)]

    def write(self, layer: Layer, op: str, inputs: list[str], **attributes: Any) -> None:
        """The layer as one node, all its results in order."""
        if not inputs or not inputs[0] or not layer.outputs:
            raise _Own
        made = [self._made(layer, port, self.draft.new(self._name(layer, port)))
                for port in layer.outputs]  # fmt: skip
        self.draft.add(op, inputs, made, name=layer.name, **attributes)

    def inputs(self, layer: Layer, count: int) -> list[str]:
        found = [self.given(layer, k) for k in range(count)]
        if not all(found):
            raise _Own
        return found

    def turned(self, value: str) -> str:
        """A value with its last two axes exchanged."""
        rank = self.ranks.get(value, 0)
        if rank < 2:
            raise _Own
        order = [*range(rank - 2), rank - 1, rank - 2]
        made = self.draft.add("Transpose", [value], f"{value}/transposed", perm=order)
        self.ranks[made] = rank
        return made


def _flag(layer: Layer, name: str, default: bool = False) -> bool:
    text = layer.data.get(name, "").lower()
    return text in ("true", "1") if text else default


def _number(layer: Layer, name: str) -> float:
    try:
        return float(layer.data[name])
    except (KeyError, ValueError):
        raise _Own from None


def _same(op: str, t: Translation, layer: Layer) -> None:
    t.write(layer, op, t.inputs(layer, 1))


def _two(op: str, t: Translation, layer: Layer) -> None:
    a, b = t.inputs(layer, 2)
    if layer.data.get("auto_broadcast", "numpy") not in ("numpy", "none"):
        raise _Own
    one, other = t.constant(layer, 0), t.constant(layer, 1)
    if one is not None and other is not None and op in ("Sub", "Mul"):
        made = constants.less(one, other) if op == "Sub" else (
            constants.times(one, other) or constants.times(other, one)
        )  # fmt: skip
        if made is not None:
            t._keep(layer, made)
            return
    t.write(layer, op, [a, b])


def _convert(t: Translation, layer: Layer) -> None:
    dtype = TYPES.get(layer.data.get("destination_type", ""))
    if dtype is None:
        raise _Own
    constant = t.constant(layer, 0)
    made = None if constant is None else constants.converted(constant, dtype)
    if made is not None:
        t._keep(layer, made)
    else:
        t.write(layer, "Cast", t.inputs(layer, 1), to=NUMBERS[dtype])


def _matmul(t: Translation, layer: Layer) -> None:
    a, b = t.inputs(layer, 2)
    if _flag(layer, "transpose_a"):
        a = t.turned(a)
    if _flag(layer, "transpose_b"):
        b = t.turned(b)
    t.write(layer, "MatMul", [a, b])


def _window(layer: Layer, *names: str) -> dict[str, Any]:
    """Strides, pads and their like; pads by rule are kept where ONNX has the same rule."""
    found: dict[str, Any] = {}
    for name in names:
        values = numbers(layer.data.get(name, ""))
        if values is None:
            raise _Own
        if values:
            found[name] = values
    auto = layer.data.get("auto_pad", "explicit").lower()
    if auto in ("same_upper", "same_lower"):
        return found | {"auto_pad": auto.upper()}
    begin, end = (numbers(layer.data.get(name, "")) for name in ("pads_begin", "pads_end"))
    if auto not in ("explicit", "notset", "valid") or begin is None or end is None:
        raise _Own
    if auto != "valid" and any((*begin, *end)):
        found["pads"] = (*begin, *end)
    return found


def _convolution(t: Translation, layer: Layer) -> None:
    t.write(layer, "Conv", t.inputs(layer, 2), **_window(layer, "strides", "dilations"))


def _average_pool(t: Translation, layer: Layer) -> None:
    window = _pool(layer)
    if "exclude-pad" not in layer.data:
        raise _Own
    padded = not _flag(layer, "exclude-pad")
    t.write(layer, "AveragePool", t.inputs(layer, 1), count_include_pad=padded, **window)


def _max_pool(t: Translation, layer: Layer) -> None:
    t.write(layer, "MaxPool", t.inputs(layer, 1), **_pool(layer))


def _pool(layer: Layer) -> dict[str, Any]:
    window = _window(layer, "strides", *(["dilations"] if "dilations" in layer.data else []))
    kernel = numbers(layer.data.get("kernel", ""))
    if not kernel or layer.data.get("rounding_type", "floor") not in ("floor", "ceil"):
        raise _Own
    ceil = layer.data.get("rounding_type") == "ceil"
    return window | {"kernel_shape": kernel, "ceil_mode": ceil}


def _axis(op: str, t: Translation, layer: Layer) -> None:
    """One axis, as a setting."""
    axis = numbers(layer.data.get("axis", ""))
    if axis is None or len(axis) != 1:
        raise _Own
    t.write(layer, op, t.inputs(layer, len(layer.inputs)), axis=axis[0])


def _reshape(t: Translation, layer: Layer) -> None:
    constant, copies = t.constant(layer, 0), _flag(layer, "special_zero")
    if constant is not None and constant.made:
        made = constants.reshaped(constant, np.array(t.whole(layer, 1)), copies)
        if made is None:
            raise _Own
        t._keep(layer, made)
        return
    t.write(layer, "Reshape", t.inputs(layer, 2), allowzero=not copies)


def _transpose(t: Translation, layer: Layer) -> None:
    order = t.whole(layer, 1)
    t.write(layer, "Transpose", t.inputs(layer, 1), **({"perm": order} if order else {}))


def _gather(t: Translation, layer: Layer) -> None:
    axis = t.whole(layer, 2)
    if len(axis) != 1 or layer.data.get("batch_dims", "0") != "0":
        raise _Own
    t.write(layer, "Gather", t.inputs(layer, 2), axis=axis[0])


def _split(t: Translation, layer: Layer) -> None:
    axis = t.whole(layer, 1)
    if len(axis) != 1:
        raise _Own
    inputs = t.inputs(layer, 1)
    if layer.type == "VariadicSplit":
        t.write(layer, "Split", [*inputs, t.inputs(layer, 3)[2]], axis=axis[0])
    else:
        t.write(layer, "Split", inputs, axis=axis[0], num_outputs=len(layer.outputs))


def _slice(t: Translation, layer: Layer) -> None:
    """Slice-8: data, start, stop, step, and the axes."""
    data, start, stop, step = t.inputs(layer, 4)
    axes = t.given(layer, 4)
    t.write(layer, "Slice", [data, start, stop, axes, step])


def _strided_slice(t: Translation, layer: Layer) -> None:
    """Begin, end and step for each axis from the first one on; a mask takes an axis whole."""
    begin, end = t.whole(layer, 1), t.whole(layer, 2)
    step = t.whole(layer, 3) if t.given(layer, 3) else [1] * len(begin)
    masks = {}
    for name in ("begin", "end", "new_axis", "shrink_axis", "ellipsis"):
        found = numbers(layer.data.get(f"{name}_mask", ""))
        if found is None:
            raise _Own
        masks[name] = [*found, *[0] * (len(begin) - len(found))]
    if any(masks["new_axis"]) or any(masks["ellipsis"]) or any(n != 1 for n in step):
        raise _Own
    if not len(begin) == len(end) == len(step):
        raise _Own
    shrunk = [k for k, flag in enumerate(masks["shrink_axis"][: len(begin)]) if flag]
    starts = [0 if masks["begin"][k] and k not in shrunk else n for k, n in enumerate(begin)]
    stops = [_ENDLESS if masks["end"][k] else n for k, n in enumerate(end)]
    for k in shrunk:
        stops[k] = starts[k] + 1 or _ENDLESS
    data = t.inputs(layer, 1)[0]
    parts = [t.draft.constant(values, np.int64)
             for values in (starts, stops, list(range(len(begin))))]  # fmt: skip
    if not shrunk:
        t.write(layer, "Slice", [data, *parts])
        return
    sliced = t.draft.add("Slice", [data, *parts], f"{layer.name}/sliced", name=layer.name)
    t.write(layer, "Squeeze", [sliced, t.draft.constant(shrunk, np.int64)])


def _reduce(op: str, t: Translation, layer: Layer) -> None:
    kept = _flag(layer, "keep_dims")
    t.write(layer, op, t.inputs(layer, 2), keepdims=kept)


def _mvn(t: Translation, layer: Layer) -> None:
    """(x − mean)/√(variance + ε) over the last axis; ε outside the root makes it no longer."""
    axes = t.whole(layer, 1)
    data = t.inputs(layer, 1)[0]
    last = axes in ([-1], [t.ranks.get(data, 0) - 1])
    if layer.version != "opset6" or not last or not _flag(layer, "normalize_variance", True):
        raise _Own
    gain = t.draft.constant([1.0], np.float32)
    t.write(layer, "LayerNormalization", [data, gain], epsilon=_number(layer, "eps"))


def _gelu(t: Translation, layer: Layer) -> None:
    mode = layer.data.get("approximation_mode", "erf").lower()
    if mode not in ("erf", "tanh"):
        raise _Own
    approximate = "none" if mode == "erf" else "tanh"
    t.write(layer, "Gelu", t.inputs(layer, 1), approximate=approximate)


def _swish(t: Translation, layer: Layer) -> None:
    beta = 1.0
    if t.given(layer, 1):
        found = t.constant(layer, 1)
        if found is None or math.prod(found.shape) != 1 or found.dtype.kind != "f":
            raise _Own
        beta = float(found.read().reshape(-1)[0])
    t.write(layer, "Swish", t.inputs(layer, 1), alpha=beta)


def _clamp(t: Translation, layer: Layer) -> None:
    ends = [t.draft.constant(_number(layer, name), np.float32) for name in ("min", "max")]
    t.write(layer, "Clip", [*t.inputs(layer, 1), *ends])


def _elu(t: Translation, layer: Layer) -> None:
    t.write(layer, "Elu", t.inputs(layer, 1), alpha=_number(layer, "alpha"))


def _hard_sigmoid(t: Translation, layer: Layer) -> None:
    t.write(layer, "HardSigmoid", t.inputs(layer, 1), alpha=1 / 6, beta=0.5)


def _top_k(t: Translation, layer: Layer) -> None:
    axis = numbers(layer.data.get("axis", ""))
    mode = layer.data.get("mode", "").lower()
    if axis is None or len(axis) != 1 or mode not in ("max", "min"):
        raise _Own
    t.write(layer, "TopK", t.inputs(layer, 2), axis=axis[0], largest=mode == "max")


def _shape_of(t: Translation, layer: Layer) -> None:
    if layer.data.get("output_type", "i64") != "i64":
        raise _Own
    _same("Shape", t, layer)


_RULES: dict[str, Callable[[Translation, Layer], None]] = {
    **{kind: functools.partial(_same, op) for kind, op in {
        "ReLU": "Relu", "Relu": "Relu", "Sigmoid": "Sigmoid", "Tanh": "Tanh", "Exp": "Exp",
        "Log": "Log", "Sqrt": "Sqrt", "Erf": "Erf", "Negative": "Neg", "Abs": "Abs",
        "HSwish": "HardSwish", "Mish": "Mish", "SoftPlus": "Softplus", "SoftSign": "Softsign",
    }.items()},
    **{kind: functools.partial(_two, op) for kind, op in {
        "Add": "Add", "Subtract": "Sub", "Multiply": "Mul", "Divide": "Div", "Maximum": "Max",
        "Minimum": "Min", "Power": "Pow",
    }.items()},
    **{kind: functools.partial(_reduce, kind) for kind in (
        "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceL2",
    )},
    "SoftMax": functools.partial(_axis, "Softmax"),
    "Softmax": functools.partial(_axis, "Softmax"),
    "LogSoftmax": functools.partial(_axis, "LogSoftmax"),
    "Concat": functools.partial(_axis, "Concat"),
    "Convert": _convert, "MatMul": _matmul, "Convolution": _convolution, "AvgPool": _average_pool,
    "MaxPool": _max_pool, "Reshape": _reshape, "Transpose": _transpose, "Gather": _gather,
    "Squeeze": lambda t, layer: t.write(layer, "Squeeze", t.inputs(layer, len(layer.inputs))),
    "Unsqueeze": lambda t, layer: t.write(layer, "Unsqueeze", t.inputs(layer, 2)),
    "Split": _split, "VariadicSplit": _split, "Slice": _slice, "StridedSlice": _strided_slice,
    "MVN": _mvn, "Gelu": _gelu, "Swish": _swish, "Clamp": _clamp, "Elu": _elu,
    "HSigmoid": _hard_sigmoid, "TopK": _top_k, "ShapeOf": _shape_of,
}  # fmt: skip
