"""Domains: what lies inside, exactly; what they are written as; what is refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_heads import quick
from uncork import Ball, Box, Domain, Unbounded, UncorkError
from uncork.domain import parse_domain

INF = np.inf


def test_a_box_contains_its_sides_and_nothing_beyond() -> None:
    box = Box(-1, 2)
    beyond = float(np.nextafter(2.0, 3.0))
    x = np.array([[-1.0, 2.0], [0.0, 0.0], [beyond, 0.0], [0.0, -1.0000000000000002]])
    assert box.contains(x).tolist() == [True, True, False, False]


def test_infinite_sides_admit_every_finite_number_and_no_infinity() -> None:
    box = Box(0, INF)
    assert box.contains(np.array([[0.0], [1e308], [INF], [np.nan], [-5e-324]])).tolist() == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert Unbounded().contains(np.array([[1e308], [-1e308], [INF], [np.nan]])).tolist() == [
        True, True, False, False,
    ]  # fmt: skip


def test_a_box_can_bound_each_feature_by_itself() -> None:
    box = Box(np.array([0.0, -INF]), np.array([1.0, 5.0]))
    assert box.contains(np.array([[1.0, -1e300], [1.0, 5.1], [-0.1, 0.0]])).tolist() == [
        True, False, False,
    ]  # fmt: skip
    lower, upper = box.bounds(2)
    assert (lower.tolist(), upper.tolist()) == ([0.0, -INF], [1.0, 5.0])


@quick(300)
@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5),
    radius=st.floats(5e-324, 1e308),
    on_sphere=st.booleans(),
)
def test_a_ball_never_contains_what_lies_outside(
    values: list[float], radius: float, on_sphere: bool
) -> None:
    x = np.array(values)
    with np.errstate(all="ignore"):
        if on_sphere and np.abs(x).max() > 0:
            x = x / np.abs(x).max()
            x = x / np.linalg.norm(x) * radius
        inside = bool(Ball(radius).contains(x))
    if inside:
        assert sum(Fraction(float(v)) ** 2 for v in x) <= Fraction(radius) ** 2


def test_a_ball_contains_what_lies_clearly_inside() -> None:
    for radius in (1e-300, 1e-3, 1.0, 1e300):
        x = np.array([[3.0, 4.0]]) / 5 * radius * (1 - 1e-12)
        assert Ball(radius).contains(x).all()
        assert not Ball(radius).contains(x * (1 + 1e-11)).any()
    assert Ball(1.0).contains(np.zeros((1, 3))).all()
    assert not Ball(1.0).contains(np.array([[np.nan, 0.0]])).any()


def test_a_ball_of_subnormal_radius_is_not_stretched_by_rounding() -> None:
    assert not Ball(5e-324).contains(np.array([5e-324, 5e-324]))


@pytest.mark.parametrize(
    ("domain", "cone"),
    [
        (Unbounded(), True),
        (Box(100), False),
        (Box(0, INF), True),
        (Box(-INF, 0), True),
        (Box(-INF, INF), True),
        (Box(1, INF), False),
        (Box(np.array([0.0, -INF]), np.array([INF, INF])), True),
        (Box(np.array([0.0, -1.0]), np.array([INF, INF])), False),
        (Ball(1.0), False),
    ],
    ids=str,
)
def test_a_cone_is_known_as_one(domain: Domain, cone: bool) -> None:
    assert domain.is_cone == cone


@pytest.mark.parametrize(
    "domain",
    [
        Unbounded(), Box(100), Box(0.1), Box(-1, 3), Box(0, INF), Box(-INF, INF), Ball(0.1),
        Ball(3), Box(np.array([0.1, -INF]), np.array([0.3, 1 / 3])), Box(5e-324),
        Box(np.array([1.0]), np.array([2.0])), Ball(1.7976931348623157e308),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_domain_is_written_as_reads_back_the_same(domain: Domain) -> None:
    again = parse_domain(domain.spec())
    assert again == domain
    assert hash(again) == hash(domain)


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("box:100", Box(100)),
        (" box:-1,2 ", Box(-1, 2)),
        ("box:0,inf", Box(0, INF)),
        ("box:0,1;-inf,2", Box(np.array([0.0, -INF]), np.array([1.0, 2.0]))),
        ("ball:2.5", Ball(2.5)),
        ("unbounded", Unbounded()),
    ],
)
def test_domains_are_read_from_text(text: str, domain: Domain) -> None:
    assert parse_domain(text) == domain


@pytest.mark.parametrize(
    "text",
    ["", "box", "box:", "box:a", "box:1,2,3", "box:1,2;3", "box:0", "box:-1", "box:2,1", "box:nan",
     "box:inf,inf", "ball:", "ball:0", "ball:-1", "ball:inf", "ball:nan", "ball:1,2", "sphere:1",
     "unbounded:1", "box:1,2;4,3"],
)  # fmt: skip
def test_text_that_names_no_domain_is_refused(text: str) -> None:
    with pytest.raises(UncorkError):
        parse_domain(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Box(2, 1), "lower bound 2 is above upper bound 1"),
        (lambda: Box(np.array([0.0, 3.0]), np.array([1.0, 2.0])), "at feature 1"),
        (lambda: Box(0), "positive radius"),
        (lambda: Box(-1), "positive radius"),
        (lambda: Box(np.nan), "positive radius"),
        (lambda: Box(0, np.nan), "NaN"),
        (lambda: Box(INF, INF), "empty"),
        (lambda: Box(-INF, -INF), "empty"),
        (lambda: Box(np.zeros(2), np.ones(3)), "2 lower and 3 upper bounds"),
        (lambda: Box(np.zeros((2, 2)), np.ones((2, 2))), "one bound for each feature"),
        (lambda: Ball(0), "positive finite radius"),
        (lambda: Ball(INF), "positive finite radius"),
        (lambda: Ball(np.nan), "positive finite radius"),
        (lambda: Box(np.zeros(2), np.ones(2)).check(3), "2 bounds but the head has 3 features"),
    ],
)
def test_an_empty_or_senseless_domain_is_refused(make: object, message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        make()  # type: ignore[operator]


def test_boxes_are_equal_where_their_bounds_are() -> None:
    assert Box(1) == Box(-1, 1)
    assert Box(1) != Box(-1, 2)
    assert Box(1) != Ball(1)
    assert Ball(1) == Ball(1.0)


def test_the_bounds_of_a_box_cannot_be_changed_afterwards() -> None:
    upper = np.ones(2)
    box = Box(np.zeros(2), upper)
    upper[0] = -5.0
    assert box.upper.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        box.upper[0] = 7.0


@pytest.mark.parametrize("make", [lambda: Box("a"), lambda: Box("a", 1), lambda: Box([1, "b"]),
                                  lambda: Box(0, "c"), lambda: Ball("a"),
                                  lambda: Ball([1.0])])  # fmt: skip
def test_bounds_that_are_no_numbers_are_refused_in_one_line(make: object) -> None:
    with pytest.raises(UncorkError, match="number"):
        make()  # type: ignore[operator]
