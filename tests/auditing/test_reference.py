"""The paper's algorithms, as references: the examples where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import ConvexHull

from uncork import Ball, Box, Head, Unbounded, UncorkError, audit, verify
from uncork.auditing.search.reference import braid_reflect, chebyshev, decide_reference


def strictly_first(head: Head, t: int, x: np.ndarray) -> bool:
    logits = head.rows(0, head.classes) @ x + head.offsets
    return bool((logits[t] > np.delete(logits, t)).all())


@pytest.fixture
def figure_1() -> Head:
    """The paper's Figure 1: three classes on a circle, the fourth inside their triangle."""
    angles = np.deg2rad([90, 210, 330])
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    return Head(np.vstack([circle, [0.1, 0.05]]))


def test_figure_1_the_class_inside_the_triangle_is_lost(figure_1: Head) -> None:
    verdicts = [decide_reference(figure_1, t) for t in range(4)]
    assert verdicts == ["argmaxable"] * 3 + ["unargmaxable"]


def test_figure_1_braid_reflect_finds_the_corners_at_once_and_never_the_inside(
    figure_1: Head,
) -> None:
    for t in range(3):
        x, reflections = braid_reflect(figure_1, t)
        assert x is not None
        assert strictly_first(figure_1, t, x)
        assert reflections == 0
    x, reflections = braid_reflect(figure_1, 3, patience=50)
    assert x is None
    assert reflections == 50


def test_a_bias_can_rescue_the_class_inside_the_triangle(figure_1: Head) -> None:
    head = figure_1.replace(bias=np.array([0.0, 0.0, 0.0, 1.0]))
    assert [decide_reference(head, t) for t in range(4)] == ["argmaxable"] * 4


def test_a_bias_can_put_a_corner_out_of_reach_of_the_box(figure_1: Head) -> None:
    # Class 0 needs x of about 1,000: within box ±2,000, not within ±100.
    head = figure_1.replace(bias=np.array([-1000.0, 0.0, 0.0, 0.0]))
    assert decide_reference(head, 0) == "unargmaxable"
    assert chebyshev(head, 0) == (-np.inf, None)
    assert decide_reference(head.replace(domain=Box(2000)), 0) == "argmaxable"
    assert decide_reference(head.replace(domain=Unbounded()), 0) == "argmaxable"


def test_a_witness_outside_the_box_does_not_count() -> None:
    # x = w_t = (300, 0) wins, but lies outside box ±100: the in-bounds check refuses it.
    head = Head(np.array([[300.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
    assert braid_reflect(head, 0)[0] is None
    assert braid_reflect(head.replace(domain=Unbounded()), 0)[0] is not None
    assert decide_reference(head, 0) == "argmaxable"  # the linear programme finds a smaller x


def test_chebyshev_radius_is_the_distance_to_the_nearest_hyperplane() -> None:
    # z_0 = z_1 is the line x_1 = 0; the best centre in box ±1 is at distance 1 of it.
    head = Head(np.array([[1.0, 0.0], [-1.0, 0.0]]), domain=Box(1))
    radius, x = chebyshev(head, 0)
    assert x is not None
    assert radius == pytest.approx(1.0)
    assert x[0] == pytest.approx(1.0)


def test_equal_rows_have_radius_zero_and_are_not_argmaxable() -> None:
    head = Head(np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]))
    assert chebyshev(head, 0) == (0.0, None)
    assert [decide_reference(head, t) for t in range(3)] == [
        "unargmaxable", "unargmaxable", "argmaxable",
    ]  # fmt: skip


def test_of_equal_rows_the_larger_bias_wins() -> None:
    head = Head(np.array([[1.0], [1.0], [-1.0]]), bias=np.array([0.0, 1.0, 0.0]))
    assert [decide_reference(head, t) for t in range(3)] == [
        "unargmaxable", "argmaxable", "argmaxable",
    ]  # fmt: skip


def test_a_point_on_a_face_of_the_hull_is_not_argmaxable() -> None:
    head = Head(np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [1.0, 0.0]]))
    assert decide_reference(head, 3) == "unargmaxable"


@pytest.mark.parametrize("features", [2, 3, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_random_heads_agree_with_qhull(features: int, seed: int) -> None:
    weight = np.random.default_rng(seed).normal(size=(30, features))
    head = Head(weight)
    found = [t for t in range(30) if decide_reference(head, t, patience=200) == "argmaxable"]
    assert found == sorted(ConvexHull(weight).vertices.tolist())


def test_a_ball_is_refused_with_a_reason(figure_1: Head) -> None:
    with pytest.raises(UncorkError, match="know boxes"):
        chebyshev(figure_1.replace(domain=Ball(3)), 0)


def test_a_class_that_is_not_there_is_named(figure_1: Head) -> None:
    with pytest.raises(UncorkError, match="no class 4: classes are 0 to 3"):
        decide_reference(figure_1, 4)


def test_an_input_that_the_certifier_refuses_is_not_the_last_word() -> None:
    """Braid Reflect's witness of class 4 does not survive weights of this size."""
    rows = [[1, 1, -3], [3, 2, 2], [3, -2, 2], [1, 1, -3], [2, 3, 1], [-2, 3, 2], [3, 1, -1]]
    head = Head(np.array(rows) * 1e150, domain=Unbounded())
    found = audit(head, algorithm="reference", device="cpu", jobs=1)
    assert not len(found.undecided)
    assert verify(found, head, jobs=1).ok
