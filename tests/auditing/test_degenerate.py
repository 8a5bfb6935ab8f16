"""Heads with no room to spare: the answers are known by looking, and nothing may crash."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from oracle import expected
from uncork import Ball, Box, Head, Unbounded, Verdict, audit, verify

A, U, T = Verdict.ARGMAXABLE, Verdict.UNARGMAXABLE, Verdict.TIED
DOMAINS = [Box(100), Unbounded(), Ball(10.0)]


def verdicts(head: Head) -> list[Verdict]:
    found = audit(head, device="cpu", jobs=1)
    assert verify(found, head, jobs=1).ok
    return list(found.verdicts)


def lattice(side: int, features: int) -> np.ndarray:
    return np.array(list(itertools.product(range(side), repeat=features)), dtype=np.float64)


def is_corner(points: np.ndarray, side: int) -> np.ndarray:
    return ((points == 0) | (points == side - 1)).all(axis=1)


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_figure_1_the_class_inside_the_triangle_is_lost(domain: Box | Unbounded | Ball) -> None:
    angles = np.deg2rad([90, 210, 330])
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    assert verdicts(Head(np.vstack([circle, [0.1, 0.05]]), domain=domain)) == [A, A, A, U]


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
@pytest.mark.parametrize(("side", "features"), [(5, 1), (5, 2), (3, 3), (4, 3), (3, 4), (2, 6)])
def test_only_the_corners_of_a_lattice_are_argmaxable(
    side: int, features: int, domain: Box | Unbounded | Ball
) -> None:
    points = lattice(side, features)
    found = verdicts(Head(points, domain=domain))
    assert found == [A if corner else U for corner in is_corner(points, side)]


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32])
def test_a_lattice_is_the_same_in_every_type(dtype: type) -> None:
    points = lattice(4, 2)
    found = verdicts(Head(points.astype(dtype), domain=Unbounded()))
    assert found == [A if corner else U for corner in is_corner(points, 4)]


def test_a_convex_bias_frees_every_point_of_a_lattice() -> None:
    points = lattice(4, 2)
    assert verdicts(Head(points, -(points**2).sum(axis=1) / 2)) == [A] * 16


def test_points_on_a_face_can_tie_and_never_win() -> None:
    # A triangle, the middle of an edge, and the centre of gravity.
    weight = [[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [2.0, 0.0], [2.0, 2.0], [1.0, 1.0]]
    for domain in DOMAINS:
        assert verdicts(Head(weight, domain=domain)) == [A, A, A, U, U, U]


def test_a_point_an_ulp_outside_a_face_is_argmaxable() -> None:
    weight = [[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [2.0, -5e-324], [2.0, np.nextafter(2, 3)]]
    for domain in (Box(100), Unbounded()):
        assert verdicts(Head(weight, domain=domain)) == [A, A, A, A, A]


def test_a_point_an_ulp_inside_a_face_is_lost() -> None:
    weight = [[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [2.0, 5e-324], [2.0, np.nextafter(2, 1)]]
    for domain in (Box(100), Unbounded()):
        assert verdicts(Head(weight, domain=domain)) == [A, A, A, U, U]


def test_the_sides_of_a_one_sided_box_decide() -> None:
    # With x ≥ 0 the class with the smaller slope loses everywhere but at x = 0, where all tie.
    assert verdicts(Head([[1.0], [0.0], [-1.0]], domain=Box(0, np.inf))) == [A, U, U]
    assert verdicts(Head([[1.0], [0.0], [-1.0]], domain=Box(-np.inf, 0))) == [U, U, A]


def test_a_box_of_one_point_has_one_winner() -> None:
    head = Head([[1.0, 2.0], [2.0, 1.0], [0.0, 0.0]], domain=Box(np.array([1.0, 3.0]), [1.0, 3.0]))
    assert verdicts(head) == [A, U, U]


def test_a_feature_that_is_fixed_acts_as_a_bias() -> None:
    # x₀ = 1 lifts class 1 by its first weight; x₁ is free.
    weight = [[0.0, 1.0], [1.0, 0.0], [0.0, -1.0]]
    fixed = Box(np.array([1.0, -100.0]), np.array([1.0, 100.0]))
    assert verdicts(Head(weight, domain=fixed)) == [A, A, A]
    fixed = Box(np.array([-1.0, -100.0]), np.array([-1.0, 100.0]))
    assert verdicts(Head(weight, domain=fixed)) == [A, U, A]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("domain", [Box(100), Unbounded()], ids=str)
def test_rank_deficient_weights(rank: int, domain: Box | Unbounded) -> None:
    rng = np.random.default_rng(rank)
    weight = rng.integers(-2, 3, (12, rank)) @ rng.integers(-2, 3, (rank, 6))
    head = Head(weight, domain=domain)
    assert verdicts(head) == expected(head)


def test_fewer_classes_than_features_are_all_argmaxable() -> None:
    rng = np.random.default_rng(0)
    for classes, features in ((2, 3), (5, 40), (30, 100)):
        for domain in DOMAINS:
            head = Head(rng.standard_normal((classes, features)), domain=domain)
            assert verdicts(head) == [A] * classes


def test_one_feature_leaves_the_two_ends() -> None:
    weight = np.array([[0.5], [-2.0], [3.0], [1.0], [-1.9]])
    for domain in DOMAINS:
        assert verdicts(Head(weight, domain=domain)) == [U, A, A, U, U]


def test_one_feature_with_a_bias_leaves_the_upper_envelope() -> None:
    # z = −x, z = 0.9 (below the crossing of the others at 1), z = x + 2.
    head = Head([[-1.0], [0.0], [1.0]], [0.0, 0.9, 2.0])
    assert verdicts(head) == [A, U, A]
    assert verdicts(head.replace(bias=[0.0, 1.0, 2.0])) == [A, U, A]  # it touches: a tie
    assert verdicts(head.replace(bias=[0.0, np.nextafter(1.0, 2), 2.0])) == [A, A, A]
    assert verdicts(head.replace(domain=Box(0.5, 100))) == [U, U, A]


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_two_classes(domain: Box | Unbounded | Ball) -> None:
    assert verdicts(Head([[1.0, 2.0], [1.0, 2.5]], domain=domain)) == [A, A]
    assert verdicts(Head([[1.0, 2.0], [1.0, 2.0]], domain=domain)) == [T, T]
    assert verdicts(Head([[1.0, 2.0], [1.0, 2.0]], [0.0, 1.0], domain=domain)) == [U, A]


@pytest.mark.parametrize(
    "domain", [*DOMAINS, Box(0, np.inf), Box(1, 2), Box(np.full(2, -1.0), np.ones(2))], ids=str
)
@pytest.mark.parametrize("row", [[0.0, 0.0], [1.0, -3.0]])
def test_rows_that_are_all_equal_are_tied(row: list[float], domain: Box | Unbounded | Ball) -> None:
    assert verdicts(Head([row] * 5, domain=domain)) == [T] * 5
    assert verdicts(Head([row] * 3, [1.0, 1.0, 0.0], domain=domain)) == [T, T, U]


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_zero_rows_inside_the_hull_are_lost_and_outside_are_tied(
    domain: Box | Unbounded | Ball,
) -> None:
    inside = [[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0], [0.0, 0.0], [0.0, -0.0]]
    assert verdicts(Head(inside, domain=domain)) == [A, A, A, U, U]
    outside = [[1.0, 0.0], [2.0, 1.0], [2.0, -1.0], [0.0, 0.0], [0.0, -0.0]]
    assert verdicts(Head(outside, domain=domain)) == [U, A, A, T, T]


def test_a_feature_that_is_always_zero_changes_nothing() -> None:
    points = lattice(3, 2)
    padded = np.column_stack([points[:, 0], np.zeros(9), points[:, 1]])
    found = verdicts(Head(padded))
    assert found == [A if corner else U for corner in is_corner(points, 3)]


@pytest.mark.parametrize("scale", [1e-47, 1e-50, 1e-55, 1e-59, 1e50, 1e59])
@pytest.mark.parametrize("feature", [1.0, 1e-5])
def test_what_is_proven_of_tiny_and_huge_weights_can_be_verified(
    scale: float, feature: float
) -> None:
    """The bulk's matrix is found by whoever verifies, from squares of the weights."""
    lost = 0
    for seed in range(30):
        weight = np.random.default_rng(seed).standard_normal((7, 2)) * [1.0, feature]
        lost += verdicts(Head(weight * scale)).count(U)
    assert lost > 30


