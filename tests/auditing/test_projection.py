"""Wide heads with few classes for each feature: the nearest point of the others' hull."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from oracle import false_verdicts
from small_heads import ORDINARY, heads, quick
from uncork import Box, Domain, Head, Unbounded, audit, verify
from uncork.auditing import run
from uncork.auditing.backend import TorchBackend
from uncork.auditing.search.together import projection

PLANTED = 6


def planted(bias: bool, domain: Domain, seed: int = 0) -> Head:
    """Twice as many classes as features; the first few mix others, well inside their hull."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((120, 60))
    weight /= np.linalg.norm(weight, axis=1, keepdims=True)
    for t in range(PLANTED):
        mixed = rng.dirichlet(np.ones(20)) @ weight[10 + 10 * t : 30 + 10 * t]
        weight[t] = 0.5 * mixed + 0.5 * weight[PLANTED:].mean(axis=0)
    offsets = 0.01 * rng.standard_normal(120)
    offsets[:PLANTED] = -0.5
    return Head(weight.astype(np.float32), offsets if bias else None, domain=domain)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow heads, too."""
    monkeypatch.setattr(projection, "_NARROW", 0)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, always: None) -> None:
    """Nobody else decides what it leaves."""
    monkeypatch.setattr(run, "proposers", lambda algorithm, approximate: (projection.PROPOSER,))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("domain", [Unbounded(), Box(100)], ids=str)
def test_it_decides_every_class_alone(domain: Domain, bias: bool) -> None:
    head = planted(bias, domain)
    found = audit(head, device="cpu", jobs=1)
    assert found.unargmaxable.tolist() == list(range(PLANTED))
    assert found.counts["undecided"] == 0
    assert verify(found, head, jobs=1).ok


@pytest.mark.usefixtures("alone")
def test_torch_reaches_the_same_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    head = planted(False, Unbounded())
    monkeypatch.setattr(run, "choose_backend", lambda device, jobs: TorchBackend("cpu"))
    found = audit(head)
    assert found.unargmaxable.tolist() == list(range(PLANTED))
    assert found.counts["undecided"] == 0


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "kind", ["normal", "ternary lattice", "rank one", "repeated rows", "a mixture moved by an ulp"]
)
def test_no_verdict_on_a_small_head_is_false(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [stage._replace(rounds=20) for stage in projection._STAGES]
    monkeypatch.setattr(projection, "_STAGES", few)

    @quick(15)
    @given(head=heads(ORDINARY[kind]))
    def check(head: Head) -> None:
        found = audit(head, device="cpu", jobs=1)
        assert false_verdicts(found, head) == {}
        assert found.counts["undecided"] == 0

    check()
