"""Shapes and element types of a graph's values, worked out from its inputs without running it.

An axis is a number, or a name where the graph leaves it open; two axes of one name are alike. Only
what a run-time checks is believed: the shapes of the graph's inputs and constants, never what the
file says of values in between. Types are checked by every run-time, wherever they are written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from uncork.core.errors import UncorkError
from uncork.loading.onnx.kinds import KINDS, Kind
from uncork.loading.onnx.tensors import Constants, attribute, attribute_text

Axis = int | str
Dims = tuple[Axis, ...]
_MOST_RANK = 32
_MOST_ENTRIES = 64  # of a shape that is followed entry by entry

# Ops whose first result has the shape of their first input, and its element type.
_SAME = {
    "Identity", "Dropout", "Softmax", "LogSoftmax", "Hardmax",
    "InstanceNormalization", "GroupNormalization", "LayerNormalization", "LRN", "Trilu", "CumSum",
    "SimplifiedLayerNormalization", "RMSNormalization", "LpNormalization", "Relu", "Sigmoid",
    "Tanh", "Erf", "Exp", "Log", "Sqrt", "Neg", "Abs", "Clip", "LeakyRelu", "Elu", "Selu", "Celu",
    "HardSigmoid", "HardSwish", "Softplus", "Softsign", "Mish", "Gelu", "Reciprocal", "Floor",
    "Ceil", "Round", "Sign", "Atan", "ThresholdedRelu", "Sin", "Cos", "Swish", "Not", "Asin",
    "Acos", "Tan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "MeanVarianceNormalization",
    "com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization",
    "com.microsoft::Gelu", "com.microsoft::FastGelu", "com.microsoft::BiasGelu",
    "com.microsoft::QuickGelu",
}  # fmt: skip
_BROADCAST = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "PRelu", "Mod"}
_COMPARISONS = {"Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Xor"}
_REDUCE = {
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSumExp", "ReduceLogSum", "ReduceProd",
}  # fmt: skip
_POOLS = {"AveragePool", "MaxPool", "LpPool"}
_GLOBAL_POOLS = {"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"}
# The type of a result is that of an input: which one.
_TYPED_BY = {
    "Where": 1, "DequantizeLinear": 1, "com.microsoft::QGemm": 1, "Conv": 0, "ConvTranspose": 0,
    "MatMul": 0, "Gemm": 0, "Einsum": 0, "Concat": 0, "Split": 0, "Slice": 0, "Gather": 0,
    "GatherElements": 0, "GatherND": 0, "Reshape": 0, "Flatten": 0, "Squeeze": 0, "Unsqueeze": 0,
    "Transpose": 0, "Expand": 0, "Tile": 0, "Pad": 0, "Resize": 0, "Upsample": 0, "LSTM": 0,
    "GRU": 0, "RNN": 0, "TopK": 0, "ScatterND": 0, "DepthToSpace": 0, "SpaceToDepth": 0,
    "com.microsoft::DynamicQuantizeLSTM": 0, "com.microsoft::FusedMatMul": 0,
    "com.microsoft::FusedConv": 0, "CastLike": 1, "BatchNormalization": 0,
    **dict.fromkeys(_SAME | _BROADCAST | _REDUCE | _POOLS | _GLOBAL_POOLS, 0),
}  # fmt: skip
_SEVERAL = {
    "Split", "LSTM", "GRU", "RNN", "com.microsoft::DynamicQuantizeLSTM", "DynamicQuantizeLinear",
}  # results of different shapes  # fmt: skip
_ENDLESS = 10**9  # what exporters write for the end of an axis that they do not know
_OPEN = "? "  # before the name of a number that need not be the length of an axis
_UINT8, _INT32, _INT64, _BOOL = 2, 6, 7, 9


class Graph:
    """A graph's nodes, which node makes which value, and what shape and type values have."""

    def __init__(self, constants: Constants) -> None:
        self.constants, self.path = constants, constants.path
        graph = constants.model.graph
        self.nodes = list(graph.node)
        self.maker = {o: k for k, node in enumerate(self.nodes) for o in node.output if o}
        self.inputs = {given.name for given in graph.input if given.name not in constants.stored}
        self.inputs |= constants.overridable
        self.dims: dict[str, Dims] = {}
        self.kinds: dict[str, Kind] = {}
        self.entries: dict[str, tuple[Axis, ...]] = {}  # of shapes and their like
        self._declared(graph)
        for node in self.nodes:
            self._infer(node)
        for node in reversed(self.nodes):  # a result's type also tells that of what went in
            kind = self.kinds.get(node.output[0]) if node.output else None
            place = _TYPED_BY.get(self.op(node))
            if kind is not None and place is not None and len(node.input) > place:
                self.kinds.setdefault(node.input[place], kind)

    def op(self, node: Any) -> str:
        return self.constants.op(node)

    def node_of(self, name: str) -> Any | None:
        """The node that makes a value; None for inputs and constants."""
        k = self.maker.get(name)
        return None if k is None else self.nodes[k]

    def before(self, k: int, name: str) -> int | None:
        """Which node makes an input of node k: an earlier one, or the graph has a cycle."""
        maker = self.maker.get(name)
        if maker is not None and maker >= k:
            raise UncorkError(
                f"{self.path}: the graph uses {name!r} before it is made: it has a cycle or is "
                "damaged"
            )
        return maker

    def number(self, name: str) -> float | None:
        """A fixed constant of one element, as a number."""
        if not self.constants.is_fixed(name) or math.prod(self.constants.shape(name)) != 1:
            return None
        return float(self.constants.value(name).reshape(-1)[0])

    def integers(self, node: Any, name: str, place: int) -> list[int] | None:
        """Axes and their like: an attribute in older graphs, a fixed input in newer ones."""
        given = attribute(node, name, None)
        if given is not None:
            return [int(n) for n in given] if isinstance(given, list) else [int(given)]
        if len(node.input) <= place or not node.input[place]:
            return None
        entries = self.entries.get(node.input[place])
        if entries is None or any(isinstance(entry, str) for entry in entries):
            return None
        return [int(entry) for entry in entries]

    def axes(self, node: Any, rank: int) -> list[int] | None:
        """The axes an op is told, counted from the front; None where that is not known."""
        found = self.integers(node, "axes", 1)
        if found is None or any(not -rank <= axis < rank for axis in found):
            return None
        axes = sorted({axis % rank for axis in found})
        return axes if len(axes) == len(found) else None

    def _declared(self, graph: Any) -> None:
        for info in (*graph.input, *graph.value_info, *graph.output):
            if not info.type.HasField("tensor_type"):
                continue
            tensor = info.type.tensor_type
            if tensor.elem_type in KINDS:
                self.kinds[info.name] = KINDS[tensor.elem_type]
        for info in graph.input:
            tensor = info.type.tensor_type
            if info.type.HasField("tensor_type") and tensor.HasField("shape"):
                self._set(info.name, [d.dim_value if d.HasField("dim_value") else None
                                      for d in tensor.shape.dim])  # fmt: skip
        for name, stored in self.constants.stored.items():
            if stored.data_type in KINDS:
                self.kinds[name] = KINDS[stored.data_type]
            if name not in self.constants.overridable:
                self._set(name, [int(n) for n in stored.dims])
            few = len(stored.dims) <= 1 and math.prod(stored.dims) <= _MOST_ENTRIES
            if few and stored.data_type in (_INT32, _INT64) and self.constants.is_fixed(name):
                values = self.constants.value(name).reshape(-1)
                self.entries[name] = tuple(int(n) for n in values)

    def _set(self, name: str, dims: Any) -> None:
        """Keep a shape; axes that are not known get names of their own."""
        if name and dims is not None and len(dims) <= _MOST_RANK:
            self.dims[name] = tuple(
                f"{name}.{axis}" if n is None or (isinstance(n, int) and n < 0) else n
                for axis, n in enumerate(dims)
            )

    def _infer(self, node: Any) -> None:
        if not node.output:
            return
        op = self.op(node)
        self._infer_type(node, op)
        if not node.input and op != "Constant":
            return
        shape_of = _SHAPES.get(op)
        if op in _SAME:
            self._set(node.output[0], self.dims.get(node.input[0]))
        elif shape_of is not None:
            found = shape_of(self, node)
            if op in _SEVERAL:
                for output, dims in zip(node.output, found or (), strict=False):
                    self._set(output, dims)
            else:
                self._set(node.output[0], found)
        contents = _CONTENTS.get(op)
        if contents is not None:
            entries = contents(self, node)
            if entries is not None and len(entries) <= _MOST_ENTRIES:
                self.entries[node.output[0]] = entries

    def _infer_type(self, node: Any, op: str) -> None:
        first = node.output[0]
        if op == "Cast":
            self._set_kind(first, int(attribute(node, "to", 0)))
        elif op in ("Shape", "Size", "ArgMax", "ArgMin", "NonZero"):
            self._set_kind(first, _INT64)
        elif op in _COMPARISONS or op in ("Not", "IsNaN", "IsInf"):
            self._set_kind(first, _BOOL)
        elif op in ("MatMulInteger", "ConvInteger"):
            self._set_kind(first, _INT32)
        elif op == "DynamicQuantizeLinear":
            for output, number in zip(node.output, (_UINT8, 1, _UINT8), strict=False):
                self._set_kind(output, number)
        elif op == "QuantizeLinear":
            self._set_kind(first, self.quantised_to(node))
        elif op == "DequantizeLinear" and attribute(node, "output_dtype", 0):
            self._set_kind(first, int(attribute(node, "output_dtype", 0)))
        elif op == "ConstantOfShape":
            value = next((a.t for a in node.attribute if a.name == "value"), None)
            self._set_kind(first, 1 if value is None else value.data_type)
        elif op == "TopK" and len(node.output) > 1:
            self._set_kind(node.output[1], _INT64)
        place = _TYPED_BY.get(op)
        if place is not None and len(node.input) > place and node.input[place] in self.kinds:
            outputs = node.output if op in ("Split", "LSTM", "GRU", "RNN") else node.output[:1]
            for output in outputs:
                self.kinds.setdefault(output, self.kinds[node.input[place]])

    def quantised_to(self, node: Any) -> int:
        """The type QuantizeLinear rounds to: its zero point's, or the one named, or uint8."""
        zero = node.input[2] if len(node.input) > 2 else ""
        named = int(attribute(node, "output_dtype", 0))
        if not zero:
            return named or _UINT8
        kind = self.kinds.get(zero)
        return 0 if kind is None or named not in (0, kind.number) else kind.number

    def _set_kind(self, name: str, number: int) -> None:
        if name and number in KINDS:
            self.kinds[name] = KINDS[number]


