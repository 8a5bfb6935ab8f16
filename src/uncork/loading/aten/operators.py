"""torch's operators written down as ONNX's, where they mean the same.

An operator without a rule here, or with a setting that ONNX has no word for, keeps its own name:
the walk from an output to the head stops there, and nothing is known of what it leaves. Operators
that write into their input (`relu_`) leave a new value in its place; every other name of the same
memory then stands for something that nothing is known of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from uncork.loading.aten.program import About, Operation, Program, Ref
from uncork.loading.onnx.made import Draft
from uncork.loading.onnx.tensors import NUMBERS

_SPACES = ("aten", "dim_order_ops")
_PURE = ("quantized_decomposed", "mil", "delegate")  # of which no operator writes into its inputs
_ENDLESS = 2**62
_MISSING = object()
# Operators whose result may be the same memory as their first argument.
_VIEWS = {
    "view", "reshape", "flatten", "unflatten", "transpose", "t", "permute", "squeeze", "unsqueeze",
    "select", "slice", "expand", "expand_as", "view_as", "reshape_as", "detach", "alias",
    "contiguous", "dropout", "feature_dropout", "alpha_dropout", "to", "type_as", "split", "chunk",
    "split_with_sizes", "unbind", "narrow", "diagonal", "movedim", "swapaxes", "numpy_T",
    "as_strided", "view_dtype", "_unsafe_view", "lift_fresh", "matrix_H", "mT", "real", "unfold",
    "ravel", "tensor_split", "hsplit", "vsplit", "float", "double", "half", "cpu", "clone",
    "broadcast_to", "_reshape_alias", "squeeze_", "unsqueeze_",
}  # fmt: skip


class _Own(Exception):
    """The operator keeps its own name."""


class Call:
    """One operation as its rule sees it: arguments by the names that the rule lists."""

    def __init__(self, operation: Operation, names: tuple[str, ...]) -> None:
        self.operation = operation
        self.given = dict(zip(names, operation.listed, strict=False)) | dict(operation.named)
        if set(operation.named) - set(names) or len(operation.listed) > len(names):
            raise _Own

    def get(self, name: str, default: Any = None) -> Any:
        found = self.given.get(name, _MISSING)
        return default if found is _MISSING else found

    def number(self, name: str, default: float | None = None) -> float:
        found = self.get(name, default)
        if not isinstance(found, int | float) or isinstance(found, bool):
            raise _Own
        return float(found)

    def whole(self, name: str, default: int | None = None) -> int:
        found = self.get(name, default)
        if type(found) is not int or abs(found) >= _ENDLESS:
            raise _Own
        return found

    def wholes(self, name: str, default: list[int] | None = None) -> list[int]:
        found = self.get(name, default)
        found = [found] if type(found) is int else found
        if not isinstance(found, list) or any(type(n) is not int for n in found):
            raise _Own
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.get(name, default))


class Translation:
    """A program on its way to being an ONNX graph."""

    def __init__(self, program: Program) -> None:
        self.program, self.draft = program, Draft(program.path, program.space)
        self.current: dict[str, str] = {}  # what a value of the program's is called here by now
        self.roots: dict[str, str] = {}  # the memory that a value of the program's lies in
        self.folded: dict[str, tuple[str, ...]] = {}
        changed = _changed(program)
        for value, constant in program.constants.items():
            if value in changed:  # other numbers from the second call on
                continue
            made = self.draft.stored(constant.name, constant.shape, constant.dtype, constant.read)
            self.current[value] = made
            self.folded[made] = constant.folded
        for value in (*program.inputs, *(one for one in program.constants if one in changed)):
            about = self.about(value)
            sides = about.sides
            dims = None if sides is None else [n if isinstance(n, int) else -1 for n in sides]
            name = self.draft.new(value)
            self.draft.input(name, about.dtype, dims)
            self.current[value] = name
        for operation in program.operations:
            self._add(operation)
        for value in program.outputs:
            if value in self.current:
                self.draft.output(self.current[value])

    def about(self, value: str) -> About:
        constant = self.program.constants.get(value)
        if constant is not None:
            return About(constant.dtype, constant.shape)
        return self.program.values.get(value, About())

    def _add(self, operation: Operation) -> None:
        space, _, name = operation.kind.partition(".")
        writes = name.endswith("_") and not name.endswith("__")
        plain = name.removesuffix("_") if writes else name
        if plain not in RULES:
            plain = plain.removesuffix("_copy")  # the same, where nothing shares memory
        rule = RULES.get(plain) if space in _SPACES else None
        try:
            if rule is None:
                raise _Own
            names, function = rule
            function(self, Call(operation, tuple(names.split())))
        except _Own:
            self._as_it_is(operation)
        self._alias(operation, plain, writes)

    def _as_it_is(self, operation: Operation) -> None:
        """Under its own name; of what it leaves, the program still says the shape."""
        inputs = [self.current.get(ref.name, "") for ref in _refs(operation)]
        results = [one for one in operation.results if one is not None]
        shapes = [_written_out(self.about(one).sides, ()) for one in results]
        made = [
            self.define(one) if shape is None else self.draft.new(f"{one}.flat")
            for one, shape in zip(results, shapes, strict=True)
        ]
        if not made:
            return
        kind = operation.kind.removeprefix("mil.")
        self.draft.add(kind, inputs, made, domain=self.program.space)
        for one, shape, flat in zip(results, shapes, made, strict=True):
            if shape is not None:
                dtype = self.about(one).dtype
                if dtype is not None:
                    self.draft.declare(flat, dtype)
                self.draft.add("Reshape", [flat, self.axes(shape)], [self.define(one)], allowzero=0)

    def _alias(self, operation: Operation, plain: str, writes: bool) -> None:
        """Which names stand for one memory, and what is left of them once it is written to."""
        refs = [ref.name for ref in _refs(operation)]
        foreign = operation.kind.partition(".")[0] not in (*_SPACES, *_PURE)
        if writes or foreign:
            first = next(iter((*operation.named.values(), *operation.listed)), None)
            several = isinstance(first, list)  # _foreach_…_ writes into each of a list
            for target in refs[:1] if writes and not several else refs:
                if foreign and target in self.program.constants:
                    continue
                self._written(target, operation)
        results = [one for one in operation.results if one is not None]
        # What has a rule and is no view is new memory; of any other operator nobody knows.
        fresh = plain in RULES and plain not in _VIEWS and not writes and not foreign
        if not fresh and operation.kind.partition(".")[0] not in _PURE and refs:
            shared = refs[:1] if plain in _VIEWS or writes else refs
            root = self.roots.get(shared[0], shared[0])
            joined = {self.roots.get(ref, ref) for ref in shared} - self.program.constants.keys()
            for name, own in self.roots.items():
                if own in joined:
                    self.roots[name] = root
            for one in (*joined, *results):
                self.roots[one] = root

    def _written(self, target: str, operation: Operation) -> None:
        root = self.roots.get(target, target)
        others = {name for name, own in self.roots.items() if own == root} | {root, target}
        first = next((one for one in operation.results if one is not None), None)
        for name in others - set(operation.results):
            if name == target and first is not None and operation.kind.startswith("aten."):
                self.current[name] = self.current[first]
            elif name in self.current:
                made = self.draft.new(f"{self.current[name]}.written")
                self.draft.add("written", [self.current[name]], [made], domain=self.program.space)
                self.current[name] = made

    # Names and values

    def define(self, value: str) -> str:
        """The name of a result, with the type that the program says it has."""
        made = self.draft.new(value)
        self.current[value] = made
        dtype = self.about(value).dtype
        if dtype is not None:
            self.draft.declare(made, dtype)
        return made

    def value(self, call: Call, name: str) -> str:
        """The value of an argument that must be one."""
        found = call.get(name)
        if not isinstance(found, Ref) or found.name not in self.current:
            raise _Own
        return self.current[found.name]

    def of(self, call: Call, name: str) -> About:
        found = call.get(name)
        return self.about(found.name) if isinstance(found, Ref) else About()

    def rank(self, call: Call, name: str) -> int:
        found = self.of(call, name).rank
        if found is None:
            raise _Own
        return found

    def result(self, call: Call) -> str:
        found = next(iter(call.operation.results), None)
        if found is None:
            raise _Own
        return found

    def write(self, call: Call, op: str, inputs: list[str], **attributes: Any) -> None:
        """The call as one node, whose first result is the call's first."""
        self.draft.add(op, inputs, [self.define(self.result(call))], **attributes)
        for rest in call.operation.results[1:]:
            if rest is not None:
                made = self.define(rest)
                self.draft.add(
                    f"{call.operation.kind}.rest", inputs[:1], [made], domain=self.program.space
                )

    def step(self, call: Call, op: str, inputs: list[str], **attributes: Any) -> str:
        """A node on the way to the call's result, of its type."""
        made = self.draft.new(f"{self.result(call)}.{op}")
        dtype = self.about(self.result(call)).dtype
        if dtype is not None:
            self.draft.declare(made, dtype)
        return self.draft.add(op, inputs, [made], **attributes)

    def number(self, call: Call, value: float) -> str:
        """A number in the type of the call's result."""
        dtype = self.about(self.result(call)).dtype
        if dtype is None or (dtype.kind != "f" and dtype.name != "bfloat16"):
            raise _Own
        return self.draft.constant(value, dtype)

    def axes(self, numbers: list[int]) -> str:
        return self.draft.constant(numbers, np.int64)


