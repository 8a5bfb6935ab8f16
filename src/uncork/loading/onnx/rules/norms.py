"""Rules of normalisations, as one node or spelled out in a dozen, matched whole.

Spelled out, every step has to be there as the norm has it: sums over the last axis alone and set
against whole rows, divisors equal to the number of features, an ε that floats can see, gains and
offsets of one number or one a feature. What is matched is what floats compute, so the radius of the
rows includes the rounding of every sum.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.loading.onnx.arriving.assumptions import Assumption, Length, Spread
from uncork.loading.onnx.arriving.rows import Norm, Rows
from uncork.loading.onnx.arriving.value import Value, fresh, node_name
from uncork.loading.onnx.rules.table import Nothing, rule
from uncork.loading.onnx.shapes import Dims
from uncork.loading.onnx.tensors import attribute

if TYPE_CHECKING:
    from uncork.loading.onnx.arriving.ranges import Ranges

_MOST_STEPS = 24
_MOST_FEATURES = 1 << 16
_UNIT = 2.0**-24  # norms are computed in float32 at least
_SHORTEST = 2.0**-40  # below this, squares begin to be lost


def _rows(n: int, kind: str, ratio: float) -> Norm:
    """Rows of a norm over n features, with gain 1.

    With x̂ᵢ = xᵢ − m and a radicand R̂ computed in floats, ‖x̂‖² ≤ n V(1 + κ) and R̂ ≥ V(1 − κ), where
    V is the real radicand and κ bounds the sums' rounding: (3n + 32) units, of V itself for a mean
    of squares, and of E[x²] ≤ (1 + ratio²)V for E[x²] − E[x]².
    """
    kappa = (3 * n + 32) * _UNIT * (1 + ratio**2) + 2.0**-18
    if kappa > 0.25:
        raise Nothing(f"float32 sums of {n} features are too coarse")
    radius = (1.0 if kind == "unit" else math.sqrt(n)) * (1 + 2 * kappa)
    room = max(2.0**-10, 2 * kappa)
    zeros = np.zeros(n)
    return Norm(-1, radius, np.ones(n), zeros, zeros, room, unit=kind == "unit")


def _ratio(n: int) -> float:
    return 8.0 if n <= 1024 else 2.0


def _spread(label: str, names: tuple[str, ...], n: int, epsilon: float) -> Spread:
    ratio = _ratio(n)
    text = (
        f"no row that reaches {label} has a mean of more than {ratio:g} times its spread "
        "√(variance + ε): onnxruntime computes the variance as E[x²] − E[x]², which floats lose "
        "for such rows"
    )
    return Spread(text, names, ratio, epsilon)


def _normed(
    ranges: Ranges, node: Any, value: Value, norm: Norm, label: str, assumed: Assumption | None
) -> Value:
    room = max(norm.room, 16 * value.kind.floats.unit * math.sqrt(norm.size))
    norm = replace(norm, room=room).rounded(value.kind.floats)
    more = () if assumed is None else (assumed,)
    return with_rows(node.output[0], value, ranges.dims(node), norm, label=label, trail=(),
                     assumed=more)  # fmt: skip


def with_rows(name: str, value: Value, dims: Dims | None, norm: Norm, **words: Any) -> Value:
    """A value whose rows are those of a norm, with the bounds that follow."""
    low, high = norm.bounds()
    low, high = value.kind.floats.outward(low, high)
    if dims is None or len(dims) < -norm.axis:
        return fresh(name, value.kind, None, (low, high), True, **words)
    shape = [1] * len(dims)
    shape[norm.axis] = norm.size
    bounds = low.reshape(shape), high.reshape(shape)
    return fresh(name, value.kind, dims, bounds, True, rows=norm, **words)


def _last(ranges: Ranges, node: Any, value: Value) -> int:
    """The number of features, where the norm is over the last axis."""
    dims = value.dims
    if dims is None or not dims or not isinstance(dims[-1], int):
        raise Nothing("the number of features is not known")
    if not 2 <= dims[-1] <= _MOST_FEATURES:
        raise Nothing(f"its rule does not cover {dims[-1]} features")
    if int(attribute(node, "axis", -1)) not in (-1, len(dims) - 1):
        raise Nothing("it is not over the last axis")
    return dims[-1]


def _vector(ranges: Ranges, name: str, n: int, rank: int) -> np.ndarray:
    """A gain or an offset: one number for all or one a feature, along the last axis."""
    values = ranges.fixed(name)
    if values is None:
        raise Nothing(f"{name!r} is not fixed")
    plain = values.ndim <= rank and values.size == (values.shape[-1] if values.ndim else 1)
    if not plain or values.size not in (1, n) or not np.isfinite(values.astype(np.float64)).all():
        raise Nothing(f"{name!r} is not one number a feature")
    return np.broadcast_to(values.reshape(-1).astype(np.float64), (n,))


@rule("LayerNormalization", attributes=("axis", "epsilon", "stash_type"), since=17)
def layer_norm(ranges: Ranges, node: Any) -> list[Value | None]:
    """gain ⊙ u + offset with ‖u‖₂ ≤ √n (1 + κ), over the last axis, ε > 0. onnxruntime computes the
    variance as E[x²] − E[x]², which cancels for rows whose mean is large against their spread: that
    no such row arrives is assumed, and said. Σu = 0 is not claimed."""
    return [_by_name(ranges, node, "layer", 1, 2, (0,)), None, None]


@rule("com.microsoft::SkipLayerNormalization", attributes=("epsilon",))
def skip_layer_norm(ranges: Ranges, node: Any) -> list[Value | None]:
    """As LayerNormalization, of the sum of its inputs."""
    terms = (0, 1, 4) if ranges.given(node, 4) else (0, 1)
    return [_by_name(ranges, node, "layer", 2, 3, terms), None, None, None]


@rule("SimplifiedLayerNormalization", attributes=("axis", "epsilon", "stash_type"))
@rule("RMSNormalization", attributes=("axis", "epsilon", "stash_type"), since=23)
def rms_norm(ranges: Ranges, node: Any) -> list[Value | None]:
    """gain ⊙ u with ‖u‖₂ ≤ √n (1 + κ): x/√(mean of squares + ε) over the last axis, ε > 0."""
    return [_by_name(ranges, node, "rms", 1, None, (0,)), None]


@rule("com.microsoft::SkipSimplifiedLayerNormalization", attributes=("epsilon",))
def skip_rms_norm(ranges: Ranges, node: Any) -> list[Value | None]:
    """As RMSNormalization, of the sum of its inputs."""
    return [_by_name(ranges, node, "rms", 2, None, (0, 1)), None, None, None]


def _by_name(
    ranges: Ranges, node: Any, kind: str, gain: int, offset: int | None, terms: tuple[int, ...]
) -> Value:
    value = ranges.inputs(node, 0)[0]
    n = _last(ranges, node, value)
    assert value.dims is not None
    epsilon = float(attribute(node, "epsilon", 1e-5 if kind == "layer" else 0.0))
    default = any(a.name == "epsilon" for a in node.attribute)
    if kind == "rms" and not default:
        epsilon = 1e-5
    if not epsilon >= n * 2.0**-96 or not np.isfinite(epsilon):
        raise Nothing("its ε is too small for floats to see")
    norm = _rows(n, kind, _ratio(n) if kind == "layer" else 0.0)
    a = value.kind.floats
    rank = len(value.dims)
    norm = norm.rounded(a).scaled(_vector(ranges, node.input[gain], n, rank), a)
    if offset is not None and ranges.given(node, offset):
        norm = norm.shifted(_vector(ranges, node.input[offset], n, rank), a)
    label = f"{'LayerNorm' if kind == 'layer' else 'RMSNorm'} ({node_name(node)})"
    names = tuple(node.input[k] for k in terms)
    return _normed(ranges, node, value, norm, label,
                   _spread(label, names, n, epsilon) if kind == "layer" else None)  # fmt: skip


@rule("LpNormalization", attributes=("axis", "p"))
def lp_norm(ranges: Ranges, node: Any) -> Value:
    """‖u‖₂ ≤ 1 (1 + κ): x/‖x‖₂ over the last axis. Rows shorter than 2⁻⁴⁰ lose digits of their
    squares: that none but zero arrives is assumed, and said."""
    value = ranges.inputs(node, 0)[0]
    n = _last(ranges, node, value)
    if attribute(node, "p", 2) != 2:
        raise Nothing("its rule covers p = 2")
    label = f"division by the length ({node_name(node)})"
    text = f"no row that reaches {label} is shorter than {_SHORTEST:.3g}, unless it is zero"
    assumed = Length(text, (node.input[0],), _SHORTEST)
    return _normed(ranges, node, value, _rows(n, "unit", 0.0), label, assumed)


# Spelled out


class _Pattern:
    """One attempt to read a norm that ends in a node, backwards from its last step."""

    def __init__(self, ranges: Ranges, row: str) -> None:
        self.ranges, self.graph = ranges, ranges.graph
        dims = self.graph.dims.get(row)
        kind = self.graph.kinds.get(row)
        self.n, self.dims = 0, dims or ()
        self.epsilon = 0.0  # the ε inside the root
        self.floor = 0.0  # the least length, outside the root
        self.row, self.cancels, self.fits = row, "", False
        if dims and isinstance(dims[-1], int) and 2 <= dims[-1] <= _MOST_FEATURES:
            self.n = dims[-1]
            self.fits = kind is not None and kind.name in ("float32", "float64")

    def is_row_wise(self, name: str) -> bool:
        """Whether a value has one number a row, set against that row."""
        dims, lead = self.graph.dims.get(name), self.dims[:-1]
        if dims is None:
            return False
        if dims in ((*lead, 1), (*lead, self.n), lead):
            return True
        # Of two axes the first is what is left, whatever its name.
        return len(lead) == 1 and len(dims) in (1, 2) and (len(dims) == 1 or dims[1] == 1)

    def behind(self, name: str) -> Any | None:
        """The node behind a value, past steps that set one number a row against whole rows."""
        for _ in range(_MOST_STEPS):
            if not self.is_row_wise(name):
                return None
            node = self.graph.node_of(name)
            if node is None:
                return None
            op = self.graph.op(node)
            if op not in ("Identity", "Cast", "Unsqueeze", "Reshape", "Expand"):
                return node
            if op == "Cast" and not self._kept(node):
                return None
            name = node.input[0]
        return None

    def plain(self, name: str) -> str:
        """The value's first name, past steps that leave it as it is."""
        for _ in range(_MOST_STEPS):
            node = self.graph.node_of(name)
            if node is None or self.graph.op(node) not in ("Identity", "Cast"):
                break
            if self.graph.op(node) == "Cast" and not self._kept(node):
                break
            name = node.input[0]
        return name

    def _kept(self, cast: Any) -> bool:
        kinds = self.graph.kinds
        return kinds.get(cast.input[0]) is not None and (
            kinds.get(cast.input[0]) == kinds.get(cast.output[0])
        )

    def number(self, name: str) -> float | None:
        return self.graph.number(name)

    def divided(self, length: str) -> str | None:
        """row/length: the kind of norm, None where it is none."""
        if not self.is_against_rows(length):
            return None
        node = self.behind(length)
        for _ in range(4):
            op = None if node is None else self.graph.op(node)
            if op not in ("Max", "Clip", "Add"):
                break
            inner = self._above(node, root=False)
            node = None if inner is None else self.behind(inner)
        if node is None:
            return None
        op = self.graph.op(node)
        if op == "ReduceL2" and self.over_rows(node) and self.same(node.input[0], self.row):
            return "unit" if self.floor >= math.sqrt(self.n) * 2.0**-50 else None
        if op == "Sqrt":
            return self.over_root(node.input[0])
        if op == "Pow" and self.number(node.input[1]) == 0.5:
            return self.over_root(node.input[0])
        return None

    def is_against_rows(self, name: str) -> bool:
        """Whether a value keeps an axis for the features: one number, or one copied along it."""
        dims = self.graph.dims.get(name)
        return dims is not None and len(dims) == len(self.dims) and dims[-1] in (1, self.n)

    def over_root(self, radicand: str) -> str | None:
        node = self.behind(radicand)
        for _ in range(4):
            op = None if node is None else self.graph.op(node)
            if op not in ("Max", "Clip", "Add", "Relu"):
                break
            inner = self._above(node, root=True)
            node = None if inner is None else self.behind(inner)
        if node is None:
            return None
        op = self.graph.op(node)
        enough = self.epsilon >= self.n * 2.0**-96
        if op == "Sub":
            return "layer" if enough and self.variance(node) else None
        if op == "ReduceSum" and self.over_rows(node) and self.is_square(node.input[0], self.row):
            return "unit" if enough or self.floor >= math.sqrt(self.n) * 2.0**-50 else None
        squares = self.mean(node)
        if squares is None or not enough or not self.is_square(squares, self.row):
            return None
        return "rms" if self.centred(self.row) is None else "layer"

    def variance(self, node: Any) -> bool:
        """E[v²] − E[v]², with the row v − E[v]."""
        if len({self.graph.dims.get(name) for name in (*node.input, *node.output)}) != 1:
            return False
        v = self.centred(self.row)
        first = self.behind(node.input[0])
        squares = None if first is None else self.mean(first)
        second = self.behind(node.input[1])
        if v is None or squares is None or second is None or not self.is_square(squares, v):
            return False
        op = self.graph.op(second)
        squared = op == "Pow" and self.number(second.input[1]) == 2
        if not squared and not (op == "Mul" and second.input[0] == second.input[1]):
            return False
        third = self.behind(second.input[0])
        mean = None if third is None else self.mean(third)
        return mean is not None and self.plain(mean) == self.plain(v)

    def centred(self, row: str) -> str | None:
        """v, where the row is v minus its own mean."""
        node = self.graph.node_of(self.plain(row))
        if node is None or self.graph.op(node) != "Sub":
            return None
        if self.graph.dims.get(node.input[0]) != self.graph.dims.get(node.output[0]):
            return None
        if not self.is_against_rows(node.input[1]):
            return None
        reduced = self.behind(node.input[1])
        mean = None if reduced is None else self.mean(reduced)
        if mean is None or self.plain(mean) != self.plain(node.input[0]):
            return None
        return str(node.input[0])

    def mean(self, node: Any) -> str | None:
        """What is averaged over the last axis: by a mean, or a sum and the number of features."""
        op = self.graph.op(node)
        if op == "ReduceMean":
            return str(node.input[0]) if self.over_rows(node) else None
        if op not in ("Mul", "Div"):
            return None
        orders = [(node.input[0], node.input[1])]
        if op == "Mul":
            orders.append((node.input[1], node.input[0]))
        for total, share in orders:
            number = self.number(share)
            if number is None or not number > 0:
                continue
            size = number if op == "Div" else 1 / number
            summed = self.behind(total)
            if summed is None or self.graph.op(summed) != "ReduceSum":
                continue
            if abs(size - self.n) <= 2.0**-22 * self.n and self.over_rows(summed):
                return str(summed.input[0])
        return None

    def over_rows(self, node: Any) -> bool:
        """Whether a reduction is over the last axis alone, of values shaped like the row."""
        if self.graph.dims.get(node.input[0]) != self.dims:
            return False
        return self.graph.axes(node, len(self.dims)) == [len(self.dims) - 1]

    def is_square(self, name: str, row: str) -> bool:
        node = self.graph.node_of(self.plain(name))
        if node is None or len(node.input) != 2:
            return False
        if self.graph.op(node) == "Pow" and self.number(node.input[1]) == 2:
            return self.same(node.input[0], row)
        if self.graph.op(node) == "Mul":
            return self.same(node.input[0], row) and self.same(node.input[1], row)
        return False

    def same(self, first: str, second: str) -> bool:
        """Whether two names are one value: by name, or v − mean(v) computed twice."""
        first, second = self.plain(first), self.plain(second)
        if first == second:
            return True
        left, right = self.centred(first), self.centred(second)
        return left is not None and right is not None and self.plain(left) == self.plain(right)

    def _above(self, node: Any, root: bool) -> str | None:
        """The input of + ε, max(·, ε) or ReLU that is not a constant; the constant is kept."""
        op = self.graph.op(node)
        if op == "Relu":
            return str(node.input[0])
        if op == "Clip":
            if (len(node.input) > 2 and node.input[2]) or attribute(node, "max", None) is not None:
                return None
            given = len(node.input) > 1 and node.input[1]
            number = self.number(node.input[1]) if given else attribute(node, "min", None)
            inner = str(node.input[0])
        else:
            if len(node.input) != 2:
                return None
            numbers = [self.number(name) for name in node.input]
            if (numbers[0] is None) == (numbers[1] is None):
                return None
            place = 0 if numbers[0] is None else 1
            number, inner = numbers[1 - place], str(node.input[place])
        if number is None or not 0 <= number < 2.0**60:
            return None
        if self.graph.dims.get(inner) != self.graph.dims.get(node.output[0]):
            return None
        if root:
            self.epsilon += number if op == "Add" else 0.0
            if op in ("Max", "Clip"):
                self.epsilon = max(self.epsilon, number)
        else:
            self.floor = max(self.floor, number)
        return inner


