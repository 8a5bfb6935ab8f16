"""Parts of an ExecuTorch program that were compiled for XNNPACK, as operators of torch again.

Fields are numbered as in ExecuTorch's backends/xnnpack/serialization/runtime_schema.fbs. Weights in
float32 and float16 are as they are; 8-bit ones with a scale for each channel are dequantised. Other
kinds, and operators without a counterpart here, are ones of which nothing is known.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.aten.program import About, Constant, Operation, Program, Ref
from uncork.loading.bounded.archive import Storage
from uncork.loading.bounded.cursor import mapped
from uncork.loading.bounded.flatbuffer import Buffer, Table

_FLOATS: dict[int, np.dtype] = {1: np.dtype("float32"), 2: np.dtype("float16")}
_CHANNEL_INT8 = 6  # qcint8
_HEADER = 30
_TURNED = 1  # a fully connected layer whose filter is (in, out)
_ABSENT = 2**32 - 1
_MOST_DIMENSIONS = 6  # as XNNPACK itself has it
_PER_CHANNEL = 1
_NODES = {  # numbers of the union of nodes
    1: "add", 2: "linear", 3: "softmax", 4: "sigmoid", 5: "permute", 6: "clamp", 8: "div",
    12: "minimum", 15: "mul", 16: "sub", 19: "mean", 20: "reshape", 22: "sqrt", 24: "hardswish",
    25: "leaky_relu", 26: "maximum", 27: "neg", 28: "square", 29: "elu", 30: "abs", 40: "rsqrt",
    42: "gelu", 43: "tanh", 44: "exp", 46: "alias",
}  # fmt: skip
_OTHERS = {7: "Conv2d", 11: "AvgPooling2d", 13: "DepthwiseConv2d", 14: "MaxPooling2d",
           18: "Convert", 35: "StaticSlice", 36: "ScaledDotProductAttention",
           37: "BatchMatrixMultiply", 41: "Log"}  # fmt: skip
_LIMITED = ("add", "sub", "mul", "div", "linear", "clamp")  # others run without their limits
_TWO = ("add", "sub", "mul", "div", "maximum", "minimum")
_DEQUANTISED = (
    "dequantised: 8-bit codes times a scale for each channel, in float64; XNNPACK also rounds the "
    "inputs of such a layer to 8 bits, which verdicts do not count on"
)


class Delegate:
    """The graph of one such part, whose bytes lie at a place of the file.

    `named` says where data lies that the program keeps by a key; `dynamic`, that shapes may be
    smaller than they are written.
    """

    def __init__(
        self, path: Path, data: Any, place: Storage, named: Mapping[str, Storage], dynamic: bool
    ) -> None:
        self.path, self.named, self.dynamic = path, named, dynamic
        begin, length, self.constants = 0, place.size, Storage(0, 0)
        header = Buffer(path, data[place.offset : place.offset + min(place.size, _HEADER)])
        if header.data[4:8] == b"XH00":
            begin, length = header.number("I", 10), header.number("I", 14)
            behind, size = header.number("I", 18), header.number("Q", 22)
            if begin + length > place.size or behind + size > place.size:
                raise UncorkError(f"{path} is damaged: a part for XNNPACK reaches past its end")
            self.constants = Storage(place.offset + behind, size)
        self.begin = place.offset + begin
        # A copy, without the constants: nothing then holds on to the mapped file.
        self.graph = Buffer(path, data[self.begin : self.begin + length]).root()
        self.inline = [one.vector(0, 1) for one in self.graph.tables(6)]
        self.offsets = list(self.graph.tables(8))

    def operations(self, program: Program, names: Sequence[str], prefix: str) -> list[Operation]:
        """The nodes, between the values of the program that are given to this part."""
        self.program, self.prefix, self.names = program, prefix, names
        self.values: dict[int, str] = {}
        for one in self.graph.tables(2):
            self._value(one)
        made: list[Operation] = []
        for node in self.graph.tables(1):
            made += self._node(node)
        return made

    def _value(self, one: Table) -> None:
        kind, table = one.number(0, "B"), one.table(1)
        quantised = table if kind == 2 else None
        tensor = table.table(0) if quantised is not None and table is not None else table
        if tensor is None:
            raise UncorkError(f"{self.path} is damaged: a value for XNNPACK is empty")
        number, dims = tensor.number(6, "I"), [int(n) for n in tensor.numbers(2, "u4")]
        if len(dims) > _MOST_DIMENSIONS:
            raise UncorkError(f"{self.path} is damaged: a value with {len(dims)} axes")
        external = tensor.number(4, "I")
        if tensor.number(5, "I") and external < len(self.names):
            self.values[number] = self.names[external]
            return
        name = f"{self.prefix}.{number}"
        self.values[number] = name
        dtype = _FLOATS.get(tensor.number(0, "h"))
        sides: tuple[int | str, ...] = tuple(dims)
        constant = tensor.number(3, "I")
        if self.dynamic and not constant:
            sides = tuple(f"{name}[{k}]" for k in range(len(dims)))
        self.program.values[name] = About(dtype, sides)
        if constant:
            self._constant(name, tensor, quantised, constant, tuple(dims))

    def _constant(
        self, name: str, tensor: Table, quantised: Table | None, number: int, shape: tuple[int, ...]
    ) -> None:
        kind = tensor.number(0, "h")
        called = f"{self.prefix} constant {number}"
        if quantised is None and kind in _FLOATS:
            dtype = _FLOATS[kind]
            place = self._place(number, math.prod(shape) * dtype.itemsize)
            read = functools.partial(mapped, self.path, dtype, shape, place)
            self.program.constants[name] = Constant(called, shape, dtype, read)
        elif quantised is not None and kind == _CHANNEL_INT8:
            decoded = self._channels(quantised, number, shape)
            if decoded is not None:
                self.program.constants[name] = Constant(
                    called, shape, np.dtype("float64"), decoded, (_DEQUANTISED,)
                )

    def _channels(
        self, quantised: Table, number: int, shape: tuple[int, ...]
    ) -> Callable[[], np.ndarray] | None:
        """8-bit codes times the scale of their channel, which is exact in float64."""
        about = quantised.table(2)
        if quantised.number(1, "B") != _PER_CHANNEL or about is None or not shape:
            return None
        axis, scales = about.number(1, "i"), about.numbers(0, "f4")
        if not len(scales):
            count = about.number(3, "I")
            place = self._place(about.number(2, "I"), 4 * count)
            scales = np.asarray(mapped(self.path, np.dtype("<f4"), (count,), place))
        if not 0 <= axis < len(shape) or len(scales) != shape[axis]:
            raise UncorkError(f"{self.path} is damaged: {len(scales)} scales for {list(shape)}")
        place = self._place(number, math.prod(shape))
        form, path = tuple(-1 if k == axis else 1 for k in range(len(shape))), self.path

        def read() -> np.ndarray:
            codes = mapped(path, np.dtype("int8"), shape, place)
            with np.errstate(all="ignore"):  # Head names the value it ends in
                return codes.astype(np.float64) * scales.astype(np.float64).reshape(form)

        return read

    def _place(self, number: int, needs: int) -> int:
        """Where the bytes of a constant begin, checked against what is there."""
        if self.offsets and number < len(self.offsets):
            about = self.offsets[number]
            offset, size, key = about.number(0, "Q"), about.number(1, "Q"), about.text(2)
            if key and key in self.named:
                place = self.named[key]
                if needs <= place.size:
                    return place.offset
            elif not key and needs <= size and offset + size <= self.constants.size:
                return int(self.constants.offset + offset)
        elif number < len(self.inline) and needs <= self.inline[number][1]:
            return self.begin + self.inline[number][0]
        raise UncorkError(
            f"{self.path}: a constant of {needs} bytes for XNNPACK is not there: truncated or "
            "damaged"
        )

    # Nodes

    def _node(self, node: Table) -> list[Operation]:
        number, table = node.number(0, "B"), node.table(1)
        if table is None:
            raise UncorkError(f"{self.path} is damaged: a node for XNNPACK is empty")
        kind = _NODES.get(number)
        named, output = self._arguments(kind, number, table)
        limits = node.table(3)
        ends: list[float | None] = [None, None]
        if limits is not None and kind in _LIMITED:
            both = [float(limits.number(k, "f")) for k in (0, 1)]
            ends = [end if math.isfinite(end) else None for end in both]
        result = self._name(output)
        if kind == "clamp":
            return [_call("clamp" if any(e is not None for e in ends) else "alias", result,
                          self=named["self"], **_limits(ends))]  # fmt: skip
        if named.pop("unknown", False):
            inputs = tuple(one for one in named.values() if isinstance(one, Ref))
            return [Operation(f"delegate.XNN{kind or _OTHERS.get(number, number)}", "", {}, inputs,
                              (result,))]  # fmt: skip
        assert kind is not None
        kind = "pow" if kind == "square" else kind
        if ends == [None, None]:
            return [_call(kind, result, **named)]
        between = f"{result}.free"
        self.program.values[between] = self.program.values.get(result, About())
        return [_call(kind, between, **named),
                _call("clamp", result, self=Ref(between), **_limits(ends))]  # fmt: skip

    def _name(self, number: int) -> str:
        return self.values.get(number, f"{self.prefix}.{number}")

    def _ref(self, table: Table, field: int) -> Ref | None:
        number = table.number(field, "I")
        return None if number == _ABSENT else Ref(self._name(number))

    def _arguments(self, kind: str | None, number: int, table: Table) -> tuple[dict[str, Any], int]:
        """The arguments of a node by torch's names, and the number of its result."""
        first = self._ref(table, 0)
        if kind == "linear":
            return self._linear(table)
        if kind in _TWO:
            return {"self": first, "other": self._ref(table, 1)}, table.number(2, "I")
        if kind == "permute":
            order = [int(n) for n in table.numbers(1, "u4")]
            return {"self": self._ref(table, 2), "dims": order}, table.number(3, "I")
        if kind == "reshape":
            return {"self": self._ref(table, 2), "shape": []}, table.number(3, "I")
        if kind in ("elu", "leaky_relu"):
            name = "alpha" if kind == "elu" else "negative_slope"
            slope = float(table.number(0, "f"))
            return {"self": self._ref(table, 1), name: slope}, table.number(2, "I")
        options: dict[str, dict[str, Any]] = {
            "softmax": {"dim": -1}, "mean": {"dim": [1, 2], "keepdim": True},
            "square": {"exponent": 2.0},
        }  # fmt: skip
        if kind is not None:
            return {"self": first, **options.get(kind, {})}, table.number(1, "I")
        # Of other nodes only where their result is, by the shape of their table, is known.
        places = {7: (15, 18), 11: (10, 11), 13: (15, 18), 14: (10, 11), 18: (0, 1), 35: (3, 4),
                  36: (0, 5), 37: (0, 2), 9: (2, 3), 10: (3, 4), 17: (0, 1), 21: (6, 7),
                  23: (0, 1), 31: (0, 2), 32: (1, 5), 33: (1, 5), 34: (1, 5), 38: (1, 5),
                  39: (15, 18), 41: (0, 1), 45: (0, 1), 47: (0, 1)}  # fmt: skip
        if number not in places:
            raise UncorkError(f"{self.path}: node {number} of XNNPACK is not known: too new?")
        given, made = places[number]
        return {"self": self._ref(table, given), "unknown": True}, table.number(made, "I")

    def _linear(self, table: Table) -> tuple[dict[str, Any], int]:
        filter_, output = self._ref(table, 1), table.number(3, "I")
        bias = self._ref(table, 2)
        named: dict[str, Any] = {"input": self._ref(table, 0), "weight": filter_, "bias": bias}
        # What is computed in whole numbers throughout has a bias of whole numbers.
        floats = self.program.values.get(self._name(output), About()).dtype is not None
        added = bias is None or bias.name in self.program.constants
        if table.number(4, "I") & _TURNED or not floats or not added:
            named["unknown"] = True
        return named, output


def _limits(ends: list[float | None]) -> dict[str, float]:
    found = zip(("min", "max"), ends, strict=True)
    return {name: end for name, end in found if end is not None}


def _call(kind: str, result: str, **named: Any) -> Operation:
    return Operation(f"aten.{kind}", "", named, (), (result,))
