"""Functions of one number, as a graph spells them out, and how small and large each can be.

SiLU, GELU, Mish and their like leave an exporter as three to ten nodes, in any order and with any
constants. No pattern is matched here: the expression is kept as it stands, and its range found by
branch and bound over every number of the run-time's type, with rigorous intervals.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from uncork.loading.onnx.intervals import Arithmetic, Bounds

_MOST_TERMS = 64  # of one expression
_MOST_PIECES = 4096
_MOST_ROUNDS = 80
_SHARP = 2.0**-19  # how near the bound comes to a value that is reached, relative to its size

RISING = ("Sigmoid", "Tanh", "Erf", "Softplus", "Exp", "Log", "Sqrt", "Atan", "Softsign")
BINARY = {"Add", "Sub", "Mul", "Div", "Max", "Min"}


@dataclass(frozen=True, eq=False)
class Expression:
    """A term: "x", "constant", or an operation on other terms with its numbers."""

    op: str
    terms: tuple[Expression, ...] = ()
    numbers: tuple[float, ...] = ()
    size: int = field(init=False)
    text: str = field(init=False)  # the expression as it reads: two of one text are alike

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", 1 + sum(term.size for term in self.terms))
        inner = ", ".join([*(term.text for term in self.terms), *map(repr, self.numbers)])
        text = f"{self.op}({inner})" if self.short else ""
        object.__setattr__(self, "text", text)

    @property
    def short(self) -> bool:
        return self.size <= _MOST_TERMS

    def operations(self) -> set[str]:
        return {self.op}.union(*(term.operations() for term in self.terms))

    def over(self, arithmetic: Arithmetic, x: Bounds) -> Bounds:
        """Bounds on the expression's values for x within bounds, element by element."""
        known: dict[int, Bounds] = {}

        def value(term: Expression) -> Bounds:
            if id(term) not in known:
                if term.op == "x":
                    known[id(term)] = x
                elif term.op == "constant":
                    known[id(term)] = _number(arithmetic, term.numbers[0], x)
                else:
                    known[id(term)] = apply(
                        arithmetic, term.op, [value(t) for t in term.terms], term.numbers
                    )
            return known[id(term)]

        return value(self)


X = Expression("x")
_FOUND: dict[tuple[str, Arithmetic, float, float], tuple[float, float]] = {}  # searched before
_MOST_FOUND = 4096


def combine(op: str, *terms: Expression, numbers: tuple[float, ...] = ()) -> Expression:
    """The term for an operation, with cancellation that intervals cannot see taken out."""
    if op == "Add":
        for one, other in (terms, terms[::-1]):
            if one.op == "constant" and one.numbers == (1.0,) and other.op in ("Tanh", "Erf"):
                return Expression(f"OnePlus{other.op}", other.terms)
    if op == "Mul" and terms[0] is terms[1]:
        return Expression("Square", terms[:1])
    return Expression(op, terms, numbers)


def apply(a: Arithmetic, op: str, given: list[Bounds], numbers: tuple[float, ...] = ()) -> Bounds:
    """Bounds on one operation's results from bounds on what it is given."""
    x = given[0]
    if op in RISING or op.startswith("OnePlus"):
        return a.function(op, x)
    if op in BINARY:
        return _binary(a, op, x, given[1])
    if op == "Neg":
        return -x[1], -x[0]
    if op == "Abs":
        inside = (x[0] <= 0) & (x[1] >= 0)
        ends = np.abs(x[0]), np.abs(x[1])
        return np.where(inside, 0.0, np.minimum(*ends)), np.maximum(*ends)
    if op == "Reciprocal":
        return a.reciprocal(x)
    if op == "Square":
        return a.square(x)
    if op == "Pow":
        return _power(a, x, numbers[0])
    if op == "Clip":
        # Each limit as the run-time holds it: rounded either way, or flushed to zero.
        least, most = _number(a, numbers[0], x), _number(a, numbers[1], x)
        return (
            np.minimum(np.maximum(x[0], least[0]), most[0]),
            np.minimum(np.maximum(x[1], least[1]), most[1]),
        )
    if op == "HardSigmoid":
        line = a.add(a.multiply(x, _number(a, numbers[0], x)), _number(a, numbers[1], x))
        return np.clip(line[0], 0.0, 1.0), np.clip(line[1], 0.0, 1.0)
    if op == "ThresholdedRelu":  # x above the threshold, else zero
        low, high = _number(a, numbers[0], x)
        above = np.where(x[0] > high, x[0], np.minimum(0.0, low))
        return above, np.where(x[1] > low, np.maximum(x[1], 0.0), 0.0)
    positive = np.maximum(x[0], 0.0), np.maximum(x[1], 0.0)
    negative = np.minimum(x[0], 0.0), np.minimum(x[1], 0.0)
    if op == "Relu":
        return positive
    if op in ("LeakyRelu", "PRelu"):
        return a.add(positive, a.multiply(negative, _number(a, numbers[0], x)))
    if op == "Celu":
        negative = a.divide(negative, _number(a, numbers[0], x))
    if op in ("Elu", "Celu", "Selu"):
        bent = a.multiply(a.function("Expm1", negative), _number(a, numbers[0], x))
        both = a.add(positive, bent)
        return a.multiply(both, _number(a, numbers[1], x)) if op == "Selu" else both
    raise KeyError(op)


