"""Expected losses of random heads: the simulation against the closed form, and limits."""

from __future__ import annotations

import math

import pytest

from uncork import UncorkError
from uncork.theory.lost_classes import expected_lost, simulate_lost


@pytest.mark.parametrize("classes", [2, 5, 40])
def test_one_feature_leaves_two_classes(classes: int) -> None:
    assert expected_lost(classes, 1) == pytest.approx(classes - 2, abs=1e-9)
    assert simulate_lost(classes, 1, heads=3).mean == classes - 2


@pytest.mark.parametrize("features", [2, 3, 6, 12, 17])
def test_as_many_points_as_a_simplex_has_are_all_vertices(features: int) -> None:
    from uncork.theory.lost_classes import _vertices

    assert _vertices(features + 1, features) == features + 1
    # Just above the shortcut the angles are computed, and hardly anything is lost yet.
    assert 0 < expected_lost(features + 2, features) < 1


def test_the_tetrahedrons_solid_angle() -> None:
    from uncork.theory.lost_classes import _angle

    assert _angle(3, -1 / 4) == pytest.approx((3 * math.acos(1 / 3) - math.pi) / (4 * math.pi))


def test_sylvesters_four_points() -> None:
    """Four normal points in the plane are in convex position with probability 6 arcsin(1/3)/π."""
    assert expected_lost(4, 2) == pytest.approx(1 - 6 * math.asin(1 / 3) / math.pi)


@pytest.mark.parametrize(("classes", "features", "bias"), [(60, 2, False), (60, 3, True)])
def test_simulated_losses_lie_within_four_standard_errors(
    classes: int, features: int, bias: bool
) -> None:
    found = simulate_lost(classes, features, "normal", bias, heads=40, seed=100)
    expected = expected_lost(classes, features, bias=bias)
    assert abs(found.mean - expected) < 4 * found.standard_error
    assert 0 < found.standard_error < 0.1 * expected
    assert found.undecided == 0


def test_uniform_heads_lose_fewer() -> None:
    uniform = simulate_lost(100, 4, "uniform", heads=8)
    assert uniform.mean + 4 * uniform.standard_error < expected_lost(100, 4)


def test_what_is_not_computed_is_said() -> None:
    with pytest.raises(UncorkError, match="simulate instead"):
        expected_lost(100, 18, bias=True)
    with pytest.raises(UncorkError, match="at least 2 and 1"):
        expected_lost(1, 3)
    with pytest.raises(UncorkError, match="at least one to average"):
        simulate_lost(5, 2, heads=0)
