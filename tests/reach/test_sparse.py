"""Sparse outputs: how far a class comes under sparsemax and α-entmax, against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_probability import DOMAINS, inputs_of

import uncork
from models import PP_OCR_V4
from small_heads import quick
from uncork import Ball, Box, Head, Image, LayerNorm, UncorkError
from uncork.auditing.certify.certifier import Certifier
from uncork.nn.reference import entmax as slow_entmax
from uncork.reach.certificates import (
    Certificates,
    check_certificates,
    read_certificates,
    write_certificates,
)
from uncork.reach.probability.search import highest_probability
from uncork.reach.sparse.bounds import sparse_bounds
from uncork.reach.sparse.search import SparseProbability, sparse_probability


def entmax(z: np.ndarray, alpha: float) -> np.ndarray:
    """By bisection, all rows at once: (n, C) → (n, C)."""
    v = (alpha - 1) * z
    low = v.max(axis=1, keepdims=True) - 1
    high = low + 1
    for _ in range(60):
        middle = (low + high) / 2
        above = (np.maximum(v - middle, 0) ** (1 / (alpha - 1))).sum(axis=1, keepdims=True) > 1
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.maximum(v - high, 0) ** (1 / (alpha - 1))


def test_the_brute_force_is_entmax() -> None:
    z = np.random.default_rng(0).standard_normal((4, 9))
    for alpha in (1.3, 1.5, 2.0):
        np.testing.assert_allclose(entmax(z, alpha), slow_entmax(z, alpha), atol=1e-9)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_it_equals_a_fine_grid_over_a_box_in_two_dimensions(alpha: float) -> None:
    rng = np.random.default_rng(0)
    head = Head(rng.standard_normal((9, 2)), rng.standard_normal(9), domain=Box(2.0))
    side = np.linspace(-2, 2, 201)
    x = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    best = entmax(x @ head.weight.T + head.offsets, alpha).max(axis=0)
    found = sparse_probability(head, None, alpha, jobs=1)
    assert (found.gap <= 1e-6).all()
    assert (best <= found.upper + 1e-12).all()
    assert (found.lower <= best + 0.012).all()
    assert found.support.tolist() == (best > 0).astype(int).tolist()
    assert found.whole.tolist() == (best > 1 - 1e-9).astype(int).tolist()


@pytest.mark.parametrize("kind", DOMAINS)
@quick(3)
@given(
    seed=st.integers(0, 2**20),
    alpha=st.sampled_from([1.05, 1.3, 1.5, 1.9, 2.0, 2.5]),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_no_input_exceeds_the_upper_bound_and_one_attains_the_lower(
    kind: str, seed: int, alpha: float, temperature: float
) -> None:
    rng = np.random.default_rng(seed)
    classes, features = int(rng.integers(3, 14)), int(rng.integers(2, 5))
    head = Head(
        rng.standard_normal((classes, features)), rng.standard_normal(classes),
        domain=DOMAINS[kind](features),
    )  # fmt: skip
    found = sparse_probability(head, None, alpha, temperature=temperature, jobs=1, device="cpu")
    x = inputs_of(head.domain, features, 2000, seed)
    tried = entmax((x @ head.weight.T + head.offsets) / temperature, alpha).max(axis=0)
    assert (tried <= found.upper * (1 + 1e-9) + 1e-12).all()
    at = head.domain.affine(features).image(found.inputs)
    attained = entmax((at @ head.weight.T + head.offsets) / temperature, alpha)
    attained = attained[np.arange(classes), found.classes]
    sure = np.abs(at).max(axis=1) < 1e6  # farther out the brute force rounds too much
    assert (found.lower <= attained * (1 + 1e-9) + 1e-12)[sure].all()
    assert (found.support[found.lower > 0] == 1).all()
    assert (found.support[found.upper == 0] == 0).all()
    assert (found.whole[found.upper < 1] == 0).all()
    if alpha <= 2:
        assert (found.upper - found.lower <= 1e-6).all()


def test_the_whole_support_is_an_audit_of_a_lead() -> None:
    rng = np.random.default_rng(8)
    weight, bias = rng.standard_normal((20, 3)), 0.3 * rng.standard_normal(20)
    head = Head(weight, bias, domain=Ball(3.0))
    found = sparse_probability(head, None, 1.5, jobs=1)
    for t in range(20):
        behind = bias.copy()
        behind[t] -= 2.0  # 1/(α − 1)
        ahead = uncork.audit(Head(weight, behind, domain=Ball(3.0)), classes=[t]).argmaxable
        assert (found.whole[t] == 1) == (len(ahead) == 1)
    assert 0 < (found.whole == 1).sum() < 20


def test_equal_classes_share_what_there_is() -> None:
    head = Head([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.5]], domain=Box(100.0))
    for alpha in (1.5, 2.0):
        found = sparse_probability(head, None, alpha, jobs=1)
        np.testing.assert_allclose(found.upper, [0.5, 0.5, 1.0], rtol=1e-6)
        assert found.whole.tolist() == [0, 0, 1]


def test_a_power_that_underflows_is_not_called_zero() -> None:
    """With α near 1, θ^(1/(α − 1)) underflows where θ is far above zero."""
    head = Head(np.zeros((2, 1)), np.array([0.0, -800.0]))  # θ is near 1/5, and p near 5⁻¹⁰⁰⁰
    found = sparse_probability(head, [1], 1.001, device="cpu", jobs=1)
    assert found.lower[0] == 0 < found.upper[0] < 1e-300
    assert found.support[0] == -1
    left_out = sparse_probability(head.replace(bias=np.array([0.0, -1100.0])), [1], 1.001, jobs=1)
    assert (left_out.upper[0], left_out.support[0]) == (0, 0)


def test_an_input_that_is_no_number_proves_nothing() -> None:
    head = Head(np.random.default_rng(0).normal(size=(5, 2)))
    low, high, whole = sparse_bounds(
        Certifier(head, head.domain), np.array([0]), np.full((1, 2), np.nan), np.ones(1), 1.5
    )
    assert (low[0], high[0], whole[0]) == (0, 1, False)


def test_the_lower_bound_is_nothing_outside_the_domain() -> None:
    head = Head([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]], domain=Box(1.0))
    low, high, whole = sparse_bounds(
        Certifier(head), np.array([0]), np.array([[5.0, 0.0]]), np.array([0.01]), 2.0
    )
    assert low[0] == 0
    assert not whole[0]
    assert high[0] >= sparse_probability(head, [0], 2.0, jobs=1).lower[0]


@pytest.mark.parametrize("alpha", [1.4, 2.0])
def test_proofs_hold_from_a_file_and_changed_ones_do_not(alpha: float, tmp_path) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(3)
    head = Head(rng.standard_normal((16, 3)), 0.1 * rng.standard_normal(16), domain=Box(1.0))
    found = sparse_probability(head, None, alpha, jobs=1)
    path = tmp_path / "sparse.npz"

    def failed(claims: SparseProbability) -> int:
        write_certificates(Certificates(head.fingerprint, head.domain, sparse=claims), path)
        return len(check_certificates(read_certificates(path, head), head).failed)

    assert failed(found) == 0
    part = (found.upper > 0) & (found.upper < 1)
    assert part.any()
    columns = {name: getattr(found, name) for name in found.__dataclass_fields__}
    assert failed(SparseProbability(**{**columns, "upper": found.upper * 0.999})) >= part.sum()
    assert failed(SparseProbability(**{**columns, "lower": found.lower * 1.001})) >= part.sum()
    assert failed(SparseProbability(**{**columns, "whole": 1 - found.whole})) == 16
    assert failed(SparseProbability(**{**columns, "support": 1 - found.support})) == 16


def test_lost_characters_of_pp_ocr_v4_are_not_in_sparsemaxs_support() -> None:
    head = uncork.load(str(PP_OCR_V4))
    lost = np.array([200, 1979, 2218])
    found = sparse_probability(head, lost, 2.0, device="cpu", jobs=1)
    assert found.support.tolist() == [0, 0, 1]
    assert found.gap.max() < 1e-6
    smoother = sparse_probability(head, lost, 1.5, device="cpu", jobs=1)
    assert smoother.support.tolist() == [1, 1, 1]
    assert smoother.gap.max() < 1e-6


@pytest.mark.parametrize(
    ("options", "said"),
    [({"alpha": 1.0}, "alpha"), ({"alpha": float("nan")}, "alpha"), ({"temperature": 0.0}, "temp")],
)
def test_what_means_nothing_is_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(UncorkError, match=said):
        sparse_probability(Head(np.eye(3)), **options)  # type: ignore[arg-type]


@quick(40)
@given(seed=st.integers(0, 2**32 - 1), kind=st.integers(0, 4), alpha=st.sampled_from([1.5, 2, 3]))
def test_every_input_named_lies_in_the_domain(seed: int, kind: int, alpha: float) -> None:
    """Also for classes that no input has in the support, and where 0 is no input."""
    rng = np.random.default_rng(seed)
    features, classes = int(rng.integers(1, 4)), int(rng.integers(3, 9))
    low = 2 * rng.normal(size=features)
    matrix, gain = rng.normal(size=(features, features)), rng.normal(size=features)
    domain = [
        Box(low, low + rng.random(features)), Box(low, np.inf), Box(low, low),
        Image(Box(low, low + 1), matrix), LayerNorm(gain, 5 * low),
    ][kind]  # fmt: skip
    weight = rng.normal(size=(classes, features)) * rng.choice([0.1, 1, 20])
    head = Head(weight, rng.normal(size=classes), domain=domain)
    sparse = sparse_probability(head, alpha=alpha, device="cpu", jobs=1)
    soft = highest_probability(head, device="cpu", jobs=1)
    base = domain.affine(features).base
    for inputs in (sparse.inputs, sparse.mixture_inputs, soft.inputs, soft.mixture_inputs):
        assert base.contains(inputs).all()