def _binary(a: Arithmetic, op: str, x: Bounds, y: Bounds) -> Bounds:
    if op == "Add":
        return a.add(x, y)
    if op == "Sub":
        return a.subtract(x, y)
    if op == "Mul":
        return a.multiply(x, y)
    if op == "Div":
        return a.divide(x, y)
    pick = np.maximum if op == "Max" else np.minimum
    return pick(x[0], y[0]), pick(x[1], y[1])


def _number(a: Arithmetic, value: float, like: Bounds) -> Bounds:
    """A number that the run-time holds in its own type, or in a finer one."""
    number = np.full_like(like[0], value)
    return a.outward(number, number)


def _power(a: Arithmetic, x: Bounds, exponent: float) -> Bounds:
    if exponent == 1:
        return x
    if exponent == 2:
        return a.square(x)
    if exponent == 3:  # rises, and its sign is that of x
        ends = []
        for end in x:
            size = np.abs(end)
            ends.append(a.multiply(a.multiply((size, size), (size, size)), (size, size)))
        low = np.where(x[0] >= 0, ends[0][0], -ends[0][1])
        high = np.where(x[1] >= 0, ends[1][1], -ends[1][0])
        return low, high
    if exponent == 0.5:
        return a.function("Sqrt", x)
    if exponent == -0.5:
        return a.reciprocal(a.function("Sqrt", x))
    return np.full_like(x[0], -np.inf), np.full_like(x[1], np.inf)


def spelled_out(op: str, x: Expression, numbers: tuple[float, ...]) -> Expression:
    """An activation that is a product of x and something of x, as an expression."""
    half = Expression("constant", numbers=(0.5,))
    if op == "HardSwish":
        gate = Expression("HardSigmoid", (x,), (1 / 6, 0.5))
    elif op == "Swish":
        scaled = x if numbers[0] == 1 else combine("Mul", x, _constant(numbers[0]))
        gate = Expression("Sigmoid", (scaled,))
    elif op == "Mish":
        gate = Expression("Tanh", (Expression("Softplus", (x,)),))
    elif numbers and numbers[0]:  # GELU by tanh
        cube = combine("Mul", Expression("Pow", (x,), (3.0,)), _constant(0.044715))
        inner = combine("Mul", combine("Add", x, cube), _constant(0.7978845608028654))
        gate = combine("Mul", Expression("OnePlusTanh", (inner,)), half)
    else:
        inner = combine("Mul", x, _constant(0.7071067811865476))
        gate = combine("Mul", Expression("OnePlusErf", (inner,)), half)
    return combine("Mul", x, gate)


def _constant(number: float) -> Expression:
    return Expression("constant", numbers=(number,))


def range_of(
    expression: Expression, arithmetic: Arithmetic, lower: float, upper: float
) -> tuple[float, float]:
    """The least and the largest value for lower ≤ x ≤ upper, rigorously and sharply."""
    key = (expression.text, arithmetic, lower, upper)
    if key not in _FOUND:
        if len(_FOUND) >= _MOST_FOUND:
            _FOUND.clear()
        _FOUND[key] = _search(expression, arithmetic, lower, upper)
    return _FOUND[key]


def _search(
    expression: Expression, arithmetic: Arithmetic, lower: float, upper: float
) -> tuple[float, float]:
    low = _least(expression, arithmetic, lower, upper)
    high = -_least(Expression("Neg", (expression,)), arithmetic, lower, upper)
    endless = np.sqrt(arithmetic.largest)  # reached only where x itself is endless
    if np.isfinite(lower) and np.isfinite(upper):
        endless = np.inf
    return (-np.inf if low < -endless else low), (np.inf if high > endless else high)


def _least(expression: Expression, arithmetic: Arithmetic, lower: float, upper: float) -> float:
    """Branch and bound: pieces that may hold less than a value already reached are halved."""
    left, right = _octaves(arithmetic, lower, upper)
    best = np.inf  # some value of the expression is at most this
    for _ in range(_MOST_ROUNDS):
        bounds, _ = expression.over(arithmetic, (left, right))
        middle = arithmetic.down(left / 2 + right / 2)
        middle = np.where((middle > left) & (middle < right), middle, left)
        _, reached = expression.over(arithmetic, (middle, middle))
        best = min(best, float(reached.min()))
        open_ = bounds < best
        left, right, middle, bounds = left[open_], right[open_], middle[open_], bounds[open_]
        if not len(bounds) or bounds.min() >= best - _SHARP * abs(best):
            break
        halved = middle > left
        if halved.sum() > _MOST_PIECES // 2:
            halved &= bounds <= np.partition(bounds, _MOST_PIECES // 2)[_MOST_PIECES // 2]
        if not halved.any() or len(left) + halved.sum() > 4 * _MOST_PIECES:
            break
        left, right = (
            np.concatenate([left, middle[halved]]),
            np.concatenate([np.where(halved, middle, right), right[halved]]),
        )
    return float(min(best, bounds.min(initial=np.inf)))


def _octaves(a: Arithmetic, lower: float, upper: float) -> Bounds:
    """From the least to the largest float, cut at zero and at the powers of two."""
    lower, upper = max(lower, -a.largest), min(upper, a.largest)
    top = int(np.frexp(a.largest)[1])
    powers = np.append(np.ldexp(1.0, np.arange(-a.bits, top)), a.largest)
    cuts = np.unique(np.concatenate([-powers, [0.0, lower, upper], powers]))
    cuts = cuts[(cuts >= lower) & (cuts <= upper)]
    if len(cuts) == 1:
        return cuts, cuts
    return cuts[:-1], cuts[1:]
