"""Nodes and functions of a TensorFlow graph, from the bytes of saved_model.pb or a frozen .pb."""

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
from uncork.loading.bounded.protobuf import Message

# DataType by number: the numbers are part of the format.
DTYPES = {
    1: np.dtype("<f4"), 2: np.dtype("<f8"), 3: np.dtype("<i4"), 4: np.dtype(np.uint8),
    5: np.dtype("<i2"), 6: np.dtype(np.int8), 9: np.dtype("<i8"), 10: np.dtype(np.bool_),
    14: np.dtype(ml_dtypes.bfloat16), 17: np.dtype("<u2"), 19: np.dtype("<f2"),
    22: np.dtype("<u4"), 23: np.dtype("<u8"),
}  # fmt: skip
_MOST_BYTES = 2**31 - 1  # a protobuf message cannot be longer
_MOST_DIMENSIONS = 32
_MOST_FILLED = 1 << 20  # elements of a constant that is one number, repeated
_TEXT = 7


@dataclass(frozen=True)
class Value:
    """A constant of the graph: its type, its shape, and how to read it."""

    dtype: np.dtype | None
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray] = field(repr=False, compare=False)
    texts: Callable[[], list[bytes]] = field(repr=False, compare=False, default=list)


@dataclass(frozen=True)
class Node:
    """One node; inputs as the file writes them, without those that only order nodes."""

    name: str
    op: str
    inputs: tuple[str, ...]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Function:
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]  # where each result comes from
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Signature:
    """What a model is asked for by name: a reference into the graph for each result."""

    inputs: dict[str, str]
    outputs: dict[str, str]


@dataclass(frozen=True)
class TensorFlowGraph:
    path: Path
    nodes: tuple[Node, ...]
    functions: dict[str, Function] = field(default_factory=dict)
    signatures: dict[str, Signature] = field(default_factory=dict)


def read_saved_model(path: Path) -> TensorFlowGraph:
    """The graph for serving in a saved_model.pb, and its signatures."""
    try:
        graphs = list(_message(path).messages(2))
        if not graphs:
            raise UncorkError("it holds no graph")
        chosen = next((one for one in graphs if "serve" in one.message(1).texts(4)), graphs[0])
        signatures = {}
        for entry in chosen.messages(5):
            sides = [
                {one.text(1): one.message(2).text(1) for one in entry.message(2).messages(number)}
                for number in (1, 2)
            ]
            signatures[entry.text(1)] = Signature(*sides)
        nodes, functions = _graph(path, chosen.message(2))
    except UncorkError as error:
        raise UncorkError(f"{path} is no SavedModel, or is damaged: {error}") from error
    return TensorFlowGraph(path, nodes, functions, signatures)


def read_frozen(path: Path) -> TensorFlowGraph:
    """The graph in a .pb file of its own, with its weights as constants."""
    try:
        nodes, functions = _graph(path, _message(path))
    except UncorkError as error:
        raise UncorkError(f"{path} is no TensorFlow graph, or is damaged: {error}") from error
    if not nodes:
        raise UncorkError(f"{path} is no TensorFlow graph: it has no nodes")
    return TensorFlowGraph(path, nodes, functions)


def _message(path: Path) -> Message:
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise UncorkError(f"{size} bytes: a graph ends at 2 GiB")
    return Message(memoryview(path.read_bytes()))


def _graph(path: Path, graph: Message) -> tuple[tuple[Node, ...], dict[str, Function]]:
    nodes = tuple(_node(path, one) for one in graph.messages(1))
    functions = {}
    for stored in graph.message(2).messages(1):
        signature = stored.message(1)
        results = {one.text(1): one.text(2) for one in stored.messages(4)}
        name = signature.text(1)
        functions[name] = Function(
            name,
            tuple(one.text(1) for one in signature.messages(2)),
            tuple(results.get(one.text(1), "") for one in signature.messages(3)),
            tuple(_node(path, one) for one in stored.messages(3)),
        )
    return nodes, functions