def broadcast(*every: Dims) -> Dims | None:
    """The shape of values set against one another; None where they do not fit."""
    rank = max(map(len, every), default=0)
    result: list[Axis] = []
    for axis in range(-rank, 0):
        sizes = {dims[axis] for dims in every if len(dims) >= -axis} - {1}
        numbers = {size for size in sizes if isinstance(size, int)}
        if len(numbers) > 1:
            return None
        if numbers:
            result.append(numbers.pop())
        elif len(sizes) > 1:  # one of them, or both alike: which cannot be known
            result.append(" or ".join(sorted(map(str, sizes))))
        else:
            result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def _broadcast(graph: Graph, node: Any) -> Dims | None:
    every = [graph.dims.get(name) for name in node.input if name]
    known = [dims for dims in every if dims is not None]
    return broadcast(*known) if len(known) == len(every) else None


def _first(graph: Graph, node: Any) -> Dims | None:
    return graph.dims.get(node.input[0])


def _channels(graph: Graph, node: Any) -> Dims | None:
    """The shape of a value of which each channel has a number of its own."""
    dims = _first(graph, node)
    scale = graph.dims.get(node.input[1]) if len(node.input) > 1 else None
    if dims is None or len(dims) < 2 or scale is None or len(scale) != 1:
        return dims
    return (dims[0], scale[0], *dims[2:])


