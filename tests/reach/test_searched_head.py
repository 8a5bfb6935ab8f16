"""The head as it is searched: the same differences of logits, on the plain set of u."""

from __future__ import annotations

import numpy as np
import pytest

import uncork
from uncork import Ball, Box, Domain, Head, Image, LayerNorm, RMSNorm, Unbounded, UncorkError
from uncork.auditing.backend import Backend
from uncork.reach.searched_head import SearchedHead

DOMAINS = [
    Box(2.0), Box(1.0, 3.0), Ball(1.5), Unbounded(), Box(0.0, np.inf), RMSNorm(features=4),
    LayerNorm(np.linspace(0.5, 2, 4), np.linspace(-1, 1, 4)),
    Image(Box(1.0), np.arange(12.0).reshape(4, 3) / 6, np.ones(4)),
]  # fmt: skip


def searched_of(domain: Domain, weight: np.ndarray, bias: np.ndarray | None) -> SearchedHead:
    head = Head(weight, bias, domain=domain)
    return SearchedHead(head, head.domain, Backend(1))


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_differences_of_logits_are_those_of_the_head(domain: Domain) -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(9, 4)) + 5, rng.normal(size=9)
    searched = searched_of(domain, weight, bias)
    u = searched.inside(3 * rng.normal(size=(50, searched.width)))
    x = domain.affine(4).image(u)
    z, true = np.asarray(searched.logits(u)), x @ weight.T + bias
    np.testing.assert_allclose(z - z[:, :1], true - true[:, :1], atol=1e-9)


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_inside_is_in_the_set_and_moves_nothing_that_is(domain: Domain) -> None:
    rng = np.random.default_rng(1)
    searched = searched_of(domain, rng.normal(size=(6, 4)), None)
    u = searched.inside(10 * rng.normal(size=(80, searched.width)))
    assert searched.base.contains(u).all()
    np.testing.assert_allclose(searched.inside(u), u, rtol=1e-12)
    assert searched.base.contains(searched.anywhere(3)).all()
    assert searched.anywhere(3).shape == (3, searched.width)


def test_which_domains_are_infinite() -> None:
    weight = np.eye(4)
    infinite = [searched_of(domain, weight, None).is_infinite for domain in DOMAINS]
    assert infinite == [False, False, False, True, True, False, False, False]


def test_whitening_inverts_the_covariance_of_the_rows_on_their_span() -> None:
    rng = np.random.default_rng(2)
    weight = rng.normal(size=(40, 4)) * [1.0, 10.0, 0.1, 1.0]
    searched = searched_of(Box(1), weight, None)
    np.testing.assert_allclose(
        searched.whitened @ np.cov(weight.T, bias=True), np.eye(4), atol=1e-8
    )
    flat = searched_of(Box(1), np.column_stack([weight[:, :3], np.zeros(40)]), None)
    assert not flat.whitened[3].any()  # no row differs there


def test_a_masked_class_leaves_the_other_biases_their_digits() -> None:
    bias = np.array([0.25, -0.5, -1e30, 1.0])
    searched = searched_of(Box(1), np.eye(4), bias)
    np.testing.assert_array_equal(np.asarray(searched.bias)[[0, 1, 3]] + 0.0, bias[[0, 1, 3]] - (
        np.median(bias)
    ))  # fmt: skip


def test_only_witnesses_of_this_head_and_domain_are_begun_at() -> None:
    head = Head(np.random.default_rng(3).normal(size=(12, 2)), domain=Box(2.0))
    known = uncork.audit(head, device="cpu", jobs=1)
    classes = np.arange(12)
    (starts,) = SearchedHead(head, head.domain, Backend(1)).witnesses(known, classes)
    found = np.isfinite(starts).all(axis=1)
    assert np.flatnonzero(found).tolist() == known.argmaxable.tolist()
    z = starts[found] @ head.weight.T
    assert z.argmax(axis=1).tolist() == known.argmaxable.tolist()
    other = head.replace(weight=head.weight * 1.5)
    assert SearchedHead(other, head.domain, Backend(1)).witnesses(known, classes) == []
    assert SearchedHead(head, Box(1.0), Backend(1)).witnesses(known, classes) == []
    assert SearchedHead(head, head.domain, Backend(1)).witnesses(None, classes) == []
    endless = uncork.audit(head, domain=Unbounded(), device="cpu", jobs=1)
    far = SearchedHead(head, Unbounded(), Backend(1)).witnesses(endless, classes)
    assert len(far) == 4
    np.testing.assert_allclose(far[1], 5 * far[0])


def test_weights_whose_sums_overflow_are_refused() -> None:
    with pytest.raises(UncorkError, match="too large"), np.errstate(all="ignore"):
        searched_of(Box(1), np.array([[1.7e308], [1.7e308], [-1.7e308]]), None)