def _changed(program: Program) -> set[str]:
    """The constants that the program itself writes to, under their own names or through others."""
    behind: dict[str, set[str]] = {name: {name} for name in program.constants}
    changed: set[str] = set()
    for operation in program.operations:
        space, _, name = operation.kind.partition(".")
        writes = name.endswith("_") and not name.endswith("__")
        refs = [ref.name for ref in _refs(operation)]
        first = next(iter((*operation.named.values(), *operation.listed)), None)
        if writes:
            for target in refs if isinstance(first, list) else refs[:1]:
                changed |= behind.get(target, set())
        plain = name.removesuffix("_") if writes else name
        new = plain in RULES and plain not in _VIEWS and not writes
        if space in _SPACES and not new:
            shared = refs[:1] if plain in _VIEWS or writes else refs
            from_ = set().union(*(behind.get(ref, set()) for ref in shared))
            for one in operation.results:
                if one is not None and from_:
                    behind[one] = behind.get(one, set()) | from_
    return changed


def _refs(operation: Operation) -> list[Ref]:
    found: list[Ref] = []
    for one in (*operation.named.values(), *operation.listed):
        parts = one if isinstance(one, list) else [one]
        found += [part for part in parts if isinstance(part, Ref)]
    return found


Rule = tuple[str, Callable[[Translation, Call], None]]


