"""Many items: inputs near a class's own that its blockers do not win, and mixtures of these."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from oracle import false_verdicts
from small_heads import EXTREME, ORDINARY, heads, quick
from uncork import Ball, Box, Domain, Head, Unbounded, audit, verify
from uncork.auditing import run
from uncork.auditing.backend import Backend, TorchBackend
from uncork.auditing.search.space import Space
from uncork.auditing.search.together import blockers


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of any size are asked for their blockers."""
    monkeypatch.setattr(blockers, "WORTH_IT", 0)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else decides what it leaves."""
    monkeypatch.setattr(run, "proposers", lambda algorithm, approximate: (blockers.PROPOSER,))


def vectors(classes: int = 6000, features: int = 16, seed: int = 0) -> Head:
    """Lengths as word vectors have them: long and short ones, and some that are equal."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((classes, features)) * np.exp(0.3 * rng.normal(size=(classes, 1)))
    weight[7] = weight[50]
    weight[90:95] = 0.2 * weight[100:105] + 0.3  # near the mean
    return Head(weight.astype(np.float32), domain=Unbounded())


@pytest.mark.usefixtures("always")
def test_verdicts_are_those_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    head = vectors(3000)
    with_it = audit(head, device="cpu")
    monkeypatch.setattr(blockers, "WORTH_IT", 1 << 60)
    without = audit(head, device="cpu")
    assert with_it.counts == without.counts
    assert with_it.counts["undecided"] == 0
    assert (with_it.proofs.verdicts == without.proofs.verdicts).all()
    assert verify(with_it, head).ok


@pytest.mark.usefixtures("always", "alone")
def test_alone_it_decides_nearly_all() -> None:
    head = vectors(2000)
    found = audit(head, device="cpu")
    assert found.counts["unargmaxable"] > 100
    assert found.counts["undecided"] < 0.05 * head.classes  # those with next to nothing to spare
    assert verify(found, head).ok


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ORDINARY)
def test_every_verdict_on_a_small_head_is_exact_and_none_is_left_open(kind: str) -> None:
    @quick(10)
    @given(head=heads(ORDINARY[kind]))
    def check(head: Head) -> None:
        head = head.replace(domain=Unbounded())
        found = audit(head, device="cpu", jobs=1)
        assert false_verdicts(found, head) == {}
        assert found.counts["undecided"] == 0

    check()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", EXTREME)
def test_at_the_edges_of_floating_point_no_verdict_is_false(kind: str) -> None:
    @quick(6)
    @given(head=heads(EXTREME[kind], extreme=True))
    def check(head: Head) -> None:
        found = audit(head, device="cpu", jobs=1, time_limit=10)
        assert false_verdicts(found, head) == {}

    check()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("domain", "bias", "suits"),
    [
        (Unbounded(), False, True), (Box(100), False, True), (Unbounded(), True, False),
        (Box(0, np.inf), False, False), (Ball(2.0), True, False),
    ],
)  # fmt: skip
def test_it_is_for_directions_alone(domain: Domain, bias: bool, suits: bool) -> None:
    rng = np.random.default_rng(0)
    head = Head(rng.normal(size=(40, 5)), rng.normal(size=40) if bias else None, domain=domain)
    space = Space(head, domain, Backend(1))
    assert blockers.fits(space, np.arange(40)) == suits


def test_it_is_for_many_items_on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    head = vectors(500)
    everyone = np.arange(500)
    assert not blockers.fits(Space(head, head.domain, Backend(1)), everyone)
    monkeypatch.setattr(blockers, "WORTH_IT", 0)
    assert blockers.fits(Space(head, head.domain, Backend(1)), everyone)
    pytest.importorskip("torch")
    assert not blockers.fits(Space(head, head.domain, TorchBackend("cpu")), everyone)