def _transposed(graph: Graph, node: Any) -> Any:
    dims, perm = _first(graph, node), attribute(node, "perm", None)
    if dims is None:
        return [None] * len(perm) if perm else None
    perm = perm or list(range(len(dims)))[::-1]
    return tuple(dims[k] for k in perm) if sorted(perm) == list(range(len(dims))) else None


def _reshaped(graph: Graph, node: Any) -> Any:
    dims = _first(graph, node)
    wanted = graph.entries.get(node.input[1]) if len(node.input) > 1 else None
    if wanted is None:
        return None
    copied = not attribute(node, "allowzero", 0)
    found: list[Axis | None] = []
    for place, entry in enumerate(wanted):
        if entry == 0 and copied:
            found.append(dims[place] if dims is not None and place < len(dims) else None)
        elif isinstance(entry, str):  # an axis of another value, or a number that may be −1
            found.append(None if entry.startswith(_OPEN) else entry)
        else:
            found.append(None if entry < 0 else entry)
    open_ = [k for k, entry in enumerate(wanted) if entry == -1]
    if dims is not None and len(open_) == 1 and found.count(None) == 1:
        rest = _left(list(dims), [axis for axis in found if axis is not None])
        if rest is not None:
            found[open_[0]] = rest
    return found


def _left(dims: list[Axis], used: list[Axis]) -> Axis | None:
    """What is left of a shape's elements for one axis, when the others are taken."""
    named = [axis for axis in dims if isinstance(axis, str)]
    for axis in used:
        if isinstance(axis, str):
            if axis not in named:
                return None
            named.remove(axis)
    total = math.prod(axis for axis in dims if isinstance(axis, int))
    taken = math.prod(axis for axis in used if isinstance(axis, int))
    if not named:
        return total // taken if taken and total % taken == 0 else None
    return named[0] if len(named) == 1 and total == taken and total else None