def _plain(op: str, names: str = "self", **attributes: Any) -> Rule:
    def rule(t: Translation, call: Call) -> None:
        t.write(call, op, [t.value(call, names.split()[0])], **attributes)

    return names, rule


# Products


def _with_bias(t: Translation, call: Call, a: str, b: str, bias: Any) -> None:
    if bias is None:
        t.write(call, "MatMul", [a, b])
        return
    if not isinstance(bias, Ref) or bias.name not in t.current:
        raise _Own
    t.write(call, "Add", [t.step(call, "MatMul", [a, b]), t.current[bias.name]])


def _linear(t: Translation, call: Call) -> None:
    if t.rank(call, "weight") != 2:
        raise _Own
    weight = t.value(call, "weight")
    turned = t.draft.new(f"{weight}.turned")
    dtype = t.of(call, "weight").dtype
    if dtype is not None:
        t.draft.declare(turned, dtype)
    t.draft.add("Transpose", [weight], [turned], perm=[1, 0])
    _with_bias(t, call, t.value(call, "input"), turned, call.get("bias"))


def _addmm(t: Translation, call: Call) -> None:
    if call.number("beta", 1.0) != 1 or call.number("alpha", 1.0) != 1:
        raise _Own
    _with_bias(t, call, t.value(call, "mat1"), t.value(call, "mat2"), call.get("self"))


def _matmul(t: Translation, call: Call) -> None:
    names = ("self", "mat2") if "mat2" in call.given else ("self", "other")
    t.write(call, "MatMul", [t.value(call, name) for name in names])