def norm_ending_in(ranges: Ranges, node: Any) -> Value | None:
    """What a Div or Mul leaves where it is the last step of a norm spelled out, else None."""
    if len(node.input) != 2:
        return None
    if node.op_type == "Div":
        return _ended(ranges, node, node.input[0], node.input[1], "divided")
    for row, factor in (node.input, node.input[::-1]):
        found = _ended(ranges, node, row, factor, "multiplied")
        if found is not None:
            return found
    return None


def _ended(ranges: Ranges, node: Any, row: str, other: str, how: str) -> Value | None:
    pattern = _Pattern(ranges, row)
    if not pattern.fits or ranges.graph.dims.get(node.output[0]) != pattern.dims:
        return None
    gains: list[np.ndarray] = []
    kind: str | None
    if how == "divided":
        kind = pattern.divided(other)
    else:
        kind = _multiplied(ranges, pattern, other, gains)
    if kind is None:
        return None
    value = ranges.of(row)
    a = value.kind.floats
    # A run-time may put these steps together to one LayerNormalization.
    try:
        norm = _rows(pattern.n, kind, _ratio(pattern.n) if kind == "layer" else 0.0)
    except Nothing:
        return None
    norm = norm.rounded(a)
    for gain in gains:
        norm = norm.scaled(gain, a)
    place = f"spelled out, ending in {node_name(node)}"
    called = {"layer": "LayerNorm", "rms": "RMSNorm", "unit": "division by the length"}
    label = f"{called[kind]} ({place})"
    assumed = None
    if kind == "layer":
        inner = pattern.centred(row)
        assert inner is not None
        assumed = _spread(label, (pattern.plain(inner),), pattern.n, pattern.epsilon)
    return _normed(ranges, node, value, norm, label, assumed)


