"""Pickles that hold nothing but NumPy arrays and plain values: decoded, never run.

The decoder of torch's checkpoints writes down what a pickle would call. Where all of that is what
NumPy writes for its arrays, they are here; a pickle with anything else in it stays closed.
"""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.contents import Contents, Tensor
from uncork.loading.naming import choose_by_name, choose_columns
from uncork.loading.torch.pickle_decoder import Call, Name, PickleError, Table, decode

_SUFFIXES = (".pkl", ".pickle", ".p")
_MOST_BYTES = 1 << 30
_MOST_VALUES = 100_000
_DEEPEST = 16
_MOST_DIMENSIONS = 32
_ARRAY = re.compile(r"numpy\.(_?core\.)?multiarray\._reconstruct")
_BUFFER = re.compile(r"numpy\.(_?core\.)?numeric\._frombuffer")
# Every name that a pickle of plain values and arrays may have in it.
_PLAIN = re.compile(
    r"numpy\.(_?core\.)?(multiarray\.(_reconstruct|scalar)|numeric\._frombuffer)|"
    r"numpy\.(ndarray|dtype)|_codecs\.encode|collections\.OrderedDict|(builtins|__builtin__)\.dict"
)
_TYPE = re.compile(r"[<>|=]?([fiub])([1248])")


def looks_like_arrays(path: Path, start: bytes, size: int) -> bool:
    """Whether a file is a pickle of arrays, by its name and by all that it would call."""
    if path.suffix.lower() not in _SUFFIXES or start[:1] != b"\x80" or size > _MOST_BYTES:
        return False
    try:
        return bool(_arrays(path))
    except PickleError:
        return False


def read_pickled(path: Path) -> Contents:
    """The arrays of a pickle by where they lie in it: `layers.0.weight`."""
    tensors = _arrays(path)
    choose = functools.partial(choose_by_name, path, tensors)
    return Contents(
        path, "pickle", tensors, choose, functools.partial(choose_columns, path, tensors)
    )


def _arrays(path: Path) -> dict[str, Tensor]:
    """Every array, or none where the pickle would call anything but NumPy's own."""
    found = decode(io.BytesIO(path.read_bytes()))
    if not all(_PLAIN.fullmatch(name) for name in found.names):
        return {}
    tensors: dict[str, Tensor] = {}
    for name, call in _calls(found.value):
        tensor = _tensor(path, name or "array", call)
        if tensor is not None:
            tensors[tensor.name] = tensor
    return tensors


def _calls(value: Any) -> Iterator[tuple[str, Call]]:
    """What a pickle would make by a call, and where in its tables and lists it lies."""
    todo: list[tuple[str, Any, int]] = [("", value, 0)]
    for steps in range(_MOST_VALUES + 1):
        if not todo:
            return
        if steps == _MOST_VALUES:
            raise PickleError(f"it holds more than {_MOST_VALUES:,} values")
        where, one, depth = todo.pop()
        if isinstance(one, Call):
            yield where, one
            continue
        inner: list[tuple[Any, Any]] = []
        if isinstance(one, Table):
            inner = one.pairs
        elif isinstance(one, list | tuple):
            inner = list(enumerate(one))
        if depth >= _DEEPEST or len(inner) + len(todo) > _MOST_VALUES:
            raise PickleError("its values are nested too deeply, or too many")
        for key, each in reversed(inner):
            if isinstance(key, str | int) and isinstance(each, Call | Table | list | tuple):
                todo.append((f"{where}.{key}" if where else str(key), each, depth + 1))


def _tensor(path: Path, name: str, call: Call) -> Tensor | None:
    """An array's header; None for what is not an array of numbers."""
    function, given = str(call.function), call.arguments
    if _ARRAY.fullmatch(function) and isinstance(call.state, tuple) and len(call.state) == 5:
        _, shape, kind, fortran, data = call.state
    elif _BUFFER.fullmatch(function) and isinstance(given, tuple) and len(given) == 4:
        data, kind, shape, order = given
        fortran = order == "F"
    else:
        return None
    dtype, raw = _dtype(kind), _bytes(data)
    if dtype is None or raw is None:
        return None
    good = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
    if not good or len(shape) > _MOST_DIMENSIONS or (
        math.prod(shape) * dtype.itemsize != len(raw)
    ):  # fmt: skip
        raise UncorkError(
            f"{path} is damaged: the array {name[:80]!r} has shape {str(shape)[:80]} and "
            f"{len(raw)} bytes"
        )

    def read() -> np.ndarray:
        return np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran else "C")

    return Tensor(name, shape, dtype.name, read)


def _dtype(kind: Any) -> np.dtype | None:
    """A type of numbers as NumPy pickles it: its name, and the order of its bytes."""
    if not isinstance(kind, Call) or not isinstance(kind.function, Name):
        return None
    given, state = kind.arguments, kind.state
    if str(kind.function) != "numpy.dtype" or not isinstance(given, tuple) or not given:
        return None
    text = given[0]
    if not isinstance(text, str) or _TYPE.fullmatch(text) is None:
        return None
    order = state[1] if isinstance(state, tuple) and len(state) > 1 else "<"
    try:
        return np.dtype(text).newbyteorder(">" if order == ">" else "<")
    except TypeError:
        return None


def _bytes(data: Any) -> bytes | bytearray | None:
    """The values: as bytes, or as the text that older protocols write bytes as."""
    if isinstance(data, Call) and str(data.function) == "_codecs.encode":
        given = data.arguments
        latin = isinstance(given, tuple) and len(given) == 2 and given[1] in ("latin1", "latin-1")
        data = given[0] if latin else None
    if isinstance(data, str):
        try:
            return data.encode("latin-1")
        except UnicodeEncodeError:
            return None
    return data if isinstance(data, bytes | bytearray) else None
