"""An ML Program of Core ML, read as a program of torch's operators where they mean the same.

Fields are numbered as in Apple's own definition (mlmodel/format of coremltools: MIL.proto). Large
constants lie in weights/weight.bin, each behind a header of its own; they are mapped, not read.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.aten.program import About, Constant, Open, Operation, Program, Ref
from uncork.loading.bounded.cursor import mapped
from uncork.loading.bounded.protobuf import Message
from uncork.loading.coreml.codes import dequantised
from uncork.loading.coreml.text import Literal, Typed, read_text

_TYPES: dict[int, Any] = {  # DataType
    1: np.bool_, 10: np.float16, 11: np.float32, 12: np.float64, 13: ml_dtypes.bfloat16,
    21: np.int8, 22: np.int16, 23: np.int32, 24: np.int64, 31: np.uint8, 32: np.uint16,
    33: np.uint32, 34: np.uint64,
}  # fmt: skip
_BLOBS: dict[int, Any] = {  # types in weight.bin have numbers of their own
    1: np.float16, 2: np.float32, 3: np.uint8, 4: np.int8, 5: ml_dtypes.bfloat16, 6: np.int16,
    7: np.uint16, 14: np.int32, 15: np.uint32,
}  # fmt: skip
_STRING = 2
_SENTINEL = 0xDEADBEEF
_MODEL_PATH = "@model_path/"
_MOST_SPELLED = 4096  # entries of a constant that settings are taken from


@dataclass
class MLProgram:
    """A program with what the file says of its classes."""

    program: Program
    labels: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Kept:
    """A constant of the program: a plain value (numbers, texts), or an array."""

    value: Any = None
    array: Constant | None = None


def read_ml_program(path: Path, stored: Message, default: str = "") -> MLProgram:
    """The function of a program that runs unless another is asked for, which a model may name;
    nothing of its weights is read yet."""
    functions = {entry.text(1): entry.message(2) for entry in stored.messages(2)}
    wanted = default or "main"
    if wanted not in functions and (default or len(functions) > 1):
        names = ", ".join(printable(name)[:40] for name in list(functions)[:8])
        raise UncorkError(
            f"{path} holds {len(functions)} functions and none is {printable(wanted)[:40]}: {names}"
        )
    function = functions.get(wanted) or next(iter(functions.values()), Message(memoryview(b"")))
    blocks = [entry.message(2) for entry in function.messages(3)]
    if len(blocks) != 1:
        raise UncorkError(f"{path} is damaged: its program has {len(blocks)} bodies")
    return _Reader(path).read(function, blocks[0])


def read_compiled(path: Path) -> MLProgram:
    """The program of a compiled model, from its text (`model.mil`)."""
    body = read_text(path)
    reader = _Reader(path)
    for name, kind in body.inputs:
        reader.typed(name, kind)
        reader.program.inputs.append(name)
    for statement in body.statements:
        for name, kind in statement.results:
            reader.typed(name, kind)
        results = tuple(name for name, _ in statement.results)
        given = {name: reader.spelled(name, one) for name, one in statement.given.items()}
        kept = {name: found for name, one in statement.attributes.items()
                if isinstance(found := reader.spelled(name, one), _Kept)}  # fmt: skip
        if results and statement.kind == "const" and "val" in statement.attributes:
            kept["val"] = reader.literal(results[0], statement.attributes["val"])
        reader.take(statement.kind, results, given, kept)
    if not reader.labels:  # else the probabilities stand for the outputs
        reader.program.outputs = body.outputs
    return MLProgram(reader.program, reader.labels)


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.program = Program(path, [], [], {}, {}, [], "coreml")
        self.kept: dict[str, _Kept] = {}
        self.labels: list[str] = []

    def read(self, function: Message, block: Message) -> MLProgram:
        self.program.outputs = block.texts(2)
        for given in function.messages(1):
            self.program.inputs.append(self._typed(given))
        for message in block.messages(3):
            self._operation(message)
        return MLProgram(self.program, self.labels)

    # From text

    def typed(self, name: str, kind: Typed) -> None:
        sides = tuple(f"{name}[{at}]" if n is None else n for at, n in enumerate(kind.sides))
        self.program.values[name] = About(kind.dtype, sides)

    def spelled(self, name: str, one: Any) -> Any:
        """An argument: a reference, a literal, or a list of these."""
        if isinstance(one, list):
            return [self.spelled(name, part) for part in one]
        return self.literal(name, one) if isinstance(one, Literal) else Ref(str(one))

    def literal(self, name: str, one: Any) -> _Kept:
        if not isinstance(one, Literal):
            return _Kept(Open())
        dtype, sides = one.type.dtype, tuple(-1 if n is None else n for n in one.type.sides)
        if one.file:
            return _Kept(array=self._blob(name, dtype, sides, one.file, one.offset))
        value = one.value
        if dtype is None or dtype.kind in "biu" or not sides:
            return _Kept(value)
        flat = value if isinstance(value, list) else [value]
        if len(flat) != math.prod(sides) or any(type(n) not in (int, float) for n in flat):
            raise UncorkError(
                f"{self.path}: constant {printable(name)[:80]!r} does not fit {sides}"
            )
        with np.errstate(all="ignore"):
            numbers = np.array(flat, np.float64).astype(dtype)
        return _Kept(array=_array(name, list(sides), numbers, list(sides)))

    # From messages

    def _typed(self, named: Message) -> str:
        """The name of a value, whose type is kept."""
        name, tensor = named.text(1), named.message(2).message(1)
        dtype = _TYPES.get(tensor.whole(1))
        sides: list[int | str] = []
        for at, side in enumerate(tensor.messages(3)):
            sides.append(side.message(1).whole(1) if 1 in side else f"{name}[{at}]")
        dtype = None if dtype is None else np.dtype(dtype)
        self.program.values[name] = About(dtype, tuple(sides))
        return name

    def _operation(self, message: Message) -> None:
        kind = message.text(1)
        results = tuple(self._typed(named) for named in message.messages(3))
        given: dict[str, Any] = {}
        for entry in message.messages(2):
            bound = [self._bound(one) for one in entry.message(2).messages(1)]
            given[entry.text(1)] = bound if len(bound) != 1 else bound[0]
        attributes = {}
        if results and (kind == "const" or kind.startswith("constexpr_")):
            attributes = {entry.text(1): self._value(results[0], entry.message(2))
                          for entry in message.messages(5)}  # fmt: skip
        self.take(kind, results, given, attributes)

    def take(
        self, kind: str, results: tuple[str, ...], given: dict[str, Any],
        attributes: Mapping[str, _Kept],
    ) -> None:  # fmt: skip
        """One operation: a constant is kept, any other goes into the program."""
        if kind == "const":
            if results and "val" in attributes:
                self._keep(results[0], attributes["val"])
            return
        if kind.startswith("constexpr_"):
            given = {**given, **attributes}
            made = dequantised(kind, {name: self._resolved(one) for name, one in given.items()})
            if made is not None and results:
                shape, dtype, read, how = made
                whole = Constant(results[0], shape, dtype, read, (how,))
                self._keep(results[0], _Kept(array=whole))
                return
        plain = {name: self._argument(one) for name, one in given.items()}
        if kind == "classify":
            self._classify(plain)
        self.program.operations += _as_torch(kind, plain, results, self.program.values)

    def _classify(self, given: Mapping[str, Any]) -> None:
        """A classifier's end: the label of the highest probability, and all of them by label."""
        labels, scores = given.get("classes"), given.get("probabilities")
        if isinstance(scores, Ref):
            self.program.outputs = [scores.name]
            if isinstance(labels, list):
                self.labels = [str(one) for one in labels]

    def _keep(self, name: str, one: _Kept) -> None:
        if name in self.kept:
            raise UncorkError(
                f"{self.path}: constant {printable(name)[:80]!r} is there twice: damaged"
            )
        self.kept[name] = one
        if one.array is not None:
            self.program.constants[name] = one.array

    def _bound(self, binding: Message) -> Any:
        if 1 in binding:
            return Ref(binding.text(1))
        return self._value("constant", binding.message(2))

    def _resolved(self, one: Any) -> Any:
        return self.kept.get(one.name, _Kept()) if isinstance(one, Ref) else one

    def _argument(self, one: Any) -> Any:
        """A setting as a plain value where it is one, else a reference."""
        if isinstance(one, list):
            return [self._argument(part) for part in one]
        if isinstance(one, Ref):
            kept = self.kept.get(one.name)
            if kept is None or kept.array is not None:
                return one
            return Open() if kept.value is None else kept.value  # None is what is not there
        if one.array is not None:
            name = f"constant {len(self.program.constants)}"
            self._keep(name, _Kept(array=one.array))
            return Ref(name)
        return Open() if one.value is None else one.value

    def _value(self, name: str, value: Message) -> _Kept:
        kind = value.message(2)
        if 3 in value and 3 in value.message(3):  # a list
            parts = [
                self._value(name, one).value for one in value.message(3).message(3).messages(1)
            ]
            return _Kept([part for part in parts if part is not None])
        tensor = kind.message(1)
        number, shape = tensor.whole(1), []
        for side in tensor.messages(3):
            shape.append(side.message(1).whole(1))
        if 5 in value:
            blob, dtype = value.message(5), _TYPES.get(number)
            stored = None if dtype is None else np.dtype(dtype)
            place = blob.text(1), blob.whole(2)
            return _Kept(array=self._blob(name, stored, tuple(shape), *place))
        found = value.message(3).message(1)
        if number == _STRING:
            texts = found.message(4).texts(1)
            return _Kept(texts if shape else (texts[0] if texts else ""))
        dtype = _TYPES.get(number)
        if dtype is None:
            return _Kept(Open())
        numbers = _numbers(found, np.dtype(dtype))
        count = math.prod(shape) if all(0 <= n < 1 << 40 for n in shape) else -1
        if len(numbers) != count:
            if len(numbers) == 1 and count > 1:  # one number for all
                return _Kept(Open())
            raise UncorkError(
                f"{self.path}: constant {printable(name)[:80]!r} of shape {shape[:8]} has "
                f"{len(numbers)} values: damaged"
            )
        if np.dtype(dtype).kind in "biu" or not shape:
            flat = numbers[:_MOST_SPELLED].tolist()
            if len(numbers) <= _MOST_SPELLED:
                return _Kept(flat if shape else flat[0], _array(name, shape, numbers, shape))
        return _Kept(array=_array(name, shape, numbers, shape))

    def _blob(
        self, name: str, stored: np.dtype | None, shape: tuple[int, ...], file: str, offset: int
    ) -> Constant | None:
        """A constant in a file of weights; None where its type is not read."""
        inside = PurePosixPath(file.removeprefix(_MODEL_PATH))
        if not file.startswith(_MODEL_PATH) or inside.is_absolute() or ".." in inside.parts:
            raise UncorkError(
                f"{self.path}: constant {printable(name)[:80]!r} lies in {printable(file)[:80]}, "
                "outside the package: refused"
            )
        weights = self.path.parent / inside
        if not weights.is_file():
            raise UncorkError(
                f"{self.path}: its weights are in {printable(str(inside))[:80]}, which does not "
                "lie beside it: give the whole .mlpackage"
            )
        size = weights.stat().st_size
        if not 0 <= offset <= size - 64:
            raise UncorkError(f"{weights} is truncated: no header at byte {offset}")
        with weights.open("rb") as opened:
            opened.seek(offset)
            sentinel, kind, length, place = struct.unpack("<IIQQ", opened.read(24))
        if stored is None or kind not in _BLOBS:
            return None
        count = math.prod(shape) if all(0 <= n < 1 << 40 for n in shape) else -1
        wrong = sentinel != _SENTINEL or np.dtype(_BLOBS[kind]).itemsize != stored.itemsize
        if wrong or length != count * stored.itemsize or place + length > size:
            raise UncorkError(
                f"{weights}: constant {printable(name)[:80]!r} of shape {list(shape)[:8]} has "
                f"{length} bytes at {place} of {size}: truncated or damaged"
            )
        read = functools.partial(mapped, weights, stored, shape, place)
        return Constant(name, shape, stored, read)


