"""Normalisations in an ONNX graph, as one node or spelled out in a dozen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from uncork.domain import Ball, Domain, Image, LayerNorm, RMSNorm
from uncork.load.onnx.graph import Graph
from uncork.load.onnx.intervals import Arithmetic, Bounds
from uncork.load.onnx.tensors import attribute

_MOST_STEPS = 24
# Length and range are about real numbers; a run-time may be off by this share, in any type.
_ROUNDING = 2.0**-18


@dataclass(frozen=True)
class Norm:
    """Rows gain ⊙ u + offset: ‖u‖₂ ≤ √n and Σ u = 0 ("layer"), ‖u‖₂ ≤ √n ("rms"), ≤ 1 ("unit")."""

    kind: str
    size: int | None = None  # n, where the graph shows it
    gain: np.ndarray | None = None  # (), (n,); None is one
    offset: np.ndarray | None = None
    cancels: bool = False  # the variance is computed as E[v²] − E[v]²

    def scaled(self, factor: np.ndarray) -> Norm:
        gain = factor if self.gain is None else self.gain * factor
        offset = None if self.offset is None else self.offset * factor
        return replace(self, gain=gain, offset=offset, size=self.size or _count(factor))

    def shifted(self, offset: np.ndarray) -> Norm:
        total = offset if self.offset is None else self.offset + offset
        return replace(self, offset=total, size=self.size or _count(offset))

    def domain(self, features: int) -> Domain | None:
        """The rows as a domain; None where they are not rows of that many features."""
        if self.size not in (None, features):
            return None
        gain = None if self.gain is None else np.broadcast_to(self.gain, (features,))
        offset = None if self.offset is None else np.broadcast_to(self.offset, (features,))
        if self.kind == "layer":
            return LayerNorm(gain, offset, features=features)
        if self.kind == "rms":
            inner: Domain = RMSNorm(gain, features=features)
        elif gain is None or (gain == gain[0]).all():
            size = 1.0 if gain is None else abs(float(gain[0]))
            if size == 0:
                return None
            inner = Ball(size * (1 + _ROUNDING))
        else:
            inner = Image(Ball(1 + _ROUNDING), np.diag(gain))
        return inner if offset is None else Image(inner, offset=offset)

    def bounds(self, arithmetic: Arithmetic) -> Bounds | None:
        """Each feature's range, where the number of features is known."""
        if self.size is None and self.kind != "unit":
            return None
        n = self.size or 1
        length = {"layer": math.sqrt(n - 1), "rms": math.sqrt(n), "unit": 1.0}[self.kind]
        reach = np.abs(np.asarray(1.0 if self.gain is None else self.gain)) * length
        reach = reach * (1 + _ROUNDING)
        offset = np.asarray(0.0 if self.offset is None else self.offset)
        reach, offset = np.broadcast_arrays(reach, offset)
        return arithmetic.add((-reach, reach), (offset, offset))


def _count(values: np.ndarray) -> int | None:
    return int(values.size) if values.ndim else None


_OPS = {
    # op: kind, place of the gain, place of the offset
    "LayerNormalization": ("layer", 1, 2),
    "SkipLayerNormalization": ("layer", 2, 3),
    "SimplifiedLayerNormalization": ("rms", 1, None),
    "RMSNormalization": ("rms", 1, None),
    "SkipSimplifiedLayerNormalization": ("rms", 2, None),
}


def norm_by_name(graph: Graph, node: Any) -> Norm | None:
    """The rows a normalisation op leaves along its last axis."""
    if node.op_type == "LpNormalization":
        axis = graph.from_end([int(attribute(node, "axis", -1))], node.input[0])
        return Norm("unit") if axis == [-1] and attribute(node, "p", 2) == 2 else None
    if node.op_type not in _OPS:
        return None
    kind, gain_at, offset_at = _OPS[node.op_type]
    axis = graph.from_end([int(attribute(node, "axis", -1))], node.input[0])
    if axis != [-1]:
        return None
    norm = Norm(kind)
    for place, change in ((gain_at, Norm.scaled), (offset_at, Norm.shifted)):
        if place is None or len(node.input) <= place or not node.input[place]:
            continue
        if not graph.constants.is_constant(node.input[place]):
            return None
        values = graph.constants.value(node.input[place]).reshape(-1).astype(np.float64)
        norm = change(norm, values)
    return norm