def _convolution(t: Translation, call: Call) -> None:
    sides = t.rank(call, "weight") - 2
    if sides < 1 or call.flag("transposed"):
        raise _Own

    def each(name: str, default: int) -> list[int]:
        found = call.wholes(name, [default])
        found = found * sides if len(found) == 1 else found
        if len(found) != sides:
            raise _Own
        return found

    inputs = [t.value(call, "input"), t.value(call, "weight")]
    if call.get("bias") is not None:
        inputs.append(t.value(call, "bias"))
    # Without a batch axis a convolution takes one axis less.
    if t.rank(call, "input") != sides + 2:
        raise _Own
    pads = each("padding", 0)
    t.write(call, "Conv", inputs, strides=each("stride", 1), dilations=each("dilation", 1),
            pads=pads * 2, group=call.whole("groups", 1))  # fmt: skip


# Elementwise


def _two(op: str) -> Rule:
    """Two values of the result's own type, or a value and a number."""

    def rule(t: Translation, call: Call) -> None:
        if call.get("rounding_mode") is not None:
            raise _Own
        result = t.about(t.result(call)).dtype
        inputs = []
        for name in ("self", "other"):
            given = call.get(name)
            if isinstance(given, int | float) and not isinstance(given, bool):
                inputs.append(t.number(call, given))
                continue
            about = t.of(call, name)
            if result is None or about.dtype != result:
                raise _Own
            inputs.append(t.value(call, name))
        factor = call.number("alpha", 1.0)
        numbers = [n for n in (call.get("self"), call.get("other"), factor)
                   if isinstance(n, int | float)]  # fmt: skip
        if result is not None and result.itemsize == 2 and not _exact(numbers, result):
            if factor != 1:
                raise _Own
            _in_single(t, call, op)
            return
        if factor != 1:
            inputs[1] = t.step(call, "Mul", [inputs[1], t.number(call, factor)])
        t.write(call, op, inputs)

    return "self other alpha" if op in ("Add", "Sub") else "self other", rule


def _exact(numbers: list[float], dtype: np.dtype) -> bool:
    with np.errstate(all="ignore"):
        return all(float(np.asarray(n, np.float64).astype(dtype)) == n for n in numbers)


def _in_single(t: Translation, call: Call, op: str) -> None:
    """A 16-bit value and a number that its type does not hold: both are taken in float32."""
    single, result = np.dtype("float32"), t.about(t.result(call)).dtype
    assert result is not None
    inputs = []
    for name in ("self", "other"):
        given = call.get(name)
        if isinstance(given, int | float):
            inputs.append(t.draft.constant(given, single))
            continue
        inputs.append(t.draft.new(f"{t.result(call)}.{name}"))
        t.draft.declare(inputs[-1], single)
        t.draft.add("Cast", [t.value(call, name)], [inputs[-1]], to=NUMBERS[single])
    made = t.draft.new(f"{t.result(call)}.{op}")
    t.draft.declare(made, single)
    t.draft.add(op, inputs, [made])
    t.write(call, "Cast", [made], to=NUMBERS[result])


def _power(t: Translation, call: Call) -> None:
    t.write(call, "Pow", [t.value(call, "self"), t.number(call, call.number("exponent"))])


def _rsqrt(t: Translation, call: Call) -> None:
    t.write(call, "Reciprocal", [t.step(call, "Sqrt", [t.value(call, "self")])])


def _gelu(t: Translation, call: Call) -> None:
    mode = call.get("approximate", "none")
    if mode not in ("none", "tanh"):
        raise _Own
    t.write(call, "Gelu", [t.value(call, "self")], approximate=mode)


def _silu(t: Translation, call: Call) -> None:
    t.write(call, "Swish", [t.value(call, "self")], alpha=1.0)


def _clip(t: Translation, call: Call, low: float | None, high: float | None) -> None:
    ends = ["" if end is None else t.number(call, end) for end in (low, high)]
    if low is None and high is None:
        raise _Own
    while ends[-1] == "":
        ends.pop()
    t.write(call, "Clip", [t.value(call, "self"), *ends])


