"""Constants of an ONNX graph: initializers, Constant nodes, external data, simple ops on them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.contents import Tensor

# TensorProto.DataType by number: the numbers are part of the format.
_TYPES: dict[int, Any] = {
    1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64,
    9: np.bool_, 10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64,
    16: ml_dtypes.bfloat16, 17: ml_dtypes.float8_e4m3fn, 19: ml_dtypes.float8_e5m2,
}  # fmt: skip
NUMBERS = {np.dtype(dtype): number for number, dtype in _TYPES.items()}
_EXTERNAL = 1  # TensorProto.DataLocation
_STANDARD = ("", "ai.onnx")  # one domain, two spellings
_FIXED_BY_DEFAULT = 4  # before this version of the format every constant was listed as an input
_PLAIN: dict[str, tuple[str, Any]] = {
    "value_float": ("f", np.float32), "value_floats": ("floats", np.float32),
    "value_int": ("i", np.int64), "value_ints": ("ints", np.int64),
}  # fmt: skip
_MOST_STEPS = 32  # ops between a stored constant and its use
_MOST_DIMENSIONS = 32


@dataclass(frozen=True)
class StoredElsewhere:
    """A constant of a graph that another format holds, with the fields of one that ONNX holds."""

    name: str
    dims: tuple[int, ...]
    data_type: int
    read: Callable[[], np.ndarray] = field(repr=False, compare=False)


class Constants:
    """The constant values of a graph by name, decoded only when asked for.

    An initializer that is also an input of the graph can be overridden by whoever runs the model
    (from version 4 of the format on): `is_constant` takes it for what is stored, `is_fixed` does
    not count on it.
    """

    def __init__(self, path: Path, model: Any) -> None:
        graph = model.graph
        self.path, self.model = path, model
        self.opset = max(
            (o.version for o in model.opset_import if o.domain in _STANDARD), default=0
        )
        self.functions = {(f.domain, f.name) for f in model.functions}
        self.stored = {tensor.name: tensor for tensor in graph.initializer}
        self.overridable: set[str] = set()
        if model.ir_version >= _FIXED_BY_DEFAULT:
            self.overridable = {given.name for given in graph.input} & set(self.stored)
        self.nodes: dict[str, Any] = {}
        for node in graph.node:
            for output in node.output:
                if output:
                    self.nodes[output] = node
            if self.op(node) == "Constant" and len(node.output) == 1:
                stored = _stored_in(node)
                if stored is not None:
                    self.stored[node.output[0]] = stored

    def op(self, node: Any) -> str:
        """What a node does: its type for the standard's own ops, "domain::type" for all others.

        A function that the model brings along is nobody's standard op, whatever its name.
        """
        if (node.domain, node.op_type) in self.functions:
            return f"function {node.domain}::{node.op_type}"
        return str(node.op_type) if node.domain in _STANDARD else f"{node.domain}::{node.op_type}"

    def tensors(self) -> dict[str, Tensor]:
        """Every stored constant of one dimension or more, by name."""
        found = {}
        for name, proto in self.stored.items():
            if len(proto.dims):
                dtype = _TYPES.get(proto.data_type)
                kind = np.dtype(dtype).name if dtype else f"onnx type {proto.data_type}"
                read = functools.partial(decode, self.path, name, proto)
                found[name] = Tensor(name, tuple(proto.dims), kind, read)
        return found

    def is_constant(self, name: str) -> bool:
        """Whether `value` can compute this, from the graph alone."""
        for _ in range(_MOST_STEPS):
            if name in self.stored:
                return True
            node = self.nodes.get(name)
            if node is None or self.op(node) not in _FOLDED or not node.input:
                return False
            if any(i and i not in self.stored for i in node.input[1:]):
                return False
            name = node.input[0]
        return False

    def is_fixed(self, name: str) -> bool:
        """Whether this is a constant that no caller can override."""
        if not name or not self.is_constant(name):
            return False
        while name not in self.stored:
            node = self.nodes[name]
            if self.overridable.intersection(node.input):
                return False
            name = node.input[0]
        return name not in self.overridable

    def origin(self, name: str) -> str:
        """The stored tensor behind a constant: the name a reader of the file would know."""
        for _ in range(_MOST_STEPS):
            if name in self.stored or name not in self.nodes:
                break
            name = self.nodes[name].input[0]
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        """A constant's shape, from the header alone where it is stored as it is used."""
        if name in self.stored:
            return tuple(int(n) for n in self.stored[name].dims)
        return self.value(name).shape

    def value(self, name: str) -> np.ndarray:
        """A constant's value, through the ops exporters leave between it and its use."""
        steps: list[Any] = []
        while name not in self.stored:
            node = self.nodes.get(name)
            if node is None or self.op(node) not in _FOLDED or len(steps) == _MOST_STEPS:
                raise UncorkError(f"{self.path}: {name!r} is not a constant of the graph")
            steps.append(node)
            name = node.input[0]
        array = decode(self.path, name, self.stored[name])
        for node in reversed(steps):
            rest = [decode(self.path, i, self.stored[i]) if i else None for i in node.input[1:]]
            array = _FOLDED[node.op_type](self.path, node, array, *rest)
        return array


