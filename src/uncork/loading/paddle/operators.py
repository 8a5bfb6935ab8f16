"""Paddle's operators written down as ONNX's, where they mean the same.

An operator without a rule here, or with a setting that ONNX has no word for, is kept under its own
name: the walk from an output to the head stops there, and nothing is known of what it leaves. A
program may write a variable twice; here every value has a name of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from uncork.loading.onnx.made import Draft
from uncork.loading.onnx.tensors import NUMBERS
from uncork.loading.paddle.parameters import Parameter
from uncork.loading.paddle.program import DTYPES, Operator, Program

_DOMAIN = "paddle"
_MOST_SPELLED_OUT = 1 << 16  # elements of a constant that a program fills in itself
_FIRST = {"crf_decoding": "Emission"}  # what the prediction comes from, of several inputs
_NCHW = (None, "NCHW", "AnyLayout")


class _Own(Exception):
    """The operator keeps its own name."""


class Translation:
    """A program on its way to being an ONNX graph."""

    def __init__(self, program: Program, parameters: Iterable[Parameter]) -> None:
        self.program = program
        self.draft = Draft(program.path, _DOMAIN)
        self.current: dict[str, str] = {}  # the value a variable holds by now
        for one in parameters:
            self.current[one.name] = self.draft.stored(one.name, one.shape, one.dtype, one.read)
        for operator in program.operators:
            self._add(operator)

    def _add(self, operator: Operator) -> None:
        if operator.kind == "feed":
            name = operator.made("Out")
            found = self.program.variables.get(name)
            given = self.draft.new(name)
            told = (None, None) if found is None else (found.dtype, found.dims)
            self.draft.input(given, *told)
            self.current[name] = given
            return
        if operator.kind == "fetch":
            self.draft.output(self.value(operator.given("X")))
            return
        try:
            rule = _RULES.get(operator.kind)
            if rule is None:
                raise _Own
            rule(self, operator)
        except _Own:
            self._as_it_is(operator)

    def _as_it_is(self, operator: Operator) -> None:
        first = _FIRST.get(operator.kind)
        order = sorted(operator.inputs, key=lambda what: what != first)
        inputs = [self.value(name) for what in order for name in operator.inputs[what]]
        kept = [name for names in operator.outputs.values() for name in names]
        self.draft.add(operator.kind, inputs, [self.define(name) for name in kept],
                       domain=_DOMAIN)  # fmt: skip

    # Names and what is known of them

    def value(self, name: str) -> str:
        return self.current.get(name, name)

    def define(self, name: str) -> str:
        """A new value for a variable."""
        self.current[name] = self.draft.new(name)
        found = self.program.variables.get(name)
        if found is not None:
            self.draft.declare(self.current[name], found.dtype)
        return self.current[name]

    def x(self, operator: Operator, what: str = "X") -> str:
        name = operator.given(what)
        if not name:
            raise _Own
        return self.value(name)

    def out(self, operator: Operator, *whats: str) -> list[str]:
        name = operator.made(*(whats or ("Out",)))
        if not name:
            raise _Own
        return [self.define(name)]

    def rank(self, name: str) -> int:
        found = self.program.variables.get(name)
        if found is None or found.dims is None:
            raise _Own
        return len(found.dims)

    def integers(self, operator: Operator, setting: str, *tensors: str) -> list[int]:
        """Numbers from a constant among the inputs, else from a setting."""
        for what in tensors:
            names = operator.inputs.get(what, [])
            if names:
                every = [self.draft.small.get(self.value(name)) for name in names]
                if any(one is None or one.dtype.kind not in "iu" for one in every):
                    raise _Own
                return [int(n) for one in every if one is not None for n in one.reshape(-1)]
        found = operator.settings.get(setting)
        if isinstance(found, int):
            return [int(found)]
        if not isinstance(found, list) or not all(isinstance(one, int) for one in found):
            raise _Own
        return [int(one) for one in found]

    def plain(self, operator: Operator, **defaults: Any) -> bool:
        """Whether settings that matter are as they are by default."""
        return all(operator.settings.get(key, value) == value for key, value in defaults.items())


def _same(op: str) -> Callable[[Translation, Operator], None]:
    def rule(t: Translation, operator: Operator) -> None:
        t.draft.add(op, [t.x(operator)], t.out(operator))

    return rule


def _swish(t: Translation, operator: Operator) -> None:
    beta = float(operator.settings.get("beta", 1.0))
    t.draft.add("Swish", [t.x(operator)], t.out(operator), alpha=beta)


def _hard_swish(t: Translation, operator: Operator) -> None:
    if not t.plain(operator, threshold=6.0, scale=6.0, offset=3.0):
        raise _Own
    t.draft.add("HardSwish", [t.x(operator)], t.out(operator))


def _hard_sigmoid(t: Translation, operator: Operator) -> None:
    slope = float(operator.settings.get("slope", np.float32(0.2)))
    offset = float(operator.settings.get("offset", 0.5))
    t.draft.add("HardSigmoid", [t.x(operator)], t.out(operator), alpha=slope, beta=offset)


def _relu6(t: Translation, operator: Operator) -> None:
    most = float(operator.settings.get("threshold", 6.0))
    t.draft.add("Clip", [t.x(operator)], t.out(operator), min=0.0, max=most)


def _clip(t: Translation, operator: Operator) -> None:
    ends = [operator.settings.get(key) for key in ("min", "max")]
    if operator.given("Min") or operator.given("Max"):
        ends = [_number(t, operator, what) for what in ("Min", "Max")]
    if any(not isinstance(end, float) for end in ends):
        raise _Own
    t.draft.add("Clip", [t.x(operator)], t.out(operator), min=ends[0], max=ends[1])


def _leaky_relu(t: Translation, operator: Operator) -> None:
    alpha = operator.settings.get("alpha", operator.settings.get("negative_slope", 0.02))
    t.draft.add("LeakyRelu", [t.x(operator)], t.out(operator), alpha=float(alpha))


def _elu(t: Translation, operator: Operator) -> None:
    alpha = float(operator.settings.get("alpha", 1.0))
    t.draft.add("Elu", [t.x(operator)], t.out(operator), alpha=alpha)


def _gelu(t: Translation, operator: Operator) -> None:
    how = "tanh" if operator.settings.get("approximate") else "none"
    t.draft.add("Gelu", [t.x(operator)], t.out(operator), approximate=how)


def _softplus(t: Translation, operator: Operator) -> None:
    if not t.plain(operator, beta=1.0):
        raise _Own
    t.draft.add("Softplus", [t.x(operator)], t.out(operator))


def _softmax(op: str) -> Callable[[Translation, Operator], None]:
    def rule(t: Translation, operator: Operator) -> None:
        axis = int(operator.settings.get("axis", -1))
        t.draft.add(op, [t.x(operator)], t.out(operator), axis=axis)

    return rule


def _elementwise(op: str) -> Callable[[Translation, Operator], None]:
    def rule(t: Translation, operator: Operator) -> None:
        x, y = t.x(operator), t.x(operator, "Y")
        axis = int(operator.settings.get("axis", -1))
        if axis >= 0:
            # The second operand begins at that axis of the first.
            ranks = t.rank(operator.given("X")), t.rank(operator.given("Y"))
            behind = ranks[0] - axis - ranks[1]
            if behind < 0 or (behind and ranks[1] > ranks[0]):
                raise _Own
            if behind:
                axes = range(ranks[1], ranks[1] + behind)
                y = t.draft.add("Unsqueeze", [y], f"{y}.aligned", axes=list(axes))
        t.draft.add(op, [x, y], t.out(operator))

    return rule


def _scale(t: Translation, operator: Operator) -> None:
    if operator.given("ScaleTensor"):
        factor = _number(t, operator, "ScaleTensor")
    else:
        factor = operator.settings.get("scale", 1.0)
    offset = operator.settings.get("bias", 0.0)
    if not isinstance(factor, int | float) or not isinstance(offset, int | float):
        raise _Own
    x, kind = t.x(operator), _float_kind(t, operator.given("X"))
    if (factor, offset) == (1.0, 0.0):
        t.draft.add("Identity", [x], t.out(operator))
        return
    if kind is None:
        raise _Own
    after = operator.settings.get("bias_after_scale", True)
    steps = [("Mul", factor), ("Add", offset)] if after else [("Add", offset), ("Mul", factor)]
    steps = [(op, number) for op, number in steps if number != (1.0 if op == "Mul" else 0.0)]
    for op, number in steps[:-1]:
        x = t.draft.add(op, [x, t.draft.constant(number, kind)], f"{x}.scaled")
        t.draft.declare(x, np.dtype(kind))
    op, number = steps[-1]
    t.draft.add(op, [x, t.draft.constant(number, kind)], t.out(operator))


def _float_kind(t: Translation, name: str) -> np.dtype | None:
    found = t.program.variables.get(name)
    kind = None if found is None else found.dtype
    return kind if kind in (np.dtype("f4"), np.dtype("f8"), np.dtype("f2")) else None


def _number(t: Translation, operator: Operator, what: str) -> float | None:
    found = t.draft.small.get(t.value(operator.given(what)))
    return None if found is None or found.size != 1 else float(found.reshape(-1)[0])


def _multiplied(t: Translation, operator: Operator) -> None:
    """matmul_v2, and matmul with a factor."""
    settings = operator.settings
    sides = []
    for what, turned in (("X", ("trans_x", "transpose_X")), ("Y", ("trans_y", "transpose_Y"))):
        side = t.x(operator, what)
        if any(settings.get(name) for name in turned):
            rank = t.rank(operator.given(what))
            if rank < 2:
                raise _Own
            perm = [*range(rank - 2), rank - 1, rank - 2]
            side = t.draft.add("Transpose", [side], f"{side}.turned", perm=perm)
        sides.append(side)
    if t.plain(operator, alpha=1.0):
        t.draft.add("MatMul", sides, t.out(operator))
        return
    kind = _float_kind(t, operator.given("X"))
    if kind is None:
        raise _Own
    product = t.draft.add("MatMul", sides, f"{operator.made('Out')}.product")
    t.draft.declare(product, kind)
    factor = t.draft.constant(float(settings["alpha"]), kind)
    t.draft.add("Mul", [product, factor], t.out(operator))


def _flat_product(t: Translation, operator: Operator) -> None:
    """mul: the input seen as a matrix, cut at an axis."""
    _dense(t, operator, "X", "Y", "x_num_col_dims", t.out)


def _dense(
    t: Translation, operator: Operator, data: str, weight: str, cut: str,
    out: Callable[[Operator], list[str]],
) -> str:  # fmt: skip
    x, at = t.x(operator, data), int(operator.settings.get(cut, 1))
    rank = t.rank(operator.given(data))
    square = t.rank(operator.given(weight)) == 2 and t.plain(operator, y_num_col_dims=1)
    if not square or not (at == rank - 1 or at == 1):
        raise _Own
    if at != rank - 1:
        x = t.draft.add("Flatten", [x], f"{x}.flat", axis=1)
    return t.draft.add("MatMul", [x, t.x(operator, weight)], out(operator))


def _fully_connected(t: Translation, operator: Operator) -> None:
    """fc: a product, a bias and perhaps a ReLU in one."""
    activation = operator.settings.get("activation_type") or ""
    kind = _float_kind(t, operator.given("Input"))
    if activation not in ("", "relu") or kind is None:
        raise _Own

    def between(operator: Operator) -> list[str]:
        name = t.draft.new(f"{operator.made('Out')}.product")
        t.draft.declare(name, kind)
        return [name]

    value = _dense(t, operator, "Input", "W", "in_num_col_dims", between)
    steps = [("Add", [t.value(operator.given("Bias"))])] if operator.given("Bias") else []
    steps += [("Relu", [])] if activation else []
    for op, more in steps or [("Identity", [])]:
        last = op == (steps or [("Identity", [])])[-1][0]
        value = t.draft.add(op, [value, *more], t.out(operator) if last else between(operator))


def _convolved(t: Translation, operator: Operator) -> None:
    settings = operator.settings
    fused = settings.get("fuse_relu") or settings.get("fuse_residual_connection")
    if fused or settings.get("fuse_activation") not in (None, "", "identity"):
        raise _Own
    inputs = [t.x(operator, "Input"), t.x(operator, "Filter")]
    if operator.given("Bias"):
        inputs.append(t.x(operator, "Bias"))
    t.draft.add("Conv", inputs, t.out(operator, "Output", "Out"), **_window(t, operator),
                group=int(settings.get("groups", 1)))  # fmt: skip


def _window(t: Translation, operator: Operator) -> dict[str, Any]:
    """Strides, padding and dilation as ONNX has them."""
    settings = operator.settings
    if settings.get("data_format") not in _NCHW:
        raise _Own
    strides = t.integers(operator, "strides")
    found: dict[str, Any] = {"strides": strides}
    if settings.get("dilations"):
        found["dilations"] = t.integers(operator, "dilations")
    how = settings.get("padding_algorithm", "EXPLICIT")
    if how == "SAME":
        return {**found, "auto_pad": "SAME_UPPER"}
    pads = [0] * 2 * len(strides) if how == "VALID" else t.integers(operator, "paddings")
    if len(pads) == len(strides):
        pads = pads + pads
    elif len(pads) == 2 * len(strides):
        pads = pads[0::2] + pads[1::2]
    else:
        raise _Own
    return {**found, "pads": pads}


def _pooled(t: Translation, operator: Operator) -> None:
    settings = operator.settings
    if settings.get("data_format") not in _NCHW:
        raise _Own
    mean = settings.get("pooling_type") == "avg"
    if not mean and settings.get("pooling_type") != "max":
        raise _Own
    size = t.integers(operator, "ksize", "Ksize")
    if settings.get("global_pooling") or (settings.get("adaptive") and set(size) == {1}):
        op = "GlobalAveragePool" if mean else "GlobalMaxPool"
        t.draft.add(op, [t.x(operator)], t.out(operator))
        return
    if settings.get("adaptive"):
        raise _Own
    window = _window(t, operator)
    window.pop("dilations", None)
    ceil = int(bool(settings.get("ceil_mode")))
    if mean:
        inside = int(not settings.get("exclusive", True))
        t.draft.add("AveragePool", [t.x(operator)], t.out(operator), kernel_shape=size, **window,
                    ceil_mode=ceil, count_include_pad=inside)  # fmt: skip
    else:
        t.draft.add("MaxPool", [t.x(operator)], t.out(operator), kernel_shape=size, **window,
                    ceil_mode=ceil)  # fmt: skip


def _batch_norm(t: Translation, operator: Operator) -> None:
    settings = operator.settings
    layout = settings.get("data_layout", settings.get("data_format"))
    fixed = settings.get("is_test") or settings.get("use_global_stats")
    if layout not in _NCHW or not fixed or settings.get("trainable_statistics"):
        raise _Own
    inputs = [t.x(operator, what) for what in ("X", "Scale", "Bias", "Mean", "Variance")]
    # What it writes back of its statistics is what they were.
    t.draft.add("BatchNormalization", inputs, t.out(operator, "Y"),
                epsilon=float(settings.get("epsilon", 1e-5)))  # fmt: skip


def _layer_norm(t: Translation, operator: Operator) -> None:
    at = int(operator.settings.get("begin_norm_axis", 1))
    if at not in (-1, t.rank(operator.given("X")) - 1):
        raise _Own
    inputs = [t.x(operator), t.x(operator, "Scale")]
    if operator.given("Bias"):
        inputs.append(t.x(operator, "Bias"))
    t.draft.add("LayerNormalization", inputs, t.out(operator, "Y"), axis=-1,
                epsilon=float(operator.settings.get("epsilon", 1e-5)))  # fmt: skip


def _dropout(t: Translation, operator: Operator) -> None:
    if not operator.settings.get("is_test"):
        raise _Own
    how = operator.settings.get("dropout_implementation", "downgrade_in_infer")
    if how == "upscale_in_train":
        t.draft.add("Identity", [t.x(operator)], t.out(operator))
        return
    share = operator.settings.get("dropout_prob", 0.5)
    if operator.given("Share"):
        share = _number(t, operator, "Share")
    kind = _float_kind(t, operator.given("X"))
    if not isinstance(share, float) or kind is None:
        raise _Own
    kept = t.draft.constant(np.float32(1) - np.float32(share), kind)
    t.draft.add("Mul", [t.x(operator), kept], t.out(operator))


def _reshaped(t: Translation, operator: Operator) -> None:
    x, parts = t.x(operator), operator.inputs.get("ShapeTensor", [])
    if operator.given("Shape"):
        shape = t.value(operator.given("Shape"))
    elif parts:
        line = t.draft.constant([-1], np.int64)
        each = [t.draft.add("Reshape", [t.value(one), line], f"{one}.entry") for one in parts]
        shape = t.draft.add("Concat", each, f"{operator.made('Out')}.shape", axis=0)
    else:
        shape = t.draft.constant(t.integers(operator, "shape"), np.int64)
    t.draft.add("Reshape", [x, shape], t.out(operator))


def _flattened(t: Translation, operator: Operator) -> None:
    """flatten_contiguous_range: the axes from one to another become one."""
    rank = t.rank(operator.given("X"))
    start, stop = (int(operator.settings.get(key, default)) for key, default in (
        ("start_axis", 1), ("stop_axis", 1)))  # fmt: skip
    start, stop = start % max(rank, 1), stop % max(rank, 1)
    if stop != rank - 1 or start > stop:
        raise _Own
    shape = t.draft.constant([0] * start + [-1], np.int64)
    t.draft.add("Reshape", [t.x(operator), shape], t.out(operator))


def _cut(t: Translation, operator: Operator) -> None:
    """flatten2: a matrix, cut at an axis."""
    axis = int(operator.settings.get("axis", 1))
    t.draft.add("Flatten", [t.x(operator)], t.out(operator), axis=axis)


def _transposed(t: Translation, operator: Operator) -> None:
    t.draft.add("Transpose", [t.x(operator)], t.out(operator), perm=t.integers(operator, "axis"))


def _squeezed(t: Translation, operator: Operator) -> None:
    axes = t.integers(operator, "axes", "Axes")
    found = t.program.variables.get(operator.given("X"))
    dims = None if found is None else found.dims
    # An axis that is not of length one stays, and nothing says so.
    if dims is None or not axes or any(
        not -len(dims) <= axis < len(dims) or dims[axis] != 1 for axis in axes
    ):  # fmt: skip
        raise _Own
    t.draft.add("Squeeze", [t.x(operator)], t.out(operator), axes=axes)


def _unsqueezed(t: Translation, operator: Operator) -> None:
    axes = t.integers(operator, "axes", "AxesTensorList", "AxesTensor")
    t.draft.add("Unsqueeze", [t.x(operator)], t.out(operator), axes=axes)


def _sliced(t: Translation, operator: Operator) -> None:
    axes = t.integers(operator, "axes")
    starts = t.integers(operator, "starts", "StartsTensorList", "StartsTensor")
    ends = t.integers(operator, "ends", "EndsTensorList", "EndsTensor")
    x = t.x(operator, "Input")
    gone = operator.settings.get("decrease_axis") or []
    if not gone:
        t.draft.add("Slice", [x], t.out(operator), starts=starts, ends=ends, axes=axes)
        return
    if t.rank(operator.given("Input")) == len(gone) and t.rank(operator.made("Out")) == 1:
        gone = gone[1:]  # before Paddle had values without an axis
    part = t.draft.add("Slice", [x], f"{operator.made('Out')}.part", starts=starts, ends=ends,
                       axes=axes)  # fmt: skip
    found = t.program.variables.get(operator.given("Input"))
    t.draft.declare(part, None if found is None else found.dtype)
    if gone:
        t.draft.add("Squeeze", [part], t.out(operator), axes=[int(axis) for axis in gone])
    else:
        t.draft.add("Identity", [part], t.out(operator))


def _joined(t: Translation, operator: Operator) -> None:
    axis = t.integers(operator, "axis", "AxisTensor")
    if len(axis) != 1 or not operator.inputs.get("X"):
        raise _Own
    inputs = [t.value(name) for name in operator.inputs["X"]]
    t.draft.add("Concat", inputs, t.out(operator), axis=axis[0])


def _parted(t: Translation, operator: Operator) -> None:
    names = operator.outputs.get("Out", [])
    axis = t.integers(operator, "axis", "AxisTensor")
    sections = t.integers(operator, "sections", "SectionsTensorList")
    if len(axis) != 1 or not names or any(n < 0 for n in sections):
        raise _Own
    x = t.x(operator)
    more: dict[str, Any] = {"split": sections} if sections else {}
    t.draft.add("Split", [x], [t.define(name) for name in names], axis=axis[0], **more)


def _reduced(op: str) -> Callable[[Translation, Operator], None]:
    def rule(t: Translation, operator: Operator) -> None:
        axes = t.integers(operator, "dim", "Axis")
        every = operator.settings.get("reduce_all") or not axes
        more: dict[str, Any] = {} if every else {"axes": axes}
        keep = int(bool(operator.settings.get("keep_dim")))
        t.draft.add(op, [t.x(operator)], t.out(operator), keepdims=keep, **more)

    return rule


def _picked(op: str) -> Callable[[Translation, Operator], None]:
    def rule(t: Translation, operator: Operator) -> None:
        axis = t.integers(operator, "axis", "Axis")
        if operator.settings.get("flatten") or len(axis) != 1:
            raise _Own
        keep = int(bool(operator.settings.get("keepdims")))
        t.draft.add(op, [t.x(operator)], t.out(operator), axis=axis[0], keepdims=keep)

    return rule


def _top(t: Translation, operator: Operator) -> None:
    count = t.integers(operator, "k", "K")
    names = operator.made("Out"), operator.made("Indices")
    if len(count) != 1 or not all(names):
        raise _Own
    x, most = t.x(operator), t.draft.constant(count, np.int64)
    t.draft.add("TopK", [x, most], [t.define(name) for name in names],
                axis=int(operator.settings.get("axis", -1)),
                largest=int(bool(operator.settings.get("largest", True))))  # fmt: skip


def _cast(t: Translation, operator: Operator) -> None:
    dtype = DTYPES.get(operator.settings.get("out_dtype", -1))
    if dtype is None:
        raise _Own
    t.draft.add("Cast", [t.x(operator)], t.out(operator), to=NUMBERS[dtype])


def _filled(t: Translation, operator: Operator) -> None:
    """A constant of one number; of a shape that is known, and small."""
    settings = operator.settings
    dtype = DTYPES.get(settings.get("dtype", -1))
    more = [t.value(name) for names in operator.inputs.values() for name in names]
    shape = settings.get("shape")
    if more or dtype is None or not isinstance(shape, list) or any(n < 0 for n in shape):
        raise _Own
    size = 1
    for n in shape:
        size *= n
    if len(shape) > 8 or size > _MOST_SPELLED_OUT:
        raise _Own
    text = settings.get("str_value")
    number = float(text) if text else float(settings.get("value", 0.0))
    if dtype.kind in "iub" and not number.is_integer():
        raise _Own
    _spelled_out(t, operator, np.full(shape, number, dtype))


def _assigned(t: Translation, operator: Operator) -> None:
    """A constant whose numbers the program lists."""
    settings = operator.settings
    dtype, shape = DTYPES.get(settings.get("dtype", -1)), settings.get("shape")
    keys = ("values", "fp32_values", "int32_values", "int64_values", "bool_values")
    found = next((settings[key] for key in keys if settings.get(key)), None)
    if dtype is None or not isinstance(shape, list) or found is None:
        raise _Own
    if len(found) != int(np.prod(shape, dtype=object)):
        raise _Own
    _spelled_out(t, operator, np.asarray(found).astype(dtype).reshape(shape))


def _spelled_out(t: Translation, operator: Operator, values: np.ndarray) -> None:
    variable = operator.made("Out")
    t.current[variable] = t.draft.constant(values, name=variable)


def _shape(t: Translation, operator: Operator) -> None:
    t.draft.add("Shape", [t.x(operator, "Input")], t.out(operator))


def _looked_up(t: Translation, operator: Operator) -> None:
    if operator.settings.get("padding_idx", -1) != -1:
        raise _Own  # rows of zeros in place of some
    ids, table = t.x(operator, "Ids"), t.x(operator, "W")
    if operator.kind == "lookup_table_v2":
        t.draft.add("Gather", [table, ids], t.out(operator), axis=0)
        return
    rows = t.draft.add("Gather", [table, ids], f"{operator.made('Out')}.rows", axis=0)
    found = t.program.variables.get(operator.given("W"))
    t.draft.declare(rows, None if found is None else found.dtype)
    t.draft.add("Squeeze", [rows], t.out(operator), axes=[-2])


def _sequence(op: str, result: str) -> Callable[[Translation, Operator], None]:
    """gru and lstm over sequences laid end to end: (steps, width) in and (steps, hidden) out."""

    def rule(t: Translation, operator: Operator) -> None:
        usual = {"gate_activation": "sigmoid"}
        usual |= {"activation": "tanh"} if op == "GRU" else {
            "cell_activation": "tanh", "candidate_activation": "tanh"}  # fmt: skip
        weight = t.program.variables.get(operator.given("Weight"))
        kind = _float_kind(t, operator.given("Input"))
        # Integers where older programs have numbers for the functions' names.
        if not t.plain(operator, **usual) or kind is None or operator.given("H0"):
            raise _Own
        if weight is None or weight.dims is None or len(weight.dims) != 2:
            raise _Own
        x = t.draft.add("Unsqueeze", [t.x(operator, "Input")], f"{operator.made(result)}.steps",
                        axes=[1])  # fmt: skip
        y = t.draft.add(op, [x, "", ""], f"{operator.made(result)}.states",
                        hidden_size=weight.dims[0])  # fmt: skip
        for name in (x, y):
            t.draft.declare(name, kind)
        t.draft.add("Squeeze", [y], t.out(operator, result), axes=[1, 2])

    return rule


def _recurrent(t: Translation, operator: Operator) -> None:
    """rnn: layers of an LSTM, a GRU or a plain one; what leaves is the last layer's."""
    settings = operator.settings
    op = {"LSTM": "LSTM", "GRU": "GRU", "RNN_TANH": "RNN"}.get(settings.get("mode", ""))
    kind = _float_kind(t, operator.given("Input"))
    if op is None or kind is None or not settings.get("is_test") or op == "GRU":
        raise _Own  # a GRU's first state is given, and may lie anywhere
    both = bool(settings.get("is_bidirec"))
    name = operator.made("Out")
    y = t.draft.add(op, [t.x(operator, "Input"), "", ""], f"{name}.states",
                    hidden_size=int(settings.get("hidden_size", 0)),
                    direction="bidirectional" if both else "forward")  # fmt: skip
    beside = t.draft.add("Transpose", [y], f"{name}.beside", perm=[0, 2, 1, 3])
    for one in (y, beside):
        t.draft.declare(one, kind)
    t.draft.add("Reshape", [beside, t.draft.constant([0, 0, -1], np.int64)], t.out(operator))