def _flattened(graph: Graph, node: Any) -> Any:
    dims = _first(graph, node)
    if dims is None:
        return [None, None]
    at = int(attribute(node, "axis", 1))
    at = at + len(dims) if at < 0 else at
    return [_product(dims[:at]), _product(dims[at:])]


def _product(axes: Dims) -> Axis | None:
    axes = tuple(axis for axis in axes if axis != 1)
    if len(axes) == 1:
        return axes[0]
    numbers = [axis for axis in axes if isinstance(axis, int)]
    return math.prod(numbers) if len(numbers) == len(axes) else None


def _squeezed(graph: Graph, node: Any) -> Dims | None:
    dims = _first(graph, node)
    axes = None if dims is None else graph.axes(node, len(dims))
    if dims is None:
        return None
    if axes is None:  # all of length one, where nothing says which
        every = attribute(node, "axes", None) is None and len(node.input) < 2
        whole = every and all(isinstance(axis, int) for axis in dims)
        return tuple(axis for axis in dims if axis != 1) if whole else None
    return tuple(axis for k, axis in enumerate(dims) if k not in axes)


def _unsqueezed(graph: Graph, node: Any) -> Dims | None:
    dims, given = _first(graph, node), graph.integers(node, "axes", 1)
    if dims is None or given is None:
        return None
    axes = graph.axes(node, len(dims) + len(given))
    if axes is None:
        return None
    rest = iter(dims)
    return tuple(1 if k in axes else next(rest) for k in range(len(dims) + len(axes)))


def _reduced(graph: Graph, node: Any) -> Dims | None:
    dims = _first(graph, node)
    if dims is None:
        return None
    given = graph.integers(node, "axes", 1)
    if given is None or not given:
        if (len(node.input) > 1 and node.input[1] and given is None) or attribute(
            node, "noop_with_empty_axes", 0
        ):
            return None if given is None and len(node.input) > 1 and node.input[1] else dims
        axes: list[int] | None = list(range(len(dims)))
    else:
        axes = graph.axes(node, len(dims))
    if axes is None:
        return None
    if attribute(node, "keepdims", 1):
        return tuple(1 if k in axes else axis for k, axis in enumerate(dims))
    return tuple(axis for k, axis in enumerate(dims) if k not in axes)


def _picked(graph: Graph, node: Any) -> Dims | None:
    dims, axis = _first(graph, node), int(attribute(node, "axis", 0))
    if dims is None or not -len(dims) <= axis < len(dims):
        return None
    axis %= len(dims)
    kept = (1,) if attribute(node, "keepdims", 1) else ()
    return (*dims[:axis], *kept, *dims[axis + 1 :])


