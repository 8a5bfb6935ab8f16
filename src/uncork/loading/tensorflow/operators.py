"""TensorFlow's ops written down as ONNX's, where they mean the same.

An op without a rule here, or with a setting that ONNX has no word for, is kept under its own name:
the walk from an output to the head stops there, and nothing is known of what it leaves. TensorFlow
keeps channels last; convolutions and windows are put between two transpositions, but a 1×1
convolution is the product it stands for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from uncork.loading.onnx.made import Draft
from uncork.loading.onnx.tensors import NUMBERS
from uncork.loading.tensorflow.bundle import Saved
from uncork.loading.tensorflow.flat import VARIABLES, Flat
from uncork.loading.tensorflow.graph import DTYPES, Node, Value

DOMAIN = "tf"
_ENDLESS = 2**31 - 1
_TYPED_BY = ("DstT", "dtype", "T", "Tparams", "output_type", "out_type")
_CALLED = re.compile(r"(?:(?<=/)|^)(?:Stateful)?PartitionedCall(?:_\d+)?/")
_FUSED = {"Relu": "Relu", "Relu6": "Relu6", "Elu": "Elu", "Tanh": "Tanh", "Sigmoid": "Sigmoid",
          "LeakyRelu": "LeakyRelu"}  # fmt: skip


class _Own(Exception):
    """The op keeps its own name."""


class Translation:
    """A graph on its way to being an ONNX graph."""

    def __init__(self, flat: Flat, outputs: Sequence[str], variables: Mapping[str, Saved]) -> None:
        """`variables` holds the values of each variable, by the name of its node."""
        self.flat, self.variables = flat, variables
        self.draft = Draft(flat.graph.path, DOMAIN)
        self.values: dict[str, str] = {}  # what a value of TensorFlow's is called here
        self.ranks: dict[str, int] = {}  # of constants
        self.kinds: dict[str, np.dtype] = {}
        for node, inputs in flat.ordered(outputs):
            self._add(node, inputs)
        for output in outputs:
            self.draft.output(self.values.get(flat.follow(output), output))

    def _add(self, node: Node, given: list[str]) -> None:
        inputs = [self.values.get(value, "") for value in given]
        try:
            rule = RULES.get(node.op)
            if rule is None or (not all(inputs) and node.op not in _SOURCES):
                raise _Own
            rule(self, node, inputs)
        except _Own:
            self._as_it_is(node, inputs)

    def _as_it_is(self, node: Node, inputs: list[str]) -> None:
        used = [value for value in self._used.get(node.name, ()) if value not in self.values]
        made = [self.define(node, value.rpartition(":")[2]) for value in used]
        self.draft.add(node.op, inputs, made or [self.define(node)], domain=DOMAIN)

    @functools.cached_property
    def _used(self) -> dict[str, list[str]]:
        """The results of each node that another node takes."""
        found: dict[str, dict[str, None]] = {}
        for node in self.flat.nodes.values():
            for one in node.inputs:
                value = self.flat.follow(one)
                found.setdefault(value.rpartition(":")[0], {})[value] = None
        return {name: list(values) for name, values in found.items()}

    # Names and types

    def define(self, node: Node, slot: str = "0", typed: bool = True) -> str:
        """The name of a node's result, with its type where the node says it."""
        called = _short(node.name)
        made = self.draft.new(called if slot == "0" else f"{called}:{slot}")
        self.values[f"{node.name}:{slot}"] = made
        kind = self.kind(node) if typed else None
        if kind is not None:
            self.draft.declare(made, kind)
        return made

    def kind(self, node: Node) -> np.dtype | None:
        for key in _TYPED_BY:
            if isinstance(node.settings.get(key), int):
                return DTYPES.get(node.settings[key])
        return None

    def between(self, node: Node, what: str) -> str:
        """A name for a value on the way to a node's result."""
        made = self.draft.new(f"{_short(node.name)}.{what}")
        kind = self.kind(node)
        if kind is not None:
            self.draft.declare(made, kind)
        return made

    def number(self, node: Node, value: float) -> str:
        kind = self.kind(node)
        if kind is None or kind.kind != "f":
            raise _Own
        return self.draft.constant(value, kind)

    def integers(self, node: Node, place: int) -> list[int]:
        """Whole numbers from a constant among a node's inputs."""
        found = self.flat.small(node.inputs[place]) if len(node.inputs) > place else None
        if found is None or found.dtype.kind not in "iu":
            raise _Own
        return [int(n) for n in found.reshape(-1)]

    def integer(self, node: Node, place: int) -> int:
        found = self.integers(node, place)
        if len(found) != 1:
            raise _Own
        return found[0]