def _hardtanh(t: Translation, call: Call) -> None:
    _clip(t, call, call.number("min_val", -1.0), call.number("max_val", 1.0))


def _clamp(t: Translation, call: Call) -> None:
    ends = [None if call.get(name) is None else call.number(name) for name in ("min", "max")]
    _clip(t, call, *ends)


def _leaky_relu(t: Translation, call: Call) -> None:
    t.write(call, "LeakyRelu", [t.value(call, "self")], alpha=call.number("negative_slope", 0.01))


def _elu(t: Translation, call: Call) -> None:
    if call.number("scale", 1.0) != 1 or call.number("input_scale", 1.0) != 1:
        raise _Own
    t.write(call, "Elu", [t.value(call, "self")], alpha=call.number("alpha", 1.0))


def _hardsigmoid(t: Translation, call: Call) -> None:
    t.write(call, "HardSigmoid", [t.value(call, "self")], alpha=1 / 6, beta=0.5)


def _cast(t: Translation, call: Call) -> None:
    """The same values, in the type of the result."""
    before, after = t.of(call, "self").dtype, t.about(t.result(call)).dtype
    if before is None or after is None or after not in NUMBERS:
        raise _Own
    if before == after:
        t.write(call, "Identity", [t.value(call, "self")])
    else:
        t.write(call, "Cast", [t.value(call, "self")], to=NUMBERS[after])


def _dropout(t: Translation, call: Call) -> None:
    if call.flag("train", True) and call.number("p", 0.5) != 0:
        raise _Own
    t.write(call, "Identity", [t.value(call, "input")])


# Over axes


def _softmax(op: str) -> Rule:
    def rule(t: Translation, call: Call) -> None:
        if t.of(call, "self").dtype != t.about(t.result(call)).dtype:
            raise _Own
        t.write(call, op, [t.value(call, "self")], axis=call.whole("dim"))

    return "self dim dtype", rule


def _reduce(op: str) -> Rule:
    def rule(t: Translation, call: Call) -> None:
        if t.of(call, "self").dtype != t.about(t.result(call)).dtype:
            raise _Own
        axes, keep, given = call.wholes("dim", []), call.flag("keepdim"), t.value(call, "self")
        rank = t.of(call, "self").rank or 0
        positions = list(range(2, rank))
        if op == "ReduceMean" and rank > 3 and sorted(n % rank for n in axes) == positions:
            # Over all positions: the mean that is also the head's of the averaged input.
            if keep:
                t.write(call, "GlobalAveragePool", [given])
            else:
                pooled = t.step(call, "GlobalAveragePool", [given])
                t.write(call, "Squeeze", [pooled, t.axes(positions)])
            return
        t.write(call, op, [given, *([t.axes(axes)] if axes else [])], keepdims=int(keep))

    return "self dim keepdim dtype", rule


def _argmax(t: Translation, call: Call) -> None:
    t.write(call, "ArgMax", [t.value(call, "self")], axis=call.whole("dim"),
            keepdims=int(call.flag("keepdim")))  # fmt: skip


def _layer_norm(t: Translation, call: Call) -> None:
    count = len(call.wholes("normalized_shape"))
    dtype = t.about(t.result(call)).dtype
    if call.get("weight") is not None:
        gain = t.value(call, "weight")
    elif count == 1 and dtype is not None:
        gain = t.draft.constant([1.0], dtype)
    else:
        raise _Own
    inputs = [t.value(call, "input"), gain]
    if call.get("bias") is not None:
        inputs.append(t.value(call, "bias"))
    t.write(call, "LayerNormalization", inputs, axis=-count, epsilon=call.number("eps", 1e-5))


def _rms_norm(t: Translation, call: Call) -> None:
    count, dtype = len(call.wholes("normalized_shape")), t.about(t.result(call)).dtype
    if dtype is None or call.get("weight") is None:
        raise _Own
    epsilon = call.get("eps")
    if epsilon is None:
        if dtype.kind != "f":
            raise _Own
        epsilon = float(np.finfo(dtype).eps)
    inputs = [t.value(call, "input"), t.value(call, "weight")]
    t.write(call, "RMSNormalization", inputs, axis=-count, epsilon=float(epsilon))


