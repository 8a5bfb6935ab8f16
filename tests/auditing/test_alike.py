"""Lost classes that lie close together: one mixture bent to each of them."""

from __future__ import annotations

import numpy as np
import pytest

from uncork import Box, Domain, Head, Unbounded, audit, verify
from uncork.auditing.backend import Backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.search import centre
from uncork.auditing.search.proposer import Mixtures
from uncork.auditing.search.space import Space
from uncork.auditing.search.together import alike

UNTRAINED = 500


def untrained(bias: bool, domain: Domain, apart: float = 1e-3) -> Head:
    """Rows on a sphere, and besides hundreds near the middle that training never touched."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((900, 40))
    weight /= np.linalg.norm(weight, axis=1, keepdims=True)
    weight[:UNTRAINED] = 0.05 * weight[0] + apart * rng.standard_normal((UNTRAINED, 40))
    offsets = np.where(np.arange(900) < UNTRAINED, -0.3, 0.01 * rng.standard_normal(900))
    return Head(weight.astype(np.float32), offsets if bias else None, domain=domain)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("domain", [Unbounded(), Box(100), Box(-0.3, np.inf)], ids=str)
@pytest.mark.parametrize("apart", [1e-3, 1e-5])
def test_a_few_mixtures_are_bent_to_the_classes_near_them(
    domain: Domain, bias: bool, apart: float
) -> None:
    """To all of them where they are close: λ' tends to λ > 0. Further apart, some λ' would be
    negative: of the 492 others 82 to 100 % are bent with rows 1e-3 apart (six heads, each domain,
    with and without bias), so that at three in four something else than chance is wrong."""
    head = untrained(bias, domain, apart)
    with np.errstate(all="ignore"):
        space = Space(head, domain, Backend(1))
        some = np.arange(8)
        found = centre.decide_batch(space, some, space.points[some], without=np.arange(UNTRAINED))[
            1
        ]
        assert isinstance(found, Mixtures)
        assert len(found.pairs) == len(some)
        pairs = alike.bent(space, found.pairs, np.arange(8, UNTRAINED))
        leads = Certifier(head, domain).mixtures([t for t, _ in pairs], [m for _, m in pairs])
    assert (leads >= 0).all()
    share = len(pairs) / (UNTRAINED - 8)
    assert share == 1 if apart == 1e-5 else share > 0.75


def test_a_class_that_can_win_is_bent_to_nothing() -> None:
    head = untrained(False, Unbounded())
    space = Space(head, head.domain, Backend(1))
    some = np.arange(8)
    found = centre.decide_batch(space, some, space.points[some], without=np.arange(UNTRAINED))[1]
    assert isinstance(found, Mixtures)
    assert alike.bent(space, found.pairs, np.arange(UNTRAINED, 900)) == []


def test_verdicts_are_those_of_deciding_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    head = untrained(True, Box(100))
    together = audit(head, device="cpu", jobs=1)
    monkeypatch.setattr(alike, "_WIDE", 0)
    alone = audit(head, device="cpu", jobs=1)
    assert np.array_equal(together.proofs.verdicts, alone.proofs.verdicts)
    assert together.counts["unargmaxable"] == UNTRAINED
    assert verify(together, head, jobs=1).ok
