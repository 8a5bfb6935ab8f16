"""A program of torch's operators as plain values: what torch.export and ExecuTorch both write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Ref:
    """A value that an argument refers to."""

    name: str


@dataclass(frozen=True)
class Open:
    """A number that is known only when the program runs."""

    name: str = ""


@dataclass(frozen=True)
class About:
    """What the file says of a value: its type, and its shape with None for an open side.

    `sides` has one entry a side: the number, or the expression that names an open one.
    """

    dtype: np.dtype | None = None
    sides: tuple[int | str, ...] | None = None

    @property
    def rank(self) -> int | None:
        return None if self.sides is None else len(self.sides)


@dataclass(frozen=True)
class Constant:
    """A parameter, a buffer or a constant, under the name it has in the model."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray] = field(repr=False)
    folded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operation:
    """One call: `kind` is the operator ("aten.linear"), `overload` which of its forms it is.

    Arguments come with the names of the operator's own definition (`named`), or in its order
    (`listed`); lists hold numbers, references or None. Results may be None where nothing uses them.
    """

    kind: str
    overload: str
    named: Mapping[str, Any]
    listed: tuple[Any, ...]
    results: tuple[str | None, ...]


@dataclass
class Program:
    path: Path
    inputs: list[str]
    outputs: list[str]
    constants: dict[str, Constant]  # by the value that stands for them
    values: dict[str, About]
    operations: list[Operation]
    space: str = "torch"  # where operators come from that keep their own names
