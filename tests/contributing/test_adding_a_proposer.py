"""docs/contributing, "how to add a proposer", followed: one module, one line in a list."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from oracle import expected, false_verdicts
from uncork import Ball, Box, Domain, Head, Unbounded, audit, verify
from uncork.auditing import search
from uncork.theory.random_heads import random_head

MODULE = '''
# [docs: begin]
"""Random directions: whoever wins at one has a witness."""

from collections.abc import Iterator

import numpy as np

from uncork.auditing.search.proposer import Proposal, Proposer, Search, Witnesses
from uncork.auditing.search.screen import winners
from uncork.auditing.search.space import Space


def propose(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    rng = np.random.default_rng(0)
    for _ in range(20):
        if search.late():
            return
        x = space.enter(space.backend.asarray(rng.standard_normal((100, space.features))))
        yield Witnesses(winners(space, space.directions(x)), space.proposed(x))


PROPOSER = Proposer("random directions", "decide", propose)
# [docs: end]
'''

LIE = '''
"""Every class wins at every input, and is beaten by every mixture. None of it is true."""

import numpy as np

from uncork.auditing.proofs.verdict import Mixture, Witness
from uncork.auditing.search.proposer import ExactWitness, GaveUp, Mixtures, Proposer, Witnesses


def propose(space, classes, search):
    rng = np.random.default_rng(0)
    everyone = np.arange(-2, space.head.classes + 2)  # some of which do not exist
    for scale in (0.01, 1.0, 100.0, np.nan):
        yield Witnesses(everyone, scale * rng.standard_normal((len(everyone), space.features)))
        weights = scale * rng.random(space.head.classes)
        mixture = Mixture(np.arange(space.head.classes), weights)
        yield Mixtures([(t, mixture) for t in everyone.tolist()])
    for t in everyone.tolist():
        whole = tuple(int(n) for n in rng.integers(-9, 9, space.features))
        yield ExactWitness(t, Witness(np.array(whole) / 7, whole, 7))
        yield GaveUp(t, "no reason at all")


PROPOSER = Proposer("lies", "decide", propose)
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of one's own, where modules can be put."""
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "own_proposers"
    folder.mkdir()
    (folder / "__init__.py").touch()
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == folder.name]:
        del sys.modules[name]


def module_of(package: Path, name: str, text: str) -> ModuleType:
    (package / f"{name}.py").write_text(text, encoding="utf-8")
    return importlib.import_module(f"{package.name}.{name}")


def make_head(domain: Domain) -> Head:
    """Some classes on the hull, some inside, two of them equal."""
    rng = np.random.default_rng(5)
    weight = np.vstack([rng.integers(-3, 4, (12, 2)), 0.1 * rng.standard_normal((4, 2))])
    bias = rng.integers(-1, 2, 16).astype(np.float64)
    return Head(np.vstack([weight, weight[0]]), np.append(bias, bias[0]), domain=domain)


@pytest.mark.parametrize("domain", [Box(100), Unbounded(), Ball(5.0)], ids=str)
def test_what_a_new_proposer_finds_is_certified(
    domain: Domain, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = module_of(package, "random_directions", MODULE)
    monkeypatch.setattr(search, "FAST", (mine.PROPOSER,))
    head = random_head(40, 3, bias=True, seed=2, domain=domain)
    found = audit(head, device="cpu", jobs=1)
    assert len(found.argmaxable) > 10
    assert not len(found.unargmaxable)  # it proposes no mixtures
    assert false_verdicts(found, head) == {}
    assert verify(found, head, jobs=1).ok
    assert found.seconds["decide"] > 0


def test_the_others_decide_what_it_leaves(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = module_of(package, "random_directions", MODULE)
    monkeypatch.setattr(search, "FAST", (mine.PROPOSER, *search.FAST))
    head = make_head(Box(100))
    assert list(audit(head, device="cpu", jobs=1).verdicts) == expected(head)


@pytest.mark.parametrize("domain", [Box(100), Unbounded(), Ball(5.0)], ids=str)
def test_a_proposer_that_lies_costs_verdicts_and_falsifies_none(
    domain: Domain, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies = module_of(package, "lies", LIE)
    head = make_head(domain)
    monkeypatch.setattr(search, "FAST", (lies.PROPOSER,))
    found = audit(head, device="cpu", jobs=1)
    assert len(found.undecided)
    assert false_verdicts(found, head) == {}
    assert verify(found, head, jobs=1).ok


def test_lies_first_take_nothing_from_an_honest_audit(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies = module_of(package, "lies", LIE)
    head = make_head(Box(100))
    monkeypatch.setattr(search, "FAST", (lies.PROPOSER, *search.FAST))
    assert list(audit(head, device="cpu", jobs=1).verdicts) == expected(head)
