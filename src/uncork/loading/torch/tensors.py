"""From the records of a torch checkpoint to its tensors, as views of the mapped file."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.archive import Storage
from uncork.loading.contents import Tensor
from uncork.loading.torch.pickle_decoder import Call, Decoded, Name, Reference, Table

_TYPES: dict[str, Any] = {
    "Double": np.float64, "Float": np.float32, "Half": np.float16, "BFloat16": ml_dtypes.bfloat16,
    "Long": np.int64, "Int": np.int32, "Short": np.int16, "Char": np.int8, "Byte": np.uint8,
    "Bool": np.bool_, "ComplexFloat": np.complex64, "ComplexDouble": np.complex128,
}  # fmt: skip
_TORCH_TYPES: dict[str, Any] = {
    "float64": np.float64, "float32": np.float32, "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2, "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz, "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "uint16": np.uint16, "uint32": np.uint32,
    "uint64": np.uint64, "int64": np.int64, "int32": np.int32, "int16": np.int16,
    "int8": np.int8, "uint8": np.uint8, "bool": np.bool_,
}  # fmt: skip
_MOST_DEPTH = 64


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    decoded: Decoded
    storages: Mapping[str, Storage]
    byte_order: Literal["<", ">"]


def storage_key(reference: Reference) -> Any:
    key = reference.key
    if isinstance(key, tuple) and len(key) >= 5 and key[0] in ("storage", b"storage"):
        return key[2]
    return None


def storage_type(reference: Reference) -> np.dtype | None:
    kind = reference.key[1]
    name = kind.name.removesuffix("Storage") if isinstance(kind, Name) else ""
    return np.dtype(_TYPES[name]) if name in _TYPES else None


def _is_call(value: Any, *names: str) -> bool:
    return (
        isinstance(value, Call)
        and isinstance(value.function, Name)
        and str(value.function) in names
        and isinstance(value.arguments, tuple)
    )


def _unwrapped(value: Any) -> Any:
    """The tensor inside parameters and subclasses."""
    for _ in range(_MOST_DEPTH):
        if _is_call(value, "torch._utils._rebuild_parameter",
                    "torch._utils._rebuild_parameter_with_state") and value.arguments:  # fmt: skip
            value = value.arguments[0]
        elif _is_call(value, "torch._tensor._rebuild_from_type_v2") and len(value.arguments) > 2:
            value = Call(value.arguments[0], value.arguments[2])
        else:
            return value
    return None


_PLAIN = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor",
          "torch._utils._rebuild_tensor_v3")  # fmt: skip
_REFUSED = {
    "torch._utils._rebuild_sparse_tensor": "sparse: save it with to_dense()",
    "torch._utils._rebuild_qtensor": "quantised: save it with dequantize()",
    "torch._utils._rebuild_nested_tensor": "a nested tensor, which is not a matrix",
    "torch._utils._rebuild_meta_tensor_no_storage": "a meta tensor: it has no values",
    "torch._utils._rebuild_wrapper_subclass": "a tensor subclass: save it with dequantize()",
    "torch._utils._rebuild_device_tensor_from_numpy": "of a device: save it with .cpu()",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "of a device: save it with .cpu()",
}


def tensor_of(checkpoint: Checkpoint, name: str, value: Any) -> Tensor | None:
    """The tensor that a record describes; None where it describes something else."""
    value = _unwrapped(value)
    if _is_call(value, *_REFUSED):
        what = _REFUSED[str(value.function)]
        return _unreadable(checkpoint, name, value, f"is {what}")
    if not _is_call(value, *_PLAIN):
        return None
    try:
        storage, offset, shape, stride = value.arguments[:4]
        if not isinstance(storage, Reference):
            return None
        dtype = storage_type(storage)
        in_bytes = dtype is None  # an untyped storage: the type stands with the tensor
        if str(value.function).endswith("_v3"):
            kind = value.arguments[6]
            dtype = np.dtype(_TORCH_TYPES[kind.name]) if isinstance(kind, Name) else None
        shape, stride = _sizes(shape), _sizes(stride)
        count = storage.key[4]
        if any(isinstance(more, Table) and more.get("neg") for more in value.arguments[6:]):
            raise ValueError("its values are stored negated: save it with resolve_neg()")
        if dtype is None or len(shape) != len(stride) or not _natural(offset, count):
            raise ValueError("its type or shape is not understood")
    except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        text = f"is not understood ({' '.join(str(error).split())[:80]})"
        return _unreadable(checkpoint, name, value, text)
    size = count if in_bytes else count * dtype.itemsize
    view = _View(checkpoint, str(storage_key(storage)), size, dtype, offset, shape, stride)
    return Tensor(name, shape, dtype.name, functools.partial(_read, view, name))


def strided(
    checkpoint: Checkpoint, name: str, key: str, dtype: np.dtype, offset: int,
    shape: tuple[int, ...], stride: tuple[int, ...],
) -> Tensor:  # fmt: skip
    """A tensor that takes these elements of a storage."""
    storage = checkpoint.storages.get(key)
    size = 0 if storage is None else storage.size
    view = _View(checkpoint, key, size, dtype, offset, shape, stride)
    return Tensor(name, shape, dtype.name, functools.partial(_read, view, name))


def _unreadable(checkpoint: Checkpoint, name: str, value: Call, problem: str) -> Tensor:
    """Listed like any other, with its shape if that can be told; reading it says what is wrong."""
    shape: tuple[int, ...] = (0, 0)
    given = list(value.arguments)
    for group in value.arguments:
        given += group if isinstance(group, tuple) else ()
    for one in given:
        if isinstance(one, Call | tuple) and one != ():
            try:
                shape = _sizes(one)
                break
            except ValueError:
                pass
    return Tensor(name, shape, "?", functools.partial(_refuse, checkpoint.path, name, problem))


def _sizes(value: Any) -> tuple[int, ...]:
    if _is_call(value, "torch.Size") and value.arguments:
        value = value.arguments[0]
    if not isinstance(value, tuple | list) or not _natural(*value) or len(value) > 64:
        # Not as text, which a few bytes of tuples within tuples can make endless.
        raise ValueError(f"a shape that is a {type(value).__name__}, not some sizes")
    return tuple(value)


def _natural(*values: Any) -> bool:
    return all(type(value) is int and 0 <= value < 2**62 for value in values)


@dataclass(frozen=True)
class _View:
    checkpoint: Checkpoint
    key: str
    size: int  # bytes of the storage, as the pickle says
    dtype: np.dtype
    offset: int  # elements
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def _read(view: _View, name: str) -> np.ndarray:
    path, dtype = view.checkpoint.path, view.dtype
    storage = view.checkpoint.storages.get(view.key)
    if storage is None:
        return _refuse(path, name, f"has no data in the file (storage {printable(view.key)[:40]})")
    if storage.problem:
        return _refuse(path, name, storage.problem)
    if math.prod(view.shape) == 0:
        return np.zeros(view.shape, view.dtype)
    last = view.offset + sum((n - 1) * s for n, s in zip(view.shape, view.stride, strict=True))
    if storage.size < view.size or (last + 1) * dtype.itemsize > view.size:
        return _refuse(path, name, "reaches past its storage: the file is damaged")
    if math.prod(view.shape) * dtype.itemsize > view.size:
        return _refuse(path, name, "repeats its elements (expand): save it with contiguous()")
    flat = np.memmap(path, np.uint8, "r", storage.offset, (view.size,)).view(np.ndarray)
    flat = flat[: view.size // dtype.itemsize * dtype.itemsize]
    if view.checkpoint.byte_order == ">" and dtype.itemsize > 1:
        if dtype.kind == "c":
            return _refuse(path, name, "has complex numbers of the other byte order")
        flat = flat.view(f"u{dtype.itemsize}").byteswap()
    steps = tuple(s * dtype.itemsize for s in view.stride)
    # NumPy checks once more that all of it lies in the buffer.
    return np.ndarray(view.shape, dtype, flat, view.offset * dtype.itemsize, steps)


def _refuse(path: Path, name: str, problem: str) -> np.ndarray:
    raise UncorkError(f"{path}: tensor {name!r} {problem}")
