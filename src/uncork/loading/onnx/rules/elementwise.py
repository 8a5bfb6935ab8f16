"""Rules of ops that take each element by itself: activations, sums, products, choices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.loading.onnx.arriving.functions import Expression, apply, combine, range_of, spelled_out
from uncork.loading.onnx.arriving.value import Value, fresh, node_name
from uncork.loading.onnx.intervals import Bounds
from uncork.loading.onnx.kinds import cast
from uncork.loading.onnx.rules.norms import affine_rows, norm_ending_in
from uncork.loading.onnx.rules.table import Nothing, rule
from uncork.loading.onnx.tensors import attribute, attribute_text

if TYPE_CHECKING:
    from uncork.loading.onnx.arriving.ranges import Ranges

# Ops whose result is NaN wherever one of their arguments is.
_STRICT = {"Add", "Sub", "Mul", "Div", "Neg", "Square", "Reciprocal"}
_MOST_TERMS = 16  # of a sum, a maximum, a minimum


def _float(value: Value) -> Value:
    if not value.kind.is_float:
        raise Nothing(f"its rule covers floats, not {value.kind.name}")
    return value


def _label(node: Any, name: str = "") -> str:
    return f"{name or node.op_type} ({node_name(node)})"


def one(ranges: Ranges, node: Any, numbers: tuple[float, ...] = (), op: str = "") -> Value:
    """A function of each element by itself."""
    value, op = _float(ranges.inputs(node, 0)[0]), op or str(node.op_type)
    with np.errstate(all="ignore"):
        bounds = apply(value.kind.floats, op, [value.open_bounds], numbers)
    nan = value.nan or (op in ("Sqrt", "Log") and bool((value.lower < 0).any()))
    nan |= op in ("Pow", "Softsign")
    term = combine(op, value.expression, numbers=numbers)
    name = node.output[0]
    # Run-times leave out what only cuts off before a quantisation that does so too.
    pairs = value.pairs if op in ("Relu", "Clip") else ()
    made = fresh(name, value.kind, value.dims, bounds, nan, like=value, label=_label(node),
                 trail=(), pairs=pairs)  # fmt: skip
    if not term.short:
        return made
    return replace(made, root=value.root, expression=term, root_range=value.root_range)


@rule("Relu", "Tanh", "Sigmoid", "Erf", "Softplus", "Exp", "Log", "Sqrt", "Atan", "Softsign", "Neg",
      "Abs", "Reciprocal")  # fmt: skip
def plain(ranges: Ranges, node: Any) -> Value:
    """Monotone, or so on either side of zero: the bounds are the function's values at the ends of
    its input's, widened by what run-times get wrong (16 units; sigmoid and its like also 16 units
    of their limits) and rounded outward. NaN may become any of the function's values."""
    return one(ranges, node)


@rule("LeakyRelu", "Elu", "ThresholdedRelu", attributes=("alpha",))
@rule("Celu", attributes=("alpha",), since=12, until=27)
def bent(ranges: Ranges, node: Any) -> Value:
    """max(x, 0) plus a monotone function of min(x, 0), by intervals."""
    default = 0.01 if node.op_type == "LeakyRelu" else 1.0
    return one(ranges, node, (float(attribute(node, "alpha", default)),))


@rule("Selu", attributes=("alpha", "gamma"))
def selu(ranges: Ranges, node: Any) -> Value:
    """γ(max(x, 0) + α(exp(min(x, 0)) − 1)), by intervals."""
    alpha = float(attribute(node, "alpha", 1.6732631921768188))
    return one(ranges, node, (alpha, float(attribute(node, "gamma", 1.0507010221481323))))


@rule("HardSigmoid", attributes=("alpha", "beta"))
def hard_sigmoid(ranges: Ranges, node: Any) -> Value:
    """αx + β cut off at 0 and 1, by intervals."""
    alpha = float(attribute(node, "alpha", np.float32(0.2)))
    return one(ranges, node, (alpha, float(attribute(node, "beta", 0.5))))


