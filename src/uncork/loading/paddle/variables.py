"""Paddle's variables in a file each, without the program that uses them: as jieba keeps a model."""

from __future__ import annotations

import functools
import itertools
import struct
from pathlib import Path

from uncork.core.errors import UncorkError
from uncork.loading.bounded.cursor import opened
from uncork.loading.contents import Choice, Contents, Tensor, as_matrix
from uncork.loading.paddle.parameters import read_variable

_MOST_FILES = 10_000
_START = bytes(16)  # two versions and the number of levels, all of them zero
_MOST_DESCRIPTION = 64
_TYPE = 0x08  # a description begins with the type of the numbers


def looks_like_variable(path: Path, start: bytes, size: int) -> bool:
    """Whether a file holds one variable, by its first bytes; one with many begins alike."""
    if path.suffix == ".pdiparams" or path.name in ("__params__", "params"):
        return False
    if len(start) < 21 or start[:16] != _START or start[20] != _TYPE:
        return False
    return 2 <= struct.unpack_from("<i", start, 16)[0] <= _MOST_DESCRIPTION


def read_variables(path: Path) -> Contents:
    """The variable in a file, taken for a layer's weight, with those that lie beside it."""
    tensors = {}
    for file in itertools.islice(sorted(path.parent.iterdir()), _MOST_FILES):
        if file.is_file() and _is_variable(file):
            with opened(file) as cursor:
                found = read_variable(cursor, file.name)
                if cursor.left:
                    if file.name == path.name:
                        raise UncorkError(f"{path}: {cursor.left} bytes follow its values: damaged")
                    continue
            tensors[file.name] = Tensor(file.name, found.shape, found.dtype.name, found.read)
    around = functools.partial(_around, path, tensors)
    return Contents(path, "paddle variables", tensors, lambda: around(path.name), around)


def _is_variable(file: Path) -> bool:
    with file.open("rb") as opened_file:
        return looks_like_variable(file, opened_file.read(32), 0)


def _around(path: Path, tensors: dict[str, Tensor], name: str) -> Choice:
    """The layer whose weight that is: Paddle's have their classes as columns."""
    weight = as_matrix(path, tensors[name]).T
    bias = tensors.get(name.replace(".w_", ".b_"))
    why = "the file that was given, classes are its columns as in every layer of Paddle's"
    if bias is None or bias.name == name or bias.shape != weight.shape[:1]:
        return Choice(weight, None, name, None, why)
    return Choice(weight, bias.read(), name, bias.name, why)
