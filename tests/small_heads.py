"""Small heads of every awkward kind, as hypothesis strategies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from uncork import Ball, Box, Domain, Head, Unbounded

Generator = np.random.Generator
Maker = Callable[[Generator, int, int], np.ndarray]


def quick(examples: int) -> settings:
    """The same examples on every run, with no deadline: machines differ in speed."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def _mixed_in(rng: Generator, classes: int, features: int) -> np.ndarray:
    """The last row is a mixture of the others, moved by at most one ulp."""
    weight = rng.standard_normal((classes, features))
    weight[-1] = rng.dirichlet(np.ones(classes - 1)) @ weight[:-1]
    weight[-1] = np.nextafter(weight[-1], weight[-1] + rng.integers(-1, 2, features))
    return weight


def _with_repeats(rng: Generator, classes: int, features: int) -> np.ndarray:
    few = rng.integers(-2, 3, (max(1, classes // 2), features)).astype(np.float64)
    return few[rng.integers(0, len(few), classes)]


ORDINARY: dict[str, Maker] = {
    "normal": lambda rng, c, d: rng.standard_normal((c, d)),
    "ternary lattice": lambda rng, c, d: rng.integers(-1, 2, (c, d)).astype(np.float64),
    "integer lattice": lambda rng, c, d: rng.integers(-3, 4, (c, d)),
    "lattice moved by 2^-50": lambda rng, c, d: (
        np.round(rng.standard_normal((c, d)) * 4) / 4 + rng.integers(-1, 2, (c, d)) * 2.0**-50
    ),
    "rank one": lambda rng, c, d: rng.standard_normal((c, 1)) @ rng.standard_normal((1, d)),
    "float16": lambda rng, c, d: rng.standard_normal((c, d)).astype(np.float16),
    "a mixture moved by an ulp": _mixed_in,
    "repeated rows": _with_repeats,
}

EXTREME: dict[str, Maker] = {
    "lattice moved by an ulp": lambda rng, c, d: (
        rng.integers(-1, 2, (c, d)) + rng.integers(-1, 2, (c, d)) * 2.0**-52
    ),
    "subnormal": lambda rng, c, d: rng.integers(-3, 4, (c, d)) * 5e-324,
    "rows scaled by 1e±30": lambda rng, c, d: (
        rng.standard_normal((c, d)) * 10.0 ** rng.choice([-30, 0, 30], size=(c, 1))
    ),
    "features scaled by 1e±30": lambda rng, c, d: (
        rng.integers(-2, 3, (c, d)) * 10.0 ** rng.choice([-30, 0, 30], size=(1, d))
    ),
    "ones and 1e-300s": lambda rng, c, d: (
        rng.integers(-1, 2, (c, d)) * rng.choice([1.0, 1e-300], size=(c, d))
    ),
    "any magnitude": lambda rng, c, d: (
        rng.standard_normal((c, d)) * 10.0 ** rng.integers(-300, 301)
    ),
    "near overflow": lambda rng, c, d: (
        rng.integers(-1, 2, (c, d)) * 1e308 * rng.choice([1.0, 1.5], size=(c, d))
    ),
}

_ORDINARY_BIASES: list[Callable[[Generator, int], np.ndarray | None]] = [
    lambda rng, c: None,
    lambda rng, c: rng.standard_normal(c),
    lambda rng, c: rng.integers(-1, 2, c).astype(np.float64),
    lambda rng, c: np.full(c, 3.0),
]
_EXTREME_BIASES: list[Callable[[Generator, int], np.ndarray | None]] = [
    *_ORDINARY_BIASES,
    lambda rng, c: rng.integers(-1, 2, c) * 5e-324,
    lambda rng, c: rng.integers(-1, 2, c) * 1e-300,
    lambda rng, c: rng.standard_normal(c) * 1e30,
]
_ORDINARY_DOMAINS: list[Callable[[int], Domain]] = [
    lambda d: Box(100),
    lambda d: Unbounded(),
    lambda d: Box(0, np.inf),
    lambda d: Box(-0.5, 2),
    lambda d: Box(1, 2),
    lambda d: Box(np.full(d, -1.0), np.where(np.arange(d) % 2, np.inf, 1.0)),  # one side open
    lambda d: Box(np.ones(d), np.where(np.arange(d) % 2, 1.0, 3.0)),  # some features fixed
]
_EXTREME_DOMAINS: list[Callable[[int], Domain]] = [
    *_ORDINARY_DOMAINS,
    lambda d: Box(1e-300),
    lambda d: Box(1e30),
]


@st.composite
def heads(draw: st.DrawFn, make: Maker, *, extreme: bool = False, ball: bool = False) -> Head:
    """A head of 2 to 11 classes and 1 to 4 features (2 in a ball) made by `make`."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    classes = draw(st.integers(2, 11))
    features = draw(st.integers(1, 2 if ball else 4))
    bias = draw(st.sampled_from(_EXTREME_BIASES if extreme else _ORDINARY_BIASES))
    if ball:
        domain: Domain = Ball(draw(st.sampled_from([1e-3, 1.0, 100.0])))
    else:
        choices = _EXTREME_DOMAINS if extreme else _ORDINARY_DOMAINS
        domain = draw(st.sampled_from(choices))(features)
    return Head(make(rng, classes, features), bias(rng, classes), domain=domain)
