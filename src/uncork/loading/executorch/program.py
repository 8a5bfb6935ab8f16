"""The program of a .pte file as operators of torch, its constants as views of the file.

Fields are numbered as in schema/program.fbs of ExecuTorch. Kernels write into values that are given
to them last; what they compute is named after those. Parts compiled for XNNPACK are read as well;
those for another backend are operators of which nothing is known.
"""

from __future__ import annotations

import bisect
import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.aten.program import About, Constant, Open, Operation, Program, Ref
from uncork.loading.bounded.archive import Storage
from uncork.loading.bounded.cursor import mapped, opened
from uncork.loading.bounded.flatbuffer import Buffer, Table
from uncork.loading.executorch.xnnpack import Delegate

_TYPES: dict[int, Any] = {
    0: np.uint8, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.int64, 5: np.float16, 6: np.float32,
    7: np.float64, 11: np.bool_, 15: ml_dtypes.bfloat16, 27: np.uint16, 28: np.uint32,
    29: np.uint64,
}  # fmt: skip
_NULL, _INT, _BOOL, _DOUBLE, _TENSOR, _STRING, _INTS, _DOUBLES, _BOOLS, _TENSORS, _OPTIONAL = range(
    1, 12
)
_KERNEL, _DELEGATE, _MOVE, _JUMP, _FREE = range(1, 6)
_EXTERNAL, _IN_SEGMENT = 1, 1
_MOST_VALUES = 1 << 20
_MOST_DIMENSIONS = 32
_MOST_ENTRIES = 1 << 22  # of all lists of arguments: calls may share one list


@dataclass(frozen=True)
class Lowered:
    """A program, the backends that parts of it were compiled for, and whether weights are kept in
    another file."""

    program: Program
    backends: tuple[str, ...]
    external: bool


@dataclass(frozen=True)
class _Value:
    """An entry of the table of values: its kind, and the table that holds it."""

    kind: int
    table: Table