def _node(path: Path, stored: Message) -> Node:
    inputs = tuple(name for name in stored.texts(3) if not name.startswith("^"))
    settings = {one.text(1): _setting(path, one.message(2)) for one in stored.messages(5)}
    return Node(stored.text(1), stored.text(2), inputs, settings)


def _setting(path: Path, stored: Message) -> Any:
    """An attribute: text as bytes, a type by its number, a shape as a list or None."""
    if 2 in stored:
        return stored.bytes(2)
    if 3 in stored:
        return stored.whole(3)
    if 4 in stored:
        return stored.float(4)
    if 5 in stored:
        return bool(stored.whole(5))
    if 6 in stored:
        return stored.whole(6)
    if 7 in stored:
        return _shape(stored.message(7))
    if 8 in stored:
        return _constant(path, stored.message(8))
    if 10 in stored:
        return stored.message(10).text(1)
    if 1 in stored:
        return _list(stored.message(1))
    return None


def _list(stored: Message) -> list[Any]:
    if 2 in stored:
        return [bytes(part) for part in stored.parts(2)]
    if 3 in stored:
        return stored.wholes(3)
    if 7 in stored:
        return [_shape(one) for one in stored.messages(7)]
    return stored.wholes(6) if 6 in stored else []


def _shape(stored: Message) -> list[int] | None:
    """Lengths, −1 where they are open; None where not even their number is known."""
    if stored.whole(3):
        return None
    return [one.whole(1) for one in stored.messages(2)]


def _constant(path: Path, stored: Message) -> Value:
    dtype, shape = DTYPES.get(stored.whole(1)), tuple(_shape(stored.message(2)) or ())
    if len(shape) > _MOST_DIMENSIONS or any(n < 0 for n in shape):
        raise UncorkError(f"a constant has shape {list(shape)}")
    texts = functools.partial(_texts, stored) if stored.whole(1) == _TEXT else list
    return Value(dtype, shape, functools.partial(_decoded, path, stored, dtype, shape), texts)


def _texts(stored: Message) -> list[bytes]:
    return [bytes(part) for part in stored.parts(8)]


def _decoded(
    path: Path, stored: Message, dtype: np.dtype | None, shape: tuple[int, ...]
) -> np.ndarray:
    if dtype is None:
        raise UncorkError(f"{path}: a constant is of TensorFlow's type {stored.whole(1)}: not read")
    count = math.prod(shape)
    if 4 in stored:
        content = stored.parts(4)[-1]
        if len(content) != count * dtype.itemsize:
            raise UncorkError(
                f"{path}: a constant of shape {list(shape)} takes {count * dtype.itemsize} bytes, "
                f"and the file holds {len(content)}: damaged"
            )
        return np.frombuffer(content, dtype).reshape(shape)
    values = _listed(stored, dtype)
    if len(values) == count:
        return values.reshape(shape)
    # The last number stands for all that follow; none at all for zeros.
    if len(values) > count or count > _MOST_FILLED:
        raise UncorkError(
            f"{path}: a constant of shape {list(shape)} has {len(values)} values: damaged"
        )
    filled = np.zeros(count, dtype)
    filled[: len(values)] = values
    if len(values):
        filled[len(values) :] = values[-1]
    return filled.reshape(shape)


def _listed(stored: Message, dtype: np.dtype) -> np.ndarray:
    """Numbers that are listed one by one, in the field of their type."""
    if dtype == np.float32:
        return stored.array(5, dtype)
    if dtype == np.float64:
        return stored.array(6, dtype)
    if dtype in (np.dtype("<f2"), np.dtype(ml_dtypes.bfloat16)):  # as bit patterns
        return np.asarray(stored.wholes(13), np.int64).astype(np.uint16).view(dtype)
    number = {np.dtype("<i8"): 10, np.dtype(np.bool_): 11, np.dtype("<u4"): 16,
              np.dtype("<u8"): 17}.get(dtype, 7)  # fmt: skip
    return np.asarray(stored.wholes(number), np.int64).astype(dtype)