def _short(name: str) -> str:
    """A node's name without the calls that it was found behind."""
    return _CALLED.sub("", name)


def _text(node: Node, key: str, default: str = "") -> str:
    found = node.settings.get(key)
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else default


Rule = Callable[[Translation, Node, list[str]], None]


def _plain(op: str, **attributes: Any) -> Rule:
    def rule(t: Translation, node: Node, inputs: list[str]) -> None:
        t.draft.add(op, inputs[:1], [t.define(node)], **attributes)

    return rule


def _two(op: str) -> Rule:
    def rule(t: Translation, node: Node, inputs: list[str]) -> None:
        if len(inputs) != 2:
            raise _Own
        t.draft.add(op, inputs, [t.define(node)])

    return rule


def _constant(t: Translation, node: Node, inputs: list[str]) -> None:
    value = node.settings.get("value")
    if not isinstance(value, Value) or value.dtype is None:
        raise _Own
    _store(t, node, _short(node.name), value.shape, value.dtype, value.read)


def _store(
    t: Translation, node: Node, name: str, shape: tuple[int, ...], dtype: np.dtype,
    read: Callable[[], np.ndarray],
) -> None:  # fmt: skip
    made = t.draft.stored(name, shape, dtype, read)
    t.values[f"{node.name}:0"] = made
    t.ranks[made], t.kinds[made] = len(shape), dtype


def _variable(t: Translation, node: Node, inputs: list[str]) -> None:
    """A variable: its values, where it is a value itself; else a name for them."""
    found = t.variables.get(node.name)
    if found is None or found.dtype is None:
        raise _Own
    name = _text(node, "shared_name") or node.name
    _store(t, node, name, found.shape, found.dtype, found.read)


def _read(t: Translation, node: Node, inputs: list[str]) -> None:
    """What a variable holds: its values are known, or nothing is."""
    variable = t.flat.maker(node.inputs[0])
    if variable is None or variable.name not in t.variables or inputs[0] not in t.ranks:
        raise _Own
    t.values[f"{node.name}:0"] = inputs[0]


def _placeholder(t: Translation, node: Node, inputs: list[str]) -> None:
    name = t.draft.new(node.name)
    shape = node.settings.get("shape")
    # No shape at all is written where older graphs leave it open.
    t.draft.input(name, t.kind(node), shape or None)
    t.values[f"{node.name}:0"] = name


def _handed_on(t: Translation, node: Node, inputs: list[str]) -> None:
    if inputs[0] in t.ranks:  # a constant stays one
        t.values[f"{node.name}:0"] = inputs[0]
        return
    t.draft.add("Identity", inputs[:1], [t.define(node)])


def _all_handed_on(t: Translation, node: Node, inputs: list[str]) -> None:
    for place, value in enumerate(inputs):
        t.values[f"{node.name}:{place}"] = value


def _turned(t: Translation, node: Node, value: str) -> str:
    """The last two axes in each other's place, of a constant."""
    rank = t.ranks.get(value, 0)
    if rank < 2:
        raise _Own
    made = t.draft.new(f"{value}.turned")
    if value in t.kinds:
        t.draft.declare(made, t.kinds[value])
    perm = [*range(rank - 2), rank - 1, rank - 2]
    return t.draft.add("Transpose", [value], [made], perm=perm)


def _product(t: Translation, node: Node, inputs: list[str]) -> None:
    _dense(t, node, inputs, [t.define])


def _dense(
    t: Translation, node: Node, inputs: list[str], define: list[Callable[[Node], str]]
) -> str:
    """MatMul and its kin, with either side turned where the node says so."""
    if node.settings.get("transpose_a") or node.settings.get("adj_x"):
        raise _Own
    a, b = inputs[:2]
    if node.settings.get("transpose_b") or node.settings.get("adj_y"):
        b = _turned(t, node, b)
    return t.draft.add("MatMul", [a, b], [define[0](node)])


