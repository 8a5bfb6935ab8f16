"""Ranges of the values of an ONNX graph, op by op: what each op makes of what it is given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from uncork.domain import Box, Domain, Image
from uncork.load.contents import printable
from uncork.load.onnx.functions import Expression, X, apply, combine, range_of
from uncork.load.onnx.intervals import Arithmetic, Bounds
from uncork.load.onnx.norms import Norm

_TRAIL = 8  # ops named between an activation and the head


@dataclass(frozen=True)
class Linear:
    """Rows matrix u + offset for rows u of another domain."""

    inner: Domain
    matrix: np.ndarray  # (n, m)
    offset: np.ndarray | None = None

    def scaled(self, factor: np.ndarray) -> Linear:
        column = factor.reshape(-1, 1) if factor.ndim else factor
        offset = None if self.offset is None else self.offset * factor
        return Linear(self.inner, self.matrix * column, offset)

    def shifted(self, offset: np.ndarray) -> Linear:
        total = np.broadcast_to(offset, (len(self.matrix),))
        return replace(self, offset=total if self.offset is None else self.offset + total)

    def domain(self, features: int) -> Domain | None:
        if len(self.matrix) != features:
            return None
        return Image(self.inner, self.matrix, self.offset)


@dataclass(frozen=True)
class Value:
    """What is known of one value: ranges, one for all elements or one for each along an axis.

    `axis` counts from the end, so that broadcasting does not move it. `rows` says more than ranges
    of the vectors along that axis. `expression` is the value as a function of one number, element
    by element, of the value called `root`, which lies in `root_range`. `stretch` says that a
    flattening may have repeated ("each") or tiled ("all") the ranges along the axis.
    """

    lower: np.ndarray  # (), (n,)
    upper: np.ndarray
    root: str
    axis: int | None = None
    rows: Norm | Linear | None = None
    expression: Expression = X
    root_range: tuple[float, float] = (-np.inf, np.inf)
    stretch: str = ""
    label: str = ""
    trail: tuple[str, ...] = ()

    @property
    def bounds(self) -> Bounds:
        return self.lower, self.upper

    @property
    def known(self) -> bool:
        finite = np.isfinite(self.lower).any() or np.isfinite(self.upper).any()
        return bool(finite) or self.rows is not None

    @property
    def hull(self) -> tuple[float, float]:
        return float(self.lower.min()), float(self.upper.max())

    def whole(self) -> Value:
        """One range for all elements, whatever the axis."""
        low, high = self.hull
        return replace(
            self, lower=np.asarray(low), upper=np.asarray(high), axis=None, rows=None, stretch=""
        )

    def through(self, op: str, name: str = "") -> Value:
        """The same value after an op that keeps elements; with a name, one that moves them about:
        then two functions of one element are no longer of one element."""
        trail = (*self.trail, op) if op not in self.trail else self.trail
        moved = fresh_from(self, name) if name else self
        return replace(moved, trail=trail[:_TRAIL])

    def domain(self, axis: int, features: int) -> Domain | None:
        """The vectors along an axis as a domain, None where nothing is known of them."""
        if self.rows is not None and self.axis == axis:
            found = self.rows.domain(features)
            if found is not None:
                return found
        lower, upper = self.lower, self.upper
        if lower.ndim:
            fits = self.axis == axis and features % lower.size == 0
            if fits and lower.size != features:
                fits = bool(self.stretch)
            if fits:
                times = features // lower.size
                spread = np.repeat if self.stretch == "each" else np.tile
                lower, upper = spread(lower, times), spread(upper, times)
            else:
                lower, upper = (np.asarray(end) for end in self.hull)
        if not np.isfinite(lower).any() and not np.isfinite(upper).any():
            return None
        if lower.ndim and (lower == lower[0]).all() and (upper == upper[0]).all():
            lower, upper = lower[0], upper[0]
        return Box(lower, upper)


def node_name(node: Any) -> str:
    """What to call a node where people read it."""
    return printable(node.name or node.output[0])


def unknown(name: str) -> Value:
    """A value of which nothing is known; expressions may start from it."""
    return Value(np.asarray(-np.inf), np.asarray(np.inf), name)


def fresh(name: str, bounds: Bounds, **more: Any) -> Value:
    """A value with ranges of its own, from which expressions start anew."""
    lower, upper = (np.asarray(end, dtype=np.float64) for end in bounds)
    span = float(lower.min()), float(upper.max())
    return Value(lower, upper, name, root_range=span, **more)


def normed(name: str, norm: Norm, arithmetic: Arithmetic, label: str) -> Value:
    """What leaves a normalisation over the last axis."""
    bounds = norm.bounds(arithmetic)
    if bounds is None:
        bounds = np.asarray(-np.inf), np.asarray(np.inf)
    return fresh(name, bounds, axis=-1, rows=norm, label=label)


def unary(
    arithmetic: Arithmetic, op: str, value: Value, name: str, label: str,
    numbers: tuple[float, ...] = (),
) -> Value:  # fmt: skip
    """An op on each element by itself."""
    lower, upper = apply(arithmetic, op, [value.bounds], numbers)
    term = combine(op, value.expression, numbers=numbers)
    changed = replace(
        value, lower=lower, upper=upper, rows=None, expression=term, label=label, trail=()
    )
    return changed if term.short else fresh_from(changed, name)


def fresh_from(value: Value, name: str) -> Value:
    return replace(value, root=name, expression=X, root_range=value.hull)


def product_of_terms(
    arithmetic: Arithmetic, value: Value, term: Expression, name: str, label: str
) -> Value:
    """A value that is one expression of its root: its range by branch and bound."""
    low, high = range_of(term, arithmetic, *value.root_range)
    lower, upper = np.maximum(value.lower, low), np.minimum(value.upper, high)
    found = replace(
        value, lower=lower, upper=upper, rows=None, expression=term, label=label, trail=()
    )
    return found if term.short else fresh_from(found, name)


def binary(
    arithmetic: Arithmetic, op: str, a: Value, b: Value, name: str, label: str,
    search: bool = False,
) -> Value:  # fmt: skip
    """An op on two values, element by element with broadcasting; with `search`, two functions of
    one element are taken together."""
    left, right, axis = _aligned(a, b)
    lower, upper = apply(arithmetic, op, [left.bounds, right.bounds])
    stretch = left.stretch or right.stretch
    if search and a.root == b.root:
        term = combine(op, a.expression, b.expression)
        start = Value(
            lower, upper, a.root, axis, root_range=a.root_range, stretch=stretch,
        )  # fmt: skip
        if term.short:
            return product_of_terms(arithmetic, start, term, name, label)
    return fresh(name, (lower, upper), axis=axis, stretch=stretch, label=label)


def with_number(
    arithmetic: Arithmetic, op: str, value: Value, number: float, name: str, swapped: bool
) -> Value:
    """value op number, or number op value: an expression stays one."""
    constant = Expression("constant", numbers=(number,))
    numbers = np.full_like(value.lower, number), np.full_like(value.upper, number)
    given = [value.bounds, numbers]
    terms = [value.expression, constant]
    if swapped:
        given.reverse()
        terms.reverse()
    lower, upper = apply(arithmetic, op, given)
    term = combine(op, *terms)
    changed = replace(value, lower=lower, upper=upper, expression=term, rows=None)
    return changed if term.short else fresh_from(changed, name)


def _aligned(a: Value, b: Value) -> tuple[Value, Value, int | None]:
    """Two values with their ranges along one axis; one range for all where that cannot be."""
    if not a.lower.ndim or not b.lower.ndim:
        return a, b, b.axis if b.lower.ndim else a.axis
    if a.axis == b.axis and a.lower.shape == b.lower.shape and a.stretch == b.stretch:
        return a, b, a.axis
    for one, other, swap in ((a, b, False), (b, a, True)):
        # A flattening repeated one of them: the other shows how often.
        if one.stretch and not other.stretch and one.axis == other.axis:
            n, m = one.lower.size, other.lower.size
            if m % n == 0:
                spread = np.repeat if one.stretch == "each" else np.tile
                one = replace(
                    one, lower=spread(one.lower, m // n), upper=spread(one.upper, m // n),
                    stretch="", rows=None,
                )  # fmt: skip
                return (other, one, one.axis) if swap else (one, other, one.axis)
    return a.whole(), b.whole(), None


def joined(a: Value, b: Value, name: str) -> Value:
    """A value that is one of two, element by element."""
    left, right, axis = _aligned(a, b)
    lower, upper = np.minimum(left.lower, right.lower), np.maximum(left.upper, right.upper)
    label = a.label if a.label == b.label else " or ".join(x for x in (a.label, b.label) if x)
    return fresh(name, (lower, upper), axis=axis, stretch=left.stretch, label=label)
