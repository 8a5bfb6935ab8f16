"""How far classes lie below the surface of the others: against one plain linear programme each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from small_heads import quick
from uncork import Ball, Box, Domain, Head, Mixture, Unbounded
from uncork.auditing.backend import Backend
from uncork.auditing.certify.certifier import Certifier
from uncork.reach.searched_head import SearchedHead
from uncork.reach.surface import Surface, depths, proven_leads

BOXES = [Box(3.0), Box(0.0, 2.0), Box(1.0, 4.0), Box(np.array([-1.0, 2.0]), np.array([1.0, 5.0]))]


def surface_of(head: Head, carriers: np.ndarray) -> Surface:
    return Surface(SearchedHead(head, head.domain, Backend(1)), carriers)


def depth(head: Head, carriers: np.ndarray, t: int) -> float:
    """min over x of max z_i − z_t, as the least height of a plane above all: (x, h)."""
    assert isinstance(head.domain, Box)
    lower, upper = head.domain.bounds(head.features)
    solved = linprog(
        np.append(-head.weight[t], 1.0),
        A_ub=np.column_stack([head.weight[carriers], -np.ones(len(carriers))]),
        b_ub=-head.offsets[carriers],
        bounds=[*zip(lower, upper, strict=True), (None, None)],
    )
    return float(solved.fun - head.offsets[t])


@pytest.mark.parametrize("domain", BOXES, ids=str)
@quick(8)
@given(st.integers(0, 2**20))
def test_depths_are_those_of_a_plain_linear_programme(domain: Domain, seed: int) -> None:
    rng = np.random.default_rng(seed)
    head = Head(rng.normal(size=(15, 2)), rng.normal(size=15), domain=domain)
    carriers, below = np.arange(9), np.arange(9, 15)
    surface = surface_of(head, carriers)
    found = depths(surface, below)
    exact = [depth(head, carriers, t) for t in below.tolist()]
    np.testing.assert_allclose(found.depth, exact, atol=1e-8)
    assert found.exact.all()
    assert domain.contains(found.inputs).all()
    # The input proves that the raise is enough, the mixture that it is needed.
    z = found.inputs @ head.weight.T + head.offsets
    touch = z[:, carriers].max(axis=1) - z[np.arange(6), below]
    np.testing.assert_allclose(touch, exact, atol=1e-8)
    named = [(int(t), m) for t, m in zip(below, found.mixtures, strict=True) if m is not None]
    leads = [lead for _, lead in proven_leads(Certifier(head), surface, named)]
    assert all(lead <= exact[t - 9] + 1e-12 for (t, _), lead in zip(named, leads, strict=True))
    np.testing.assert_allclose(leads, [exact[t - 9] for t, _ in named], atol=1e-6)


def test_depths_in_a_ball_by_hand() -> None:
    """Four rows at ±1 with bias 0, class 4 at 0 with bias −2: nearest at 0, where it lacks 2."""
    weight = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1], [0, 0], [3, 0]])
    head = Head(weight, [0.0, 0, 0, 0, -2, -2], domain=Ball(1.0))
    found = depths(surface_of(head, np.arange(4)), np.array([4, 5]))
    # Class 5 gains most along x = (1, 0): 3 − 2 against 1.
    np.testing.assert_allclose(found.depth, [2.0, 0.0], atol=1e-7)
    np.testing.assert_allclose(found.inputs, [[0.0, 0.0], [1.0, 0.0]], atol=1e-3)


def test_on_an_infinite_domain_a_row_outside_the_hull_stands_above() -> None:
    weight = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1], [0.2, 0.2], [2, 2]])
    head = Head(weight, [0.0, 0, 0, 0, -1, -1], domain=Unbounded())
    found = depths(surface_of(head, np.arange(4)), np.array([4, 5]))
    assert found.depth[0] == pytest.approx(1.0)
    assert found.depth[1] < 0


def test_with_a_gap_no_raise_is_below_what_is_needed_nor_far_above_the_largest() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(120, 3))
    weight[40:] *= 0.2
    head = Head(weight, np.where(np.arange(120) < 40, 0.5, 0.0), domain=Box(5))
    surface = surface_of(head, np.arange(40))
    exact = depths(surface, np.arange(40, 120))
    loose = depths(surface, np.arange(40, 120), gap=0.05)
    assert exact.exact.all()
    assert loose.exact.sum() < 80
    assert (loose.depth >= exact.depth - 1e-9).all()
    assert loose.depth.max() <= 1.05 * exact.depth.max() + 1e-9


def test_a_search_told_to_stop_leaves_the_rest_unknown() -> None:
    head = Head(np.random.default_rng(0).normal(size=(20, 3)), np.arange(20.0))
    found = depths(surface_of(head, np.arange(10)), np.arange(10, 20), stop=lambda: True)
    assert not found.exact.any()
    assert np.isinf(found.depth).all()
    assert found.mixtures == [None] * 10


def test_threads_find_the_same_depths() -> None:
    rng = np.random.default_rng(1)
    head = Head(rng.normal(size=(40, 4)), rng.normal(size=40), domain=Box(2))
    surface = surface_of(head, np.arange(25))
    one, two = (depths(surface, np.arange(25, 40), jobs) for jobs in (1, 2))
    np.testing.assert_allclose(one.depth, two.depth, atol=1e-9)


def test_a_shrunken_surface_keeps_its_inputs_off_the_sides() -> None:
    rng = np.random.default_rng(2)
    head = Head(rng.normal(size=(20, 2)), 3 * rng.normal(size=20), domain=Box(1))
    searched = SearchedHead(head, head.domain, Backend(1))
    found = depths(Surface(searched, np.arange(10), shrunk=0.1), np.arange(10, 20))
    assert np.abs(found.inputs).max() <= 0.9 + 1e-9


def test_leads_of_wrong_mixtures_are_not_proven() -> None:
    weight = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1], [0, 0]])
    head = Head(weight, [0.0, 0, 0, 0, -1], domain=Box(1))
    surface = surface_of(head, np.arange(4))
    right, wrong = Mixture(np.array([0, 1]), np.ones(2)), Mixture(np.array([0, 2]), np.ones(2))
    leads = [lead for _, lead in proven_leads(Certifier(head), surface, [(4, right), (4, wrong)])]
    assert leads[0] == pytest.approx(1.0)
    assert not leads[1] > 0.5