def _einsum(t: Translation, node: Node, inputs: list[str]) -> None:
    """…k,kv->…v, which is a product."""
    sides, _, result = _text(node, "equation").replace(" ", "").partition("->")
    first, _, second = sides.partition(",")
    if len(inputs) != 2 or len(second) != 2 or len(set(first)) != len(first) or not first:
        raise _Own
    kept, summed = first[:-1], first[-1]
    other = second.replace(summed, "")
    if len(other) != 1 or other in first or result != kept + other:
        raise _Own
    weight = inputs[1] if second[0] == summed else _turned(t, node, inputs[1])
    t.draft.add("MatMul", [inputs[0], weight], [t.define(node)])


def _last_channels(node: Node) -> None:
    if _text(node, "data_format", "NHWC") not in ("NHWC", ""):
        raise _Own


def _biased(t: Translation, node: Node, inputs: list[str]) -> None:
    _last_channels(node)
    t.draft.add("Add", inputs[:2], [t.define(node)])


def _window(node: Node, key: str) -> list[int]:
    """A setting of one number for each of four axes, without batch and channels."""
    found = node.settings.get(key)
    if not isinstance(found, list) or len(found) != 4 or (found[0], found[3]) != (1, 1):
        raise _Own
    return [int(n) for n in found[1:3]]


def _padding(node: Node) -> dict[str, Any]:
    how = _text(node, "padding")
    if how not in ("SAME", "VALID"):
        raise _Own
    return {"auto_pad": "SAME_UPPER" if how == "SAME" else "VALID"}


def _convolution(t: Translation, node: Node, inputs: list[str]) -> None:
    _convolve(t, node, inputs, t.define)


def _convolve(t: Translation, node: Node, inputs: list[str], define: Callable[[Node], str]) -> str:
    _last_channels(node)
    strides, weight = _window(node, "strides"), inputs[1]
    dilations = _window(node, "dilations") if node.settings.get("dilations") else [1, 1]
    if t.ranks.get(weight) != 4:
        raise _Own
    stored = next(one for one in reversed(t.draft.graph.initializer) if one.name == weight)
    if stored.dims[:2] == (1, 1) and strides == [1, 1]:
        flat = t.draft.constant(list(stored.dims[2:]), np.int64)
        matrix = t.draft.new(f"{weight}.matrix")
        t.draft.declare(matrix, t.kinds[weight])
        t.draft.add("Reshape", [weight, flat], [matrix], allowzero=1)
        return t.draft.add("MatMul", [inputs[0], matrix], [define(node)])
    turned = t.draft.new(f"{weight}.turned")
    t.draft.declare(turned, t.kinds[weight])
    t.draft.add("Transpose", [weight], [turned], perm=[3, 2, 0, 1])
    first = t.draft.add("Transpose", inputs[:1], [t.between(node, "first")], perm=[0, 3, 1, 2])
    made = t.draft.add("Conv", [first, turned], [t.between(node, "convolved")], strides=strides,
                       dilations=dilations, **_padding(node))  # fmt: skip
    return t.draft.add("Transpose", [made], [define(node)], perm=[0, 2, 3, 1])


def _pooled(op: str) -> Rule:
    def rule(t: Translation, node: Node, inputs: list[str]) -> None:
        _last_channels(node)
        size, strides, padding = _window(node, "ksize"), _window(node, "strides"), _padding(node)
        first = t.draft.add("Transpose", inputs[:1], [t.between(node, "first")], perm=[0, 3, 1, 2])
        made = t.draft.add(op, [first], [t.between(node, "pooled")], kernel_shape=size,
                           strides=strides, **padding)  # fmt: skip
        t.draft.add("Transpose", [made], [t.define(node)], perm=[0, 2, 3, 1])

    return rule


def _batch_norm(t: Translation, node: Node, inputs: list[str]) -> None:
    _last_channels(node)
    if node.settings.get("is_training", True) or len(inputs) != 5:
        raise _Own
    first = t.draft.add("Transpose", inputs[:1], [t.between(node, "first")], perm=[0, 3, 1, 2])
    made = t.draft.add("BatchNormalization", [first, *inputs[1:]], [t.between(node, "normed")],
                       epsilon=float(node.settings.get("epsilon", 1e-4)))  # fmt: skip
    t.draft.add("Transpose", [made], [t.define(node)], perm=[0, 2, 3, 1])


