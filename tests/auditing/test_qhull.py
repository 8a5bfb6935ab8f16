"""Random heads without a bias: the argmaxable classes are exactly the vertices Qhull finds."""

from __future__ import annotations

import numpy as np
import pytest

from uncork import Ball, Box, Unbounded, audit
from uncork.domain import Domain
from uncork.theory.random_heads import hull_vertices, random_head, upper_hull_vertices

# Few points at many dimensions: a hull's facets multiply with every one.
SIZES = {2: (10, 400), 3: (10, 300), 4: (12, 200), 5: (15, 120), 6: (20, 80), 7: (20, 50),
         8: (20, 36), 9: (20, 26)}  # fmt: skip


@pytest.mark.parametrize("init", ["normal", "uniform"])
@pytest.mark.parametrize("features", range(2, 10))
@pytest.mark.parametrize("seed", [0, 1])
def test_argmaxable_classes_are_exactly_the_vertices(features: int, init: str, seed: int) -> None:
    for classes in SIZES[features]:
        head = random_head(classes, features, init, seed=seed, domain=Unbounded())
        found = audit(head, device="cpu", jobs=1)
        assert found.argmaxable.tolist() == hull_vertices(head.weight).tolist()
        assert len(found.argmaxable) + len(found.unargmaxable) == classes


@pytest.mark.parametrize("domain", [Box(100), Box(-0.1, 3), Ball(1e-3)], ids=str)
@pytest.mark.parametrize("features", [2, 4])
def test_without_a_bias_any_domain_around_zero_gives_the_vertices(
    features: int, domain: Domain
) -> None:
    head = random_head(100, features, seed=5, domain=domain)
    found = audit(head, device="cpu", jobs=1)
    assert found.argmaxable.tolist() == hull_vertices(head.weight).tolist()
    assert not len(found.undecided)


@pytest.mark.parametrize("init", ["normal", "uniform"])
@pytest.mark.parametrize("features", range(2, 8))
def test_with_a_bias_and_no_bounds_they_are_the_vertices_of_the_upper_hull(
    features: int, init: str
) -> None:
    for classes in SIZES[features + 1]:
        head = random_head(classes, features, init, bias=True, seed=7, domain=Unbounded())
        found = audit(head, device="cpu", jobs=1)
        vertices = upper_hull_vertices(head.weight, head.offsets)
        assert found.argmaxable.tolist() == vertices.tolist()
        assert not len(found.undecided)


def test_a_point_moved_inside_the_hull_is_the_only_one_lost() -> None:
    rng = np.random.default_rng(0)
    circle = rng.standard_normal((60, 20))
    circle /= np.linalg.norm(circle, axis=1, keepdims=True)
    head = random_head(60, 20).replace(weight=np.vstack([circle, 0.5 * circle[:9].mean(axis=0)]))
    assert audit(head, device="cpu", jobs=1).unargmaxable.tolist() == [60]
