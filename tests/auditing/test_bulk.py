"""The ball around the mean row: it is never larger than what the hull of the rows holds."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.spatial import ConvexHull

from small_heads import EXTREME, ORDINARY, heads, quick
from uncork import Head
from uncork.auditing.certify.bulk import Bulk
from uncork.auditing.certify.certifier import Certifier

ANY = {**ORDINARY, **EXTREME}
any_head = st.sampled_from(sorted(ANY)).flatmap(lambda kind: heads(ANY[kind], extreme=True))


def bulk_of(head: Head) -> Bulk:
    return Certifier(head).bulk


def near_root(head: Head, seed: int) -> np.ndarray:
    """Something like the inverse root of the covariance: off by a little, or by much."""
    own = bulk_of(head).transform
    rng = np.random.default_rng(seed)
    shape = (head.features, head.features) if own is None else own.shape
    noise = np.tril(rng.standard_normal(shape))
    return noise if own is None else own + 10.0 ** -rng.integers(0, 17) * noise * np.abs(own).max()


def test_a_root_that_is_no_root_is_not_used() -> None:
    head = Head(np.random.default_rng(0).standard_normal((50, 3)))
    own = bulk_of(head)
    for wrong in (np.zeros((3, 3)), np.full((3, 3), np.nan), np.eye(4), 9 * np.eye(3)):
        certifier = Certifier(head)
        certifier.proposed_root = wrong
        assert np.array_equal(certifier.bulk.transform, own.transform)
    certifier = Certifier(head)
    certifier.proposed_root = own.transform * (1 + 1e-9)
    assert np.array_equal(certifier.bulk.transform, own.transform * (1 + 1e-9))


def farthest(bulk: Bulk, direction: np.ndarray) -> float:
    """The largest multiple of `direction` that the bulk's argument still covers."""
    low, high = 0.0, 1.0
    none = np.zeros_like(direction)
    while bulk.nudge(high * direction, none) is not None:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if bulk.nudge(middle * direction, none) is None:
            high = middle
        else:
            low = middle
    return low


def highest_bias(head: Head, point: np.ndarray) -> float:
    """The largest bias of any mixture of rows that is this point: a linear programme."""
    rows = np.vstack([head.rows(0, head.classes).T, np.ones(head.classes)])
    found = linprog(-head.offsets, A_eq=rows, b_eq=np.append(point, 1.0), bounds=(0, None))
    assert found.status == 0
    return -float(found.fun)


@pytest.mark.parametrize("features", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_the_ball_lies_inside_the_hull(features: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((60, features)) @ rng.standard_normal((features, features))
    weight += 10 * rng.standard_normal(features)
    weight[0] += 30 * rng.standard_normal(features)  # one row far out
    bulk = bulk_of(Head(weight))
    equations = ConvexHull(weight).equations
    for direction in rng.standard_normal((20, features)):
        reached = farthest(bulk, direction)
        assert reached > 0
        point = bulk.centre + reached * direction
        assert (equations[:, :-1] @ point + equations[:, -1] <= 0).all()


@pytest.mark.parametrize("seed", range(4))
def test_the_least_bias_at_a_point_of_the_ball_is_never_above_what_a_mixture_reaches(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    head = Head(rng.standard_normal((30, 3)), 10 * rng.standard_normal(30))
    bulk = bulk_of(head)
    for direction in rng.standard_normal((8, 3)):
        for share in (0.01, 0.5, 1.0):
            away = share * farthest(bulk, direction) * direction
            nudge = bulk.nudge(away, np.zeros(3))
            assert nudge is not None
            assert bulk.bias_low(nudge) <= highest_bias(head, bulk.centre + away) + 1e-9


def test_an_error_in_the_residual_counts_as_distance() -> None:
    head = Head(np.random.default_rng(0).standard_normal((50, 2)))
    bulk = bulk_of(head)
    direction = np.array([1.0, 0.0])
    at = 0.5 * farthest(bulk, direction) * direction
    exact, blurred = bulk.nudge(at, np.zeros(2)), bulk.nudge(at, np.abs(at) / 2)
    assert exact is not None
    assert blurred is not None
    assert blurred > exact
    assert bulk.nudge(at, np.full(2, 1e3)) is None
    assert bulk.nudge(np.array([np.nan, 0.0]), np.zeros(2)) is None


@pytest.mark.parametrize(
    "weight",
    [np.zeros((4, 2)), np.ones((4, 2)), [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], [[1e200], [-1e200]],
     [[1e-200], [-1e-200]], [[1e308], [-1e308], [1e308]]],
    ids=["zeros", "ones", "a line", "huge", "tiny", "overflowing"],
)  # fmt: skip
def test_rows_that_span_no_ball_reach_nowhere(weight: np.ndarray) -> None:
    head = Head(weight)
    with np.errstate(all="ignore"):
        bulk = bulk_of(head)
        nudge = bulk.nudge(np.full(head.features, 1e300), np.zeros(head.features))
    assert nudge is None


@quick(300)
@given(head=any_head)
def test_the_mean_of_rows_and_bias_is_within_its_error(head: Head) -> None:
    with np.errstate(all="ignore"):
        bulk = bulk_of(head)
    rows = head.rows(0, head.classes)
    for j in range(head.features):
        mean = sum(Fraction(v) for v in rows[:, j].tolist()) / head.classes
        if np.isfinite(bulk.centre[j]) and np.isfinite(bulk.centre_error[j]):
            assert abs(mean - Fraction(bulk.centre[j])) <= Fraction(bulk.centre_error[j])
    mean = sum(Fraction(v) for v in head.offsets.tolist()) / head.classes
    assert Fraction(bulk.bias_low(0.0)) <= mean


@quick(300)
@given(head=any_head, seed=st.integers(0, 9))
def test_the_bounds_on_the_whitened_rows_hold_in_fractions(head: Head, seed: int) -> None:
    """Whoever found K: the certifier itself (seed 0), or somebody who may be wrong."""
    certifier = Certifier(head)
    with np.errstate(all="ignore"):
        if seed:
            certifier.proposed_root = near_root(head, seed)
        bulk = certifier.bulk
    if bulk.transform is None or not np.isfinite([bulk.defect, bulk.offset, bulk.reach]).all():
        return
    centre = [Fraction(v) for v in bulk.centre.tolist()]
    transform = [[Fraction(v) for v in row] for row in bulk.transform.tolist()]
    whitened = [
        [
            sum(k * (Fraction(w) - c) for k, w, c in zip(line, row, centre, strict=True))
            for line in transform
        ]
        for row in head.rows(0, head.classes).tolist()
    ]
    n, d = head.classes, len(transform)
    assert max(sum(v * v for v in row) for row in whitened) <= Fraction(bulk.reach) ** 2
    mean = [sum(row[j] for row in whitened) / n for j in range(d)]
    assert sum(v * v for v in mean) <= Fraction(bulk.offset) ** 2
    moment = [
        [float(sum(row[j] * row[k] for row in whitened) / n - (j == k)) for k in range(d)]
        for j in range(d)
    ]
    assert np.linalg.norm(moment, 2) <= bulk.defect * (1 + 1e-12)
    assert sum(v * v for row in transform for v in row) <= Fraction(bulk.transform_norm) ** 2