def _batch_norm(t: Translation, call: Call) -> None:
    if call.flag("training"):
        raise _Own
    names = ("input", "weight", "bias", "running_mean", "running_var")
    inputs = [t.value(call, name) for name in names]
    t.write(call, "BatchNormalization", inputs, epsilon=call.number("eps", 1e-5))


def _pool_all(op: str) -> Rule:
    """Adaptive pooling down to a single position."""

    def rule(t: Translation, call: Call) -> None:
        sizes = call.wholes("output_size")
        # Without a batch axis there is one axis less.
        if any(n != 1 for n in sizes) or len(sizes) != t.rank(call, "self") - 2:
            raise _Own
        t.write(call, op, [t.value(call, "self")])

    return "self output_size", rule


def _window(t: Translation, call: Call) -> dict[str, Any]:
    sides = t.rank(call, "self") - 2

    def each(name: str, default: list[int]) -> list[int]:
        found = call.wholes(name, default) or default
        found = found * sides if len(found) == 1 else found
        if len(found) != sides or sides < 1:
            raise _Own
        return found

    kernel = each("kernel_size", [])
    return {"kernel_shape": kernel, "strides": each("stride", kernel),
            "pads": each("padding", [0]) * 2, "ceil_mode": int(call.flag("ceil_mode"))}  # fmt: skip


def _max_pool(t: Translation, call: Call) -> None:
    if any(n != 1 for n in call.wholes("dilation", [1])):
        raise _Own
    t.write(call, "MaxPool", [t.value(call, "self")], **_window(t, call))


def _avg_pool(t: Translation, call: Call) -> None:
    if call.get("divisor_override") is not None or call.flag("ceil_mode"):
        raise _Own
    included = int(call.flag("count_include_pad", True))
    t.write(call, "AveragePool", [t.value(call, "self")], count_include_pad=included,
            **_window(t, call))  # fmt: skip


def _lstm(t: Translation, call: Call) -> None:
    """The usual LSTM without a projection: of it only its range is used."""
    params, layers = call.get("params"), call.whole("num_layers")
    ways = 2 if call.flag("bidirectional") else 1
    each = 4 if call.flag("has_biases") else 2
    sides = t.about(t.result(call)).sides
    plain = isinstance(params, list) and len(params) == layers * ways * each
    if not plain or sides is None or not isinstance(sides[-1], int) or call.flag("train"):
        raise _Own
    inner = t.step(call, "LSTM", [t.value(call, "input")], hidden_size=sides[-1] // ways,
                   direction="bidirectional" if ways == 2 else "forward")  # fmt: skip
    t.write(call, "Reshape", [inner, _shape(t, call, None)], allowzero=0)


# Shapes


def _written_out(
    sides: tuple[int | str, ...] | None, given: tuple[int | str, ...]
) -> list[int] | None:
    """A shape as Reshape takes it: open sides that are the input's own are copied (0), one may be
    left to be worked out (−1); None where that does not say all of it."""
    if sides is None:
        return None
    wanted = []
    for k, side in enumerate(sides):
        if isinstance(side, int):
            wanted.append(side)
        else:
            wanted.append(0 if k < len(given) and given[k] == side else -1)
    return None if wanted.count(-1) > 1 or 0 in sides else wanted


def _shape(t: Translation, call: Call, before: About | None) -> str:
    """The shape of the result, as a constant."""
    given = before.sides if before is not None and before.sides is not None else ()
    wanted = _written_out(t.about(t.result(call)).sides, given)
    if wanted is None:
        raise _Own
    return t.axes(wanted)


def _reshape(t: Translation, call: Call) -> None:
    before, after = t.of(call, "self"), t.about(t.result(call))
    if before.dtype != after.dtype:  # view(dtype): the same bytes read as other numbers
        raise _Own
    shape = _shape(t, call, before)
    t.write(call, "Reshape", [t.value(call, "self"), shape], allowzero=0)


def _transpose(t: Translation, call: Call) -> None:
    rank = t.rank(call, "self")
    first, second = (call.whole(name) for name in ("dim0", "dim1"))
    if not (-rank <= first < rank and -rank <= second < rank):
        raise _Own
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    t.write(call, "Transpose", [t.value(call, "self")], perm=order)


