"""The bounds under the certifier are bounds: held against fractions, to the last bit."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from small_heads import quick
from uncork.core.rigour import TINY, UNIT, gamma, integers, lower_float, row_norms

finite = st.floats(allow_nan=False, allow_infinity=False)
tiny = st.integers(-5, 5).map(lambda n: n * 5e-324)
rows = st.lists(st.one_of(finite, tiny, st.floats(-1e-310, 1e-310)), min_size=1, max_size=12)


@quick(400)
@given(values=rows)
def test_a_norm_is_never_below_the_true_one(values: list[float]) -> None:
    norm = float(row_norms(np.array([values]))[0])
    if norm != math.inf:
        assert Fraction(norm) ** 2 >= sum(Fraction(v) ** 2 for v in values)


def test_the_norm_of_many_subnormals_is_never_below_the_true_one() -> None:
    for n in (2, 3, 6, 12, 1100, 2000):
        norm = Fraction(float(row_norms(np.full((1, n), 5e-324))[0]))
        assert norm**2 >= n * Fraction(5e-324) ** 2


def test_the_norm_of_zeros_is_zero() -> None:
    assert row_norms(np.zeros((2, 3))).tolist() == [0.0, 0.0]


def test_the_norm_of_what_is_no_number_is_no_number() -> None:
    with np.errstate(all="ignore"):
        norms = row_norms(np.array([[np.nan, 1.0], [np.inf, -np.inf]]))
    assert not np.isfinite(norms).any()


@quick(100)
@given(n=st.integers(1, 10**9))
def test_gamma_is_never_below_n_u_over_one_minus_n_u(n: int) -> None:
    share = n * Fraction(UNIT)
    assert Fraction(gamma(n)) >= share / (1 - share)


@quick(200)
@given(values=st.lists(finite, min_size=1, max_size=6))
def test_whole_numbers_over_a_power_of_two_are_the_floats_exactly(values: list[float]) -> None:
    numerators, denominator = integers(np.array(values))
    assert [Fraction(n, denominator) for n in numerators] == [Fraction(v) for v in values]


@quick(300)
@given(
    value=st.one_of(
        st.fractions(),
        st.builds(lambda a, b: Fraction(a) * Fraction(b), finite, finite),
        st.builds(lambda a, n: Fraction(a) / 10**n, st.integers(-9, 9), st.integers(0, 700)),
    )
)
def test_a_fraction_rounded_down_keeps_its_sign(value: Fraction) -> None:
    result = lower_float(value)
    assert (result > 0, result < 0) == (value > 0, value < 0)
    if result != -math.inf and not 0 < value < Fraction(5e-324):
        assert Fraction(result) <= value


def test_no_underflow_errs_by_more_than_tiny() -> None:
    assert Fraction(TINY) > abs(Fraction(1e-200) ** 2 - Fraction(1e-200 * 1e-200))
