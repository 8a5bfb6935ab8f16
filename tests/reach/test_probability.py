"""The highest probability of a class: both bounds hold, and meet."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import uncork
from models import PP_OCR_V4
from small_heads import quick
from uncork import Ball, Box, Head, LayerNorm, RMSNorm, Unbounded, UncorkError
from uncork.auditing.certify.certifier import Certifier
from uncork.reach.certificates import (
    Certificates,
    check_certificates,
    read_certificates,
    write_certificates,
)
from uncork.reach.probability.bounds import probability_bounds
from uncork.reach.probability.search import highest_probability
from uncork.reach.sparse.search import sparse_probability

DOMAINS = {
    "box": lambda d: Box(3.0),
    "uneven box": lambda d: Box(np.linspace(-2, 0, d), np.linspace(0.5, 3, d)),
    "open box": lambda d: Box(0.0, np.inf),
    "ball": lambda d: Ball(2.0),
    "unbounded": lambda d: Unbounded(),
    "layernorm": lambda d: LayerNorm(np.linspace(0.5, 2, d), np.linspace(-1, 1, d)),
    "rmsnorm": lambda d: RMSNorm(features=d),
}


def softmax(z: np.ndarray) -> np.ndarray:
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def inputs_of(domain: uncork.Domain, features: int, count: int, seed: int) -> np.ndarray:
    """Random inputs of a domain, many of them at its edge."""
    rng = np.random.default_rng(seed)
    view = domain.affine(features)
    u = rng.standard_normal((count, view.latent)) * rng.choice([0.3, 1, 3, 10], (count, 1))
    if isinstance(view.base, Box):
        u = np.clip(u, *view.base.bounds(view.latent))
    elif isinstance(view.base, Ball):
        norms = np.linalg.norm(u, axis=1, keepdims=True)
        u *= np.minimum(1, view.base.radius / norms * (1 - 1e-12))
    return view.image(u)


@pytest.mark.parametrize("kind", DOMAINS)
@quick(6)
@given(seed=st.integers(0, 2**20), temperature=st.sampled_from([0.5, 1.0, 3.0]))
def test_no_input_exceeds_the_upper_bound_and_one_attains_the_lower(
    kind: str, seed: int, temperature: float
) -> None:
    rng = np.random.default_rng(seed)
    classes, features = int(rng.integers(3, 14)), int(rng.integers(2, 5))
    head = Head(
        rng.standard_normal((classes, features)), rng.standard_normal(classes),
        domain=DOMAINS[kind](features),
    )  # fmt: skip
    found = highest_probability(head, temperature=temperature, jobs=1, device="cpu")
    x = inputs_of(head.domain, features, 4000, seed)
    tried = softmax((x @ head.weight.T + head.offsets) / temperature).max(axis=0)
    assert (tried <= found.upper * (1 + 1e-12)).all()
    at = head.domain.affine(features).image(found.inputs)
    attained = softmax((at @ head.weight.T + head.offsets) / temperature)
    attained = attained[np.arange(classes), found.classes]
    assert (found.lower <= attained * (1 + 1e-12)).all()
    # Where a class wins only very far out, rounding there is part of what can be proven.
    close = 1e-5 if kind in ("unbounded", "open box") else 1e-6
    np.testing.assert_allclose(attained, found.lower, rtol=close)
    assert (found.gap <= close).all()


def test_it_equals_a_fine_grid_over_a_box_in_two_dimensions() -> None:
    rng = np.random.default_rng(5)
    head = Head(rng.standard_normal((9, 2)), rng.standard_normal(9), domain=Box(2.0))
    side = np.linspace(-2, 2, 601)
    x = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    best = softmax(x @ head.weight.T + head.offsets).max(axis=0)
    found = highest_probability(head, jobs=1)
    np.testing.assert_allclose(best, found.lower, rtol=1e-4)
    assert (best <= found.upper).all()


def test_unargmaxable_classes_stay_below_a_half_and_others_reach_one_far_out() -> None:
    rng = np.random.default_rng(2)
    weight = rng.standard_normal((40, 3))
    head = Head(weight, domain=Unbounded())
    audit = uncork.audit(head)
    found = highest_probability(head, audit=audit, jobs=1)
    assert len(audit.unargmaxable) > 5
    assert (found.upper[audit.unargmaxable] < 0.5).all()
    assert (found.lower[audit.argmaxable] > 1 - 1e-6).all()


def test_equal_classes_share_what_there_is() -> None:
    head = Head([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.5]], domain=Box(100.0))
    found = highest_probability(head, jobs=1)
    np.testing.assert_allclose(found.upper, [0.5, 0.5, 1.0], rtol=1e-6)


def test_the_lower_bound_is_nothing_outside_the_domain() -> None:
    head = Head([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]], domain=Box(1.0))
    low, high = probability_bounds(Certifier(head), np.array([0]), np.array([[5.0, 0.0]]))
    assert low[0] == 0
    assert high[0] >= highest_probability(head, jobs=1).lower[0]


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_that_means_nothing_is_refused(temperature: float) -> None:
    with pytest.raises(UncorkError, match="temperature"):
        highest_probability(Head(np.eye(3)), temperature=temperature)


def test_lost_characters_of_pp_ocr_v4_stay_far_below_a_half() -> None:
    head = uncork.load(str(PP_OCR_V4))
    lost = np.array([200, 560, 1979, 2218])
    found = highest_probability(head, lost, device="cpu", jobs=1)
    assert (found.upper < 0.02).all()
    assert (found.lower > 9e-4).all()
    assert (found.gap < 1e-6).all()


def test_a_masked_class_has_a_probability_above_zero(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).normal(size=(6, 2)).astype(np.float32)
    head = Head(weight, np.array([0, -1e9, 0, 1, 2, 3], np.float32))
    found = highest_probability(head, [1, 5], jobs=1, device="cpu")
    assert found.lower[0] == 0 < found.upper[0] < 1e-307
    assert found.gap[0] == np.inf
    assert found.gap[1] < 1e-4  # 1e9 in the bias costs digits
    path = tmp_path / "bounds.npz"
    write_certificates(Certificates(head.fingerprint, head.domain, found), path)
    assert check_certificates(read_certificates(path, head), head, device="cpu").ok
    found.upper[0] = 0.0
    np.testing.assert_array_equal(found.gap[:1], [0.0])
    checked = check_certificates(
        Certificates(head.fingerprint, head.domain, found), head, device="cpu"
    )
    assert checked.failed == [(1, "the upper bound on its probability is not proven")]


@pytest.mark.parametrize("depth", [30, 700, 707, 707.9, 708.5, 720, 743, 745, 746, 800, 1e6])
def test_bounds_hold_where_floats_run_out_of_digits(depth: float) -> None:
    head = Head(np.zeros((2, 1)), np.array([0.0, -depth]))
    low, high = probability_bounds(Certifier(head, head.domain), np.array([1]), np.zeros((1, 1)))
    power = (-Decimal(depth)).exp()
    true = power / (1 + power)
    assert Decimal(float(low[0])) <= true <= Decimal(float(high[0]))
    assert high[0] > 0
    assert depth > 707 or high[0] <= low[0] * (1 + 1e-9)


def test_an_input_that_is_no_number_proves_nothing() -> None:
    head = Head(np.random.default_rng(0).normal(size=(5, 2)))
    low, high = probability_bounds(Certifier(head, head.domain), [0, 1], np.full((2, 2), np.nan))
    np.testing.assert_array_equal([low, high], [[0, 0], [1, 1]])


@pytest.mark.parametrize("size", [1e-320, 1e-200, 1e-160, 1e-150])
def test_weights_too_small_to_be_squared_make_all_classes_alike(size: float) -> None:
    head = Head(np.random.default_rng(1).normal(size=(6, 2)) * size)
    found = highest_probability(head, jobs=1, device="cpu")
    np.testing.assert_allclose([found.lower, found.upper], 1 / 6)


@pytest.mark.parametrize("mask", [-1e12, -1e20, -1e30, -1e100])
@pytest.mark.parametrize("ask", [highest_probability, sparse_probability])
def test_masked_classes_leave_the_bounds_of_others_as_near(
    ask: Callable[..., Any], mask: float
) -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(40, 4)), 0.5 * rng.normal(size=40)
    without = ask(Head(weight[:37], bias[:37], domain=Box(2)), range(6), jobs=1)
    bias[37:] = mask, 2 * mask, mask
    found = ask(Head(weight, bias, domain=Box(2)), range(6), jobs=1)
    assert (found.upper - found.lower < 1e-5).all()
    np.testing.assert_allclose(found.lower, without.lower, atol=1e-5)