def _array(name: str, dims: list[int], numbers: np.ndarray, shape: list[int]) -> Constant | None:
    """An array, unless it is a single number or whole numbers, which are settings."""
    if not dims or numbers.dtype.kind in "biu":
        return None
    return Constant(name, tuple(dims), numbers.dtype, lambda: numbers.reshape(shape))


def _numbers(found: Message, dtype: np.dtype) -> np.ndarray:
    """What a tensor spells out, in the type it is of."""
    if 7 in found:
        raw = found.message(7).bytes(1)
        if len(raw) % dtype.itemsize:
            raise UncorkError("a constant ends in the middle of a number")
        return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype)
    for field_number, stored in ((1, "<f4"), (6, "<f8")):
        if field_number in found:
            return found.message(field_number).array(1, stored).astype(dtype)
    for field_number in (2, 3, 5):
        if field_number in found:
            whole = found.message(field_number).wholes(1)
            if dtype.kind in "iu":
                limits = np.iinfo(dtype)
                whole = [n for n in whole if limits.min <= n <= limits.max]
            return np.array(whole, np.int64 if dtype.kind == "i" else None).astype(dtype)
    return np.zeros(0, dtype)


# What Core ML calls the operators of torch, and their arguments.
_Arguments = Mapping[str, Any]
_ALIKE: dict[str, tuple[str, dict[str, str]]] = {
    "linear": ("linear", {"x": "input", "weight": "weight", "bias": "bias"}),
    **{name: (other, {"x": "self"}) for name, other in {
        "relu": "relu", "relu6": "relu6", "tanh": "tanh", "sigmoid": "sigmoid", "exp": "exp",
        "sqrt": "sqrt", "erf": "erf", "abs": "abs", "silu": "silu", "identity": "alias",
        "flatten2d": "reshape",
    }.items()},
    **{name: (other, {"x": "self", "y": "other"}) for name, other in {
        "add": "add", "sub": "sub", "mul": "mul", "real_div": "div", "maximum": "maximum",
        "minimum": "minimum",
    }.items()},
    **{name: (other, {"x": "self", "axes": "dim", "keep_dims": "keepdim"}) for name, other in {
        "reduce_mean": "mean", "reduce_sum": "sum", "reduce_max": "amax", "reduce_min": "amin",
    }.items()},
    "reduce_argmax": ("argmax", {"x": "self", "axis": "dim", "keep_dims": "keepdim"}),
    "softmax": ("softmax", {"x": "self", "axis": "dim"}),
    "pow": ("pow", {"x": "self", "y": "exponent"}),
    "leaky_relu": ("leaky_relu", {"x": "self", "alpha": "negative_slope"}),
    "elu": ("elu", {"x": "self", "alpha": "alpha"}),
    "clip": ("clamp", {"x": "self", "alpha": "min", "beta": "max"}),
    "transpose": ("permute", {"x": "self", "perm": "dims"}),
    "squeeze": ("squeeze", {"x": "self", "axes": "dim"}),
    "batch_norm": ("batch_norm", {"x": "input", "mean": "running_mean", "variance": "running_var",
                                  "gamma": "weight", "beta": "bias", "epsilon": "eps"}),
}  # fmt: skip
_GELUS = {"EXACT": "none", "TANH_APPROXIMATION": "tanh"}


