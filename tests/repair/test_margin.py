"""The margin: what a type resolves, by hand and in its own arithmetic; and leads that exceed it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_heads import quick
from uncork import Ball, Box, Domain, Head, UncorkError
from uncork.auditing.backend import Backend
from uncork.reach.searched_head import SearchedHead
from uncork.reach.surface import Surface, depths
from uncork.repair.margin import (
    FACTORS,
    Leading,
    Touching,
    allowance,
    check_margin,
    leads_at,
    make_lead,
    parted,
)


@pytest.mark.parametrize("margin", [-0.1, np.nan, np.inf])
def test_a_margin_that_means_nothing_is_refused(margin: float) -> None:
    with pytest.raises(UncorkError, match="margin must be a number of logits"):
        check_margin(margin)
    check_margin(None)
    check_margin(0.0)


def test_a_margin_that_is_given_is_what_is_asked_for() -> None:
    head = Head(np.eye(3))
    asked = allowance(head, np.zeros(3), np.array([0, 2]), np.ones((2, 3)), 0.25)
    assert asked.tolist() == [0.25, 0.25]


def test_what_float64_and_float32_take_by_hand() -> None:
    """Two classes of two features at x = (1, 2): Σ|w x| is 5 and 4; the biases add 1 each."""
    weight, x, bias = np.array([[1.0, 2.0], [-2.0, 1.0]]), np.array([[1.0, 2.0]]), np.ones(2)
    (exact,) = allowance(Head(weight), bias, np.array([0]), x, None)
    assert exact == pytest.approx((2 + 2) * 2.0**-53 * (6 + 5))
    (single,) = allowance(Head(weight.astype(np.float32)), bias, np.array([0]), x, None)
    assert single == pytest.approx(np.sqrt(2) * 2.0**-24 * (6 + 5))
    (codes,) = allowance(Head(weight.astype(np.int8)), bias, np.array([0]), x, None)
    assert codes == single
    half = allowance(Head(weight.astype(np.float16)), bias, np.array([0]), x, None)[0]
    brain = allowance(Head(weight.astype(ml_dtypes.bfloat16)), bias, np.array([0]), x, None)[0]
    assert single < half < brain


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@quick(15)
@given(seed=st.integers(0, 2**20))
def test_a_lead_beyond_it_survives_the_types_own_arithmetic(dtype: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(30, 16)).astype(dtype)
    head, x = Head(weight), rng.normal(size=(40, 16)).astype(dtype)
    z = x.astype(np.float64) @ head.take(np.arange(30)).T
    winners = z.argmax(axis=1)
    asked = allowance(head, np.zeros(30), winners, x.astype(np.float64), None)
    second = np.sort(z, axis=1)[:, -2]
    clear = z.max(axis=1) - second > asked
    assert clear.sum() > 10
    # Summed in float32, stored in the type, in an order of its own.
    order = rng.permutation(16)
    products = x[:, None, order].astype(np.float32) * weight[None, :, order].astype(np.float32)
    computed = products.cumsum(axis=2, dtype=np.float32)[:, :, -1].astype(dtype)
    assert (computed.argmax(axis=1)[clear] == winners[clear]).all()
    own = computed[np.arange(40), winners]
    assert ((computed == own[:, None]).sum(axis=1)[clear] == 1).all()  # and nobody ties


def raised(head: Head, carriers: np.ndarray, below: np.ndarray) -> tuple[Surface, Touching, float]:
    surface = Surface(SearchedHead(head, head.domain, Backend(1)), carriers, shrunk=1e-3)
    found = depths(surface, below)
    base = surface.all_bias.copy()
    base[below] += np.maximum(found.depth, 0.0)
    return surface, Touching(below, found.inputs, base), float(found.depth.max())


def leads(head: Head, made: Leading, classes: np.ndarray) -> np.ndarray:
    z = made.inputs @ head.take(np.arange(head.classes)).T + made.bias
    here = np.arange(len(classes))
    own = z[here, classes].copy()
    z[here, classes] = -np.inf
    return np.asarray(own - z.max(axis=1))


@pytest.mark.parametrize("margin", [0.0, 1e-4, None])
@pytest.mark.parametrize("domain", [Box(5.0), Ball(3.0)], ids=str)
def test_classes_that_touched_lead_by_more_than_the_margin(
    domain: Domain, margin: float | None
) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(40, 4))
    weight[30:] *= 0.2
    head = Head(weight, np.append(np.zeros(30), np.full(10, -1.0)), domain=domain)
    surface, touching, largest = raised(head, np.arange(30), np.arange(30, 40))
    made = make_lead(surface, touching, np.full(40, -1), largest, margin, FACTORS)
    assert made.clear.all()
    assert domain.contains(made.inputs).all()
    found = leads(head, made, touching.classes)
    np.testing.assert_allclose(found, made.leads, atol=1e-12)
    assert (found > (0.0 if margin is None else margin)).all()
    # A little more than touching, and no more than that: biases that did not touch stay.
    assert (made.bias[30:] - head.offsets[30:]).max() <= 1.2 * largest
    np.testing.assert_array_equal(made.bias[:30] - made.bias[0], np.zeros(30))


def test_biases_are_those_that_the_heads_type_holds() -> None:
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(20, 3)).astype(np.float16)
    weight[15:] *= np.float16(0.1)
    head = Head(weight, np.append(np.full(15, 0.3), np.zeros(5)).astype(np.float16), domain=Box(4))
    surface, touching, largest = raised(head, np.arange(15), np.arange(15, 20))
    made = make_lead(surface, touching, np.full(20, -1), largest, 0.0)
    np.testing.assert_array_equal(made.bias, made.bias.astype(np.float16).astype(np.float64))


def test_equal_rows_are_not_counted_against_one_another() -> None:
    weight = np.array([[1.0, 0], [-1, 0], [0, 1], [0, 1]])
    head = Head(weight, domain=Box(1))
    surface = Surface(SearchedHead(head, head.domain, Backend(1)), np.arange(2))
    x = np.array([[0.0, 1.0], [0.0, 1.0]])
    args = surface, np.array([2, 3]), x, np.zeros(4), np.zeros(2)
    assert leads_at(*args, np.array([-1, -1, 7, 7])).tolist() == [1.0, 1.0]
    assert leads_at(*args, np.full(4, -1)).tolist() == [0.0, 0.0]


@quick(20)
@given(seed=st.integers(0, 2**20), features=st.integers(1, 5))
def test_parted_rows_move_as_far_as_said_and_square_to_their_input(
    seed: int, features: int
) -> None:
    rng = np.random.default_rng(seed)
    weight = np.repeat(rng.normal(size=(3, features)), 2, axis=0)
    head, equals = Head(weight), np.array([0, 0, -1, -1, 1, 1])
    classes, x, far = np.array([0, 2, 3]), rng.normal(size=(3, features)), rng.random(3)
    moved = parted(head, classes, x, far, equals).weight - weight
    np.testing.assert_allclose(np.linalg.norm(moved[classes], axis=1), far, rtol=1e-9)
    if features > 1:
        np.testing.assert_allclose((moved[classes] * x).sum(axis=1), 0, atol=1e-12)
    np.testing.assert_array_equal(moved[0], moved[1])  # equals move alike
    assert features == 1 or not np.array_equal(moved[2], moved[3])  # others apart
    assert not moved[4:].any()


def test_where_no_modest_bias_leads_by_the_margin_it_is_said_who_does() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(40, 4))
    weight[30:] = 0.01 * rng.normal(size=(10, 4))  # a crowd
    head = Head(weight, np.append(np.zeros(30), np.full(10, -1.0)), domain=Box(5))
    surface, touching, largest = raised(head, np.arange(30), np.arange(30, 40))
    made = make_lead(surface, touching, np.full(40, -1), largest, 0.1)
    found = leads(head, made, touching.classes)
    assert not made.clear.all()
    assert made.clear.tolist() == (found > 0.1).tolist()
