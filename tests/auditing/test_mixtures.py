"""Many mixtures at once prove what one at a time does, on NumPy and on torch, and nothing more."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from oracle import first_somewhere, mixture_lead
from small_heads import EXTREME, ORDINARY, heads, quick
from uncork import Ball, Box, Domain, Head, Image, LayerNorm, Mixture, RMSNorm, Unbounded
from uncork.auditing.backend import Backend, TorchBackend
from uncork.auditing.certify.bulk import Bulk
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.certify.one_mixture import OneMixture
from uncork.auditing.certify.products import Device
from uncork.auditing.search.tilt import nonnegative_least_squares
from uncork.domain.affine import Constants

ANY = {**ORDINARY, **EXTREME}
any_head = st.sampled_from(sorted(ANY)).flatmap(lambda kind: heads(ANY[kind], extreme=True))
D = 5
DOMAINS: list[Domain] = [
    Box(100), Box(0, np.inf), Box(-0.5, 2), Ball(3.0), Unbounded(),
    RMSNorm(np.linspace(0.5, 2, D)), LayerNorm(np.linspace(0.5, 2, D), np.linspace(-1, 1, D)),
    LayerNorm(features=D), Image(Box(0, 1), np.linspace(-1, 1, D * 7).reshape(D, 7), np.ones(D)),
]  # fmt: skip


class Narrow(Device):
    """Room for two or three rows at a time: everything is done in pieces."""

    gather_bytes = 100
    inputs = 3


def devices() -> list[Device]:
    pytest.importorskip("torch")
    return [Device(), Narrow(), Backend(1), TorchBackend("cpu")]


def mixed_head(domain: Domain, bias: bool, seed: int = 0) -> tuple[Head, list[int], list[Mixture]]:
    """A head whose first rows mix others, and mixtures of every kind: some hold and some do not."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((60, D))
    offsets = rng.standard_normal(60) if bias else None
    classes, mixtures = [], []
    for t in range(16):
        ids = 17 + rng.permutation(43)[: int(rng.integers(1, 20))]
        shares = rng.dirichlet(np.ones(len(ids)))
        own_share = (0.9, 0.9 + 1e-9, 0.7, 0.0)[t % 4]  # the second only just does not balance
        weight[t] = 0.9 * (shares @ weight[ids])
        if offsets is not None:
            offsets[t] = offsets[ids].min() - 1
        classes.append(t)
        mixtures.append(Mixture(ids, own_share * shares, bulk=(0.0, 0.1, 0.3, 1.0)[t // 4]))
    inner = weight[:16].copy()
    for _ in range(40):  # the mean is that of all rows, these among them
        weight[:16] = inner + 0.1 * weight.mean(axis=0)
    weight[16] = weight[0]
    tilt = rng.standard_normal(D).astype(np.float32)
    more = [
        Mixture(np.array([16, 0, 17]), np.array([1.0, 2.0, 0.0])),  # t itself and its equal
        Mixture(np.array([], dtype=np.int32), np.array([])),
        Mixture(np.array([], dtype=np.int32), np.array([]), bulk=1.0),
        Mixture(np.arange(40, 60), np.full(20, 0.01), 0.5, None, tilt, 3.0),
        Mixture(np.arange(40, 60), np.full(20, 0.01), 0.0, None, tilt, 3.0),
        Mixture(np.arange(1, 60), np.full(59, 1.0), 0.0, tuple(range(1, 60))),
        Mixture(np.array([60]), np.ones(1)),
        Mixture(np.array([3, 4]), np.ones(1)),
        Mixture(np.array([3]), np.array([-1.0])),
        Mixture(np.array([3]), np.ones(1), 1.0, None, tilt[:2], 0.0),
    ]
    return Head(weight, offsets, domain=domain), classes + [0] * len(more), mixtures + more


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_many_at_once_are_worth_what_each_is_alone(domain: Domain, bias: bool) -> None:
    head, classes, mixtures = mixed_head(domain, bias)
    one = OneMixture(Certifier(head))
    alone = np.array([one.lead(t, m) for t, m in zip(classes, mixtures, strict=True)])
    assert (alone >= 0).any()
    for device in devices():
        together = Certifier(head, device=device).mixtures(classes, mixtures)
        assert ((together >= 0) == (alone >= 0)).all()
        assert np.isnan(together).tolist() == np.isnan(alone).tolist()
        known = np.isfinite(alone)
        assert (np.isfinite(together) == known).all()
        assert together[known] == pytest.approx(alone[known], rel=1e-9, abs=1e-12)


def ragged(head: Head, rng: np.random.Generator) -> tuple[list[int], list[Mixture]]:
    classes, mixtures = [], []
    for _ in range(5):
        t, count = int(rng.integers(head.classes)), int(rng.integers(0, head.classes + 1))
        ids = rng.permutation(head.classes)[:count]
        weights = rng.random(count) * 10.0 ** rng.choice([-300, -10, 0, 0, 0, 300])
        if rng.random() < 0.3:
            weights = rng.integers(0, 3, count).astype(np.float64)
        classes.append(t)
        mixtures.append(Mixture(ids, weights, bulk=float(rng.choice([0, 0, 1e-9, 1.0]))))
    return classes, mixtures


@pytest.mark.slow
@quick(120)
@given(head=any_head, seed=st.integers(0, 2**32))
def test_no_mixture_of_many_is_credited_with_more_than_its_lead(head: Head, seed: int) -> None:
    classes, mixtures = ragged(head, np.random.default_rng(seed))
    certifier = Certifier(head, device=Narrow() if seed % 2 else None)
    leads = certifier.mixtures(classes, mixtures)
    for t, mixture, lead in zip(classes, mixtures, leads.tolist(), strict=True):
        if mixture.bulk:
            if lead >= 0:
                assert not first_somewhere(head, t)
            continue
        true = mixture_lead(head, t, mixture.classes, mixture.weights.tolist())
        if lead > 5e-324:
            assert true is not None
            others = [not certifier.equal(int(i), t) for i in mixture.classes]
            pairs = zip(mixture.weights.tolist(), others, strict=True)
            assert Fraction(lead) <= true / sum(Fraction(w) for w, other in pairs if other)
        elif lead >= 0:
            assert true is not None


@pytest.mark.slow
@quick(60)
@given(head=any_head, seed=st.integers(0, 2**32))
def test_extreme_mixtures_are_accepted_together_where_they_are_alone(head: Head, seed: int) -> None:
    classes, mixtures = ragged(head, np.random.default_rng(seed))
    certifier = Certifier(head)
    one = OneMixture(certifier)
    together = certifier.mixtures(classes, mixtures)
    for t, mixture, lead in zip(classes, mixtures, together.tolist(), strict=True):
        if not mixture.bulk:  # with one, a lead within rounding of zero may go either way
            assert (lead >= 0) == (one.lead(t, mixture) >= 0)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_many_nudges_are_those_of_one_at_a_time(scale: float) -> None:
    rng = np.random.default_rng(0)
    bulk = Bulk.of(Head(scale * rng.standard_normal((200, 4))), Device())
    residuals = scale * rng.standard_normal((50, 4)) * 10.0 ** rng.integers(-12, 1, (50, 1))
    errors = np.abs(residuals) * rng.choice([0, 1e-15, 0.1], (50, 1))
    residuals[7, 2] = np.inf
    alone = [bulk.nudge(r, e) for r, e in zip(residuals, errors, strict=True)]
    assert any(a is not None for a in alone) or scale != 1
    for device in devices():
        on = Constants(device)
        together = bulk.nudges(device.put(residuals), device.put(errors), on)
        assert np.isnan(together).tolist() == [a is None for a in alone]
        known = [a for a in alone if a is not None]
        assert together[~np.isnan(together)] == pytest.approx(known, rel=1e-12)


@pytest.mark.parametrize("backend", [Backend(1), TorchBackend("cpu")], ids=["numpy", "torch"])
@pytest.mark.parametrize(("count", "width"), [(1, 4), (20, 40), (40, 12)])
def test_least_squares_of_many_is_as_near_as_that_of_one(
    backend: Any, count: int, width: int
) -> None:
    rng = np.random.default_rng(count)
    points = rng.standard_normal((30, count, width))
    points[3] = 0.0
    if count > 2:
        points[:, 1] = points[:, 2]  # a row twice
        points[:, 0] = 0.0  # and one of no use
    target = rng.standard_normal((30, width)) + points.mean(axis=1)
    gram, right = points @ points.swapaxes(1, 2), (points @ target[:, :, None])[:, :, 0]
    found = backend.get(nonnegative_least_squares(backend, backend.put(gram), backend.put(right)))
    assert (found >= 0).all()
    for rows, y, weights in zip(points, target, found, strict=True):
        best = nnls(rows.T, y)[1]
        assert np.linalg.norm(weights @ rows - y) <= best * (1 + 1e-7) + 1e-6
