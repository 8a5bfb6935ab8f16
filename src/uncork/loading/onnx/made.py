"""An ONNX graph as plain values, for readers of other graphs to write theirs down as.

Fields are called as in the format's own messages, so that one walk and one table of rules serve
every graph; the onnx package is not needed. An op that means exactly what a standard op means is
written as that one. Any other keeps its own name in a domain of its own, and is one of which
nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.onnx.tensors import NUMBERS, StoredElsewhere

_OPSET = 24  # the version of the standard whose ops are meant: the first with Swish
_FIXED_BY_DEFAULT = 4
_FLOAT, _INT, _STRING, _INTS, _STRINGS = 1, 2, 3, 7, 8  # AttributeProto.AttributeType
_MOST_NODES = 1 << 20


@dataclass(frozen=True)
class Attribute:
    name: str
    type: int
    f: float = 0.0
    i: int = 0
    s: bytes = b""
    ints: tuple[int, ...] = ()
    strings: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Node:
    op_type: str
    input: tuple[str, ...]
    output: tuple[str, ...]
    attribute: tuple[Attribute, ...] = ()
    domain: str = ""
    name: str = ""


@dataclass(frozen=True)
class Dim:
    dim_value: int | None

    def HasField(self, name: str) -> bool:
        return self.dim_value is not None


@dataclass(frozen=True)
class Shape:
    dim: tuple[Dim, ...]


@dataclass(frozen=True)
class Type:
    elem_type: int
    shape: Shape | None = None

    @property
    def tensor_type(self) -> Type:
        return self

    def HasField(self, name: str) -> bool:
        return name == "tensor_type" or self.shape is not None


@dataclass(frozen=True)
class ValueInfo:
    name: str
    type: Type


@dataclass(frozen=True)
class Opset:
    domain: str
    version: int


@dataclass
class GraphOf:
    node: list[Node] = field(default_factory=list)
    initializer: list[StoredElsewhere] = field(default_factory=list)
    input: list[ValueInfo] = field(default_factory=list)
    output: list[ValueInfo] = field(default_factory=list)
    value_info: list[ValueInfo] = field(default_factory=list)


@dataclass
class Draft:
    """A model that is being written down, node after node."""

    path: Any
    domain: str  # of the ops that are not the standard's
    graph: GraphOf = field(default_factory=GraphOf)
    opset_import: tuple[Opset, ...] = (Opset("", _OPSET),)
    functions: tuple[()] = ()
    metadata_props: tuple[()] = ()
    ir_version: int = _FIXED_BY_DEFAULT
    taken: set[str] = field(default_factory=set)
    small: dict[str, np.ndarray] = field(default_factory=dict)  # constants worth looking at early

    def new(self, name: str) -> str:
        """A name that no value has yet: this one, or with a number behind it."""
        found, count = name, 1
        while found in self.taken or not found:
            count += 1
            found = f"{name}#{count}"
        self.taken.add(found)
        return found

    def stored(
        self, name: str, shape: Sequence[int], dtype: np.dtype, read: Callable[[], np.ndarray]
    ) -> str:
        """A constant that is read when it is asked for."""
        name = self.new(name)
        number = NUMBERS.get(np.dtype(dtype), 0)
        self.graph.initializer.append(StoredElsewhere(name, tuple(shape), number, read))
        return name

    def constant(self, values: Any, dtype: Any = None, name: str = "constant") -> str:
        """A small constant that the program itself spells out."""
        array = np.asarray(values, dtype=dtype)
        name = self.stored(name, array.shape, array.dtype, lambda: array)
        self.small[name] = array
        return name

    def add(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str] | str, *, name: str = "",
        domain: str = "", **attributes: Any,
    ) -> str:  # fmt: skip
        """One more node; returns the name of its first result."""
        if len(self.graph.node) >= _MOST_NODES:
            raise UncorkError(f"{self.path} has more than {_MOST_NODES} operators: damaged")
        made = (self.new(outputs),) if isinstance(outputs, str) else tuple(outputs)
        written = tuple(_attribute(key, value) for key, value in attributes.items())
        self.graph.node.append(Node(op, tuple(inputs), made, written, domain, name))
        return made[0] if made else ""

    def declare(self, name: str, dtype: np.dtype | None) -> None:
        """The element type of a value, where the program says it."""
        if dtype is not None and dtype in NUMBERS:
            self.graph.value_info.append(ValueInfo(name, Type(NUMBERS[dtype])))

    def input(self, name: str, dtype: np.dtype | None, dims: Sequence[int] | None) -> None:
        """A value that whoever runs the model gives; negative dimensions are open."""
        self.taken.add(name)
        number = 0 if dtype is None else NUMBERS.get(dtype, 0)
        shape = None
        if dims is not None:
            shape = Shape(tuple(Dim(int(n) if n >= 0 else None) for n in dims))
        self.graph.input.append(ValueInfo(name, Type(number, shape)))

    def output(self, name: str) -> None:
        self.graph.output.append(ValueInfo(name, Type(0)))


def _attribute(name: str, value: Any) -> Attribute:
    if isinstance(value, bool | int | np.integer):
        return Attribute(name, _INT, i=int(value))
    if isinstance(value, float | np.floating):
        return Attribute(name, _FLOAT, f=float(value))
    if isinstance(value, str):
        return Attribute(name, _STRING, s=value.encode())
    if value and all(isinstance(one, str) for one in value):
        return Attribute(name, _STRINGS, strings=tuple(one.encode() for one in value))
    return Attribute(name, _INTS, ints=tuple(int(one) for one in value))