@rule("Clip", attributes=("min", "max"))
def clip(ranges: Ranges, node: Any) -> Value:
    """min(max(x, lo), hi) for fixed numbers lo ≤ hi, rounded either way; NaN becomes one of these,
    or stays."""
    ends = []
    for place, name, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        if ranges.given(node, place):
            number = ranges.graph.number(node.input[place])
            if number is None:
                raise Nothing("its limits are not fixed")
            ends.append(number)
        else:
            ends.append(float(attribute(node, name, default)))
    if not ends[0] <= ends[1]:
        raise Nothing("its limits are the wrong way round")
    value = ranges.inputs(node, 0)[0]
    if not value.kind.is_float:
        low, high = (np.clip(end, ends[0], ends[1]) for end in value.bounds)
        return fresh(node.output[0], value.kind, value.dims, (low, high), nan=False, like=value)
    return one(ranges, node, (ends[0], ends[1]))


@rule("PRelu")
def prelu(ranges: Ranges, node: Any) -> Value:
    """max(x, 0) + slope·min(x, 0) for slopes within bounds, by intervals."""
    value, slope = map(_float, ranges.inputs(node, 0, 1))
    a, dims = value.kind.floats, ranges.dims(node)
    x, s = _aligned(value.open_bounds, slope.bounds, value, slope)
    positive = np.maximum(x[0], 0.0), np.maximum(x[1], 0.0)
    negative = np.minimum(x[0], 0.0), np.minimum(x[1], 0.0)
    low, high = a.multiply(negative, s)
    # Either the one or the other is zero.
    bounds = np.minimum(low, positive[0]), np.maximum(high, positive[1])
    nan = value.nan or slope.nan or not np.isfinite(s).all()
    return fresh(node.output[0], value.kind, dims, bounds, nan, like=value, label=_label(node))


@rule("Pow")
def power(ranges: Ranges, node: Any) -> Value:
    """x¹, x², x³, √x and 1/√x by intervals; of other powers nothing is known."""
    exponent = ranges.graph.number(node.input[1]) if ranges.given(node, 1) else None
    if exponent not in (1.0, 2.0, 3.0, 0.5, -0.5):
        raise Nothing("its exponent is not 1, 2, 3, ½ or −½")
    if ranges.of(node.input[1]).dims not in ((), (1,)):
        raise Nothing("its exponent is not a single number")
    return one(ranges, node, (exponent,))


@rule("HardSwish", "Mish")
def gated(ranges: Ranges, node: Any) -> Value:
    """x times a function of x: the least and the largest value by branch and bound over every
    float, with the intervals of its parts."""
    return _gated(ranges, node, node.op_type, ())


@rule("Gelu", attributes=("approximate",), since=20)
def gelu(ranges: Ranges, node: Any) -> Value:
    """x(1 + erf(x/√2))/2, or the same by tanh: branch and bound over every float."""
    by_tanh = attribute_text(node, "approximate") == "tanh"
    return _gated(ranges, node, "Gelu", (1.0,) if by_tanh else ())


@rule("com.microsoft::Gelu", "com.microsoft::BiasGelu")
def microsoft_gelu(ranges: Ranges, node: Any) -> Value:
    """Gelu of x, or of x + bias: branch and bound over every float."""
    return _gated(ranges, node, "Gelu", ())


@rule("com.microsoft::FastGelu")
def fast_gelu(ranges: Ranges, node: Any) -> Value:
    """Gelu by tanh of x, or of x + bias: branch and bound over every float."""
    return _gated(ranges, node, "Gelu", (1.0,))


@rule("com.microsoft::QuickGelu", attributes=("alpha",))
def quick_gelu(ranges: Ranges, node: Any) -> Value:
    """x·sigmoid(αx): branch and bound over every float."""
    alpha = float(attribute(node, "alpha", np.float32(1.702)))
    return _gated(ranges, node, "Swish", (alpha,))


