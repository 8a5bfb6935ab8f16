"""Reads a pickle as data: builds tables, lists and plain records, and never calls anything.

An unpickler runs what a file tells it to run. This one knows the opcodes but has no callables:
where a pickle says "call f with these arguments", it writes down a `Call` with f's *name*. So there
is no list of safe functions to get wrong, and a hostile file can only describe what it wanted.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MOST_BYTES = 64 << 20  # of a pickle without its tensors; real ones have some hundred kilobytes
_MOST_STEPS = 1_000_000


class PickleError(Exception):
    """The bytes are not a pickle, or ask for more than a checkpoint has reason to."""


@dataclass(eq=False, slots=True)
class Table:
    """A dictionary as the pairs it was written in: nothing is hashed, so nothing can collide."""

    pairs: list[tuple[Any, Any]] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """The last value of that key, or None."""
        for name, value in reversed(self.pairs):
            if isinstance(name, str) and name == key:
                return value
        return None


@dataclass(frozen=True, eq=False)
class Name:
    """A class or function by name: what unpickling would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Call:
    """An object that unpickling would make by calling `function`; `state` is what it would set."""

    function: Any  # a Name, in every honest file
    arguments: Any
    state: Any = None
    items: Table = field(default_factory=Table)  # put into it afterwards, as into a dictionary
    entries: list[Any] = field(default_factory=list)  # or as into a list


@dataclass(frozen=True, eq=False)
class Reference:
    """A persistent id: where torch keeps a tensor's bytes."""

    key: Any


@dataclass(frozen=True)
class Decoded:
    """What a pickle holds, and every name it would have imported."""

    value: Any
    names: tuple[str, ...]


def decode(data: io.BytesIO) -> Decoded:
    """The next pickle of a buffer, which then stands right after it.

    A buffer, not a file: lengths in a pickle then make no room for more than is there.
    """
    try:
        machine = _Machine()
        for steps, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if steps > _MOST_STEPS:
                raise PickleError(f"it takes more than {_MOST_STEPS} steps")
            step = _STEPS.get(opcode.name)
            if step is None:
                raise PickleError(f"it uses the opcode {opcode.name}, which no checkpoint needs")
            step(machine, argument)
        return Decoded(machine.pop(), tuple(machine.names))
    except PickleError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, EOFError) as error:
        text = " ".join(str(error).split())[:120]
        raise PickleError(f"it is damaged or truncated ({text or type(error).__name__})") from error


_MARK = object()


