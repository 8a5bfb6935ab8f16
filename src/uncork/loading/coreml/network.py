"""What a Core ML .mlmodel holds: of a neural network its layers, weights, labels and metadata.

Fields are numbered as in Apple's own definitions (mlmodel/format of coremltools: Model.proto and
NeuralNetwork.proto). Weights are views of the mapped file until they are asked for.
"""

from __future__ import annotations

import functools
import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.protobuf import Message
from uncork.loading.coreml.program import MLProgram, read_ml_program

_CLASSIFIER = 403
_NETWORKS = {_CLASSIFIER: "a classifier", 303: "a regressor", 500: "a network"}
_OTHERS = {
    200: "a pipeline of several models", 201: "a pipeline of several models",
    202: "a pipeline of several models",
}  # fmt: skip
_KINDS = range(100, 2000)
_DEFAULT_FUNCTION = 21  # of a model's description
_FIRST_KIND = 200  # from here on, fields of a model say of which kind it is


@dataclass(frozen=True)
class Layer:
    """One layer: the number of its kind, what it takes and gives, and its settings."""

    kind: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    settings: Message


@dataclass(frozen=True)
class Weight:
    """A weight as it is stored; `made` says how its values come about, "" where they are plain."""

    count: int
    dtype: np.dtype
    read: Callable[[], np.ndarray]
    made: str = ""


@dataclass
class Network:
    path: Path
    layers: list[Layer]
    inputs: list[str]
    outputs: list[str]
    exact: bool  # axes are as many as a value has, not five
    labels: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)


def read_model(path: Path) -> Network | MLProgram:
    """The network or program; nothing of its weights is decoded yet."""
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        return _model(path, Message(data))
    except UncorkError as error:
        text = str(error)
        raise UncorkError(text if str(path) in text else f"{path} is damaged: {text}") from None


def _model(path: Path, model: Message) -> Network | MLProgram:
    if sum(number >= _FIRST_KIND for number in model.found) > 1:
        raise UncorkError(f"{path} is damaged: it is several models at once")
    if 502 in model:
        default = model.message(2).text(_DEFAULT_FUNCTION)
        return read_ml_program(path, model.message(502), default)
    kind = next((number for number in _NETWORKS if number in model), None)
    if kind is None:
        what = next((text for number, text in _OTHERS.items() if number in model), "another model")
        raise UncorkError(
            f"{path} is {what} of Core ML, and neural networks and programs are read: give the "
            "model it was made from (a Hugging Face folder, .safetensors or .onnx)"
        )
    description, stored = model.message(2), model.message(kind)
    layers = [_layer(path, message) for message in stored.messages(1)]
    if not layers:
        raise UncorkError(f"{path} is damaged: a Core ML network without layers")
    labels = stored.message(100).texts(1) or [str(n) for n in stored.message(101).wholes(1)]
    outputs = [one.text(1) for one in description.messages(10)]
    if kind == _CLASSIFIER and stored.text(200):  # the value that the labels are of
        outputs = [stored.text(200)]
    return Network(
        path, layers, [one.text(1) for one in description.messages(1)],
        outputs, stored.whole(5) == 1, labels,
        {one.text(1): one.text(2) for one in description.message(100).messages(100)},
    )  # fmt: skip


def _layer(path: Path, message: Message) -> Layer:
    kinds = [number for number in message.found if number in _KINDS]
    if len(kinds) != 1:
        name = printable(message.text(1))[:80]
        raise UncorkError(f"{path} is damaged: layer {name!r} is {len(kinds)} layers at once")
    return Layer(
        kinds[0], message.text(1), tuple(message.texts(2)), tuple(message.texts(3)),
        message.message(kinds[0]),
    )  # fmt: skip


def weight(where: str, stored: Message, count: int, rows: int) -> Weight:
    """A weight of that many values, checked against what is there: floats, halves, or codes."""
    codes = stored.parts(30)
    if codes:
        return _codes(where, codes[-1], stored.message(40), count, rows)
    if 31 in stored:
        raise UncorkError(f"{where} is int8 with a scale for each input: not read")
    dtype = np.dtype("<f2") if 2 in stored else np.dtype("<f4")
    parts = stored.parts(2 if 2 in stored else 1)
    size = sum(len(part) for part in parts)
    if size != count * dtype.itemsize:
        raise UncorkError(f"{where} has {size} bytes for {count} values: damaged")
    read = functools.partial(stored.array, 2 if 2 in stored else 1, dtype)
    return Weight(count, dtype.newbyteorder("="), read)


def _codes(where: str, raw: memoryview, how: Message, count: int, rows: int) -> Weight:
    """Codes of 8 bits, times a scale plus an offset for each row, or by a table."""
    if how.whole(1) != 8 or len(raw) != count:
        raise UncorkError(
            f"{where} has codes of {how.whole(1)} bits in {len(raw)} bytes for {count} values: not "
            "read, or damaged"
        )
    codes = np.frombuffer(raw, np.uint8)
    table = how.message(102).array(1, "<f4")
    if 102 in how:
        if len(table) != 256:
            raise UncorkError(f"{where} has a table of {len(table)} numbers for 8 bits: damaged")
        return Weight(count, np.dtype("float32"), lambda: table[codes], "picked from a table")
    scale, offset = (how.message(101).array(number, "<f4") for number in (1, 2))
    if len(scale) not in (1, rows) or len(offset) not in (0, 1, rows):
        raise UncorkError(f"{where} has {len(scale)} scales for {rows} rows: damaged")

    def read() -> np.ndarray:
        with np.errstate(all="ignore"):  # Head names the value it ends in
            whole = codes.reshape(rows, -1).astype(np.float64) * scale.astype(np.float64)[:, None]
            return (whole + (offset.astype(np.float64)[:, None] if len(offset) else 0)).reshape(-1)

    made = "dequantised: 8-bit codes times a scale plus an offset, rounded once to float64"
    return Weight(count, np.dtype("float64"), read, made)


def product(*sizes: int) -> int:
    """How many values a shape has; none of its sides may be negative or beyond any file."""
    if any(not 0 <= size < 1 << 40 for size in sizes):
        raise UncorkError(f"a shape of {list(sizes)[:8]}")
    return math.prod(sizes)