@pytest.mark.parametrize("scale", [1e-30, 1e30, 1e-290, 1e290, 2.0**-1060])
@pytest.mark.parametrize("domain", [Box(100), Unbounded()], ids=str)
def test_the_scale_of_the_weights_changes_nothing(scale: float, domain: Box | Unbounded) -> None:
    points = lattice(3, 2) * scale
    found = verdicts(Head(points, domain=domain))
    assert found == [A if corner else U for corner in is_corner(lattice(3, 2), 3)]


def test_a_class_that_wins_by_1e_300_is_argmaxable() -> None:
    weight = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1e-300]]
    assert verdicts(Head(weight, domain=Unbounded())) == [A, A, A]
    assert verdicts(Head([[1.0], [-1.0], [0.0]], [0.0, 0.0, 1e-300])) == [A, A, A]
    assert verdicts(Head([[1.0], [-1.0], [0.0]], [0.0, 0.0, -1e-300])) == [A, A, U]


def test_rows_far_apart_in_magnitude_are_told_apart() -> None:
    small = np.array([[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]]) * 1e-30
    head = Head(np.vstack([small, [[0.0, 1e30], [0.0, -1e30]]]), domain=Unbounded())
    assert verdicts(head) == expected(head)


@pytest.mark.parametrize("domain", [Box(100), Box(0, np.inf), Box(-0.5, 6), Unbounded()], ids=str)
@pytest.mark.parametrize("faint", [1e-30, 1e-14])
def test_features_that_change_hardly_anything_are_not_in_the_way(
    domain: Box | Unbounded, faint: float
) -> None:
    """As a face model's head has them: beside them every class is as easy as without."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((400, 60))
    weight[:, ::3] *= faint
    head = Head(weight.astype(np.float32), 0.3 * rng.standard_normal(400), domain=domain)
    found = audit(head, device="cpu", jobs=1, time_limit=60)
    assert len(found.argmaxable) == 400
    assert verify(found, head, jobs=1).ok


@pytest.mark.parametrize("domain", [Box(100), Box(0, np.inf), Unbounded()], ids=str)
def test_a_class_that_wins_only_by_a_faint_feature_is_found(domain: Box | Unbounded) -> None:
    """Midway between two others but for 1e-20 in one of 21 features."""
    rng = np.random.default_rng(0)
    weight = rng.integers(-8, 9, (30, 21)).astype(float)
    weight[:, -1] = 0.0
    weight[-1] = (weight[0] + weight[1]) / 2
    assert verdicts(Head(weight, domain=domain))[-1] == U
    weight[-1, -1] = 2.0**-66
    assert verdicts(Head(weight, domain=domain))[-1] == A


def test_rows_that_overflow_on_the_way_to_the_linear_programme_stop_no_audit() -> None:
    rng = np.random.default_rng(60543)
    features, classes = int(rng.integers(17, 22)), int(rng.integers(2, 13))
    rng.integers(15)
    signs = rng.integers(-1, 2, (classes, features))
    weight = signs * 1e308 * rng.choice([1.0, 1.5], size=(classes, features))
    weight *= 10.0 ** -rng.choice([0, 0, 0, 14, 30], size=features)
    bias = None if rng.random() < 0.4 else rng.choice([0, 0.5, -1, 1e-20, 3], size=classes)
    low = rng.choice([-np.inf, 0, -1, -100, -0.2784, 0.5], size=features)
    endless = rng.random(features) < 0.4
    high = np.maximum(low, -1) + rng.choice([0, 0.5, 6, 100], size=features)
    head = Head(weight, bias, domain=Box(low, np.where(endless, np.inf, high)))
    verdicts(head)