def _fused(linear: Callable[..., str]) -> Rule:
    """A product or convolution with a bias and an activation in one."""

    def rule(t: Translation, node: Node, inputs: list[str]) -> None:
        steps = [one.decode("utf-8", "replace") for one in node.settings.get("fused_ops") or []]
        known = all(step == "BiasAdd" or step in _FUSED for step in steps)
        if not known or steps.count("BiasAdd") > 1 or len(inputs) != 2 + steps.count("BiasAdd"):
            raise _Own
        if not steps:
            linear(t, node, inputs, t.define)
            return
        value = linear(t, node, inputs, lambda node: t.between(node, "product"))
        for place, step in enumerate(steps):
            last = place == len(steps) - 1
            made = [t.define(node) if last else t.between(node, step)]
            if step == "BiasAdd":
                value = t.draft.add("Add", [value, inputs[2]], made)
            elif step == "Relu6":
                value = t.draft.add("Clip", [value], made, min=0.0, max=6.0)
            elif step == "LeakyRelu":
                alpha = node.settings.get("leakyrelu_alpha", 0.2)
                value = t.draft.add("LeakyRelu", [value], made, alpha=float(alpha))
            else:
                value = t.draft.add(_FUSED[step], [value], made)

    return rule


def _leaky_relu(t: Translation, node: Node, inputs: list[str]) -> None:
    alpha = float(node.settings.get("alpha", np.float32(0.2)))
    t.draft.add("LeakyRelu", inputs[:1], [t.define(node)], alpha=alpha)


def _square(t: Translation, node: Node, inputs: list[str]) -> None:
    t.draft.add("Mul", [inputs[0], inputs[0]], [t.define(node)])


def _squared_difference(t: Translation, node: Node, inputs: list[str]) -> None:
    less = t.draft.add("Sub", inputs[:2], [t.between(node, "difference")])
    t.draft.add("Mul", [less, less], [t.define(node)])


def _one_over_root(t: Translation, node: Node, inputs: list[str]) -> None:
    root = t.draft.add("Sqrt", inputs[:1], [t.between(node, "root")])
    t.draft.add("Reciprocal", [root], [t.define(node)])


def _reduced(op: str) -> Rule:
    def rule(t: Translation, node: Node, inputs: list[str]) -> None:
        axes, keep = t.integers(node, 1), int(bool(node.settings.get("keep_dims")))
        if not axes:
            raise _Own
        t.draft.add(op, inputs[:1], [t.define(node)], axes=axes, keepdims=keep)

    return rule


def _reshaped(t: Translation, node: Node, inputs: list[str]) -> None:
    whole = _tensordot(t, node)
    if whole is not None:
        t.draft.add("MatMul", list(whole), [t.define(node)])
        return
    t.draft.add("Reshape", inputs[:2], [t.define(node)], allowzero=1)


def _tensordot(t: Translation, node: Node) -> tuple[str, str] | None:
    """x and W where a node ends the dozen that x·W takes for an x of more than two axes.

    Those transpose x by a permutation that changes nothing, see it as a matrix with the last axis
    as its columns, multiply, and give the product the other axes of x again. Each is looked at.
    """
    flat = t.flat
    product = _made_by(flat, node, 0, "MatMul")
    shape = _made_by(flat, node, 1, "ConcatV2")
    matrix = None if product is None else _made_by(flat, product, 0, "Reshape")
    turned = None if matrix is None else _made_by(flat, matrix, 0, "Transpose")
    sizes = None if matrix is None else _made_by(flat, matrix, 1, "Pack")
    if product is None or shape is None or turned is None or sizes is None:
        return None
    if product.settings.get("transpose_a") or product.settings.get("transpose_b"):
        return None
    x, perm = flat.follow(turned.inputs[0]), flat.small(turned.inputs[1])
    rank = 0 if perm is None else perm.size
    if rank < 2 or perm is None or perm.reshape(-1).tolist() != list(range(rank)):
        return None
    weight = t.values.get(flat.follow(product.inputs[1]), "")
    if len(shape.inputs) != 3 or len(sizes.inputs) != 2 or t.ranks.get(weight) != 2:
        return None
    places = [
        _sizes_of(flat, one, x)
        for one in (shape, *(_made_by(flat, sizes, place, "Prod") for place in (0, 1)))
    ]
    rest = list(range(rank - 1))
    if places != [rest, rest, [rank - 1]] or x not in t.values:
        return None
    return t.values[x], weight


