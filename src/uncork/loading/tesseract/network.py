"""The network inside a Tesseract model, as src/lstm/*.cpp of Tesseract 4 and 5 write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.bounded.cursor import Cursor

# Names that files use, in the order of the numbers that the oldest ones use.
_KINDS = (
    "Invalid", "Input", "Convolve", "Maxpool", "Parallel", "Replicated", "ParBidiLSTM",
    "DepParUDLSTM", "Par2dLSTM", "Series", "Reconfig", "RTLReversed", "TTBReversed", "XYTranspose",
    "LSTM", "SummLSTM", "Logistic", "LinLogistic", "LinTanh", "Tanh", "Relu", "Linear", "Softmax",
    "SoftmaxNoCTC", "LSTMSoftmax", "LSTMBinarySoftmax", "TensorFlow",
)  # fmt: skip
PLUMBING = ("Parallel", "Replicated", "ParBidiLSTM", "DepParUDLSTM", "Par2dLSTM", "Series",
            "RTLReversed", "TTBReversed", "XYTranspose")  # fmt: skip
_CONNECTED = ("Logistic", "LinLogistic", "LinTanh", "Tanh", "Relu", "Linear", "Softmax",
              "SoftmaxNoCTC")  # fmt: skip
_LSTMS = ("LSTM", "SummLSTM", "LSTMSoftmax", "LSTMBinarySoftmax")
_OWN_RATES = 64  # a flag: each layer has its own learning rate
_INT8, _ADAM, _DOUBLES = 1, 4, 128  # flags of a weight matrix
_DEEPEST = 20
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class Matrix:
    """Weights (rows, columns), the last column the bias; `scales` (rows,) where they are int8."""

    values: np.ndarray
    scales: np.ndarray | None


@dataclass(frozen=True)
class Network:
    """A layer, or layers around others."""

    kind: str
    name: str
    inputs: int
    outputs: int
    parts: tuple[Network, ...] = ()
    weights: Matrix | None = None  # of a fully connected layer


def read_network(cursor: Cursor) -> Network:
    """The network at the cursor, which then stands behind it."""
    return _Reader(cursor).network(0)


def text(cursor: Cursor, what: str) -> str:
    """A string with its length before it."""
    return cursor.take(cursor.number("I", what), what).decode("utf-8", "backslashreplace")


class _Reader:
    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.count = 0

    def network(self, depth: int) -> Network:
        cursor = self.cursor
        self.count += 1
        if depth > _DEEPEST or self.count > _MOST_LAYERS:
            raise UncorkError(f"{cursor.path} is damaged: its layers are nested without end")
        number = cursor.number("b", "a layer's type")
        if number == 0:
            kind = text(cursor, "a layer's type")
        elif 0 < number < len(_KINDS):
            kind = _KINDS[number]
        else:
            kind = f"number {number}"
        training, _, flags, inputs, outputs, _ = cursor.unpack("bbiiii", f"layer {kind[:40]!r}")
        name = text(cursor, "a layer's name")
        if inputs < 0 or outputs < 0:
            raise UncorkError(f"{cursor.path} is damaged: layer {name[:40]!r} has negative sizes")
        if kind in PLUMBING:
            size = cursor.number("I", "the number of layers")
            parts = tuple(self.network(depth + 1) for _ in range(self._bounded(size)))
            if flags & _OWN_RATES:
                cursor.skip(4 * cursor.number("I", "learning rates"), "learning rates")
            return Network(kind, name, inputs, outputs, parts)
        if kind == "Input":
            cursor.skip(20, "the input's shape")
        elif kind in ("Convolve", "Maxpool", "Reconfig"):
            cursor.skip(8, f"the sizes of {kind}")
        elif kind in _CONNECTED:
            weights = self._matrix(training == 1)
            return Network(kind, name, inputs, outputs, weights=weights)
        elif kind in _LSTMS:
            parts = self._lstm(kind, inputs, outputs, training == 1, depth)
            return Network(kind, name, inputs, outputs, parts)
        else:
            raise UncorkError(f"{cursor.path}: a layer is of type {kind[:40]!r}, which is not read")
        return Network(kind, name, inputs, outputs)

    def _bounded(self, size: int) -> int:
        if size > min(_MOST_LAYERS, self.cursor.left):
            raise UncorkError(f"{self.cursor.path} is damaged: it announces {size} layers")
        return int(size)

    def _lstm(
        self, kind: str, inputs: int, outputs: int, training: bool, depth: int
    ) -> tuple[Network, ...]:
        width = self.cursor.number("i", "an LSTM's width")
        states = self._matrix(training).values.shape[0]  # what the cell is given
        fed_back = outputs if kind == "LSTMSoftmax" else 0
        if kind == "LSTMBinarySoftmax":
            fed_back = max(0, outputs - 1).bit_length()
        for _ in range(4 if width - fed_back == inputs + 2 * states else 3):  # gates
            self._matrix(training)
        return (self.network(depth + 1),) if kind in _LSTMS[2:] else ()

    def _matrix(self, training: bool) -> Matrix:
        mode = self.cursor.number("B", "the type of a weight matrix")
        old = not mode & _DOUBLES
        float_type = "f4" if old else "f8"
        if mode & _INT8:
            values = self._array("i1")
            count = self.cursor.number("I", "the scales")
            scales = self.cursor.array(float_type, count, "the scales")
            if len(scales) < values.shape[0]:
                raise UncorkError(
                    f"{self.cursor.path} is damaged: {len(scales)} scales for "
                    f"{values.shape[0]} rows"
                )
            matrix = Matrix(values, scales[: values.shape[0]].astype(np.float64))
        else:
            matrix = Matrix(self._array(float_type), None)
        if training and old:
            self._array("f4"), self._array("f4")
        elif training and not mode & _INT8:
            self._array("f8")
            if mode & _ADAM:
                self._array("f8")
        return matrix

    def _array(self, dtype: Any) -> np.ndarray:
        rows, columns = self.cursor.unpack("II", "the size of a matrix")
        what = f"a matrix of {rows} × {columns}"
        self.cursor.skip(np.dtype(dtype).itemsize, what)  # the value of elements outside it
        return self.cursor.array(dtype, rows * columns, what).reshape(rows, columns)