def norm_spelled_out(graph: Graph, node: Any) -> Norm | None:
    """The rows a Div or Mul leaves where it is the last step of a normalisation, else None."""
    if node.op_type == "Div" and len(node.input) == 2:
        return _divided(graph, node.input[0], node.input[1])
    if node.op_type == "Mul" and len(node.input) == 2:
        for row, factor in (node.input, node.input[::-1]):
            norm = _multiplied(graph, row, factor)
            if norm is not None:
                return norm
    return None


def _multiplied(graph: Graph, row: str, factor: str, gains: int = 2) -> Norm | None:
    """row · factor, where the factor is one over a root, perhaps times a constant gain or two."""
    node, kept = _skip(graph, factor)
    if node is None:
        return None
    if node.op_type == "Reciprocal":
        return _divided(graph, row, node.input[0], kept)
    if node.op_type == "Div" and graph.number(node.input[0]) == 1:
        return _divided(graph, row, node.input[1], kept)
    if node.op_type == "Pow" and graph.number(node.input[1]) == -0.5:
        return _over_root(graph, row, node.input[0], kept)
    if node.op_type == "Mul" and gains:
        for inner, gain in (node.input, node.input[::-1]):
            if graph.constants.is_constant(gain) and not graph.constants.is_constant(inner):
                values = graph.constants.value(gain)
                if values.size not in (1, values.shape[-1] if values.ndim else 1):
                    return None
                norm = _multiplied(graph, row, inner, gains - 1)
                if norm is not None:
                    return norm.scaled(values.reshape(-1).astype(np.float64))
    return None


def _divided(graph: Graph, row: str, length: str, kept: bool = False) -> Norm | None:
    node, more = _skip(graph, length)
    kept = kept or more
    for _ in range(4):
        if node is None or node.op_type not in ("Max", "Clip", "Add"):  # + ε, or not below it
            break
        inner = _other_than_number(graph, node)
        node, more = _skip(graph, inner) if inner else (None, False)
        kept = kept or more
    if node is None:
        return None
    if node.op_type == "ReduceL2" and _over_rows(graph, node, kept):
        return Norm("unit") if _same(graph, node.input[0], row) else None
    if node.op_type == "Sqrt":
        return _over_root(graph, row, node.input[0], kept)
    if node.op_type == "Pow" and graph.number(node.input[1]) == 0.5:
        return _over_root(graph, row, node.input[0], kept)
    return None


def _over_root(graph: Graph, row: str, radicand: str, kept: bool = False) -> Norm | None:
    """row/√radicand: the radicand must be at least the mean square of that row."""
    node, more = _skip(graph, radicand)
    kept = kept or more
    for _ in range(4):
        if node is None or node.op_type not in ("Add", "Max", "Relu", "Clip"):
            break
        inner = _other_than_number(graph, node)
        if inner is None:
            return None
        node, more = _skip(graph, inner)
        kept = kept or more
    if node is None:
        return None
    if node.op_type == "Sub":
        return _difference(graph, row, node, kept)
    if node.op_type == "ReduceSum" and _over_rows(graph, node, kept):
        return Norm("unit") if _is_square(graph, node.input[0], row) else None
    mean = _mean(graph, node, kept)
    if mean is None:
        return None
    squares, size = mean
    if not _is_square(graph, squares, row):
        return None
    centred = _centred(graph, row)
    return Norm("rms", size) if centred is None else Norm("layer", size or centred[1])


def _difference(graph: Graph, row: str, node: Any, kept: bool) -> Norm | None:
    """The variance as E[v²] − E[v]²."""
    centred = _centred(graph, row)
    if centred is None:
        return None
    first, more = _skip(graph, node.input[0])
    mean = None if first is None else _mean(graph, first, kept or more)
    square, more = _skip(graph, node.input[1])
    if mean is None or square is None or not _is_square(graph, mean[0], centred[0]):
        return None
    if square.op_type == "Pow" and graph.number(square.input[1]) != 2:
        return None
    if square.op_type == "Mul" and square.input[0] != square.input[1]:
        return None
    if square.op_type not in ("Pow", "Mul"):
        return None
    inner, further = _skip(graph, square.input[0])
    second = None if inner is None else _mean(graph, inner, kept or more or further)
    if second is None or not _same(graph, second[0], centred[0]):
        return None
    return Norm("layer", mean[1] or second[1] or centred[1], cancels=True)