def _as_torch(
    kind: str, given: _Arguments, results: tuple[str, ...], values: Mapping[str, About]
) -> Iterator[Operation]:
    """An operation under torch's name where it means the same, else under its own."""
    special = _SPECIAL.get(kind)
    found = None if special is None else special(given, results, values)
    if found is not None:
        yield from found
        return
    alike = _ALIKE.get(kind)
    if alike is not None and set(given) <= set(alike[1]):
        named = {alike[1][name]: value for name, value in given.items()}
        yield Operation(f"aten.{alike[0]}", "", named, (), results)
        return
    yield Operation(f"mil.{kind}", "", dict(given), (), results)


_Made = list[Operation] | None
_Special = Callable[[_Arguments, tuple[str, ...], Mapping[str, About]], _Made]


def _call(kind: str, results: tuple[str, ...], **named: Any) -> Operation:
    return Operation(f"aten.{kind}", "", named, (), results)


def _matmul(given: _Arguments, results: tuple[str, ...], values: Mapping[str, About]) -> _Made:
    if given.get("transpose_x") or type(given.get("transpose_y", False)) is not bool:
        return None
    if not given.get("transpose_y"):
        return [_call("matmul", results, self=given.get("x"), other=given.get("y"))]
    return [_call("linear", results, input=given.get("x"), weight=given.get("y"))]