def _permute(t: Translation, call: Call) -> None:
    rank = t.rank(call, "self")
    order = [n % rank for n in call.wholes("dims") if rank and -rank <= n < rank]
    if sorted(order) != list(range(rank)):
        raise _Own
    t.write(call, "Transpose", [t.value(call, "self")], perm=order)


def _turn(t: Translation, call: Call) -> None:
    if t.rank(call, "self") != 2:
        raise _Own
    t.write(call, "Transpose", [t.value(call, "self")], perm=[1, 0])


def _squeeze(t: Translation, call: Call) -> None:
    """Only axes of length one go; others stay."""
    about = t.of(call, "self")
    rank, sides = t.rank(call, "self"), about.sides or ()
    axes = [n % rank for n in call.wholes("dim") if -rank <= n < rank]
    if any(not isinstance(sides[n], int) for n in axes):
        raise _Own
    ones = [n for n in axes if sides[n] == 1]
    if ones:
        t.write(call, "Squeeze", [t.value(call, "self"), t.axes(ones)])
    else:
        t.write(call, "Identity", [t.value(call, "self")])


def _unsqueeze(t: Translation, call: Call) -> None:
    t.write(call, "Unsqueeze", [t.value(call, "self"), t.axes([call.whole("dim")])])


def _select(t: Translation, call: Call) -> None:
    index = t.draft.constant(call.whole("index"), np.int64)
    t.write(call, "Gather", [t.value(call, "self"), index], axis=call.whole("dim"))


def _slice(t: Translation, call: Call) -> None:
    begin, end = call.get("start"), call.get("end")
    ends = [0 if begin is None else begin, _ENDLESS if end is None else end]
    if any(type(n) is not int for n in ends):
        raise _Own
    parts = [[ends[0]], [min(ends[1], _ENDLESS)], [call.whole("dim", 0)], [call.whole("step", 1)]]
    t.write(call, "Slice", [t.value(call, "self"), *map(t.axes, parts)])


def _cat(t: Translation, call: Call) -> None:
    parts, result = call.get("tensors"), t.about(t.result(call)).dtype
    if not isinstance(parts, list) or not all(isinstance(one, Ref) for one in parts):
        raise _Own
    if any(t.about(one.name).dtype != result or one.name not in t.current for one in parts):
        raise _Own
    t.write(call, "Concat", [t.current[one.name] for one in parts], axis=call.whole("dim", 0))


def _split(t: Translation, call: Call) -> None:
    results, axis = call.operation.results, call.whole("dim", 0)
    sizes = []
    for one in results:
        sides = t.about(one).sides if one is not None else None
        if not sides or not -len(sides) <= axis < len(sides) or not isinstance(sides[axis], int):
            raise _Own
        sizes.append(sides[axis])
    given = t.value(call, "self")
    made = [t.define(one) for one in results if one is not None]
    t.draft.add("Split", [given, t.axes([int(n) for n in sizes])], made, axis=axis)


def _embedding(t: Translation, call: Call) -> None:
    t.write(call, "Gather", [t.value(call, "weight"), t.value(call, "indices")], axis=0)


