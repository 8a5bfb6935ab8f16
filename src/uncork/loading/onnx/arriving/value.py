"""What is known of one value of an ONNX graph: type, shape, an enclosure, whether NaN can be there.

Bounds have the rank of the value. Along an axis they are either one for all (extent 1) or one for
each; so what an op does to axes it does to bounds, and no bound is ever handed to another feature.
Bounds hold for what a run-time computes, its rounding included; NaN lies outside all bounds and is
told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from uncork.core.text import printable
from uncork.domain import Box, Domain
from uncork.loading.onnx.arriving.functions import Expression, X
from uncork.loading.onnx.arriving.rows import Rows
from uncork.loading.onnx.intervals import Bounds
from uncork.loading.onnx.kinds import Kind
from uncork.loading.onnx.shapes import Dims

_MOST_BOUNDS = 1 << 20  # elements of an array of bounds
ENDLESS = 2.0**60  # a bound beyond this says nothing of use, and sums of such may overflow
Move = Callable[[np.ndarray, Any], np.ndarray]  # bounds, np.min or np.max → bounds


@dataclass(frozen=True)
class Pair:
    """QuantizeLinear and DequantizeLinear: the type, step and zero point of the numbers between."""

    kind: str
    step: float
    zero: float
    from_zero: bool  # the numbers start at the zero point: nothing they stand for is negative


@dataclass(frozen=True)
class Value:
    """What is known of one value.

    `rows` says more than bounds of the vectors along an axis. `expression` is the value as a
    function of one number, element by element, of the value called `root`, which lies in
    `root_range`. `label` names what the bounds come from, `trail` the nodes passed since; `stopped`
    is where knowledge ended, "" where it did not. `assumed` is what was taken for granted. `pairs`
    are the quantisations passed since the value was last computed with.
    """

    kind: Kind
    dims: Dims | None
    lower: np.ndarray
    upper: np.ndarray
    nan: bool
    root: str
    rows: Rows | None = None
    expression: Expression = X
    root_range: tuple[float, float] = (-np.inf, np.inf)
    label: str = ""
    trail: tuple[str, ...] = ()
    stopped: str = ""
    assumed: tuple[Any, ...] = field(default=())
    pairs: tuple[Pair, ...] = ()

    @property
    def bounds(self) -> Bounds:
        return self.lower, self.upper

    @property
    def hull(self) -> tuple[float, float]:
        return float(self.lower.min()), float(self.upper.max())

    @property
    def known(self) -> bool:
        """Whether anything useful is known."""
        told = (self.lower > -ENDLESS).any() or (self.upper < ENDLESS).any()
        return bool(told) or self.rows is not None

    @property
    def open_bounds(self) -> Bounds:
        """Bounds on what an op that may turn NaN into a number is given: all numbers, where NaN
        can be there."""
        if not self.nan:
            return self.bounds
        return np.full_like(self.lower, -np.inf), np.full_like(self.upper, np.inf)

    def through(self, node: Any, op: str) -> Value:
        """The same value after one more node."""
        return replace(self, trail=(*self.trail, f"{op} ({node_name(node)})"))

    def moved(self, name: str, dims: Dims | None, move: Move | None) -> Value:
        """The value after its elements were moved about; without a move, in any way at all."""
        if move is None or dims is None or self.dims is None:
            return fresh(name, self.kind, dims, tuple(map(_scalar, self.hull)), self.nan, like=self)
        bounds = move(self.lower, np.min), move(self.upper, np.max)
        found = fresh(name, self.kind, dims, bounds, self.nan, like=self)
        if self.rows is not None:
            axis = _axis_after(self.dims, self.rows.axis, self.rows.size, move)
            if axis is not None:
                found = replace(found, rows=self.rows.along(axis))
        return found

    def domain(self, axis: int, features: int) -> Domain | None:
        """The vectors along an axis, counted from the end, as a domain; None where unknown."""
        if self.rows is not None and self.rows.axis == axis and self.rows.size == features:
            return self.rows.domain()
        lower, upper = self.lower, self.upper
        if lower.ndim and lower.ndim >= -axis:
            others = tuple(k for k in range(lower.ndim) if k != lower.ndim + axis)
            lower, upper = lower.min(axis=others), upper.max(axis=others)
        if lower.size != features or lower.size == 1:
            lower, upper = lower.min(), upper.max()
        lower = np.where(lower < -ENDLESS, -np.inf, lower)
        upper = np.where(upper > ENDLESS, np.inf, upper)
        if not np.isfinite(lower).any() and not np.isfinite(upper).any():
            return None
        if lower.ndim and (lower == lower[0]).all() and (upper == upper[0]).all():
            lower, upper = lower[0], upper[0]
        if not (lower <= upper).all():
            return None
        return Box(lower, upper)


def node_name(node: Any) -> str:
    """What to call a node where people read it."""
    return printable(node.name or next((o for o in node.output if o), "no name"))


def _scalar(number: float) -> np.ndarray:
    return np.asarray(number, dtype=np.float64)


def fresh(
    name: str, kind: Kind, dims: Dims | None, bounds: Any, nan: bool, *,
    like: Value | None = None, **more: Any,
) -> Value:  # fmt: skip
    """A value with bounds of its own, from which expressions start anew; its words are those of
    the value it is made from."""
    lower, upper = (np.asarray(end, dtype=np.float64) for end in bounds)
    if dims is None:
        lower, upper = _scalar(lower.min()), _scalar(upper.max())
    else:
        lower, upper = (end.reshape((1,) * (len(dims) - end.ndim) + end.shape)
                        for end in (lower, upper))  # fmt: skip
        # Of an axis whose length is not known, one bound for all is kept.
        named = tuple(k for k, axis in enumerate(dims) if axis != lower.shape[k])
        lower, upper = lower.min(axis=named, keepdims=True), upper.max(axis=named, keepdims=True)
        while lower.size > _MOST_BOUNDS:
            longest = int(np.argmax(lower.shape))
            lower = lower.min(axis=longest, keepdims=True)
            upper = upper.max(axis=longest, keepdims=True)
    if like is not None:
        words = {"label": like.label, "trail": like.trail, "stopped": like.stopped,
                 "assumed": like.assumed, "pairs": like.pairs}  # fmt: skip
        more = {**words, **more}
    span = float(lower.min()), float(upper.max())
    return Value(kind, dims, lower, upper, nan, name, root_range=span, **more)


def unknown(name: str, kind: Kind, dims: Dims | None, stopped: str) -> Value:
    """A value of which nothing but its type is known; expressions may start from it."""
    if kind.is_float:
        ends = _scalar(-np.inf), _scalar(np.inf)
    else:
        ends = _scalar(kind.least), _scalar(kind.most)
    return fresh(name, kind, dims, ends, kind.is_float, stopped=stopped)


def _axis_after(dims: Dims, axis: int, size: int, move: Move) -> int | None:
    """Where an axis lies after a move, whole and in order: tried with the numbers of its places."""
    if len(dims) < -axis or dims[axis] != size:
        return None
    shape = [1] * len(dims)
    shape[axis] = size
    places = np.arange(size, dtype=np.float64).reshape(shape)
    least, most = move(places, np.min), move(places, np.max)
    if least.shape != most.shape or least.size != size or not np.array_equal(least, most):
        return None
    if size == 1:
        return None
    after = int(np.argmax(least.shape)) - least.ndim
    return after if np.array_equal(least.reshape(-1), np.arange(size)) else None
