"""The graph of a TensorFlow Lite model: its tensors, its operators, and who computes what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.cursor import mapped, opened
from uncork.loading.bounded.flatbuffer import Buffer, Table

# The numbers are part of the format (schema.fbs).
OPERATORS = {
    0: "ADD", 1: "AVERAGE_POOL_2D", 2: "CONCATENATION", 3: "CONV_2D", 4: "DEPTHWISE_CONV_2D",
    6: "DEQUANTIZE", 9: "FULLY_CONNECTED", 14: "LOGISTIC", 17: "MAX_POOL_2D", 18: "MUL",
    19: "RELU", 20: "RELU_N1_TO_1", 21: "RELU6", 22: "RESHAPE", 25: "SOFTMAX", 28: "TANH",
    36: "GATHER", 39: "TRANSPOSE", 40: "MEAN", 41: "SUB", 42: "DIV", 43: "SQUEEZE",
    45: "STRIDED_SLICE", 50: "LOG_SOFTMAX", 53: "CAST", 65: "SLICE", 70: "EXPAND_DIMS",
    82: "REDUCE_MAX", 111: "ELU", 114: "QUANTIZE", 117: "HARD_SWISH", 126: "BATCH_MATMUL",
    150: "GELU", 152: "RELU_0_TO_1",
}  # fmt: skip
_TYPES = {
    0: np.dtype("<f4"), 1: np.dtype("<f2"), 2: np.dtype("<i4"), 3: np.dtype(np.uint8),
    4: np.dtype("<i8"), 7: np.dtype("<i2"), 9: np.dtype(np.int8), 10: np.dtype("<f8"),
    15: np.dtype("<u4"), 16: np.dtype("<u2"), 18: np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
_ACTIVATIONS = {0: "none", 1: "relu", 2: "relu_n1_to_1", 3: "relu6", 4: "tanh"}
# The field of an operator's options that names its fused activation.
_FUSED = {"ADD": 0, "SUB": 0, "MUL": 0, "DIV": 0, "FULLY_CONNECTED": 0, "CONCATENATION": 1,
          "CONV_2D": 3, "DEPTHWISE_CONV_2D": 4, "AVERAGE_POOL_2D": 5, "MAX_POOL_2D": 5}  # fmt: skip
# What kind of options each operator takes: of another kind, the run-time reads none.
_OPTIONS = {"ADD": 11, "SUB": 28, "MUL": 21, "DIV": 29, "FULLY_CONNECTED": 8, "CONCATENATION": 10,
            "CONV_2D": 1, "DEPTHWISE_CONV_2D": 2, "AVERAGE_POOL_2D": 5, "MAX_POOL_2D": 5,
            "SOFTMAX": 9}  # fmt: skip
_MOST_DIMENSIONS = 16


@dataclass(frozen=True)
class Quantisation:
    """value = (stored − zero point) × scale, with one scale or one for each place of an axis."""

    scales: np.ndarray  # float32
    zeros: np.ndarray  # int64, as many
    axis: int


@dataclass(frozen=True)
class TensorInfo:
    name: str
    shape: tuple[int, ...]
    type: int
    quantisation: Quantisation | None
    data: tuple[int, int] | None  # first byte and size of a constant's values

    @property
    def dtype(self) -> np.dtype | None:
        return _TYPES.get(self.type)


@dataclass(frozen=True)
class Operator:
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    activation: str = "none"
    format: int = 0  # of a fully connected layer's weights; 0 is the plain one
    beta: float = 1.0  # what SOFTMAX multiplies with


@dataclass(frozen=True)
class Graph:
    path: Path
    tensors: tuple[TensorInfo, ...]
    operators: tuple[Operator, ...]
    outputs: tuple[int, ...]
    producers: dict[int, Operator]

    def producer(self, tensor: int) -> Operator | None:
        return self.producers.get(tensor)

    def stored(self, tensor: int) -> np.ndarray:
        """A constant's values as they are stored, memory-mapped."""
        info = self.tensors[tensor]
        dtype = info.dtype
        if dtype is None or info.data is None:
            raise UncorkError(
                f"{self.path}: {info.name[:80]!r} is of TensorFlow Lite type {info.type}, which is "
                "not read: convert the model with float or 8-bit weights"
            )
        begin, size = info.data
        needs = int(np.prod(info.shape, dtype=object)) * dtype.itemsize
        if needs != size:
            raise UncorkError(
                f"{self.path}: tensor {info.name[:80]!r} has shape {list(info.shape)}, {needs} "
                f"bytes, but the file holds {size}: truncated or damaged"
            )
        return mapped(self.path, dtype, info.shape, begin)