def _multiplied(
    ranges: Ranges, pattern: _Pattern, factor: str, gains: list[np.ndarray], left: int = 2
) -> str | None:
    """row · factor, where the factor is one over a root, perhaps times a constant gain or two."""
    graph = ranges.graph
    node = pattern.behind(factor) if pattern.is_row_wise(factor) else graph.node_of(factor)
    if node is None or not pattern.is_against_rows(factor):
        return None
    op = graph.op(node)
    if op == "Reciprocal":
        return pattern.divided(node.input[0]) if pattern.is_against_rows(node.input[0]) else None
    if op == "Div" and graph.number(node.input[0]) == 1:
        return pattern.divided(node.input[1])
    if op == "Pow" and graph.number(node.input[1]) == -0.5:
        return pattern.over_root(node.input[0])
    if op == "Mul" and left:
        for inner, gain in (node.input, node.input[::-1]):
            if graph.constants.is_fixed(gain) and not graph.constants.is_constant(inner):
                try:
                    values = _vector(ranges, gain, pattern.n, len(pattern.dims))
                except Nothing:
                    return None
                kind = _multiplied(ranges, pattern, inner, gains, left - 1)
                if kind is not None:
                    gains.append(values)
                    return kind
    return None


def affine_rows(ranges: Ranges, node: Any, op: str, a: Value, b: Value) -> Rows | None:
    """The rows after a constant was added to or multiplied with them, feature by feature."""
    if len(node.input) != 2 or op not in ("Add", "Sub", "Mul", "Div"):
        return None
    for value, constant, swapped in ((a, node.input[1], False), (b, node.input[0], True)):
        rows, fixed = value.rows, ranges.fixed(constant) if constant else None
        dims = ranges.dims(node)
        if rows is None or fixed is None or value.dims is None or value.dims != dims:
            continue
        if not np.isfinite(fixed.astype(np.float64)).all():
            return None
        number: np.ndarray
        if fixed.size == 1:
            number = fixed.reshape(()).astype(np.float64)
        elif fixed.ndim >= -rows.axis and fixed.shape[rows.axis] == fixed.size == rows.size:
            number = fixed.reshape(-1).astype(np.float64)
        else:
            return None
        arithmetic = value.kind.floats
        if op == "Add":
            return rows.shifted(number, arithmetic)
        if op == "Sub":
            if swapped:
                return rows.scaled(np.asarray(-1.0), arithmetic).shifted(number, arithmetic)
            return rows.shifted(-number, arithmetic)
        if op == "Mul":
            return rows.scaled(number, arithmetic)
        if op == "Div" and not swapped and (np.abs(np.frexp(number)[0]) == 0.5).all():
            return rows.scaled(1 / number, arithmetic)  # only powers of two divide exactly
    return None