def _convolved(graph: Graph, node: Any) -> Any:
    weight = graph.dims.get(node.input[1]) if len(node.input) > 1 else None
    dims = _first(graph, node)
    if weight is None:
        return None
    batch = dims[0] if dims else None
    ones = all(n == 1 for n in weight[2:]) and not any(attribute(node, "pads", [0]))
    plain = ones and attribute_text(node, "auto_pad") in ("", "NOTSET", "VALID")
    plain = plain and all(n == 1 for n in attribute(node, "strides", [1]))
    if dims is not None and plain and len(dims) == len(weight):
        return [batch, weight[0], *dims[2:]]
    return [batch, weight[0], *[None] * (len(weight) - 2)]


def _pooled(graph: Graph, node: Any) -> Any:
    dims = _first(graph, node)
    return None if dims is None else [*dims[:2], *[None] * (len(dims) - 2)]


def _pooled_whole(graph: Graph, node: Any) -> Dims | None:
    dims = _first(graph, node)
    return None if dims is None else (*dims[:2], *[1] * (len(dims) - 2))


def _multiplied(graph: Graph, node: Any) -> Any:
    places = (0, 3) if graph.op(node) == "QLinearMatMul" else (0, 1)
    if len(node.input) <= places[1]:
        return None
    a, b = (graph.dims.get(node.input[place]) for place in places)
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    front = broadcast(a[:-2], b[:-2])
    return None if front is None else (*front, a[-2], b[-1])


def _gemm(graph: Graph, node: Any) -> Any:
    place = 3 if graph.op(node).endswith("QGemm") else 1
    if len(node.input) <= place:
        return None
    a, b = graph.dims.get(node.input[0]), graph.dims.get(node.input[place])
    rows = a[1 if attribute(node, "transA", 0) else 0] if a and len(a) == 2 else None
    columns = b[0 if attribute(node, "transB", 0) else 1] if b and len(b) == 2 else None
    return [rows, columns]


def _gathered(graph: Graph, node: Any) -> Any:
    dims = _first(graph, node)
    indices = graph.dims.get(node.input[1]) if len(node.input) > 1 else None
    axis = int(attribute(node, "axis", 0))
    if dims is None or indices is None or not -len(dims) <= axis < len(dims):
        return None
    axis %= len(dims)
    return (*dims[:axis], *indices, *dims[axis + 1 :])


def slices(graph: Graph, node: Any, rank: int) -> list[tuple[int, int, int, int]] | None:
    """Axis, start, end and step of each part of a Slice; None where one is not known."""
    starts, ends = graph.integers(node, "starts", 1), graph.integers(node, "ends", 2)
    given = graph.integers(node, "axes", 3)
    if given is None and (len(node.input) <= 3 or not node.input[3]):
        given = list(range(len(starts or ())))
    steps = graph.integers(node, "steps", 4)
    if steps is None:
        if len(node.input) > 4 and node.input[4]:
            return None
        steps = [1] * len(given or ())
    if starts is None or ends is None or given is None:
        return None
    if not len(starts) == len(ends) == len(given) == len(steps):
        return None
    if any(not -rank <= axis < rank for axis in given) or 0 in steps:
        return None
    return [(a % rank, s, e, p) for a, s, e, p in zip(given, starts, ends, steps, strict=True)]


def picked(size: int, start: int, end: int, step: int) -> range:
    """Which of `size` entries a slice takes, with ONNX's clamping: Python's own."""
    return range(*slice(start, None if step < 0 and end < -size else end, step).indices(size))


def _sliced(graph: Graph, node: Any) -> Any:
    dims = _first(graph, node)
    parts = None if dims is None else slices(graph, node, len(dims))
    if dims is None:
        return None
    if parts is None:
        return [None] * len(dims)
    result: list[Axis | None] = list(dims)
    for axis, start, end, step in parts:
        size = dims[axis]
        if isinstance(size, int):
            result[axis] = len(picked(size, start, end, step))
        elif (start, step) != (0, 1) or end < _ENDLESS:  # else all of it
            result[axis] = None
    return result