def _stored_in(node: Any) -> Any | None:
    """What a Constant node holds, as a tensor."""
    from onnx import numpy_helper

    for found in node.attribute:
        if found.name == "value":
            return found.t
        if found.name in _PLAIN:
            field, dtype = _PLAIN[found.name]
            return numpy_helper.from_array(np.asarray(getattr(found, field), dtype=dtype))
    return None


def decode(path: Path, name: str, proto: Any) -> np.ndarray:
    """A stored tensor as an array: no copy where the file holds the bytes in order."""
    if isinstance(proto, StoredElsewhere):
        return proto.read()
    dtype = _TYPES.get(proto.data_type)
    if dtype is None:
        raise UncorkError(
            f"{path}: tensor {name!r} has ONNX type number {proto.data_type}, which is not read: "
            "export the model with float or 8-bit integer weights"
        )
    dtype, shape = np.dtype(dtype), tuple(int(n) for n in proto.dims)
    if len(shape) > _MOST_DIMENSIONS or any(n < 0 for n in shape):
        raise UncorkError(f"{path}: tensor {name!r} has shape {shape}: damaged")
    count = math.prod(shape)
    if proto.data_location == _EXTERNAL:
        return _external(path, name, proto, dtype, shape)
    if proto.HasField("raw_data"):
        _check_count(path, name, shape, len(proto.raw_data), count * dtype.itemsize, "bytes")
        raw = np.frombuffer(proto.raw_data, dtype.newbyteorder("<"))
        return raw.reshape(shape)
    field: Any
    stored: Any
    if dtype == np.float32:
        field, stored = proto.float_data, np.float32
    elif dtype == np.float64:
        field, stored = proto.double_data, np.float64
    elif dtype == np.int64:
        field, stored = proto.int64_data, np.int64
    elif dtype in (np.dtype(np.uint32), np.dtype(np.uint64)):
        field, stored = proto.uint64_data, np.uint64
    else:
        field, stored = proto.int32_data, np.int32
    _check_count(path, name, shape, len(field), count, "values")
    values = np.asarray(field, dtype=stored)
    if dtype.kind in "iub" or dtype == stored:
        return values.astype(dtype).reshape(shape)
    # Half-size floats are kept as bit patterns in 32-bit integers.
    bits = np.uint8 if dtype.itemsize == 1 else np.uint16
    return values.astype(bits).view(dtype).reshape(shape)


def _check_count(
    path: Path, name: str, shape: tuple[int, ...], has: int, needs: int, unit: str
) -> None:
    if has != needs:
        raise UncorkError(
            f"{path}: tensor {name!r} has shape {list(shape)}, {needs} {unit}, but the file holds "
            f"{has}: truncated or damaged"
        )


def _external(
    path: Path, name: str, proto: Any, dtype: np.dtype, shape: tuple[int, ...]
) -> np.ndarray:
    """A tensor kept in a file beside the model, memory-mapped."""
    entries = {entry.key: entry.value for entry in proto.external_data}
    location = entries.get("location", "")
    folder = path.resolve().parent
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or 0)
        data = (folder / location).resolve()
    except (ValueError, OSError, RuntimeError) as error:
        raise UncorkError(
            f"{path}: tensor {name!r} names its data file wrongly: {error}"
        ) from error
    # A model must not be able to read files elsewhere, by .., by an absolute path or by a link.
    if not location or Path(location).is_absolute() or folder not in data.parents:
        raise UncorkError(
            f"{path}: tensor {name!r} asks for data outside the model's folder ({location!r}): "
            "refused; keep the data file beside the model"
        )
    if not data.is_file():
        raise UncorkError(
            f"{path}: tensor {name!r} is kept in {location!r}, which is not there: put it beside "
            "the model"
        )
    needs = math.prod(shape) * dtype.itemsize
    size = data.stat().st_size
    if offset < 0 or offset + needs > size or (length and length != needs):
        raise UncorkError(
            f"{path}: tensor {name!r} needs {needs} bytes at {offset} of {location!r}, which has "
            f"{size}: truncated or damaged"
        )
    if needs == 0:
        return np.zeros(shape, dtype)
    mapped = np.memmap(data, np.uint8, "r", offset, (needs,))
    return mapped.view(np.ndarray).view(dtype).reshape(shape)


def attribute(node: Any, name: str, default: Any) -> Any:
    """An integer, float or integer-list attribute of a node."""
    for found in node.attribute:
        if found.name == name:
            if found.type == 1:  # AttributeProto.FLOAT
                return float(found.f)
            return list(found.ints) if found.type == 7 else int(found.i)
    return default