def _conv(given: _Arguments, results: tuple[str, ...], values: Mapping[str, About]) -> _Made:
    kind, pads = given.get("pad_type", "valid"), given.get("pad", [])
    sides = (values.get(results[0], About()).rank or 0) - 2 if results else 0
    if kind == "custom" and isinstance(pads, list) and len(pads) == 2 * sides:
        if pads[::2] != pads[1::2]:
            return None
        padding = pads[::2]
    elif kind == "valid":
        padding = [0] * sides
    else:
        return None
    return [_call(
        "convolution", results, input=given.get("x"), weight=given.get("weight"),
        bias=given.get("bias"), stride=given.get("strides", [1] * sides), padding=padding,
        dilation=given.get("dilations", [1] * sides), groups=given.get("groups", 1),
    )]  # fmt: skip


def _layer_norm(given: _Arguments, results: tuple[str, ...], values: Mapping[str, About]) -> _Made:
    axes, rank = given.get("axes"), values.get(results[0], About()).rank if results else None
    if not isinstance(axes, list) or rank is None or not all(type(n) is int for n in axes):
        return None
    if sorted(n % rank for n in axes) != list(range(rank - len(axes), rank)):
        return None
    return [_call("layer_norm", results, input=given.get("x"), normalized_shape=axes,
                  weight=given.get("gamma"), bias=given.get("beta"),
                  eps=given.get("epsilon", 1e-5))]  # fmt: skip