def _centred(graph: Graph, row: str) -> tuple[str, int | None] | None:
    """v, where the row is v minus its own mean."""
    node, _ = _skip(graph, row, through=("Identity", "Cast"))
    if node is None or node.op_type != "Sub":
        return None
    reduced, kept = _skip(graph, node.input[1])
    mean = None if reduced is None else _mean(graph, reduced, kept)
    if mean is None or _plain(graph, mean[0]) != _plain(graph, node.input[0]):
        return None
    return node.input[0], mean[1]


def _mean(graph: Graph, node: Any, kept: bool) -> tuple[str, int | None] | None:
    """What is averaged over the last axis, and over how many features where that shows."""
    if node.op_type == "ReduceMean" and _over_rows(graph, node, kept):
        return node.input[0], None
    if node.op_type not in ("Mul", "Div"):
        return None
    orders = [(node.input[0], node.input[1])]
    if node.op_type == "Mul":
        orders.append((node.input[1], node.input[0]))
    for total, share in orders:
        number = graph.number(share)
        if number is None or number <= 0:
            continue
        size = number if node.op_type == "Div" else 1 / number
        summed, more = _skip(graph, total)
        if summed is None or summed.op_type != "ReduceSum":
            continue
        if abs(size - round(size)) < _ROUNDING * size and _over_rows(graph, summed, kept or more):
            return summed.input[0], round(size)
    return None


def _over_rows(graph: Graph, node: Any, kept: bool) -> bool:
    """Whether a reduction is over the last axis alone, and its result set against whole rows."""
    axes = graph.integers(node, "axes", 1)
    if axes is None or graph.from_end(axes, node.input[0]) != [-1]:
        return False
    return bool(attribute(node, "keepdims", 1)) or kept


def _is_square(graph: Graph, name: str, row: str) -> bool:
    node, _ = _skip(graph, name, through=("Identity", "Cast"))
    if node is None:
        return False
    if node.op_type == "Pow" and graph.number(node.input[1]) == 2:
        return _same(graph, node.input[0], row)
    if node.op_type == "Mul" and len(node.input) == 2:
        return _same(graph, node.input[0], row) and _same(graph, node.input[1], row)
    return False


def _same(graph: Graph, first: str, second: str) -> bool:
    """Whether two names are one value: by name, through casts, or v − mean(v) computed twice."""
    first, second = _plain(graph, first), _plain(graph, second)
    if first == second:
        return True
    one, other = graph.node_of(first), graph.node_of(second)
    if one is None or other is None or one.op_type != "Sub" or other.op_type != "Sub":
        return False
    left, right = _centred(graph, first), _centred(graph, second)
    if left is None or right is None:
        return False
    return _plain(graph, left[0]) == _plain(graph, right[0])


def _plain(graph: Graph, name: str) -> str:
    for _ in range(_MOST_STEPS):
        node = graph.node_of(name)
        if node is None or node.op_type not in ("Identity", "Cast"):
            break
        name = node.input[0]
    return name


_BROADCAST = ("Identity", "Cast", "Unsqueeze", "Reshape", "Expand")


def _skip(graph: Graph, name: str, through: tuple[str, ...] = _BROADCAST) -> tuple[Any, bool]:
    """The node behind a value, past steps that set one number a row against whole rows; and
    whether such a step gave the value a last axis of its own."""
    kept = False
    for _ in range(_MOST_STEPS):
        node = graph.node_of(name)
        if node is None or node.op_type not in through or not node.input:
            return node, kept
        if node.op_type == "Unsqueeze":
            axes = graph.integers(node, "axes", 1)
            rank = graph.ranks.get(node.input[0])
            if axes is None or len(axes) != 1 or axes[0] not in (-1, rank):
                return None, False
            kept = True
        elif node.op_type == "Reshape":
            if len(node.input) < 2 or graph.last_entry(node.input[1]) != 1:
                return None, False
            kept = True
        name = node.input[0]
    return None, False


def _other_than_number(graph: Graph, node: Any) -> str | None:
    """The input of a node that is no constant, if the constants cannot make it smaller."""
    if node.op_type == "Relu":
        return str(node.input[0])
    if node.op_type == "Clip":
        least = attribute(node, "max", None)
        upper = graph.number(node.input[2]) if len(node.input) > 2 else least
        unlimited = upper is None and not (len(node.input) > 2 and node.input[2])
        return str(node.input[0]) if unlimited else None
    rest = []
    for name in node.input:
        number = graph.number(name)
        if number is None:
            rest.append(str(name))
        elif node.op_type == "Add" and number < 0:
            return None
    return rest[0] if len(rest) == 1 else None