class _Plan:
    def __init__(self, path: Path, root: Table, plan: Table, segments: _Segments) -> None:
        self.path, self.root, self.plan, self.segments = path, root, plan, segments
        values = list(plan.tables(2))
        self.values = [_Value(one.number(0, "B"), one.table(1) or one) for one in values]
        if len(values) > _MOST_VALUES:
            raise UncorkError(f"{path} has {len(values)} values: damaged")
        self.program = Program(path, [], [], {}, {}, [])
        self.external = False
        self.delegates = list(plan.tables(7))
        self.backends = tuple(printable(one.text(0))[:40] for one in self.delegates)
        self.dynamic, self.left = False, _MOST_ENTRIES
        self.operators = [(one.text(0), one.text(1)) for one in plan.tables(6)]

    def read(self) -> Lowered:
        chains = list(self.plan.tables(5))
        calls = chains[0].tables(2) if len(chains) == 1 else ()
        instructions = [(call.number(0, "B"), call.table(1)) for call in calls]
        kinds = {kind for kind, _ in instructions}
        if _JUMP in kinds or len(chains) != 1:
            raise UncorkError(f"{self.path} is a program with branches or loops: not read")
        for index in self.plan.numbers(3, "i4").tolist():
            if self._value(index).kind == _TENSOR:
                self.program.inputs.append(self._name(index))
        self.computed: set[int] = set()
        for kind, call in instructions:
            if kind == _KERNEL and call is not None:
                self.computed.update(self._listed(call, 1)[-1:])
        for index, one in enumerate(self.values):
            if one.kind == _TENSOR:
                self._tensor(index, one.table)
        for kind, call in instructions:
            if call is not None:
                self._instruction(kind, call)
        self.program.outputs = [
            self._name(index)
            for index in self.plan.numbers(4, "i4").tolist()
            if self._value(index).kind == _TENSOR
        ]
        return Lowered(self.program, self.backends, self.external)

    def _value(self, index: int) -> _Value:
        if not 0 <= index < len(self.values):
            raise UncorkError(
                f"{self.path} is damaged: it refers to value {index} of {len(self.values)}"
            )
        return self.values[index]

    def _listed(self, table: Table, field: int) -> list[int]:
        """A list of values, counted against what all of them together may be."""
        self.left -= table.vector(field, 4)[1]
        if self.left < 0:
            raise UncorkError(f"{self.path} has calls with too many arguments: damaged")
        return list(table.numbers(field, "i4").tolist())

    def _name(self, index: int) -> str:
        return f"value {index}"

    # Values

    def _tensor(self, index: int, table: Table) -> None:
        name = self._name(index)
        sizes = [int(n) for n in table.numbers(2, "i4")]
        if len(sizes) > _MOST_DIMENSIONS or any(n < 0 for n in sizes):
            raise UncorkError(f"{self.path} is damaged: {name} has the shape {sizes[:8]}")
        kind = _TYPES.get(table.number(0, "b"))
        dtype = None if kind is None else np.dtype(kind)
        sides: tuple[int | str, ...] = tuple(sizes)
        if table.number(8, "b") != 0:  # as large as it can get
            sides, self.dynamic = tuple(f"{name}[{k}]" for k in range(len(sizes))), True
        self.program.values[name] = About(dtype, sides)
        extra = table.table(9)
        if extra is not None and extra.number(2, "b") == _EXTERNAL:
            self.external = True
            self.program.inputs.append(name)
            return
        number, planned = table.number(5, "I"), table.table(6) is not None
        if not number or planned or dtype is None or name in self.program.inputs:
            return
        order = [int(n) for n in table.numbers(3, "u1")] or list(range(len(sizes)))
        if sorted(order) != list(range(len(sizes))):
            raise UncorkError(f"{self.path} is damaged: {name} has its axes in order {order[:8]}")
        place = self.segments.place(number, math.prod(sizes) * dtype.itemsize, name)
        called = extra.text(1) if extra is not None else ""
        read = functools.partial(_ordered, self.path, dtype, tuple(sizes), order, place)
        self.program.constants[name] = Constant(
            called or f"constant {number}", tuple(sizes), dtype, read
        )

    def _argument(self, index: int) -> Any:
        """A value as an argument: plain numbers where they are fixed."""
        one = self._value(index)
        table = one.table
        if one.kind == _TENSOR:
            return Ref(self._name(index))
        if one.kind in (_TENSORS, _OPTIONAL):
            found = self._listed(table, 0)
            return [None if n < 0 else self._element(n, _TENSOR) for n in found]
        if one.kind == _NULL:
            return None
        if index in self.computed:
            return Open()
        if one.kind == _INT:
            return int(table.number(0, "q"))
        if one.kind == _BOOL:
            return bool(table.number(0, "B"))
        if one.kind == _DOUBLE:
            return float(table.number(0, "d"))
        if one.kind == _STRING:
            return table.text(0)
        if one.kind == _INTS:
            return [self._element(n, _INT) for n in table.numbers(0, "i8").tolist()]
        if one.kind == _DOUBLES:
            return table.numbers(0, "f8").tolist()
        if one.kind == _BOOLS:
            return [bool(n) for n in table.numbers(0, "u1")]
        return Open()

    def _element(self, index: int, kind: int) -> Any:
        """An entry of a list, which is a value of its own."""
        if self._value(index).kind not in (kind, _NULL):
            raise UncorkError(f"{self.path} is damaged: value {index} is of another kind")
        return self._argument(index)

    # Instructions

    def _instruction(self, kind: int, call: Table) -> None:
        if kind == _MOVE:
            ends = [int(call.number(k, "i")) for k in (0, 1)]
            if self._value(ends[0]).kind == self._value(ends[1]).kind == _TENSOR:
                given, result = (self._name(n) for n in ends)
                self._add(Operation("aten.alias", "", {"self": Ref(given)}, (), (result,)))
            return
        if kind == _KERNEL:
            self._kernel(call)
        elif kind == _DELEGATE:
            self._delegate(call)

    def _kernel(self, call: Table) -> None:
        number, args = int(call.number(0, "i")), self._listed(call, 1)
        if not 0 <= number < len(self.operators) or not args:
            raise UncorkError(f"{self.path} is damaged: it calls operator {number}")
        name, overload = self.operators[number]
        last = self._value(args[-1])
        results = [args[-1]]
        if last.kind in (_TENSORS, _OPTIONAL):
            results = self._listed(last.table, 0)
        given = args[:-1]
        for out in (results, [args[-1]]):  # where the results are written, before what is returned
            if given[-len(out) :] == out:
                given = given[: -len(out)]
                break
        made = tuple(
            self._name(n) if n >= 0 and self._value(n).kind == _TENSOR else None for n in results
        )
        listed = tuple(self._argument(n) for n in given)
        self._add(Operation(name.replace("::", "."), overload, {}, listed, made))

    def _delegate(self, call: Table) -> None:
        """A part for a backend: what was computed before goes in, the rest comes out."""
        number, args = int(call.number(0, "i")), self._listed(call, 1)
        if not 0 <= number < len(self.backends):
            raise UncorkError(f"{self.path} is damaged: it calls delegate {number}")
        every = [self._name(n) for n in args]
        if self.backends[number] == "XnnpackBackend":
            place = self.segments.of_delegate(self.delegates[number])
            part = Delegate(self.path, self.segments.data, place, self.segments.named, self.dynamic)
            self.program.operations += part.operations(self.program, every, f"xnnpack {number}")
            return
        names = [self._name(n) for n in args if self._value(n).kind == _TENSOR]
        known = {*self.program.inputs, *self.program.constants}
        known.update(one for op in self.program.operations for one in op.results if one)
        results = tuple(name for name in names if name not in known)
        listed = tuple(Ref(name) for name in names if name in known)
        self._add(Operation(f"delegate.{self.backends[number]}", "", {}, listed, results))

    def _add(self, operation: Operation) -> None:
        self.program.operations.append(operation)