def _made_by(flat: Flat, node: Node, place: int, op: str) -> Node | None:
    """The node that an input comes from, if it is of that op."""
    found = flat.maker(node.inputs[place]) if len(node.inputs) > place else None
    return found if found is not None and found.op == op else None


def _sizes_of(flat: Flat, node: Node | None, x: str) -> list[int] | None:
    """Which axes of x a node's first input holds the lengths of."""
    found = None if node is None else _made_by(flat, node, 0, "GatherV2")
    of = None if found is None else _made_by(flat, found, 0, "Shape")
    axes = None if found is None else flat.small(found.inputs[1])
    if of is None or axes is None or flat.follow(of.inputs[0]) != x:
        return None
    return [int(n) for n in axes.reshape(-1)]


def _squeezed(t: Translation, node: Node, inputs: list[str]) -> None:
    axes = node.settings.get("squeeze_dims", node.settings.get("axis"))
    more: dict[str, Any] = {"axes": axes} if isinstance(axes, list) and axes else {}
    t.draft.add("Squeeze", inputs[:1], [t.define(node)], **more)


def _widened(t: Translation, node: Node, inputs: list[str]) -> None:
    t.draft.add("Unsqueeze", inputs[:1], [t.define(node)], axes=[t.integer(node, 1)])


def _transposed(t: Translation, node: Node, inputs: list[str]) -> None:
    t.draft.add("Transpose", inputs[:1], [t.define(node)], perm=t.integers(node, 1))


def _joined(t: Translation, node: Node, inputs: list[str]) -> None:
    axis = t.integer(node, len(inputs) - 1)
    if len(inputs) < 2:
        raise _Own
    t.draft.add("Concat", inputs[:-1], [t.define(node)], axis=axis)


def _packed(t: Translation, node: Node, inputs: list[str]) -> None:
    axis = int(node.settings.get("axis") or 0)
    rows = [
        t.draft.add("Unsqueeze", [one], [t.between(node, "row")], axes=[axis]) for one in inputs
    ]
    t.draft.add("Concat", rows, [t.define(node)], axis=axis)


def _split(t: Translation, node: Node, inputs: list[str]) -> None:
    count = node.settings.get("num_split", 0)
    if not isinstance(count, int) or not 1 <= count <= 64 or len(inputs) < 2:
        raise _Own
    axis = t.integer(node, 0)
    made = [t.define(node, str(k)) for k in range(count)]
    t.draft.add("Split", inputs[1:2], made, axis=axis, num_outputs=count)


def _strided(t: Translation, node: Node, inputs: list[str]) -> None:
    """x[a:b:c, k, …]: with neither … nor new axes."""
    masks = {key: int(node.settings.get(f"{key}_mask") or 0) for key in (
        "begin", "end", "ellipsis", "new_axis", "shrink_axis")}  # fmt: skip
    if masks["ellipsis"] or masks["new_axis"]:
        raise _Own
    begins, ends, steps = (t.integers(node, place) for place in (1, 2, 3))
    if not len(begins) == len(ends) == len(steps):
        raise _Own
    gone = []
    for k, step in enumerate(steps):
        if masks["shrink_axis"] >> k & 1:
            gone.append(k)
            steps[k], ends[k] = 1, begins[k] + 1 if begins[k] != -1 else _ENDLESS
            continue
        if step < 0:
            raise _Own
        begins[k] = 0 if masks["begin"] >> k & 1 else begins[k]
        ends[k] = _ENDLESS if masks["end"] >> k & 1 else ends[k]
    given = [t.draft.constant(one, np.int64)
             for one in (begins, ends, range(len(begins)), steps)]  # fmt: skip
    if not gone:
        t.draft.add("Slice", [inputs[0], *given], [t.define(node)])
        return
    part = t.draft.add("Slice", [inputs[0], *given], [t.between(node, "part")])
    t.draft.add("Squeeze", [part], [t.define(node)], axes=gone)