def _split(graph: Graph, node: Any) -> Any:
    dims = _first(graph, node)
    axis = int(attribute(node, "axis", 0))
    if dims is None or not -len(dims) <= axis < len(dims):
        return None
    axis %= len(dims)
    sizes = split_sizes(graph, node, dims[axis])
    return [
        [*dims[:axis], None if sizes is None else sizes[k], *dims[axis + 1 :]]
        for k in range(len(node.output))
    ]


def split_sizes(graph: Graph, node: Any, size: Axis) -> list[int] | None:
    """How long each part of a Split is."""
    given = graph.integers(node, "split", 1)
    if given is not None:
        return given if len(given) == len(node.output) and min(given) >= 0 else None
    if len(node.input) > 1 and node.input[1]:
        return None
    count = len(node.output)
    if not isinstance(size, int):
        return None
    whole = -(-size // count)
    sizes = [whole] * (count - 1) + [size - whole * (count - 1)]
    return sizes if sizes[-1] >= 0 else None


def _concatenated(graph: Graph, node: Any) -> Any:
    every = [graph.dims.get(name) for name in node.input]
    known = [dims for dims in every if dims is not None]
    if len(known) < len(every) or len({len(dims) for dims in known}) != 1:
        return None
    rank, axis = len(known[0]), int(attribute(node, "axis", 0))
    if not -rank <= axis < rank:
        return None
    axis %= rank
    result: list[Axis | None] = list(known[0])
    for k in range(rank):
        numbers = [dims[k] for dims in known if isinstance(dims[k], int)]
        if numbers and k != axis:
            result[k] = numbers[0]
    sizes = [dims[axis] for dims in known]
    whole = all(isinstance(size, int) for size in sizes)
    result[axis] = sum(int(size) for size in sizes) if whole else None
    return result


def _expanded(graph: Graph, node: Any) -> Dims | None:
    dims = _first(graph, node)
    wanted = graph.entries.get(node.input[1]) if len(node.input) > 1 else None
    if dims is None or wanted is None:
        return None
    return broadcast(dims, wanted)


def _tiled(graph: Graph, node: Any) -> Any:
    dims = _first(graph, node)
    repeats = graph.integers(node, "repeats", 1)
    if dims is None:
        return None
    if repeats is None or len(repeats) != len(dims):
        return [None] * len(dims)
    return [
        axis if times == 1 else (axis * times if isinstance(axis, int) else None)
        for axis, times in zip(dims, repeats, strict=True)
    ]


def _rank_only(graph: Graph, node: Any) -> Any:
    dims = _first(graph, node)
    return None if dims is None else [None] * len(dims)


def _recurrent(graph: Graph, node: Any) -> Any:
    dims = _first(graph, node)
    steps, batch = (dims[0], dims[1]) if dims is not None and len(dims) == 3 else (None, None)
    both = 2 if attribute_text(node, "direction") == "bidirectional" else 1
    size = attribute(node, "hidden_size", None)
    if attribute(node, "layout", 0):
        return [None, None, None]
    return [[steps, both, batch, size], [both, batch, size], [both, batch, size]]


def _shape(graph: Graph, node: Any) -> tuple[Axis, ...] | None:
    dims = _first(graph, node)
    if dims is None:
        return None
    start, end = attribute(node, "start", 0), attribute(node, "end", len(dims))
    return dims[start:end]


def _constant_dims(graph: Graph, node: Any) -> Any:
    stored = graph.constants.stored.get(node.output[0])
    return None if stored is None else [int(n) for n in stored.dims]


def _constant_of_shape(graph: Graph, node: Any) -> Any:
    return graph.entries.get(node.input[0])


def _same_dims(graph: Graph, node: Any) -> Dims | None:
    return _first(graph, node)


def _quantised_dims(graph: Graph, node: Any) -> Any:
    return [graph.dims.get(node.input[0]), (), ()]


def _where_dims(graph: Graph, node: Any) -> Dims | None:
    return _broadcast(graph, node)


def _shape_dims(graph: Graph, node: Any) -> Any:
    entries = _shape(graph, node)
    return None if entries is None else [len(entries)]


_SHAPES: dict[str, Callable[[Graph, Any], Any]] = {
    **dict.fromkeys(_BROADCAST | _COMPARISONS, _broadcast), "Where": _where_dims,
    **dict.fromkeys(_REDUCE, _reduced), **dict.fromkeys(("ArgMax", "ArgMin"), _picked),
    **dict.fromkeys(_POOLS, _pooled), **dict.fromkeys(_GLOBAL_POOLS, _pooled_whole),
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _multiplied),
    **dict.fromkeys(("Gemm", "com.microsoft::QGemm"), _gemm),
    **dict.fromkeys(("Conv", "ConvInteger"), _convolved),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "com.microsoft::DynamicQuantizeLSTM"), _recurrent),
    **dict.fromkeys(("Pad", "Resize", "Upsample"), _rank_only),
    **dict.fromkeys(("Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"), _same_dims),
    "BatchNormalization": _channels, "DynamicQuantizeLinear": _quantised_dims,
    "Shape": _shape_dims, "Constant": _constant_dims,
    "ConstantOfShape": _constant_of_shape, "Transpose": _transposed, "Reshape": _reshaped,
    "Flatten": _flattened, "Squeeze": _squeezed, "Unsqueeze": _unsqueezed, "Gather": _gathered,
    "Slice": _sliced, "Split": _split, "Concat": _concatenated, "Expand": _expanded, "Tile": _tiled,
}  # fmt: skip