@rule("Swish", attributes=("alpha",), since=24)
def swish(ranges: Ranges, node: Any) -> Value:
    """x·sigmoid(αx): branch and bound over every float."""
    return _gated(ranges, node, "Swish", (float(attribute(node, "alpha", 1.0)),))


def _gated(ranges: Ranges, node: Any, kind: str, numbers: tuple[float, ...]) -> Value:
    value = _float(ranges.inputs(node, 0)[0])
    span = value.hull
    if len(node.input) > 1 and node.input[1]:  # + bias
        span = (-np.inf, np.inf)
    if value.kind.floats.bits > 24:
        raise Nothing(f"its rule does not cover {value.kind.name}")
    start = fresh(f"{node.output[0]} of", value.kind, value.dims, tuple(map(np.asarray, span)),
                  value.nan)  # fmt: skip
    term = spelled_out(kind, start.expression, numbers)
    low, high = _searched(ranges, start, term)
    # As one node a run-time computes it in its own way, with a few roundings more.
    slack = 2.0**-18 if value.kind.floats.bits == 24 else 4 * value.kind.floats.unit
    low, high = low - abs(low) * slack, high + abs(high) * slack
    return fresh(
        node.output[0], value.kind, value.dims, (np.asarray(low), np.asarray(high)), True,
        label=_label(node), assumed=value.assumed,
    )  # fmt: skip


def _searched(ranges: Ranges, start: Value, term: Expression) -> tuple[float, float]:
    if ranges.searches <= 0:
        raise Nothing("too many functions of one value were searched already")
    ranges.searches -= 1
    with np.errstate(all="ignore"):
        return range_of(term, start.kind.floats, *start.root_range)


@rule("Add", "Sub", "Mul", "Div")
def arithmetic(ranges: Ranges, node: Any) -> Value:
    """Interval arithmetic, rounded outward, element by element with broadcasting. Two functions of
    one element are taken together: their range by branch and bound over every float. Whole numbers
    outside their type wrap, so nothing but the type bounds them. The last step of a norm is taken
    as that norm, if the graph spells it out in full."""
    if node.op_type in ("Mul", "Div"):
        norm = norm_ending_in(ranges, node)
        if norm is not None:
            return norm
    a, b = ranges.inputs(node, 0, 1)
    return _two(ranges, node, str(node.op_type), a, b)


@rule("Max", "Min", "Sum")
def several(ranges: Ranges, node: Any) -> Value:
    """As for two, one after the other; the larger (smaller) of two lies between the larger
    (smaller) of their lower bounds and that of their upper ones."""
    if not 1 <= len(node.input) <= _MOST_TERMS:
        raise Nothing(f"its rule covers {_MOST_TERMS} inputs at most")
    op = "Add" if node.op_type == "Sum" else str(node.op_type)
    total = _float(ranges.inputs(node, 0)[0])
    for place in range(1, len(node.input)):
        total = _two(ranges, node, op, total, _float(ranges.inputs(node, place)[0]))
    # A run-time may add in another order: more terms, more roundings.
    if op == "Add" and len(node.input) > 2:
        size = np.maximum(np.abs(total.lower), np.abs(total.upper))
        parts = sum(max(map(abs, ranges.of(name).hull)) for name in node.input)
        slack = np.maximum(size, parts) * len(node.input) * 2 * total.kind.floats.unit
        total = replace(total, lower=total.lower - slack, upper=total.upper + slack)
    return fresh(node.output[0], total.kind, total.dims, total.bounds, total.nan, like=total)