def _gathered(t: Translation, node: Node, inputs: list[str]) -> None:
    if node.settings.get("batch_dims"):
        raise _Own
    axis = t.integer(node, 2) if len(inputs) > 2 else 0
    t.draft.add("Gather", inputs[:2], [t.define(node)], axis=axis)


def _looked_up(t: Translation, node: Node, inputs: list[str]) -> None:
    """Rows of a variable."""
    if node.settings.get("batch_dims") or inputs[0] not in t.ranks:
        raise _Own
    t.draft.add("Gather", inputs[:2], [t.define(node)], axis=0)


def _cast(t: Translation, node: Node, inputs: list[str]) -> None:
    kind = DTYPES.get(node.settings.get("DstT", 0))
    if kind is None:
        raise _Own
    t.draft.add("Cast", inputs[:1], [t.define(node)], to=NUMBERS[kind])


def _picked(op: str) -> Rule:
    def rule(t: Translation, node: Node, inputs: list[str]) -> None:
        axis = t.integer(node, 1)
        t.draft.add(op, inputs[:1], [t.define(node)], axis=axis, keepdims=0)

    return rule


def _top(t: Translation, node: Node, inputs: list[str]) -> None:
    count = t.draft.constant([t.integer(node, 1)], np.int64)
    made = [t.define(node, "0"), t.define(node, "1", typed=False)]
    t.draft.add("TopK", [inputs[0], count], made, axis=-1)


def _shape(t: Translation, node: Node, inputs: list[str]) -> None:
    t.draft.add("Shape", inputs[:1], [t.define(node, typed=False)])


def _dense_fused(
    t: Translation, node: Node, inputs: list[str], define: Callable[[Node], str]
) -> str:
    return _dense(t, node, inputs, [define])


_SOURCES = ("Const", "Placeholder", *VARIABLES)
RULES: dict[str, Rule] = {
    "Const": _constant, "Placeholder": _placeholder, **dict.fromkeys(VARIABLES, _variable),
    "ReadVariableOp": _read,
    **dict.fromkeys(("Identity", "StopGradient", "CheckNumerics", "PreventGradient", "Snapshot",
                     "EnsureShape"), _handed_on),
    "IdentityN": _all_handed_on,
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _product),
    "_FusedMatMul": _fused(_dense_fused), "_FusedConv2D": _fused(_convolve),
    "Einsum": _einsum, "BiasAdd": _biased, "Conv2D": _convolution, "MaxPool": _pooled("MaxPool"),
    "AvgPool": _pooled("AveragePool"),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _batch_norm),
    **{kind: _two(op) for kind, op in {
        "Add": "Add", "AddV2": "Add", "Sub": "Sub", "Mul": "Mul", "RealDiv": "Div", "Div": "Div",
        "Maximum": "Max", "Minimum": "Min", "Pow": "Pow",
    }.items()},
    **{kind: _plain(kind) for kind in (
        "Relu", "Selu", "Softplus", "Softsign", "Tanh", "Sigmoid", "Exp", "Log", "Neg",
        "Abs", "Sqrt", "Reciprocal", "Erf", "Atan",
    )},
    "Elu": _plain("Elu", alpha=1.0), "Inv": _plain("Reciprocal"),
    "Relu6": _plain("Clip", min=0.0, max=6.0), "LeakyRelu": _leaky_relu,
    "Softmax": _plain("Softmax", axis=-1), "LogSoftmax": _plain("LogSoftmax", axis=-1),
    "Square": _square, "SquaredDifference": _squared_difference, "Rsqrt": _one_over_root,
    "Mean": _reduced("ReduceMean"), "Max": _reduced("ReduceMax"), "Min": _reduced("ReduceMin"),
    "Sum": _reduced("ReduceSum"), "Reshape": _reshaped, "Squeeze": _squeezed,
    "ExpandDims": _widened, "Transpose": _transposed, "ConcatV2": _joined, "Pack": _packed,
    "Split": _split, "StridedSlice": _strided, "GatherV2": _gathered, "Gather": _gathered,
    "ResourceGather": _looked_up, "Cast": _cast, "ArgMax": _picked("ArgMax"),
    "ArgMin": _picked("ArgMin"), "TopKV2": _top, "Shape": _shape,
}  # fmt: skip