_same = functools.partial(_plain, "Identity")
_LAYER_NORM = "input normalized_shape weight bias eps cudnn_enable"
_CONVOLUTION = "input weight bias stride padding dilation groups"
_MAX_POOL = "self kernel_size stride padding dilation ceil_mode"
_AVG_POOL = "self kernel_size stride padding ceil_mode count_include_pad divisor_override"
_CAST = "self dtype layout device pin_memory non_blocking copy memory_format"
RULES: dict[str, Rule] = {
    "linear": ("input weight bias", _linear), "addmm": ("self mat1 mat2 beta alpha", _addmm),
    "mm": ("self mat2", _matmul), "bmm": ("self mat2", _matmul),
    "matmul": ("self other", _matmul),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), (_CONVOLUTION, _convolution)),
    "convolution": (
        "input weight bias stride padding dilation transposed output_padding groups", _convolution
    ),
    "add": _two("Add"), "sub": _two("Sub"), "mul": _two("Mul"),
    "div": ("self other rounding_mode", _two("Div")[1]),
    "maximum": _two("Max"), "minimum": _two("Min"),
    **{name: _plain(op) for name, op in {
        "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "exp": "Exp", "log": "Log",
        "sqrt": "Sqrt", "neg": "Neg", "abs": "Abs", "reciprocal": "Reciprocal", "erf": "Erf",
        "selu": "Selu", "mish": "Mish", "hardswish": "HardSwish", "atan": "Atan",
    }.items()},
    "pow": ("self exponent", _power), "rsqrt": ("self", _rsqrt),
    "gelu": ("self approximate", _gelu), "silu": ("self", _silu),
    "relu6": ("self", lambda t, call: _clip(t, call, 0.0, 6.0)),
    "hardtanh": ("self min_val max_val", _hardtanh), "clamp": ("self min max", _clamp),
    "clamp_min": ("self min", _clamp), "clamp_max": ("self max", _clamp),
    "leaky_relu": ("self negative_slope", _leaky_relu),
    "elu": ("self alpha scale input_scale", _elu), "hardsigmoid": ("self", _hardsigmoid),
    "_to_copy": (_CAST, _cast), "to": ("self dtype non_blocking copy memory_format", _cast),
    "_to_dim_order_copy": ("self non_blocking dim_order", _cast),
    "clone": _same("self memory_format"), "contiguous": _same("self memory_format"),
    "_clone_dim_order": _same("self non_blocking dim_order"),
    "detach": _same(), "alias": _same(), "lift_fresh": _same(),
    "dropout": ("input p train", _dropout), "feature_dropout": ("input p train", _dropout),
    "softmax": _softmax("Softmax"), "log_softmax": _softmax("LogSoftmax"),
    "_softmax": ("self dim half_to_float", _softmax("Softmax")[1]),
    "_log_softmax": ("self dim half_to_float", _softmax("LogSoftmax")[1]),
    "mean": _reduce("ReduceMean"), "sum": _reduce("ReduceSum"), "amax": _reduce("ReduceMax"),
    "amin": _reduce("ReduceMin"), "argmax": ("self dim keepdim", _argmax),
    "layer_norm": (_LAYER_NORM, _layer_norm),
    "native_layer_norm": ("input normalized_shape weight bias eps", _layer_norm),
    "rms_norm": ("input normalized_shape weight eps", _rms_norm),
    "batch_norm": (
        "input weight bias running_mean running_var training momentum eps cudnn_enabled",
        _batch_norm,
    ),
    "_native_batch_norm_legit_no_training": (
        "input weight bias running_mean running_var momentum eps", _batch_norm
    ),
    **{f"{kind}adaptive_avg_pool{n}d": _pool_all("GlobalAveragePool")
       for n in (1, 2, 3) for kind in ("", "_")},
    **{f"max_pool{n}d{kind}": (_MAX_POOL, _max_pool)
       for n in (1, 2, 3) for kind in ("", "_with_indices")},
    **{f"avg_pool{n}d": (_AVG_POOL, _avg_pool) for n in (1, 2, 3)},
    "lstm": (
        "input hx params has_biases num_layers dropout train bidirectional batch_first", _lstm
    ),
    "view": ("self size", _reshape), "_unsafe_view": ("self size", _reshape),
    "reshape": ("self shape", _reshape), "flatten": ("self start_dim end_dim", _reshape),
    "unflatten": ("self dim sizes", _reshape),
    "transpose": ("self dim0 dim1", _transpose), "permute": ("self dims", _permute),
    "t": ("self", _turn), "numpy_T": ("self", _turn),
    "squeeze": ("self dim", _squeeze), "unsqueeze": ("self dim", _unsqueeze),
    "select": ("self dim index", _select), "slice": ("self dim start end step", _slice),
    "cat": ("tensors dim", _cat), "split": ("self split_size dim", _split),
    "split_with_sizes": ("self split_sizes dim", _split), "chunk": ("self chunks dim", _split),
    "embedding": ("weight indices padding_idx scale_grad_by_freq sparse", _embedding),
}  # fmt: skip