def _two(ranges: Ranges, node: Any, op: str, a: Value, b: Value) -> Value:
    dims, name = ranges.dims(node), node.output[0]
    if not a.kind.is_float:
        return _whole(node, op, a, b, dims)
    left, right = (a.bounds, b.bounds) if op not in ("Max", "Min") else (
        a.open_bounds, b.open_bounds)  # fmt: skip
    x, y = _aligned(left, right, a, b)
    with np.errstate(all="ignore"):
        bounds = apply(a.kind.floats, op, [x, y])
    nan = a.nan or b.nan or _indefinite(op, x, y)
    fixed = [ranges.graph.number(i) if i else None for i in node.input[:2]]
    made = fresh(name, a.kind, dims, bounds, nan, label=_joined_label(op, a, b),
                 trail=_joined_trail(a, b), assumed=(*a.assumed, *b.assumed))  # fmt: skip
    rows = affine_rows(ranges, node, op, a, b)
    if rows is not None:
        made = replace(made, rows=rows)
    if len(node.input) != 2 or dims is None:
        return made
    for value, number, swapped in ((a, fixed[1], False), (b, fixed[0], True)):
        if number is not None and value.dims == dims:
            constant = Expression("constant", numbers=(number,))
            terms = (constant, value.expression) if swapped else (value.expression, constant)
            term = combine(op, *terms)
            if term.short:
                made = replace(made, root=value.root, expression=term,
                               root_range=value.root_range)  # fmt: skip
            return made
    if a.root == b.root and a.dims == b.dims == dims:
        return _together(ranges, node, op, a, b, made)
    return made


def _together(ranges: Ranges, node: Any, op: str, a: Value, b: Value, made: Value) -> Value:
    """Two functions of one element: taken together, intervals see what cancels."""
    term = combine(op, a.expression, b.expression)
    start = ranges.values.get(a.root)
    nan = start is None or start.nan
    if not term.short or ranges.searches <= 0 or (nan and not _strict(term)):
        return made
    low, high = _searched(ranges, a, term)
    return replace(
        made, lower=np.maximum(made.lower, low), upper=np.minimum(made.upper, high), root=a.root,
        expression=term, root_range=a.root_range, label=f"{_called(term)} ({node_name(node)})",
        trail=(), assumed=a.assumed,
    )  # fmt: skip


def _strict(term: Expression) -> bool:
    """Whether NaN comes out wherever NaN goes in."""
    if term.op == "x":
        return True
    return term.op in _STRICT and any(_strict(inner) for inner in term.terms)


def _whole(node: Any, op: str, a: Value, b: Value, dims: Any) -> Value:
    bounds = np.asarray(a.kind.least), np.asarray(a.kind.most)
    if op in ("Add", "Sub", "Mul") and a.kind.most <= 2.0**32:  # exact in float64
        x, y = _aligned(a.bounds, b.bounds, a, b)
        pairs = [_exactly(op, x[i], y[j]) for i in (0, 1) for j in (0, 1)]
        low, high = np.minimum.reduce(pairs), np.maximum.reduce(pairs)
        if low.min() >= a.kind.least and high.max() <= a.kind.most:
            bounds = low, high
    return fresh(node.output[0], a.kind, dims, bounds, nan=False, like=a)