class _Machine:
    """The pickle machine's stack and memo, over records instead of objects."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.names: dict[str, None] = {}

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise PickleError("it is damaged: its stack is empty")
        return self.stack.pop()

    def top(self) -> Any:
        value = self.pop()
        self.stack.append(value)
        return value

    def marked(self) -> list[Any]:
        """Everything above the last mark, which goes too."""
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                found = self.stack[at + 1 :]
                del self.stack[at:]
                return found
        raise PickleError("it is damaged: a mark is missing")

    def name(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise PickleError("it is damaged: it imports something that has no name")
        found = Name(module, name)
        self.names[str(found)] = None
        self.stack.append(found)

    def append(self, values: list[Any]) -> None:
        target = self.top()
        target = target.entries if isinstance(target, Call) else target
        if not isinstance(target, list):
            raise PickleError("it is damaged: it appends to something that is not a list")
        target.extend(values)

    def set_items(self, flat: list[Any]) -> None:
        target = self.top()
        target = target.items if isinstance(target, Call) else target
        if not isinstance(target, Table):
            raise PickleError("it is damaged: it sets items of something that is not a table")
        target.pairs.extend(_paired(flat))

    def call(self) -> None:
        arguments = self.pop()
        self.stack.append(_made(self.pop(), arguments))

    def call_by_name(self) -> None:
        self.pop()  # the arguments that have names
        self.call()

    def build(self) -> None:
        state = self.pop()
        target = self.top()
        if isinstance(target, Call):
            target.state = state
        # Attributes of a plain table are of no interest (OrderedDict's _metadata).

    def discard(self) -> None:
        if not self.stack:
            raise PickleError("it is damaged: its stack is empty")
        self.stack.pop()


# What each opcode does to the machine with its argument. Those that are missing here are in no
# file that torch wrote.
_Step = Callable[[_Machine, Any], Any]
_STEPS: dict[str, _Step] = {
    "PROTO": lambda m, a: None,
    "FRAME": lambda m, a: None,
    "STOP": lambda m, a: None,
    "NONE": lambda m, a: m.stack.append(None),
    "NEWTRUE": lambda m, a: m.stack.append(True),
    "NEWFALSE": lambda m, a: m.stack.append(False),
    "MARK": lambda m, a: m.stack.append(_MARK),
    "MEMOIZE": lambda m, a: m.memo.__setitem__(len(m.memo), m.top()),
    "EMPTY_TUPLE": lambda m, a: m.stack.append(()),
    "TUPLE1": lambda m, a: m.stack.append((m.pop(),)),
    "TUPLE2": lambda m, a: m.stack.append((m.pop(), m.pop())[::-1]),
    "TUPLE3": lambda m, a: m.stack.append((m.pop(), m.pop(), m.pop())[::-1]),
    "TUPLE": lambda m, a: m.stack.append(tuple(m.marked())),
    "EMPTY_DICT": lambda m, a: m.stack.append(Table()),
    "DICT": lambda m, a: m.stack.append(Table(_paired(m.marked()))),
    "APPEND": lambda m, a: m.append([m.pop()]),
    "SETITEM": lambda m, a: m.set_items([m.pop(), m.pop()][::-1]),
    "SETITEMS": lambda m, a: m.set_items(m.marked()),
    "GLOBAL": lambda m, a: m.name(*a.split(" ", 1)),
    "STACK_GLOBAL": lambda m, a: m.name(*[m.pop(), m.pop()][::-1]),
    "REDUCE": lambda m, a: m.call(),
    "NEWOBJ": lambda m, a: m.call(),
    "NEWOBJ_EX": lambda m, a: m.call_by_name(),
    "BUILD": lambda m, a: m.build(),
    "BINPERSID": lambda m, a: m.stack.append(Reference(m.pop())),
    "POP": lambda m, a: m.discard(),
    "POP_MARK": lambda m, a: m.marked(),
    "DUP": lambda m, a: m.stack.append(m.top()),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "PUT"), lambda m, a: m.memo.__setitem__(a, m.top())),
    **dict.fromkeys(("BINGET", "LONG_BINGET", "GET"), lambda m, a: m.stack.append(m.memo[a])),
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_SET"), lambda m, a: m.stack.append([])),
    **dict.fromkeys(("LIST", "FROZENSET"), lambda m, a: m.stack.append(m.marked())),
    **dict.fromkeys(("APPENDS", "ADDITEMS"), lambda m, a: m.append(m.marked())),
    **dict.fromkeys(
        (
            "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
            "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
            "BYTEARRAY8", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
        ),
        lambda m, a: m.stack.append(a),
    ),
}  # fmt: skip


def _paired(flat: list[Any]) -> list[tuple[Any, Any]]:
    if len(flat) % 2:
        raise PickleError("it is damaged: a key without a value")
    return list(zip(flat[::2], flat[1::2], strict=True))


_TABLES = (
    "collections.OrderedDict",
    "collections.defaultdict",
    "builtins.dict",
    "__builtin__.dict",
)


def _made(function: Any, arguments: Any) -> Any:
    """Plain containers as such; anything else as a record of the call."""
    if isinstance(function, Name) and str(function) in _TABLES:
        table = Table()
        if (
            str(function) != "collections.defaultdict"
            and isinstance(arguments, tuple)
            and arguments
        ):
            given = arguments[0]
            if isinstance(given, Table):
                table.pairs.extend(given.pairs)
            elif isinstance(given, list):  # [[key, value], …], as Python 2 wrote it
                table.pairs.extend(
                    (pair[0], pair[1])
                    for pair in given
                    if isinstance(pair, list | tuple) and len(pair) == 2
                )
        return table
    return Call(function, arguments)