def attribute_text(node: Any, name: str) -> str:
    """A text attribute of a node, "" where it has none."""
    for found in node.attribute:
        if found.name == name and found.type == 3:  # AttributeProto.STRING
            return str(found.s.decode("utf-8", "replace"))
    return ""


def attribute_texts(node: Any, name: str) -> list[str]:
    """An attribute that is a list of texts."""
    for found in node.attribute:
        if found.name == name and found.type == 8:  # AttributeProto.STRINGS
            return [text.decode("utf-8", "replace") for text in found.strings]
    return []


def dequantise(
    path: Path, name: str, values: np.ndarray, zero: Any, scale: np.ndarray, axis: int = -1
) -> np.ndarray:
    """(q − zero)·scale in float64, exactly.

    An integer of up to 29 bits times a float32 of 24 has at most 53 and is exact in float64.
    """
    if values.dtype.kind not in "iu":
        raise UncorkError(f"{path}: quantised tensor {name!r} holds {values.dtype}, not integers")
    shape = [1] * values.ndim
    parts = []
    for part in (np.zeros(()) if zero is None else np.asarray(zero), np.asarray(scale)):
        if part.size == 1:
            parts.append(part.reshape(()).astype(np.float64))
        elif part.ndim == 1 and part.size == values.shape[axis]:
            shape[axis] = part.size
            parts.append(part.astype(np.float64).reshape(shape))
        else:
            raise UncorkError(
                f"{path}: tensor {name!r} of shape {list(values.shape)} has scales or zero points "
                f"of shape {list(part.shape)}: only one for all or one a class is read"
            )
    whole = values.astype(np.float64) - parts[0]
    wide = values.size and np.abs(whole).max() >= 2**29
    if wide or np.asarray(scale).dtype == np.float64:
        raise UncorkError(
            f"{path}: the dequantised values of {name!r} are not exact in float64: "
            "export the model with float weights"
        )
    return np.asarray(whole * parts[1])


def _dequantize_linear(
    path: Path, node: Any, values: np.ndarray, scale: Any = None, zero: Any = None
) -> np.ndarray:
    if scale is None:
        raise UncorkError(f"{path}: DequantizeLinear of {node.input[0]!r} has no scale")
    axis = attribute(node, "axis", 1)
    if not -values.ndim <= axis < values.ndim:
        axis = -1
    return dequantise(path, node.input[0], values, zero, scale, axis)


def _cast(path: Path, node: Any, values: np.ndarray, *rest: Any) -> np.ndarray:
    dtype = _TYPES.get(attribute(node, "to", 0))
    if dtype is None:
        raise UncorkError(f"{path}: {node.input[0]!r} is cast to a type that is not read")
    if np.dtype(dtype).kind in "iu" and values.size:
        limits = np.iinfo(dtype)
        wide = np.asarray(values, dtype=np.float64)
        if not (np.isfinite(wide).all() and limits.min <= wide.min() and wide.max() <= limits.max):
            raise UncorkError(
                f"{path}: {node.input[0]!r} is cast to {np.dtype(dtype)}, which does not hold its "
                "values: run-times differ in what becomes of them"
            )
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def _transpose(path: Path, node: Any, values: np.ndarray, *rest: Any) -> np.ndarray:
    return np.transpose(values, attribute(node, "perm", None))


def _reshape(path: Path, node: Any, values: np.ndarray, shape: Any = None) -> np.ndarray:
    if shape is None:
        raise UncorkError(f"{path}: Reshape of {node.input[0]!r} has no shape")
    copied = not attribute(node, "allowzero", 0)
    wanted = [
        values.shape[axis] if n == 0 and copied and axis < values.ndim else int(n)
        for axis, n in enumerate(np.asarray(shape).reshape(-1))
    ]
    return values.reshape(wanted)


def _axes(node: Any, given: Any) -> tuple[int, ...] | None:
    """Axes as newer graphs give them, an input, or as older ones do, an attribute."""
    found = attribute(node, "axes", None) if given is None else np.asarray(given).reshape(-1)
    return None if found is None else tuple(int(axis) for axis in found)


def _squeeze(path: Path, node: Any, values: np.ndarray, axes: Any = None) -> np.ndarray:
    return np.squeeze(values, _axes(node, axes))


def _unsqueeze(path: Path, node: Any, values: np.ndarray, axes: Any = None) -> np.ndarray:
    found = _axes(node, axes)
    if found is None or len(found) + values.ndim > _MOST_DIMENSIONS:
        raise UncorkError(f"{path}: Unsqueeze of {node.input[0]!r} does not say where")
    return np.expand_dims(values, found)


def _same(path: Path, node: Any, values: np.ndarray, *rest: Any) -> np.ndarray:
    return values


# Ops that exporters leave between a stored constant and the place that uses it.
_FOLDED = {
    "Identity": _same, "Cast": _cast, "Transpose": _transpose, "Reshape": _reshape,
    "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "DequantizeLinear": _dequantize_linear,
}  # fmt: skip