def _exactly(op: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(x + y if op == "Add" else x - y if op == "Sub" else x * y)


def _aligned(x: Bounds, y: Bounds, a: Value, b: Value) -> tuple[Bounds, Bounds]:
    """Bounds of two values, ready to be broadcast; one for all where a shape is not known."""
    if a.dims is None or b.dims is None:
        x, y = ((np.asarray(end[0].min()), np.asarray(end[1].max())) for end in (x, y))
        return x, y
    rank = max(len(a.dims), len(b.dims))
    x, y = (
        (_raised(ends[0], rank), _raised(ends[1], rank)) for ends in (x, y)
    )  # fmt: skip
    shape = np.broadcast_shapes(x[0].shape, y[0].shape)
    return tuple((np.broadcast_to(e[0], shape), np.broadcast_to(e[1], shape))
                 for e in (x, y))  # type: ignore[return-value]  # fmt: skip


def _raised(end: np.ndarray, rank: int) -> np.ndarray:
    return end.reshape((1,) * (rank - end.ndim) + end.shape)


def _indefinite(op: str, x: Bounds, y: Bounds) -> bool:
    """Whether ∞ − ∞, 0·∞, 0/0 or ∞/∞ can be there."""
    endless = [np.isinf(ends[0]) | np.isinf(ends[1]) for ends in (x, y)]
    zero = [(ends[0] <= 0) & (ends[1] >= 0) for ends in (x, y)]
    if op in ("Add", "Sub"):
        return bool((endless[0] & endless[1]).any())
    if op == "Mul":
        return bool(((endless[0] & zero[1]) | (zero[0] & endless[1])).any())
    if op == "Div":
        return bool(((endless[0] & endless[1]) | (zero[0] & zero[1])).any())
    return False


_SIGN = {"Add": "+", "Sub": "−", "Mul": "×", "Div": "÷", "Max": "or", "Min": "or"}


def _joined_label(op: str, a: Value, b: Value) -> str:
    """What a sum or product comes from, constants left out."""
    names = [value.label for value in (a, b) if value.label]
    if len(names) < 2 or names[0] == names[1]:
        return names[0] if names else ""
    if any(" + " in name or len(name) > 120 for name in names):
        return names[0] if names[0].endswith(" and more") else f"{names[0]} and more"
    return f" {_SIGN[op]} ".join(names)


def _joined_trail(a: Value, b: Value) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*a.trail, *b.trail)))


def _called(term: Expression) -> str:
    """What people call a product of x and something of x."""
    ops = term.operations()
    if "Softplus" in ops:
        return "Mish"
    if ops & {"Erf", "OnePlusErf"}:
        return "GELU"
    if ops & {"Tanh", "OnePlusTanh"} and "Sigmoid" not in ops:
        return "GELU by tanh"
    if "Sigmoid" in ops:
        return "SiLU"
    if ops & {"HardSigmoid", "Clip"}:
        return "HardSwish"
    return "a function of one value"


@rule("Where", since=9)
def where(ranges: Ranges, node: Any) -> Value:
    """One of two values, element by element: the hull of their bounds."""
    a, b = ranges.inputs(node, 1, 2)
    dims = ranges.dims(node)
    x, y = _aligned(a.bounds, b.bounds, a, b)
    bounds = np.minimum(x[0], y[0]), np.maximum(x[1], y[1])
    label = _joined_label("Max", a, b)
    return fresh(node.output[0], a.kind, dims, bounds, a.nan or b.nan, label=label,
                 trail=_joined_trail(a, b), assumed=(*a.assumed, *b.assumed))  # fmt: skip


@rule("Identity")
def identity(ranges: Ranges, node: Any) -> Value:
    """The same value."""
    return ranges.inputs(node, 0)[0]


@rule("Dropout", attributes=("ratio", "seed"))
def dropout(ranges: Ranges, node: Any) -> list[Value | None]:
    """The same value where nothing asks for training; in training elements are dropped and the
    rest scaled up, and nothing is known."""
    if ranges.given(node, 2):
        training = ranges.fixed(node.input[2])
        if training is None or training.any():
            raise Nothing("it may be in training mode")
    return [ranges.inputs(node, 0)[0].through(node, "Dropout"), None]


@rule("Cast", attributes=("to", "saturate"), until=27)
@rule("CastLike", attributes=("saturate",), since=15)
def casted(ranges: Ranges, node: Any) -> Value:
    """Between floats: rounded to the nearest, which is monotone. To whole numbers: cut off towards
    zero where the type holds the whole range, else (and for NaN) any number of the type."""
    value = ranges.inputs(node, 0)[0]
    target = ranges.graph.kinds.get(node.output[0])
    if target is None:
        raise Nothing("the type it converts to is not known")
    if target == value.kind:
        return value.through(node, "Cast")
    bounds, nan = cast(value.bounds, value.nan, value.kind, target)
    made = fresh(node.output[0], target, value.dims, bounds, nan, like=value)
    if value.rows is not None and target.is_float and value.kind.is_float:
        made = replace(made, rows=value.rows.rounded(target.floats))
    return made.through(node, f"Cast to {target.name}")
