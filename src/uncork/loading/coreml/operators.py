"""Core ML's layers written down as ONNX's operations, where they mean the same.

Networks with five axes (sequence, batch, channel, height, width) have theirs here as batch,
channel, height and width: an inner product is then a 1×1 convolution. In networks whose values have
as many axes as they need, it is a product along the last one. A layer without a rule here keeps its
own name: the walk from an output to the head stops there, and nothing is known of what it leaves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from uncork.core.text import printable
from uncork.loading.bounded.protobuf import Message
from uncork.loading.coreml.network import Layer, Network, Weight, product, weight
from uncork.loading.onnx.made import Draft

_DOMAIN = "coreml"
_FLOAT = np.dtype("float32")
_SIGMOID, _TANH = 40, 30  # kinds of activation
_NAMES = {
    100: "Convolution", 120: "Pooling", 130: "Activation", 140: "InnerProduct", 160: "BatchNorm",
    175: "Softmax", 310: "Permute", 430: "BiDirectionalLSTM", 420: "UniDirectionalLSTM",
    500: "Custom", 300: "Reshape", 250: "Bias", 245: "Scale", 230: "Add", 1045: "BatchedMatMul",
}  # fmt: skip


class _Own(Exception):
    """The layer keeps its own name."""


class Translation:
    """A network on its way to being an ONNX graph; `made` says how weights were made from codes."""

    def __init__(self, network: Network) -> None:
        self.network, self.draft = network, Draft(network.path, _DOMAIN)
        self.current: dict[str, str] = {}  # the value that a name stands for by now
        self.made: dict[str, str] = {}
        for name in network.inputs:
            given = self.draft.new(name)
            self.draft.input(given, _FLOAT, None)
            self.current[name] = given
        for layer in network.layers:
            self._add(layer)
        for name in network.outputs:
            if name in self.current:
                self.draft.output(self.current[name])
        if not self.draft.graph.output:  # a classifier's outputs are named for people
            last = network.layers[-1]
            for name in last.outputs:
                self.draft.output(self.current[name])

    def _add(self, layer: Layer) -> None:
        rule = _RULES.get(layer.kind)
        try:
            if rule is None or not layer.inputs or len(layer.outputs) != 1:
                raise _Own
            rule(self, layer)
        except _Own:
            inputs = [self.current.get(name, "") for name in layer.inputs]
            made = []
            for name in layer.outputs:
                made.append(self.draft.new(name))
                self.draft.declare(made[-1], _FLOAT)
            if made:
                kind = _NAMES.get(layer.kind, f"layer {layer.kind}")
                if layer.kind == 500:
                    kind = f"Custom {printable(layer.settings.text(10))[:40]}"
                self.draft.add(kind, inputs, made, name=layer.name, domain=_DOMAIN)
            self.current |= dict(zip(layer.outputs, made, strict=True))

    def given(self, layer: Layer, k: int = 0) -> str:
        found = self.current.get(layer.inputs[k]) if k < len(layer.inputs) else None
        if found is None:
            raise _Own
        return found

    def step(self, op: str, inputs: list[str], layer: Layer, **attributes: Any) -> str:
        made = self.draft.add(op, inputs, f"{layer.name}/{op}", name=layer.name, **attributes)
        self.draft.declare(made, _FLOAT)
        return made

    def write(self, op: str, inputs: list[str], layer: Layer, **attributes: Any) -> None:
        made = self.draft.add(op, inputs, layer.outputs[0], name=layer.name, **attributes)
        self.draft.declare(made, _FLOAT)
        self.current[layer.outputs[0]] = made

    def number(self, value: float) -> str:
        return self.draft.constant(value, np.float32)

    def stored(self, layer: Layer, part: str, field: int, shape: tuple[int, ...]) -> str:
        """A weight of a layer as a constant."""
        label = f"{layer.name}.{part}"
        where = f"{self.network.path}: {printable(label)[:80]!r}"
        found = weight(where, layer.settings.message(field), product(*shape), shape[0])
        return self.kept(label, found, shape)

    def kept(self, label: str, found: Weight, shape: tuple[int, ...]) -> str:
        name = self.draft.stored(label, shape, found.dtype, lambda: found.read().reshape(shape))
        if found.made:
            self.made[name] = found.made
        return name


def _same(op: str, t: Translation, layer: Layer) -> None:
    t.write(op, [t.given(layer)], layer)


def _inner_product(t: Translation, layer: Layer) -> None:
    width, outputs = layer.settings.whole(1), layer.settings.whole(2)
    if layer.settings.whole(22) or min(width, outputs) < 1:
        raise _Own
    biased = bool(layer.settings.whole(10))
    if not t.network.exact:
        weights = [t.stored(layer, "weight", 20, (outputs, width, 1, 1))]
        if biased:
            weights.append(t.stored(layer, "bias", 21, (outputs,)))
        t.write("Conv", [t.given(layer), *weights], layer)
        return
    turned = t.step("Transpose", [t.stored(layer, "weight", 20, (outputs, width))], layer,
                    perm=[1, 0])  # fmt: skip
    _product(t, layer, turned, 21 if biased else 0, outputs)


def _matmul(t: Translation, layer: Layer) -> None:
    """One input times a stored matrix."""
    settings = layer.settings
    width, outputs = settings.whole(5), settings.whole(6)
    plain = not (settings.whole(1) or settings.whole(2) or settings.whole(10))
    if len(layer.inputs) != 1 or not plain or min(width, outputs) < 1:
        raise _Own
    # The weight is stored by its columns, as that of an inner product.
    stored = t.stored(layer, "weight", 8, (outputs, width))
    turned = t.step("Transpose", [stored], layer, perm=[1, 0])
    _product(t, layer, turned, 9 if settings.whole(7) else 0, outputs)


def _product(t: Translation, layer: Layer, turned: str, bias: int, outputs: int) -> None:
    if not bias:
        t.write("MatMul", [t.given(layer), turned], layer)
        return
    value = t.step("MatMul", [t.given(layer), turned], layer)
    t.write("Add", [value, t.stored(layer, "bias", bias, (outputs,))], layer)


def _convolution(t: Translation, layer: Layer) -> None:
    settings = layer.settings
    outputs, width, groups = (settings.whole(k) for k in (1, 2, 10))
    kernel = settings.wholes(20) or [3, 3]
    if settings.whole(60) or groups > 1 or len(kernel) != 2 or min(outputs, width, *kernel) < 1:
        raise _Own
    inputs = [t.given(layer), t.stored(layer, "weight", 90, (outputs, width, *kernel))]
    if settings.whole(70):
        inputs.append(t.stored(layer, "bias", 91, (outputs,)))
    attributes: dict[str, Any] = {
        "strides": settings.wholes(30) or [1, 1], "dilations": settings.wholes(40) or [1, 1],
    }  # fmt: skip
    if 51 in settings:
        # Padding that keeps the size: none where the kernel is one position wide.
        if kernel != [1, 1]:
            heavy = settings.message(51).whole(1)
            attributes["auto_pad"] = "SAME_LOWER" if heavy else "SAME_UPPER"
    else:
        edges = list(settings.message(50).message(1).messages(10))
        sides = [(edge.whole(1), edge.whole(2)) for edge in edges] or [(0, 0), (0, 0)]
        if len(sides) != 2:
            raise _Own
        (top, bottom), (left, right) = sides
        if any((top, bottom, left, right)):
            attributes["pads"] = [top, left, bottom, right]
    t.write("Conv", inputs, layer, **attributes)


def _only(settings: Message) -> int:
    """The one activation that is set; of several the last counts, and none is believed here."""
    return next(iter(settings.found)) if len(settings.found) == 1 else 0


def _activation(t: Translation, layer: Layer) -> None:
    settings = layer.settings
    kind = _only(settings)
    inner = settings.message(kind)
    alpha, beta = inner.float(1), inner.float(2)
    value = t.given(layer)
    plain = {10: "Relu", _TANH: "Tanh", _SIGMOID: "Sigmoid", 60: "Softsign", 70: "Softplus"}
    if kind in plain:
        t.write(plain[kind], [value], layer)
    elif kind in (15, 50):
        t.write({15: "LeakyRelu", 50: "Elu"}[kind], [value], layer, alpha=alpha)
    elif kind == 41:
        t.write("HardSigmoid", [value], layer, alpha=alpha, beta=beta)
    elif kind == 5:
        scaled = t.step("Mul", [value, t.number(alpha)], layer)
        t.write("Add", [scaled, t.number(beta)], layer)
    else:
        raise _Own


def _clamped(t: Translation, layer: Layer) -> None:
    """ReLU up to a limit."""
    if layer.settings.float(1) != 0:
        raise _Own
    ends = [t.number(0.0), t.number(layer.settings.float(2))]
    t.write("Clip", [t.given(layer), *ends], layer)


def _clip(t: Translation, layer: Layer) -> None:
    ends = [t.number(layer.settings.float(k)) for k in (1, 2)]
    t.write("Clip", [t.given(layer), *ends], layer)


def _gelu(t: Translation, layer: Layer) -> None:
    mode = {0: "none", 1: "tanh"}.get(layer.settings.whole(1))
    if mode is None:
        raise _Own
    t.write("Gelu", [t.given(layer)], layer, approximate=mode)


def _softmax(t: Translation, layer: Layer) -> None:
    """Over the channels."""
    t.write("Softmax", [t.given(layer)], layer, axis=-3)


def _softmax_nd(t: Translation, layer: Layer) -> None:
    t.write("Softmax", [t.given(layer)], layer, axis=layer.settings.whole(1))


def _pooling(t: Translation, layer: Layer) -> None:
    kind = {0: "Max", 1: "Average"}.get(layer.settings.whole(1))
    if kind is None or not layer.settings.whole(60):
        raise _Own
    t.write(f"Global{kind}Pool", [t.given(layer)], layer)


def _flatten(t: Translation, layer: Layer) -> None:
    if layer.settings.whole(1) or t.network.exact:
        raise _Own
    shape = t.draft.constant([0, -1, 1, 1], np.int64)
    t.write("Reshape", [t.given(layer), shape], layer, allowzero=0)


def _sum(t: Translation, layer: Layer) -> None:
    """Two values; one alone has a number added to it."""
    if len(layer.inputs) == 1:
        t.write("Add", [t.given(layer), t.number(layer.settings.float(1))], layer)
    elif len(layer.inputs) == 2 and 1 not in layer.settings:
        t.write("Add", [t.given(layer, 0), t.given(layer, 1)], layer)
    else:
        raise _Own


def _lstm(t: Translation, layer: Layer) -> None:
    """Gates by sigmoids and a result by tanh: the usual LSTM, whichever axis it runs along."""
    settings, both = layer.settings, layer.kind == 430
    width, size, count = settings.whole(1), settings.whole(2), 2 if both else 1
    for field in (10, 11) if both else (10,):
        kinds = [_only(one) for one in settings.messages(field)]
        if len(kinds) != 3 or kinds[0] != _SIGMOID or kinds[2] != _TANH:
            raise _Own
    parts = list(settings.messages(20))
    if len(parts) != count or min(width, size) < 1:
        raise _Own
    weights = [
        t.kept(f"{layer.name}.{label}", _gates(t, layer, parts, fields, size * columns, label),
               (count, 4 * size, columns))
        for label, fields, columns in (
            ("weight", (1, 2, 3, 4), width), ("recurrent weight", (20, 21, 22, 23), size),
        )
    ]  # fmt: skip
    direction = "bidirectional" if both else "forward"
    value = t.step("LSTM", [t.given(layer), *weights], layer, hidden_size=size,
                   direction=direction)  # fmt: skip
    shape = t.draft.constant([-1, size * count, 1, 1], np.int64)
    t.write("Reshape", [value, shape], layer, allowzero=0)


def _gates(
    t: Translation, layer: Layer, parts: list[Message], fields: tuple[int, ...], count: int,
    label: str,
) -> Weight:  # fmt: skip
    where = f"{t.network.path}: {printable(layer.name)[:80]!r}"
    every = [
        weight(f"{where} {label}", part.message(k), count, 1) for part in parts for k in fields
    ]
    total = sum(one.count for one in every)
    return Weight(total, every[0].dtype, lambda: np.concatenate([one.read() for one in every]))


_RULES: dict[int, Callable[[Translation, Layer], None]] = {
    100: _convolution, 120: _pooling, 130: _activation, 140: _inner_product, 175: _softmax,
    230: _sum, 301: _flatten, 420: _lstm, 430: _lstm, 600: functools.partial(_same, "Identity"),
    660: _clip, 760: functools.partial(_same, "Tanh"), 790: functools.partial(_same, "Erf"),
    795: _gelu, 950: _softmax_nd, 1045: _matmul, 1460: _clamped,
}  # fmt: skip
