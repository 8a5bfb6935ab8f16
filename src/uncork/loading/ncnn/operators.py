"""ncnn's layers written down as ONNX's operations, where they mean the same.

ncnn's values have no batch axis; here they have one of length 1 in front, so that channels and
features lie where ONNX has them. A layer without a rule here, or with a setting that ONNX has no
word for, keeps its own name: the walk from a result to the head stops there, and nothing is known
of what it leaves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.ncnn.network import Layer, unused
from uncork.loading.ncnn.weights import Weight
from uncork.loading.onnx.made import Draft

_DOMAIN = "ncnn"
_FLOAT = np.dtype("float32")
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DROPPED = -233
_UNARY = {0: "Abs", 1: "Neg", 5: "Sqrt", 7: "Exp", 8: "Log", 14: "Atan", 15: "Reciprocal",
          16: "Tanh"}  # fmt: skip
_BINARY = {0: "Add", 1: "Sub", 2: "Mul", 3: "Div", 4: "Max", 5: "Min", 7: "Sub", 8: "Div"}
_ORDERS = {1: "hwc", 2: "wch", 3: "cwh", 4: "hcw", 5: "chw"}  # the new w, h, c among the old


class _Own(Exception):
    """The layer keeps its own name."""


class Translation:
    """A network on its way to being an ONNX graph.

    `ranks` holds how many axes values have in ncnn, where that is known; `made` how weights were
    made from what is stored; `rounded` names those whose inputs the run-time rounds to 8 bits.
    """

    def __init__(
        self, path: Path, layers: list[Layer], weights: dict[str, dict[str, Weight]]
    ) -> None:
        self.path, self.weights = path, weights
        self.draft = Draft(path, _DOMAIN)
        self.values: dict[str, str] = {}
        self.ranks: dict[str, int | None] = {}
        self.made: dict[str, str] = {}
        for layer in layers:
            self._add(layer)
        for name in unused(layers):
            self.draft.output(self.values[name])

    def _add(self, layer: Layer) -> None:
        rule = _RULES.get(layer.type)
        try:
            if rule is None or any(name not in self.values for name in layer.inputs):
                raise _Own
            rule(self, layer)
        except _Own:
            inputs = [self.values.get(name, "") for name in layer.inputs]
            made = [self._result(layer, k, None) for k in range(len(layer.outputs))]
            if made:
                self.draft.add(layer.type, inputs, made, name=layer.name, domain=_DOMAIN)
            for name in made:
                self.draft.declare(name, _FLOAT)

    def _result(self, layer: Layer, k: int, rank: int | None) -> str:
        name = self.draft.new(layer.outputs[k])
        self.values[layer.outputs[k]], self.ranks[name] = name, rank
        return name

    def given(self, layer: Layer, k: int = 0) -> str:
        if k >= len(layer.inputs):
            raise _Own
        return self.values[layer.inputs[k]]

    def rank(self, layer: Layer) -> int | None:
        return self.ranks.get(self.given(layer))

    def step(self, op: str, inputs: list[str], layer: Layer, **attributes: Any) -> str:
        """A node on the way to a layer's result."""
        made = self.draft.add(op, inputs, f"{layer.name}/{op}", name=layer.name, **attributes)
        self.draft.declare(made, _FLOAT)
        return made

    def write(
        self, op: str, inputs: list[str], layer: Layer, rank: int | None, **attributes: Any
    ) -> None:
        """The node that gives a layer's one result."""
        if len(layer.outputs) != 1:
            raise _Own
        made = self._result(layer, 0, rank)
        self.draft.add(op, inputs, [made], name=layer.name, **attributes)
        self.draft.declare(made, _FLOAT)

    def number(self, value: float) -> str:
        return self.draft.constant(value, np.float32)

    def activated(self, value: str, layer: Layer, rank: int | None, key: int = 9) -> None:
        """The result of a layer that ends in an activation, or in none."""
        kind, numbers = layer.whole(key, 0), layer.reals(key + 1)
        if kind in (2, 3, 6) and len(numbers) < (1 if kind == 2 else 2):
            raise _Own
        if kind == 0:
            self.write("Identity", [value], layer, rank)
        elif kind in (1, 4, 5):
            self.write({1: "Relu", 4: "Sigmoid", 5: "Mish"}[kind], [value], layer, rank)
        elif kind == 2:
            self.write("LeakyRelu", [value], layer, rank, alpha=numbers[0])
        elif kind == 3:
            ends = [self.number(one) for one in numbers[:2]]
            self.write("Clip", [value, *ends], layer, rank)
        elif kind == 6:
            self.hard_swish(value, layer, rank, numbers[0], numbers[1])
        else:
            raise _Own

    def hard_swish(
        self, value: str, layer: Layer, rank: int | None, alpha: float, beta: float
    ) -> None:
        gate = self.step("HardSigmoid", [value], layer, alpha=alpha, beta=beta)
        self.write("Mul", [value, gate], layer, rank)

    def weight(self, layer: Layer, name: str, shape: tuple[int, ...]) -> str:
        """A stored weight as a constant: codes over the scale of their row."""
        parts = self.weights.get(layer.name, {})
        found = parts.get(name)
        if found is None:
            raise _Own
        if found.count != math.prod(shape):
            raise UncorkError(
                f"{self.path}: {layer.type} {printable(layer.name)[:80]!r} has {found.count} values"
                f" for the shape {list(shape)}: damaged"
            )
        label = f"{layer.name}.{name}"
        scale = parts.get(f"{name} scale")
        if scale is None:
            if found.codes:
                raise UncorkError(f"{self.path}: {label[:80]!r} holds codes without a scale")
            dtype = found.dtype.newbyteorder("=")
            return self.draft.stored(label, shape, dtype, lambda: found.read().reshape(shape))
        made = self.draft.stored(
            label, shape, np.dtype("float64"), functools.partial(_over, found, scale, shape)
        )
        how = "dequantised: int8 codes" if found.codes else "rounded to 8 bits, as ncnn does, then"
        self.made[made] = f"{how} over {layer.name}.{name} scale, rounded once to float64"
        return made


