"""A Paddle program: its variables and operators, from the protobuf of .pdmodel and __model__."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.bounded.protobuf import Message

# VarType.Type by number: the numbers are part of the format.
DTYPES = {
    0: np.dtype(np.bool_), 1: np.dtype("<i2"), 2: np.dtype("<i4"), 3: np.dtype("<i8"),
    4: np.dtype("<f2"), 5: np.dtype("<f4"), 6: np.dtype("<f8"), 20: np.dtype(np.uint8),
    21: np.dtype(np.int8), 22: np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
_NOT_KEPT = (9, 10, 15)  # FEED_MINIBATCH, FETCH_LIST, READER: never among the parameters
_MOST_BYTES = 1 << 28
_MOST_OPERATORS = 1 << 18


@dataclass(frozen=True)
class Variable:
    dtype: np.dtype | None = None
    dims: tuple[int, ...] | None = None  # negative where they are open
    kept: bool = False  # among the parameters


@dataclass(frozen=True)
class Operator:
    """One operator, with the names of its inputs and outputs by what they are for."""

    kind: str
    inputs: dict[str, list[str]] = field(default_factory=dict)
    outputs: dict[str, list[str]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def given(self, what: str) -> str:
        """The first input of that kind, "" where there is none."""
        names = self.inputs.get(what, [])
        return names[0] if names else ""

    def made(self, *whats: str) -> str:
        """The first output of one of these kinds, "" where there is none."""
        for what in whats:
            names = self.outputs.get(what, [])
            if names:
                return names[0]
        return ""


@dataclass(frozen=True)
class Program:
    """The main block of a program, in the order in which it is run."""

    path: Path
    variables: dict[str, Variable]
    operators: list[Operator]

    @property
    def parameters(self) -> list[str]:
        """The names of what was trained, in the order in which they are stored."""
        return sorted(name for name, variable in self.variables.items() if variable.kept)


def read_program(path: Path) -> Program:
    """The program in a .pdmodel or __model__ file."""
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise UncorkError(f"{path} has {size} bytes: too many for a program")
    try:
        blocks = list(Message(memoryview(path.read_bytes())).messages(1))
        found = _block(path, blocks[0]) if blocks else None
    except UncorkError as error:
        raise UncorkError(f"{path} is no Paddle program, or is damaged: {error}") from error
    if found is None or not found.operators:
        raise UncorkError(f"{path} is no Paddle program: it has no operators")
    return found


def _block(path: Path, block: Message) -> Program:
    variables = {}
    for stored in block.messages(3):
        kind = stored.message(2)
        number = kind.whole(1, -1)
        dtype, dims = None, None
        if 3 in kind:
            tensor = kind.message(3).message(1)
            dtype, dims = DTYPES.get(tensor.whole(1, -1)), tuple(tensor.wholes(2))
        kept = bool(stored.whole(3)) and number not in _NOT_KEPT
        variables[stored.text(1)] = Variable(dtype, dims, kept)
    operators = []
    for stored in block.messages(4):
        operators.append(_operator(stored))
        if len(operators) > _MOST_OPERATORS:
            raise UncorkError(f"more than {_MOST_OPERATORS} operators")
    return Program(path, variables, operators)


def _operator(stored: Message) -> Operator:
    sides: list[dict[str, list[str]]] = []
    for number in (1, 2):
        sides.append({one.text(1): one.texts(2) for one in stored.messages(number)})
    settings = {one.text(1): _setting(one) for one in stored.messages(4)}
    return Operator(stored.text(3), sides[0], sides[1], settings)


def _setting(stored: Message) -> Any:
    """An attribute by its type; None for those that no reader asks for."""
    kind = stored.whole(2, -1)
    if kind in (0, 9):  # int, long
        return stored.whole(3 if kind == 0 else 13)
    if kind == 1:
        return stored.float(4)
    if kind == 2:
        return stored.text(5)
    if kind in (3, 11):  # ints, longs
        return stored.wholes(6 if kind == 3 else 15)
    if kind == 4:
        return [float(one) for one in stored.array(7, "<f4")]
    if kind == 6:
        return bool(stored.whole(10))
    if kind == 7:
        return [bool(one) for one in stored.wholes(11)]
    if kind == 12:
        return [float(one) for one in stored.array(16, "<f8")]
    return stored.double(19) if kind == 15 else None