def read_graph(path: Path) -> Graph:
    """The main graph of a model."""
    with opened(path) as cursor:
        root = Buffer(path, cursor.data).root()
        codes = [_code(table) for table in root.tables(1)]
        graphs = list(root.tables(2))
        if not graphs:
            raise UncorkError(f"{path} holds no graph")
        buffers = [_data(table) for table in root.tables(4)]
        tensors = tuple(_tensor(path, table, buffers) for table in graphs[0].tables(0))
        operators = tuple(_operator(path, table, codes) for table in graphs[0].tables(3))
        outputs = tuple(graphs[0].numbers(2, "i4").tolist())
    for index in (*outputs, *(i for op in operators for i in (*op.inputs, *op.outputs))):
        if not -1 <= index < len(tensors):  # −1 stands for an input left out
            raise UncorkError(f"{path} is damaged: it refers to tensor {index} of {len(tensors)}")
    return Graph(path, tensors, operators, outputs, _producers(operators))


def _producers(operators: tuple[Operator, ...]) -> dict[int, Operator]:
    """Which operator computes each tensor, left out where several do or it is read before that."""
    producers: dict[int, Operator] = {}
    unclear: set[int] = set()
    read: set[int] = set()
    for operator in operators:  # they run in this order
        read.update(operator.inputs)
        for output in operator.outputs:
            if output in producers or output in read:
                unclear.add(output)
            producers[output] = operator
    return {tensor: operator for tensor, operator in producers.items() if tensor not in unclear}


def _code(table: Table) -> str:
    # Numbers up to 127 stand in the older field, and in the newer one where it is written.
    number = max(table.number(0, "b"), table.number(3, "i"))
    custom = table.text(1) if number == 32 else ""
    return OPERATORS.get(
        number, f"custom {printable(custom)[:40]}" if custom else f"operator {number}"
    )


def _data(table: Table) -> tuple[int, int] | None:
    begin, size = table.vector(0, 1)
    offset, length = table.number(1, "Q"), table.number(2, "Q")
    if offset > 1:  # large models keep values behind the FlatBuffers part
        if offset + length > table.buffer.size:
            raise UncorkError(
                f"{table.buffer.path} is truncated or damaged: values lie at bytes {offset} to "
                f"{offset + length} of {table.buffer.size}"
            )
        return offset, length
    return (begin, size) if size else None


def _tensor(path: Path, table: Table, buffers: list[tuple[int, int] | None]) -> TensorInfo:
    shape = tuple(table.numbers(0, "i4").tolist())
    number = table.number(2, "I")
    if len(shape) > _MOST_DIMENSIONS or any(n < 0 for n in shape) or number >= len(buffers):
        raise UncorkError(f"{path} is damaged: a tensor has shape {shape} and buffer {number}")
    return TensorInfo(
        table.text(3), shape, table.number(1, "b"), _quantisation(table.table(4)), buffers[number]
    )


def _quantisation(table: Table | None) -> Quantisation | None:
    if table is None:
        return None
    scales, zeros = table.numbers(2, "f4"), table.numbers(3, "i8")
    if not scales.size:
        return None
    if zeros.size not in (0, 1, scales.size):
        raise UncorkError(
            f"{table.buffer.path} is damaged: {scales.size} scales and {zeros.size} zero points"
        )
    zeros = zeros if zeros.size else np.zeros(1, np.int64)
    return Quantisation(scales, np.broadcast_to(zeros, scales.shape), table.number(6, "i"))


def _operator(path: Path, table: Table, codes: list[str]) -> Operator:
    number = table.number(0, "I")
    if number >= len(codes):
        raise UncorkError(f"{path} is damaged: operator code {number} of {len(codes)}")
    kind, options = codes[number], table.table(4)
    activation, layout, beta = "none", 0, 1.0
    if table.number(3, "B") != _OPTIONS.get(kind):
        options = None
    if options is not None and kind in _FUSED:
        activation = _ACTIVATIONS.get(options.number(_FUSED[kind], "b"), "unknown")
    if options is not None and kind == "FULLY_CONNECTED":
        layout = options.number(1, "b")
    if kind == "SOFTMAX":
        beta = 0.0 if options is None else options.number(0, "f", 0.0)
    inputs, outputs = table.numbers(1, "i4").tolist(), table.numbers(2, "i4").tolist()
    return Operator(kind, tuple(inputs), tuple(outputs), activation, layout, beta)