def _over(weight: Weight, scale: Weight, shape: tuple[int, ...]) -> np.ndarray:
    values, scales = weight.read().reshape(shape), scale.read().astype(np.float64)
    rows = scales.reshape(-1, *[1] * (len(shape) - 1))
    if not weight.codes:
        # As ncnn's float2int8: rounded half away from zero, within ±127.
        scaled = values.astype(np.float32) * rows.astype(np.float32)
        values = np.clip(np.trunc(scaled + np.copysign(np.float32(0.5), scaled)), -127, 127)
    with np.errstate(all="ignore"):  # Head names the value it ends in
        return values.astype(np.float64) / rows


def _input(t: Translation, layer: Layer) -> None:
    sizes = [layer.whole(key, 0) for key in (2, 11, 1, 0)]
    dims = [size for size in sizes if size]
    for k in range(len(layer.outputs)):
        name = t._result(layer, k, len(dims) or None)
        t.draft.input(name, _FLOAT, [1, *dims] if dims else None)


def _inner_product(t: Translation, layer: Layer) -> None:
    value, rank = t.given(layer), t.rank(layer)
    outputs, total = layer.whole(0, 0), layer.whole(2, 0)
    if outputs <= 0:
        raise _Own
    weight = t.weight(layer, "weight", (outputs, total // outputs))
    if rank == 3 or rank == 4:
        value = t.step("Flatten", [value], layer, axis=1)
    turned = t.step("Transpose", [weight], layer, perm=[1, 0])
    value = t.step("MatMul", [value, turned], layer)
    if layer.whole(1, 0):
        value = t.step("Add", [value, t.weight(layer, "bias", (outputs,))], layer)
    t.activated(value, layer, rank if rank in (1, 2, None) else 1)


def _convolution(flat: bool, t: Translation, layer: Layer) -> None:
    """Convolution and Convolution1D; pads by rule are ONNX's SAME_UPPER and SAME_LOWER."""
    if layer.whole(19, 0) or layer.real(18, 0.0) != 0:
        raise _Own
    value = t.given(layer)
    outputs, width = layer.whole(0, 0), layer.whole(1, 0)
    kernel = [width] if flat else [layer.whole(11, width), width]
    pairs = [(2, 12, 1), (3, 13, 1)]
    dilations, strides = (
        [layer.whole(w, d)] if flat else [layer.whole(h, layer.whole(w, d)), layer.whole(w, d)]
        for w, h, d in pairs
    )
    left = layer.whole(4, 0)
    right = layer.whole(15, left)
    top = layer.whole(14, left)
    bottom = layer.whole(16, top)
    pads = [left, right] if flat else [top, left, bottom, right]
    inside = outputs * math.prod(kernel)
    if outputs <= 0 or inside <= 0:
        raise _Own
    shape = (outputs, layer.whole(6, 0) // inside, *kernel)
    inputs = [value, t.weight(layer, "weight", shape)]
    if layer.whole(5, 0):
        inputs.append(t.weight(layer, "bias", (outputs,)))
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations}
    if left in (-233, -234):
        attributes["auto_pad"] = "SAME_UPPER" if left == -233 else "SAME_LOWER"
    elif any(pads) and set(kernel) == {1} and min(pads) >= 0:
        # The same, and a map of one position at a time, as it is without padding.
        half = len(pads) // 2
        around = t.draft.constant([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64)
        inputs[0] = t.step("Pad", [value, around], layer)
    elif any(pads):
        attributes["pads"] = pads
    value = t.step("Conv", inputs, layer, **attributes)
    t.activated(value, layer, 2 if flat else 3)


def _activation_after(t: Translation, layer: Layer) -> None:
    """A layer that is not known itself, and the activation at its end."""
    if not layer.whole(9, 0):
        raise _Own
    value = t.draft.add(layer.type, [t.given(layer)], f"{layer.name}/before", name=layer.name,
                        domain=_DOMAIN)  # fmt: skip
    t.draft.declare(value, _FLOAT)
    t.activated(value, layer, 3 if not layer.type.endswith(("1D", "3D")) else None)


def _gemm(t: Translation, layer: Layer) -> None:
    """x Bᵀ + C with constants B and C."""
    n, k = layer.whole(8, 0), layer.whole(9, 0)
    plain = all(layer.whole(key, 0) == 0 for key in (2, 4, 11, 12, 13, 14, 18))
    if not plain or layer.whole(5, 0) != 1 or layer.real(0, 1.0) != 1 or layer.real(1, 1.0) != 1:
        raise _Own
    added = layer.whole(6, 0) == 1 and layer.whole(10, 0) != -1
    if len(layer.inputs) != 1 or (added and layer.whole(10, 0) != 4):
        raise _Own
    if layer.whole(3, 0):
        weight = t.step("Transpose", [t.weight(layer, "B", (n, k))], layer, perm=[1, 0])
    else:
        weight = t.weight(layer, "B", (k, n))
    if not added:
        t.write("MatMul", [t.given(layer), weight], layer, t.rank(layer))
        return
    value = t.step("MatMul", [t.given(layer), weight], layer)
    t.write("Add", [value, t.weight(layer, "C", (n,))], layer, t.rank(layer))


def _same(op: str, t: Translation, layer: Layer) -> None:
    t.write(op, [t.given(layer)], layer, t.rank(layer))


def _with(op: str, names: dict[str, tuple[int, float]], t: Translation, layer: Layer) -> None:
    numbers = {name: layer.real(key, default) for name, (key, default) in names.items()}
    t.write(op, [t.given(layer)], layer, t.rank(layer), **numbers)


def _relu(t: Translation, layer: Layer) -> None:
    slope = layer.real(0, 0.0)
    if slope == 0:
        _same("Relu", t, layer)
    else:
        t.write("LeakyRelu", [t.given(layer)], layer, t.rank(layer), alpha=slope)


def _clip(t: Translation, layer: Layer) -> None:
    largest = float(np.finfo(np.float32).max)
    ends = [t.number(layer.real(0, -largest)), t.number(layer.real(1, largest))]
    t.write("Clip", [t.given(layer), *ends], layer, t.rank(layer))


def _gelu(t: Translation, layer: Layer) -> None:
    mode = "tanh" if layer.whole(0, 0) else "none"
    t.write("Gelu", [t.given(layer)], layer, t.rank(layer), approximate=mode)


def _hard_swish(t: Translation, layer: Layer) -> None:
    t.hard_swish(t.given(layer), layer, t.rank(layer), layer.real(0, 0.2), layer.real(1, 0.5))


def _unary(t: Translation, layer: Layer) -> None:
    op = _UNARY.get(layer.whole(0, 0))
    if op is None:
        raise _Own
    _same(op, t, layer)


def _binary(t: Translation, layer: Layer) -> None:
    """With one number. Two values may be spread over each other in ways of ncnn's own."""
    kind = layer.whole(0, 0)
    op = _BINARY.get(kind)
    if op is None or not layer.whole(1, 0) or len(layer.inputs) != 1:
        raise _Own
    sides = [t.given(layer), t.number(layer.real(2, 0.0))]
    t.write(op, sides[::-1] if kind in (7, 8) else sides, layer, t.rank(layer))


def _eltwise(t: Translation, layer: Layer) -> None:
    """Of two values of one shape."""
    if len(layer.inputs) != 2 or layer.reals(1):
        raise _Own
    op = {0: "Mul", 1: "Add", 2: "Max"}.get(layer.whole(0, 0))
    if op is None:
        raise _Own
    t.write(op, [t.given(layer, 0), t.given(layer, 1)], layer, t.rank(layer))


def _dropout(t: Translation, layer: Layer) -> None:
    scale = layer.real(0, 1.0)
    if scale == 1:
        _same("Identity", t, layer)
    else:
        t.write("Mul", [t.given(layer), t.number(scale)], layer, t.rank(layer))


def _split(t: Translation, layer: Layer) -> None:
    """The same value under several names."""
    for k in range(len(layer.outputs)):
        made = t._result(layer, k, t.rank(layer))
        t.draft.add("Identity", [t.given(layer)], [made], name=layer.name)


def _axis(number: int) -> int:
    """An axis counted with the batch in front."""
    return number + 1 if number >= 0 else number


def _softmax(t: Translation, layer: Layer) -> None:
    axis = layer.whole(0, 0)
    if axis != 0 and not layer.whole(1, 0):
        raise _Own  # ncnn itself refuses these
    t.write("Softmax", [t.given(layer)], layer, t.rank(layer), axis=_axis(axis))


def _concat(t: Translation, layer: Layer) -> None:
    inputs = [t.given(layer, k) for k in range(len(layer.inputs))]
    t.write("Concat", inputs, layer, t.rank(layer), axis=_axis(layer.whole(0, 0)))


def _flatten(t: Translation, layer: Layer) -> None:
    t.write("Flatten", [t.given(layer)], layer, 1, axis=1)


def _reshape(t: Translation, layer: Layer) -> None:
    sizes = [layer.whole(key, _DROPPED) for key in (2, 11, 1, 0)]
    dims = [size for size in sizes if size != _DROPPED]
    if layer.whole(3, 0) or 6 in layer.settings or not dims:
        raise _Own
    if any(size == 0 for size in dims) and t.rank(layer) != len(dims):
        raise _Own
    shape = t.draft.constant([1, *dims], np.int64)
    t.write("Reshape", [t.given(layer), shape], layer, len(dims), allowzero=0)


def _permute(t: Translation, layer: Layer) -> None:
    kind, rank = layer.whole(0, 0), t.rank(layer)
    if kind == 0:
        _same("Identity", t, layer)
    elif rank == 2 and kind == 1:
        t.write("Transpose", [t.given(layer)], layer, 2, perm=[0, 2, 1])
    elif rank == 3 and kind in _ORDERS:
        order = [1 + "chw".index(side) for side in reversed(_ORDERS[kind])]
        t.write("Transpose", [t.given(layer)], layer, 3, perm=[0, *order])
    else:
        raise _Own


def _moved(op: str, t: Translation, layer: Layer) -> None:
    """Squeeze and ExpandDims, where the axes are listed."""
    axes = layer.wholes(3)
    if not axes or any(layer.whole(key, 0) for key in (0, 1, 2, 11)):
        raise _Own
    rank = t.rank(layer)
    after = None if rank is None else rank + (len(axes) if op == "Unsqueeze" else -len(axes))
    listed = t.draft.constant([_axis(axis) for axis in axes], np.int64)
    t.write(op, [t.given(layer), listed], layer, after)


def _pooling(t: Translation, layer: Layer) -> None:
    largest = layer.whole(0, 0) == 0
    value = t.given(layer)
    adaptive = layer.whole(7, 0)
    whole = adaptive and layer.whole(8, 0) == 1 and layer.whole(18, layer.whole(8, 0)) == 1
    if layer.whole(4, 0) or whole:
        op = "GlobalMaxPool" if largest else "GlobalAveragePool"
        if adaptive and not layer.whole(4, 0):
            t.write(op, [value], layer, 3)
        else:
            t.write("Flatten", [t.step(op, [value], layer)], layer, 1, axis=1)
        return
    width = layer.whole(1, 0)
    kernel = [layer.whole(11, width), width]
    # Padding that counts puts zeros among the values; how much of it there is depends on the mode.
    if adaptive or (not largest and layer.whole(6, 0)) or min(kernel) < 1:
        raise _Own
    op = "MaxPool" if largest else "AveragePool"
    t.write(op, [value], layer, 3, kernel_shape=kernel)


def _reduction(t: Translation, layer: Layer) -> None:
    op = {3: "ReduceMean", 4: "ReduceMax", 5: "ReduceMin"}.get(layer.whole(0, 0))
    axes = layer.wholes(3)
    if op is None or layer.whole(1, 1) or layer.real(2, 1.0) != 1 or not layer.whole(5, 0):
        raise _Own
    if not axes:
        raise _Own
    kept, rank = layer.whole(4, 0), t.rank(layer)
    listed = t.draft.constant([_axis(axis) for axis in axes], np.int64)
    after = rank if kept or rank is None else rank - len(axes)
    t.write(op, [t.given(layer), listed], layer, after, keepdims=kept)


def _norm(op: str, t: Translation, layer: Layer) -> None:
    """Over the last axis: the gain must have its length, which the rule checks."""
    size = layer.whole(0, 0)
    if not layer.whole(2, 1) or size < 2 or t.rank(layer) not in (1, 2):
        raise _Own
    inputs = [t.given(layer), t.weight(layer, "gain", (size,))]
    if op == "LayerNormalization":
        inputs.append(t.weight(layer, "offset", (size,)))
    t.write(op, inputs, layer, t.rank(layer), axis=-1, epsilon=layer.real(1, 0.001))


def _recurrent(t: Translation, layer: Layer) -> None:
    """The last axis holds the directions one after the other."""
    size, total = layer.whole(0, 0), layer.whole(1, 0)
    both = layer.whole(2, 0) == 2
    if size < 1 or layer.whole(3, size) != size or len(layer.inputs) != 1:
        raise _Own
    if layer.whole(8, 0):
        raise _Own
    gates, count = _GATES[layer.type] * size, 2 if both else 1
    weights = [
        t.weight(layer, "weight", (count, gates, total // (gates * count))),
        t.weight(layer, "recurrent weight", (count, gates, size)),
    ]
    direction = "bidirectional" if both else "forward"
    value = t.step(layer.type, [t.given(layer), *weights], layer, hidden_size=size,
                   direction=direction)  # fmt: skip
    shape = t.draft.constant([1, -1, size * count], np.int64)
    t.write("Reshape", [value, shape], layer, 2, allowzero=0)


_RULES: dict[str, Callable[[Translation, Layer], None]] = {
    **{kind: functools.partial(_same, op) for kind, op in {
        "Sigmoid": "Sigmoid", "TanH": "Tanh", "AbsVal": "Abs", "Mish": "Mish", "Erf": "Erf",
        "Softplus": "Softplus", "Noop": "Identity", "DeepCopy": "Identity",
    }.items()},
    "Swish": lambda t, layer: t.write("Swish", [t.given(layer)], layer, t.rank(layer), alpha=1.0),
    "ELU": functools.partial(_with, "Elu", {"alpha": (0, 0.1)}),
    "CELU": functools.partial(_with, "Celu", {"alpha": (0, 1.0)}),
    "SELU": functools.partial(_with, "Selu", {"alpha": (0, 1.67326324), "gamma": (1, 1.050700987)}),
    "HardSigmoid": functools.partial(_with, "HardSigmoid", {"alpha": (0, 0.2), "beta": (1, 0.5)}),
    "Input": _input, "InnerProduct": _inner_product, "Gemm": _gemm,
    "Convolution": functools.partial(_convolution, False),
    "Convolution1D": functools.partial(_convolution, True),
    **dict.fromkeys(("ConvolutionDepthWise", "Deconvolution", "DeconvolutionDepthWise",
                     "ConvolutionDepthWise1D"), _activation_after),
    "ReLU": _relu, "Clip": _clip, "GELU": _gelu, "HardSwish": _hard_swish, "UnaryOp": _unary,
    "BinaryOp": _binary, "Eltwise": _eltwise, "Dropout": _dropout, "Split": _split,
    "Softmax": _softmax, "Concat": _concat, "Flatten": _flatten, "Reshape": _reshape,
    "Permute": _permute, "Squeeze": functools.partial(_moved, "Squeeze"),
    "ExpandDims": functools.partial(_moved, "Unsqueeze"), "Pooling": _pooling,
    "Reduction": _reduction, "LayerNorm": functools.partial(_norm, "LayerNormalization"),
    "RMSNorm": functools.partial(_norm, "RMSNormalization"),
    **dict.fromkeys(_GATES, _recurrent),
}  # fmt: skip
