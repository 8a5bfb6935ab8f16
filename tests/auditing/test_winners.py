"""Few features, most classes lost: each class held against the winners found so far."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from oracle import false_verdicts
from small_heads import EXTREME, ORDINARY, heads, quick
from uncork import Box, Domain, Head, LayerNorm, Unbounded, audit, verify
from uncork.auditing import run
from uncork.auditing.backend import Backend, TorchBackend
from uncork.auditing.search.space import Space
from uncork.auditing.search.together import winners
from uncork.theory.random_heads import hull_vertices, upper_hull_vertices

FLAT = [Unbounded(), Box(100), Box(0, np.inf), Box(-0.5, 2), Box(1, 2), Box(-1.7581, np.inf)]
ROUND = LayerNorm(np.arange(1.0, 6.0), np.ones(5))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of any size are held against their winners."""
    monkeypatch.setattr(winners, "_FEWEST", 0)
    monkeypatch.setattr(winners, "_MOST_WIN", 1.0)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else decides what it leaves."""
    monkeypatch.setattr(run, "proposers", lambda algorithm, approximate: (winners.PROPOSER,))


def normal_head(classes: int, features: int, domain: Domain, bias: bool, seed: int = 0) -> Head:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((classes, features)).astype(np.float32)
    return Head(weight, rng.standard_normal(classes) if bias else None, domain=domain)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ORDINARY)
def test_every_verdict_on_a_small_head_is_exact_and_none_is_left_open(kind: str) -> None:
    @quick(25)
    @given(head=heads(ORDINARY[kind]))
    def check(head: Head) -> None:
        found = audit(head, device="cpu", jobs=1)
        assert false_verdicts(found, head) == {}
        assert found.counts["undecided"] == 0

    check()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", EXTREME)
def test_at_the_edges_of_floating_point_no_verdict_is_false(kind: str) -> None:
    @quick(10)
    @given(head=heads(EXTREME[kind], extreme=True))
    def check(head: Head) -> None:
        found = audit(head, device="cpu", jobs=1, time_limit=10)
        assert false_verdicts(found, head) == {}

    check()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("features", [1, 2, 3, 5, 7])
def test_the_winners_are_the_vertices_that_qhull_finds(features: int) -> None:
    head = normal_head(600, features, Unbounded(), bias=False)
    found = audit(head, device="cpu", jobs=1)
    assert found.counts["undecided"] == 0
    if features == 1:
        ends = [int(head.weight.argmin()), int(head.weight.argmax())]
        assert found.argmaxable.tolist() == sorted(ends)
    else:
        assert found.argmaxable.tolist() == hull_vertices(head.weight).tolist()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("features", [1, 2, 4])
def test_with_a_bias_they_are_those_of_the_upper_hull(features: int) -> None:
    head = normal_head(600, features, Unbounded(), bias=True)
    found = audit(head, device="cpu", jobs=1)
    vertices = upper_hull_vertices(head.weight, head.offsets)
    assert found.argmaxable.tolist() == vertices.tolist()
    assert found.counts["undecided"] == 0


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("domain", FLAT, ids=str)
def test_on_every_flat_domain_nothing_is_left_to_others(domain: Domain, bias: bool) -> None:
    head = normal_head(600, 5, domain, bias)
    found = audit(head, device="cpu", jobs=1)
    assert found.counts["undecided"] <= 2  # a winner within rounding of a corner
    assert verify(found, head, jobs=1).ok


def test_together_with_the_others_the_verdicts_are_those_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for domain in (FLAT[2], FLAT[3], ROUND):
        head = normal_head(520, 5, domain, bias=True, seed=1)
        with_it = audit(head, device="cpu", jobs=1)
        with monkeypatch.context() as without:
            without.setattr(winners, "_WIDE", 0)
            plain = audit(head, device="cpu", jobs=1)
        assert np.array_equal(with_it.proofs.verdicts, plain.proofs.verdicts)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_torch_reaches_the_same_verdicts(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    head = normal_head(600, 4, Box(100), bias)
    plain = audit(head, device="cpu", jobs=1)
    monkeypatch.setattr(run, "choose_backend", lambda device, jobs: TorchBackend("cpu"))
    assert np.array_equal(audit(head).proofs.verdicts, plain.proofs.verdicts)


def test_classes_that_mostly_win_are_left_to_screening() -> None:
    rng = np.random.default_rng(0)
    circle = rng.standard_normal((2000, 12))
    circle /= np.linalg.norm(circle, axis=1, keepdims=True)
    space = Space(Head(circle), Unbounded(), Backend(1))
    assert not winners.fits(space, np.arange(2000))
    lost = Space(Head(circle[:, :3] * rng.uniform(0.2, 1, (2000, 1))), Unbounded(), Backend(1))
    assert winners.fits(lost, np.arange(2000))
