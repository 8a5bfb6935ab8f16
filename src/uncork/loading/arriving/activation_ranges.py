"""What an activation can give: its range in real numbers, and in the floats of a run-time.

Each range is a theorem about the function. What a run-time computes can step over it by rounding,
so that `computed` and `averaged` widen the sides by a bound on that. Limits that are reached by
comparing alone (ReLU, clipping) are exact in every type, and so are 0 and infinity.
"""

from __future__ import annotations

import math

Sides = tuple[float, float]  # the least and the largest value

# Minima are rounded down at the fifth digit. Names are those that transformers has.
RANGES: dict[str, Sides] = {
    "relu": (0.0, math.inf),
    "relu6": (0.0, 6.0),
    "relu2": (0.0, math.inf),
    "tanh": (-1.0, 1.0),
    "sigmoid": (0.0, 1.0),
    "gelu": (-0.16998, math.inf),  # −0.169971…
    "gelu_python": (-0.16998, math.inf),
    "gelu_new": (-0.17005, math.inf),  # −0.170041…
    "gelu_fast": (-0.17005, math.inf),
    "gelu_pytorch_tanh": (-0.17005, math.inf),
    "hardswish": (-0.37501, math.inf),  # −3/8
    "silu": (-0.27847, math.inf),  # −0.278464…
    "swish": (-0.27847, math.inf),
}
# The same for readers whose formats have more of them.
MORE_RANGES: dict[str, Sides] = RANGES | {
    "mish": (-0.30885, math.inf),  # −0.308840…
    "selu": (-1.75810, math.inf),  # −1.758099…
    "softplus": (0.0, math.inf),
    "softsign": (-1.0, 1.0),
    "exponential": (0.0, math.inf),
    "hard_sigmoid": (0.0, 1.0),
    "softmax": (0.0, 1.0),
    "log_softmax": (-math.inf, 0.0),
    "log_sigmoid": (-math.inf, 0.0),
}
COMPARED = ("relu", "relu6", "relu2")  # nothing is rounded: the limits themselves are returned

_UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_STEPS = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
_FINE_UNITS = 16  # how far off float functions such as tanh may be, in units of float32
_COARSE_UNITS = 8  # of a 16-bit type: as many roundings along the way
MOST_TERMS = 4096  # of an average over places whose number the model does not say


def known_type(name: str) -> bool:
    """Whether this is a float type whose rounding is known."""
    return name in _UNITS


def unit(dtype: str) -> float:
    """Half the distance from one to the next number of that type, in which results are rounded."""
    return _UNITS[dtype]


def fine_unit(dtype: str) -> float:
    """That of the type in which functions and sums are computed: 16-bit types use float32."""
    return min(_UNITS[dtype], 2.0**-24)


def computed(sides: Sides, dtype: str) -> Sides:
    """What a function with these limits can give when it is computed in that type."""
    coarse = _COARSE_UNITS * unit(dtype) if unit(dtype) > fine_unit(dtype) else 0.0
    return widened(sides, _FINE_UNITS * fine_unit(dtype) + coarse)


def averaged(sides: Sides, terms: int, dtype: str) -> Sides:
    """What the mean of that many such numbers can be: a sum in any order errs by a unit a term."""
    coarse = 2 * unit(dtype) if unit(dtype) > fine_unit(dtype) else 0.0
    return widened(sides, (terms + 2) * fine_unit(dtype) + coarse)


def widened(sides: Sides, share: float) -> Sides:
    """Each side moved outward by a share of its size; 0 and infinity stay."""
    lower, upper = sides
    share *= 1 + 2.0**-20  # pays for the rounding of this line
    return lower - share * abs(lower) if math.isfinite(lower) else lower, (
        upper + share * abs(upper) if math.isfinite(upper) else upper
    )


def rounded_outward(sides: Sides, dtype: str) -> Sides:
    """Limits given as float64, as a run-time that compares with their nearest neighbours has."""
    lower, upper = widened(sides, 2 * unit(dtype))
    # Below the normal numbers the neighbours are even steps apart.
    step = _STEPS[dtype]
    return lower - step if lower else lower, upper + step if upper else upper
