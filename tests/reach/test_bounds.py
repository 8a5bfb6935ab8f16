"""What one input or one mixture proves: by hand, against brute force, and nothing from nonsense."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import uncork.reach.bounds
from small_heads import quick
from uncork import Ball, Box, Domain, Head, Mixture, Unbounded
from uncork.auditing.certify.certifier import Certifier
from uncork.nn.reference import entmax
from uncork.reach.bounds.probability import probability_bounds
from uncork.reach.bounds.rank import cases_bound, disjoint_bound, holds, rank_at
from uncork.reach.bounds.sparse import derivative, softplus, sparse_bounds, threshold

SQUARE = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1], [0, 0]])  # and its centre


def softmax(z: np.ndarray) -> np.ndarray:
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def pair(*classes: int) -> Mixture:
    return Mixture(np.array(classes), np.full(len(classes), 1 / len(classes)))


def test_what_proves_does_not_search() -> None:
    """The trusted part imports no solver, and nothing that proposes."""
    allowed = ("uncork.auditing.certify", "uncork.auditing.proofs", "uncork.core", "numpy")
    for path in Path(uncork.reach.bounds.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("uncork"):  # type: ignore[union-attr]
                assert node.module.startswith((*allowed, "uncork.reach.bounds")), path.name  # type: ignore[union-attr]
            assert not (isinstance(node, ast.Import) and "scipy" in node.names[0].name), path.name


# Probability


@pytest.mark.parametrize("bias", [0.0, -0.7, 2.0])
def test_between_two_opposites_the_best_is_where_they_balance(bias: float) -> None:
    """w = 1, −1, 0: log Σ exp(z_i − z_2) = log(2 cosh x · e^−b + 1) is least at 0."""
    head = Head([[1.0], [-1.0], [0.0]], [0.0, 0.0, bias], domain=Box(10))
    low, high = probability_bounds(Certifier(head), np.array([2]), np.zeros((1, 1)))
    best = np.exp(bias) / (np.exp(bias) + 2)
    assert low[0] <= best <= high[0]
    np.testing.assert_allclose([low[0], high[0]], best, rtol=1e-9)


def test_at_the_side_of_a_box_one_input_proves_both_bounds() -> None:
    """Two classes, w = ±1 on [−R, R]: the first is likeliest at R, with probability σ(2R)."""
    head = Head([[1.0], [-1.0]], domain=Box(1.5))
    low, high = probability_bounds(Certifier(head), np.array([0]), np.array([[1.5]]))
    np.testing.assert_allclose([low[0], high[0]], 1 / (1 + np.exp(-3.0)), rtol=1e-9)


@quick(25)
@given(
    seed=st.integers(0, 2**20), temperature=st.sampled_from([0.3, 1.0, 4.0]),
    domain=st.sampled_from([Box(2.0), Ball(1.5), Box(-1, 3)]),
)  # fmt: skip
def test_any_input_gives_bounds_that_hold(seed: int, temperature: float, domain: Domain) -> None:
    """Also one that is nowhere near the optimum."""
    rng = np.random.default_rng(seed)
    head = Head(rng.normal(size=(7, 3)), rng.normal(size=7), domain=domain)
    x = rng.uniform(-2, 3, (3000, 3))
    x = x[domain.contains(x)]
    chances = softmax((x @ head.weight.T + head.offsets) / temperature)
    classes = np.arange(7)
    low, high = probability_bounds(Certifier(head), classes, x[:7], temperature)
    assert (low <= chances[classes, classes] * (1 + 1e-12)).all()
    assert (chances.max(axis=0) <= high * (1 + 1e-12)).all()


@pytest.mark.parametrize("bulk", [1.0, -0.1, 2.0, np.nan])
def test_a_share_that_is_none_proves_nothing(bulk: float) -> None:
    head = Head(SQUARE, domain=Box(1))
    found = probability_bounds(Certifier(head), np.array([4]), np.zeros((1, 2)), 1.0, bulk)
    np.testing.assert_array_equal(found, [[0.0], [1.0]])


def test_a_share_spread_over_all_classes_costs_little_and_still_holds() -> None:
    head = Head(SQUARE, domain=Unbounded())
    certifier = Certifier(head)
    for share in (1e-9, 1e-5, 0.1):
        high = probability_bounds(certifier, np.array([4]), np.zeros((1, 2)), 1.0, share)[1][0]
        assert 0.2 <= high <= 0.2 ** (1 - share) * (1 + 1e-6)


# Rank


def test_ranks_are_counted_with_ties_against_the_class() -> None:
    head = Head(SQUARE, domain=Box(1))
    certifier, own = Certifier(head), np.array([4])
    assert rank_at(certifier, 4, np.array([1.0, 0.5]), own) == 3
    assert rank_at(certifier, 4, np.array([1.0, 0.0]), own) == 4  # two tie with it, and count
    assert rank_at(certifier, 4, np.array([0.0, 0.0]), own) == 5
    assert rank_at(certifier, 0, np.array([1.0, 0.5]), np.array([0])) == 1
    assert rank_at(certifier, 0, np.array([1.5, 0.0]), np.array([0])) == 6  # outside the box


def test_a_difference_below_rounding_is_counted_exactly() -> None:
    tiny = 2.0**-52
    head = Head([[1.0], [1 + tiny], [1 - tiny / 2]], domain=Box(1))
    certifier = Certifier(head)
    assert rank_at(certifier, 0, np.array([1e-300]), np.array([0])) == 2
    assert rank_at(certifier, 0, np.array([-1e-300]), np.array([0])) == 2
    assert rank_at(certifier, 2, np.array([-1e-300]), np.array([2])) == 1


def test_each_mixture_counts_once_and_only_if_it_beats_the_class_everywhere() -> None:
    certifier = Certifier(Head(SQUARE, domain=Unbounded()))
    assert holds(certifier, 4, pair(0, 1))
    assert not holds(certifier, 4, pair(0, 2))
    assert not holds(certifier, 4, Mixture(np.empty(0, np.int64), np.empty(0)))
    assert not holds(certifier, 4, Mixture(np.array([0, 1]), np.array([0.4, 0.6])))
    assert not holds(certifier, 4, Mixture(np.array([0, 1]), np.array([-0.5, -0.5])))
    assert not holds(certifier, 4, Mixture(np.array([4]), np.array([1.0]), bulk=0.1))
    assert disjoint_bound(certifier, 4, [pair(0, 1), pair(2, 3)]) == 2
    assert disjoint_bound(certifier, 4, [pair(0, 1), pair(2, 0)]) == 0  # they share a class
    assert disjoint_bound(certifier, 4, [pair(0, 1), pair(0, 1)]) == 0
    assert disjoint_bound(certifier, 4, []) == 0


def test_cases_prove_as_deep_as_every_one_of_them_goes() -> None:
    certifier = Certifier(Head(SQUARE, domain=Unbounded()))
    whole = {frozenset(): pair(0, 1), frozenset({0}): pair(2, 3), frozenset({1}): pair(2, 3)}
    assert cases_bound(certifier, 4, whole) == 2
    assert cases_bound(certifier, 4, {k: v for k, v in whole.items() if 1 not in k}) == 1
    assert cases_bound(certifier, 4, {**whole, frozenset({0}): pair(0, 1)}) == 1  # names 0 again
    assert cases_bound(certifier, 4, {**whole, frozenset({0}): pair(2, 1)}) == 1  # no mixture
    assert cases_bound(certifier, 4, {frozenset({0}): pair(2, 3)}) == 0
    assert cases_bound(certifier, 4, {}) == 0


@quick(20)
@given(st.integers(0, 2**20))
def test_a_mixture_that_holds_has_a_class_at_or_above_at_every_input(seed: int) -> None:
    rng = np.random.default_rng(seed)
    head = Head(rng.integers(-2, 3, (6, 2)), rng.integers(-1, 2, 6), domain=Box(3))
    certifier = Certifier(head)
    x = rng.uniform(-3, 3, (400, 2))
    z = x @ head.weight.T + head.offsets
    for classes in ([1, 2], [1, 2, 3], [2, 3, 4, 5]):
        mixture = Mixture(np.array(classes), rng.dirichlet(np.ones(len(classes))))
        if holds(certifier, 0, mixture):
            assert (z[:, classes].max(axis=1) >= z[:, 0]).all()


# Sparse


def test_two_classes_under_sparsemax_by_hand() -> None:
    """p = ½ + (z_0 − z_1)/2, between 0 and 1."""
    head = Head([[1.0], [-1.0]], domain=Box(0.25))
    certifier, classes, epsilon = Certifier(head), np.array([0, 1]), np.full(2, 1e-6)
    low, high, whole = sparse_bounds(certifier, classes, np.full((2, 1), 0.25), epsilon, 2.0)
    np.testing.assert_allclose(low, [0.75, 0.25], rtol=1e-9)
    assert high[0] == pytest.approx(0.75, rel=1e-6)
    assert not whole.any()
    wide = Certifier(head.replace(domain=Box(1.0)))
    low, _, whole = sparse_bounds(wide, classes, np.full((2, 1), 1.0), epsilon, 2.0)
    assert low.tolist() == [1.0, 0.0]
    assert whole.tolist() == [True, False]


@quick(25)
@given(
    seed=st.integers(0, 2**20), alpha=st.sampled_from([1.1, 1.5, 2.0, 3.0]),
    epsilon=st.sampled_from([1e-9, 1e-3, 0.3]),
)  # fmt: skip
def test_any_input_and_any_weights_give_sparse_bounds_that_hold(
    seed: int, alpha: float, epsilon: float
) -> None:
    rng = np.random.default_rng(seed)
    head = Head(rng.normal(size=(6, 2)), rng.normal(size=6), domain=Box(2.0))
    x = rng.uniform(-2, 2, (40, 2))
    chances = entmax(x @ head.weight.T + head.offsets, alpha)
    classes = np.arange(6)
    certifier, widths = Certifier(head), np.full(6, epsilon)
    low, high, whole = sparse_bounds(certifier, classes, x[:6], widths, alpha)
    assert (low <= chances[classes, classes] * (1 + 1e-9) + 1e-12).all()
    assert (chances.max(axis=0) <= high * (1 + 1e-9) + 1e-12).all()
    assert not (whole & (chances[classes, classes] < 1 - 1e-9)).any()
    given = [Mixture(np.arange(6), rng.random(6)) for _ in classes]
    high = sparse_bounds(certifier, classes, x[:6], widths, alpha, weights=given)[1]
    assert (chances.max(axis=0) <= high * (1 + 1e-9) + 1e-12).all()


def test_weights_below_zero_prove_nothing() -> None:
    head = Head(SQUARE, domain=Box(1))
    weights = [Mixture(np.array([0, 1]), np.array([1.0, -1.0]))]
    at = np.array([4]), np.zeros((1, 2)), np.ones(1)
    assert sparse_bounds(Certifier(head), *at, 1.5, weights=weights)[1][0] == 1.0


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_the_threshold_makes_the_powers_sum_to_one(alpha: float) -> None:
    v = np.random.default_rng(0).normal(size=(5, 9))
    k = 1 / (alpha - 1)
    theta = threshold(np, v, k, 1e-12)
    np.testing.assert_allclose((np.maximum(v + theta[:, None], 0) ** k).sum(axis=1), 1, rtol=1e-9)


def test_derivatives_are_those_of_the_smoothed_power() -> None:
    v, k, width, step = np.linspace(-1, 1, 41), 1.7, 0.1, 1e-6

    def power(at: np.ndarray) -> np.ndarray:
        return np.asarray(softplus(np, at, width)[0] ** k)

    slope = (power(v + step) - power(v - step)) / (2 * step)
    np.testing.assert_allclose(derivative(np, v, k, width), slope, rtol=1e-5)
    assert (softplus(np, v, width)[0] >= np.maximum(v, 0)).all()