# What small whole-number tensors hold, entry by entry: shapes on their way to a Reshape.


def _same_entries(graph: Graph, node: Any) -> tuple[Axis, ...] | None:
    entries, dims = graph.entries.get(node.input[0]), graph.dims.get(node.output[0])
    one_line = dims is not None and len(dims) <= 1
    kind = graph.kinds.get(node.output[0])
    whole = kind is not None and kind.number in (_INT32, _INT64)
    return entries if one_line and whole else None


def _joined_entries(graph: Graph, node: Any) -> tuple[Axis, ...] | None:
    parts = [graph.entries.get(name) for name in node.input]
    dims = graph.dims.get(node.output[0])
    if dims is None or len(dims) != 1:
        return None
    # A part that is not known still has a length: its entries are open.
    found: list[Axis] = []
    for name, part in zip(node.input, parts, strict=True):
        own = graph.dims.get(name)
        if part is None:
            if own is None or len(own) != 1 or not isinstance(own[0], int) or own[0] > 32:
                return None
            part = tuple(f"{_OPEN}{name}[{k}]" for k in range(own[0]))
        found += part
    return tuple(found)


def _gathered_entries(graph: Graph, node: Any) -> tuple[Axis, ...] | None:
    entries = graph.entries.get(node.input[0])
    indices = graph.entries.get(node.input[1]) if len(node.input) > 1 else None
    if entries is None or indices is None:
        return None
    places = [k for k in indices if isinstance(k, int) and -len(entries) <= k < len(entries)]
    return tuple(entries[k] for k in places) if len(places) == len(indices) else None


def _sliced_entries(graph: Graph, node: Any) -> tuple[Axis, ...] | None:
    entries = graph.entries.get(node.input[0])
    parts = None if entries is None else slices(graph, node, 1)
    if entries is None or parts is None or len(parts) != 1:
        return None
    _, start, end, step = parts[0]
    return tuple(entries[k] for k in picked(len(entries), start, end, step))


def _multiplied_entries(graph: Graph, node: Any) -> tuple[Axis, ...] | None:
    a, b = (graph.entries.get(name) for name in node.input[:2])
    if a is None or b is None or not len(a) == len(b) == 1:
        return None
    if isinstance(a[0], int) and isinstance(b[0], int) and abs(a[0] * b[0]) < 2**31:
        return (a[0] * b[0],)
    if a[0] == 1 or b[0] == 1:
        return b if a[0] == 1 else a
    return (f"{_OPEN}{node.output[0]}[0]",)


def _constant_entries(graph: Graph, node: Any) -> tuple[Axis, ...] | None:
    return graph.entries.get(node.output[0])


_CONTENTS: dict[str, Callable[[Graph, Any], tuple[Axis, ...] | None]] = {
    **dict.fromkeys(("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"), _same_entries),
    "Shape": _shape, "Concat": _joined_entries, "Gather": _gathered_entries,
    "Slice": _sliced_entries, "Mul": _multiplied_entries, "Constant": _constant_entries,
}  # fmt: skip