def _gelu(given: _Arguments, results: tuple[str, ...], values: Mapping[str, About]) -> _Made:
    mode = _GELUS.get(str(given.get("mode", "EXACT")))
    return None if mode is None else [_call("gelu", results, self=given.get("x"), approximate=mode)]


def _cast(given: _Arguments, results: tuple[str, ...], values: Mapping[str, About]) -> _Made:
    return [_call("_to_copy", results, self=given.get("x"))]


def _rsqrt(given: _Arguments, results: tuple[str, ...], values: Mapping[str, About]) -> _Made:
    """With a small number added first, where there is one."""
    if not results or not given.get("epsilon"):
        return [_call("rsqrt", results, self=given.get("x"))]
    between = f"{results[0]}.added"
    if isinstance(values, dict):
        values[between] = values.get(results[0], About())
    return [_call("add", (between,), self=given.get("x"), other=given["epsilon"]),
            _call("rsqrt", results, self=Ref(between))]  # fmt: skip


def _log(given: _Arguments, results: tuple[str, ...], values: Mapping[str, About]) -> _Made:
    """With a small number added first, where there is one."""
    return None if given.get("epsilon") else [_call("log", results, self=given.get("x"))]


def _square(given: _Arguments, results: tuple[str, ...], values: Mapping[str, About]) -> _Made:
    return [_call("pow", results, self=given.get("x"), exponent=2.0)]


def _reshape(given: _Arguments, results: tuple[str, ...], values: Mapping[str, About]) -> _Made:
    return [_call("reshape", results, self=given.get("x"), shape=given.get("shape"))]


def _concat(given: _Arguments, results: tuple[str, ...], values: Mapping[str, About]) -> _Made:
    parts = given.get("values")
    if given.get("interleave"):
        return None
    parts = parts if isinstance(parts, list) else [parts]
    return [_call("cat", results, tensors=parts, dim=given.get("axis"))]


def _gather(given: _Arguments, results: tuple[str, ...], values: Mapping[str, About]) -> _Made:
    """Rows of a table."""
    if given.get("axis", 0) != 0 or given.get("batch_dims"):
        return None
    return [_call("embedding", results, weight=given.get("x"), indices=given.get("indices"))]


def _sliced(given: _Arguments, results: tuple[str, ...], values: Mapping[str, About]) -> _Made:
    """One step an axis that is not taken whole; axes that are dropped go last to first."""
    begin, end = given.get("begin"), given.get("end")
    if not isinstance(begin, list) or not isinstance(end, list) or len(begin) != len(end):
        return None
    count = len(begin)
    stride = given.get("stride") or [1] * count
    masks = [given.get(name) or [False] * count
             for name in ("begin_mask", "end_mask", "squeeze_mask")]  # fmt: skip
    if any(not isinstance(one, list) or len(one) != count for one in (stride, *masks)):
        return None
    steps: list[tuple[str, dict[str, Any]]] = []
    for axis in reversed(range(count)):
        open_begin, open_end, dropped = (mask[axis] for mask in masks)
        if dropped:
            steps.append(("select", {"dim": axis, "index": begin[axis]}))
        elif not (open_begin and open_end and stride[axis] == 1):
            steps.append(("slice", {"dim": axis, "start": None if open_begin else begin[axis],
                                    "end": None if open_end else end[axis],
                                    "step": stride[axis]}))  # fmt: skip
    value, made = given.get("x"), []
    for at, (kind, named) in enumerate(steps):
        last = at == len(steps) - 1
        result = results if last else (f"{results[0]}.{at}",)
        made.append(_call(kind, result, self=value, **named))
        value = Ref(result[0])
    return made or [_call("alias", results, self=value)]


_SPECIAL: dict[str, _Special] = {
    "matmul": _matmul, "conv": _conv, "layer_norm": _layer_norm, "gelu": _gelu, "cast": _cast,
    "rsqrt": _rsqrt, "log": _log, "square": _square, "reshape": _reshape, "expand_dims": _reshape,
    "concat": _concat, "gather": _gather, "slice_by_index": _sliced,
}  # fmt: skip