_RULES: dict[str, Callable[[Translation, Operator], None]] = {
    **{kind: _same(op) for kind, op in {
        "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "exp": "Exp", "log": "Log",
        "sqrt": "Sqrt", "abs": "Abs", "erf": "Erf", "softsign": "Softsign", "mish": "Mish",
        "reciprocal": "Reciprocal", "assign": "Identity", "lod_reset": "Identity",
        "share_data": "Identity", "memcpy_h2d": "Identity", "memcpy_d2h": "Identity",
    }.items()},
    "swish": _swish, "silu": _swish, "hard_swish": _hard_swish, "hard_sigmoid": _hard_sigmoid,
    "relu6": _relu6, "clip": _clip, "leaky_relu": _leaky_relu, "elu": _elu, "gelu": _gelu,
    "softplus": _softplus, "softmax": _softmax("Softmax"), "log_softmax": _softmax("LogSoftmax"),
    **{f"elementwise_{kind}": _elementwise(op) for kind, op in {
        "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min",
    }.items()},
    "scale": _scale, "matmul": _multiplied, "matmul_v2": _multiplied, "mul": _flat_product,
    "fc": _fully_connected, "conv2d": _convolved, "depthwise_conv2d": _convolved,
    "pool2d": _pooled, "batch_norm": _batch_norm, "layer_norm": _layer_norm, "dropout": _dropout,
    "reshape": _reshaped, "reshape2": _reshaped, "flatten_contiguous_range": _flattened,
    "flatten": _cut, "flatten2": _cut, "transpose": _transposed, "transpose2": _transposed,
    "squeeze2": _squeezed, "unsqueeze2": _unsqueezed, "slice": _sliced, "concat": _joined,
    "split": _parted, "reduce_mean": _reduced("ReduceMean"), "reduce_max": _reduced("ReduceMax"),
    "reduce_min": _reduced("ReduceMin"), "reduce_sum": _reduced("ReduceSum"),
    "arg_max": _picked("ArgMax"), "arg_min": _picked("ArgMin"), "top_k_v2": _top, "cast": _cast,
    "fill_constant": _filled, "assign_value": _assigned, "lookup_table": _looked_up,
    "lookup_table_v2": _looked_up, "gru": _sequence("GRU", "Hidden"),
    "lstm": _sequence("LSTM", "Hidden"), "rnn": _recurrent,
    "shape": _shape,
}  # fmt: skip