class _Segments:
    """Where data lies: in the program itself, or in segments behind it."""

    def __init__(self, path: Path, root: Table, base: int, data: Any) -> None:
        self.path, self.data = path, data
        self.inline = [one.vector(0, 1) for one in root.tables(2)]
        self.delegates = [one.vector(0, 1) for one in root.tables(3)]
        self.every = [
            Storage(base + one.number(0, "Q"), one.number(1, "Q")) for one in root.tables(4)
        ]
        if any(one.offset + one.size > len(data) for one in self.every):
            raise UncorkError(f"{path} is truncated: its data reaches past its end")
        found = root.table(5)
        self.offsets = [] if found is None else found.numbers(1, "u8").tolist()
        self.begins = sorted(self.offsets)
        self.constants = Storage(0, 0)
        if self.offsets and found is not None:
            self.constants = self._segment(found.number(0, "I"))
        self.named = {one.text(0): self._segment(one.number(1, "I")) for one in root.tables(7)}

    def _segment(self, number: int) -> Storage:
        if number >= len(self.every):
            raise UncorkError(f"{self.path} is damaged: segment {number} of {len(self.every)}")
        return self.every[number]

    def place(self, number: int, needs: int, name: str) -> int:
        """Where a constant of that many bytes begins."""
        if self.offsets:
            # A constant ends where the next one begins.
            at = self.offsets[number] if number < len(self.offsets) else self.constants.size
            after = bisect.bisect_right(self.begins, at)
            end = self.begins[after] if after < len(self.begins) else self.constants.size
            if at + needs <= min(end, self.constants.size):
                return int(self.constants.offset + at)
        elif number < len(self.inline) and needs <= self.inline[number][1]:
            return self.inline[number][0]
        raise UncorkError(f"{self.path}: the constant of {name} is not there: truncated or damaged")

    def of_delegate(self, delegate: Table) -> Storage:
        about = delegate.table(1)
        number = 0 if about is None else about.number(1, "I")
        if about is not None and about.number(0, "b") == _IN_SEGMENT:
            return self._segment(number)
        if about is None or number >= len(self.delegates):
            raise UncorkError(f"{self.path} is damaged: a delegate has no data")
        begin, size = self.delegates[number]
        return Storage(begin, size)


def _ordered(
    path: Path, dtype: np.dtype, shape: tuple[int, ...], order: list[int], place: int
) -> np.ndarray:
    """A constant whose axes lie in the file in another order (channels last)."""
    stored = mapped(path, dtype, tuple(shape[n] for n in order), place)
    return stored.transpose([order.index(n) for n in range(len(order))])


def read_pte(path: Path) -> Lowered:
    """The method `forward` of a program, or its only one."""
    with opened(path) as cursor:
        data = Buffer(path, cursor.data)
        base = data.number("Q", 24) if bytes(cursor.data[8:12]) == b"eh00" else 0
        root = data.root()
        plans: dict[str, Table] = {}
        for plan in root.tables(1):
            plans.setdefault(plan.text(0), plan)  # of two with one name the first is run
        chosen = plans.get("forward") or (next(iter(plans.values())) if len(plans) == 1 else None)
        if chosen is None:
            names = ", ".join(printable(name)[:40] for name in list(plans)[:8])
            raise UncorkError(f"{path} has no method forward, of {len(plans)}: {names}")
        segments = _Segments(path, root, base, cursor.data)
        return _Plan(path, root, chosen, segments).read()
