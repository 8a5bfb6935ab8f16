"""Paddle's parameters: variables one after the other in a file, or a file each, mapped."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.bounded.cursor import Cursor, mapped, opened
from uncork.loading.bounded.protobuf import Message
from uncork.loading.paddle.program import DTYPES, Program

_MOST_LEVELS = 64
_MOST_DIMENSIONS = 16
_MOST_DESCRIPTION = 1 << 16


@dataclass(frozen=True)
class Parameter:
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


def read_combined(path: Path, program: Program) -> list[Parameter]:
    """The variables of a program from the one file that holds all of them, by name in order."""
    found = []
    with opened(path) as cursor:
        for name in program.parameters:
            found.append(read_variable(cursor, name))
            _check(path, program, found[-1])
        if cursor.left:
            raise UncorkError(
                f"{path} holds {cursor.left} bytes more than the {len(found)} parameters of "
                f"{program.path.name}: it is of another program, or damaged"
            )
    return found


def read_separate(folder: Path, program: Program) -> list[Parameter]:
    """The variables of a program, each from the file that is called as it is."""
    found = []
    for name in program.parameters:
        path = folder / name
        if folder.resolve() not in path.resolve().parents:
            raise UncorkError(
                f"{program.path}: parameter {name[:80]!r} would lie outside the model's folder: "
                "refused"
            )
        if not path.is_file():
            raise UncorkError(
                f"{program.path}: parameter {name[:80]!r} has no file of its own in {folder}, and "
                "no file with all of them lies beside the program"
            )
        with opened(path) as cursor:
            found.append(read_variable(cursor, name))
        _check(path, program, found[-1])
    return found


def read_variable(cursor: Cursor, name: str) -> Parameter:
    """The variable that begins where the cursor stands; its values are stepped over."""
    path, what = cursor.path, f"parameter {name[:80]!r}"
    version, levels = cursor.unpack("IQ", what)
    if version != 0 or levels > _MOST_LEVELS:
        raise UncorkError(f"{path}: {what} has version {version}, {levels} levels: damaged")
    for _ in range(levels):
        cursor.skip(cursor.number("Q", what), what)
    version, size = cursor.unpack("Ii", what)
    if version != 0 or not 0 <= size <= _MOST_DESCRIPTION:
        raise UncorkError(f"{path}: {what} has version {version} and {size} bytes of description")
    try:
        described = Message(memoryview(cursor.take(size, what)))
        number, shape = described.whole(1, -1), tuple(described.wholes(2))
    except UncorkError as error:
        raise UncorkError(f"{path}: {what} is damaged: {error}") from error
    dtype = DTYPES.get(number)
    if dtype is None:
        raise UncorkError(f"{path}: {what} is of Paddle's type {number}, which is not read")
    if len(shape) > _MOST_DIMENSIONS or any(n < 0 for n in shape):
        raise UncorkError(f"{path}: {what} has shape {list(shape)}: damaged")
    begin = cursor.skip(math.prod(shape) * dtype.itemsize, what)
    return Parameter(name, shape, dtype, functools.partial(mapped, path, dtype, shape, begin))


def _check(path: Path, program: Program, found: Parameter) -> None:
    """What the program says of a parameter is what the file holds: so the order is right."""
    expected = program.variables[found.name]
    if expected.dims is not None and (expected.dims, expected.dtype) != (found.shape, found.dtype):
        raise UncorkError(
            f"{path}: {program.path.name} expects parameter {found.name[:80]!r} to be "
            f"{expected.dtype} of shape {list(expected.dims)}, and the file holds {found.dtype} of "
            f"shape {list(found.shape)}: it is of another program, or damaged"
        )
