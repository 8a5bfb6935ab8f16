"""The program of a compiled Core ML model (`model.mil` in an .mlmodelc), which is a text.

A statement gives results their types, calls an operation with arguments by name, and has attributes
in brackets: `tensor<fp16, [7]> a = const()[val = tensor<fp16, [7]>([0x1.8p+0, …])];`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable

_MOST_BYTES = 64 << 20
_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<number>-?0x[0-9a-fA-F.]+(?:p[+-]?\d+)?|-?\d[\d.eE+-]*|'
    r"-?(?:inf|nan)(?![\w.@]))|(?P<name>[A-Za-z_][\w.@]*)|(?P<sign>->|[^\"]))",
    re.DOTALL,
)
_TYPES: dict[str, Any] = {
    "fp16": np.float16, "fp32": np.float32, "fp64": np.float64, "bf16": ml_dtypes.bfloat16,
    "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "uint8": np.uint8,
    "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64, "bool": np.bool_,
}  # fmt: skip
_MOST_DEPTH = 64


@dataclass(frozen=True)
class Typed:
    """A type: that of elements by name ("string" too), and the sides; None for an open one."""

    element: str = ""
    sides: tuple[int | None, ...] = ()

    @property
    def dtype(self) -> np.dtype | None:
        found = _TYPES.get(self.element)
        return None if found is None else np.dtype(found)


@dataclass(frozen=True)
class Literal:
    """A value that is spelled out, or where it lies in a file."""

    type: Typed
    value: Any = None  # a number, a text, or a flat list of them
    file: str = ""
    offset: int = 0


@dataclass(frozen=True)
class Statement:
    kind: str
    results: tuple[tuple[str, Typed], ...]
    given: dict[str, Any]  # names, literals, or lists of both
    attributes: dict[str, Any]


@dataclass
class Body:
    inputs: list[tuple[str, Typed]] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


def read_text(path: Path) -> Body:
    """The function `main` of a program, or its only one."""
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise UncorkError(f"{path} has {size} bytes: too many for a program")
    try:
        return _Parser(path, path.read_text("utf-8", "backslashreplace")).read()
    except (IndexError, ValueError, OverflowError) as error:
        if isinstance(error, UncorkError):
            raise
        text = printable(" ".join(str(error).split()))[:60]
        raise UncorkError(f"{path} is no program, or truncated: {text}") from error


class _Parser:
    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text, self.at = path, text, 0
        self.next: tuple[str, str] = ("", "")
        self.depth = 0
        self._advance()

    def _advance(self) -> None:
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            self.next = ("end", "")
            return
        self.at = found.end()
        kind = found.lastgroup or "end"
        self.next = kind, found[kind]

    def take(self, expected: str = "") -> str:
        kind, text = self.next
        if kind == "end" or (expected and text != expected):
            raise ValueError(f"{expected or 'more'} expected before byte {self.at}")
        self._advance()
        return text

    def passes(self, sign: str) -> bool:
        if self.next[1] != sign or self.next[0] == "text":
            return False
        self._advance()
        return True

    def read(self) -> Body:
        found: dict[str, Body] = {}
        while self.next[0] != "end":
            if self.take() == "func":
                name = self.take()
                found[name] = self.function()
        if len(found) > 1 and "main" not in found:
            names = ", ".join(printable(name)[:40] for name in list(found)[:8])
            raise UncorkError(f"{self.path} holds {len(found)} functions and none is main: {names}")
        if not found:
            raise ValueError("no function in it")
        return found.get("main") or next(iter(found.values()))

    def function(self) -> Body:
        if self.passes("<"):
            while not self.passes(">"):
                self.take()
        body = Body()
        self.take("(")
        while not self.passes(")"):
            kind = self.type()
            body.inputs.append((self.take(), kind))
            self.passes(",")
        depth = 0
        while depth or self.next[1] != "{":  # attributes of the function
            depth += {"[": 1, "]": -1}.get(self.take(), 0)
        self.take("{")
        while not self.passes("}"):
            body.statements.append(self.statement())
        self.take("->")
        self.take("(")
        while not self.passes(")"):
            body.outputs.append(self.take())
            self.passes(",")
        return body

    def type(self) -> Typed:
        """tensor<fp16, [7, ?]>; of others only that they are there."""
        word = self.take()
        if not self.passes("<"):
            return Typed(word)
        if word == "tensor":
            element, sides = self.take(), []
            self.take(",")
            self.take("[")
            while not self.passes("]"):
                side = self.take()
                sides.append(int(side) if side.isdigit() and len(side) < 16 else None)
                self.passes(",")
            self.take(">")
            return Typed(element, tuple(sides))
        depth = 1
        while depth:
            sign = self.take()
            depth += {"<": 1, ">": -1}.get(sign, 0)
        return Typed(word)

    def statement(self) -> Statement:
        results = []
        while True:
            kind = self.type()
            results.append((self.take(), kind))
            if not self.passes(","):
                break
        self.take("=")
        kind_name = self.take()
        given = self.named("(", ")")
        attributes = self.named("[", "]") if self.next[1] == "[" else {}
        self.take(";")
        return Statement(kind_name, tuple(results), given, attributes)

    def named(self, begin: str, end: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self.take(begin)
        while not self.passes(end):
            name = self.take()
            self.take("=")
            found[name] = self.value()
            self.passes(",")
        return found

    def value(self) -> Any:
        """A name, a literal with its type, or a list of values in parentheses."""
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise ValueError("nested without end")
        try:
            if self.passes("("):
                return list(self._until(")", self.value))
            if self.next[0] != "name":
                return Literal(Typed(), self.scalar())
            before = self.at, self.next
            word = self.take()
            if self.next[1] not in ("<", "("):
                return word
            self.at, self.next = before
            return self.literal()
        finally:
            self.depth -= 1

    def _until(self, end: str, one: Callable[[], Any]) -> Iterator[Any]:
        while not self.passes(end):
            yield one()
            self.passes(",")

    def literal(self) -> Literal:
        kind = self.type()
        self.take("(")
        if self.next[1] == "BLOBFILE":
            self.take()
            where = self.named("(", ")")
            self.take(")")
            path, offset = where.get("path"), where.get("offset")
            if not isinstance(path, Literal) or not isinstance(offset, Literal):
                raise ValueError("a file without a place in it")
            return Literal(kind, None, str(path.value), int(offset.value))
        flat: list[Any] = []
        depth, closing = 0, {"[": "]", "{": "}"}
        listed = self.next[1] in closing
        while True:
            if self.next[0] == "sign" and self.next[1] in closing:
                depth += 1
                self.take()
            elif self.next[0] == "sign" and self.next[1] in ("]", "}"):
                depth -= 1
                self.take()
            elif self.next[1] == ")" and self.next[0] == "sign":
                self.take()
                break
            elif not self.passes(","):
                flat.append(self.scalar())
        if depth:
            raise ValueError("brackets that do not close")
        return Literal(kind, flat if listed or len(flat) != 1 else flat[0])

    def scalar(self) -> Any:
        kind, text = self.next
        if kind == "name" and text not in ("true", "false"):
            return self.value()
        self.take()
        if kind == "text":
            return text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
        if text in ("true", "false"):
            return text == "true"
        if kind != "number":
            raise ValueError(f"no value at {text!r}")
        if "x" in text:
            return float.fromhex(text)
        whole = text.lstrip("-")
        return int(text) if whole.isdigit() and len(whole) < 20 else float(text)
