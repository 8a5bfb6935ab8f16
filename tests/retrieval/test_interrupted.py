"""Ctrl-C at any moment of a retrieval loses nothing that was proven; what is kept is checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uncork import UncorkError
from uncork.core.items import Items
from uncork.domain import Ball
from uncork.retrieval import Judgements, retrieve, verify_retrieval
from uncork.retrieval.certify import SetCertifier
from uncork.retrieval.decide import Interrupted
from uncork.retrieval.result import Retrieval, TopSet

ITEMS = Items(np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32))
SETS = Judgements.every(7, 2)


class Stop:
    """Ctrl-C at the n-th look or at the n-th check of two mixtures."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, at: int) -> None:
        real, self.left = getattr(SetCertifier, name), at

        def stopping(*given: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return real(*given, **named)

        patch.setattr(SetCertifier, name, stopping)


def bounds(found: Retrieval) -> list[tuple[int, int, int]]:
    return [(int(v), p.lower, p.upper) for v, p in zip(found.verdicts, found.places, strict=True)]


def test_what_was_proven_until_then_is_kept_and_resumed_to_the_same_answer(tmp_path: Path) -> None:
    whole = retrieve(ITEMS, SETS, k=3)
    kept = set()
    for name in ("look", "mixtures"):
        for at in (1, 3, 8, 21, 55):
            with pytest.MonkeyPatch.context() as patch:
                Stop(patch, name, at)
                try:
                    retrieve(ITEMS, SETS, k=3)
                    continue  # so many there are not
                except Interrupted as interrupted:
                    partial = interrupted.retrieval
            assert verify_retrieval(partial, ITEMS).ok
            kept.add(int((partial.verdicts != TopSet.UNDECIDED).sum()))
            partial.save(tmp_path / "partial.npz")
            again = retrieve(
                ITEMS, SETS, k=3, resume=Retrieval.load(tmp_path / "partial.npz", ITEMS)
            )
            assert verify_retrieval(again, ITEMS).ok
            assert again.verdicts.tolist() == whole.verdicts.tolist()
            for (_, low, high), (_, lower, upper) in zip(bounds(again), bounds(whole), strict=True):
                assert max(low, lower) <= min(high, upper)
    assert len(kept) > 2


def test_a_resumed_run_asks_only_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = retrieve(ITEMS, SETS, k=3)
    asked: list[int] = []
    from uncork.retrieval.questions import Questions

    real = Questions.ask

    def counting(self: Questions, questions: Any, *given: Any, **named: Any) -> Any:
        asked.append(len(questions))
        return real(self, questions, *given, **named)

    monkeypatch.setattr(Questions, "ask", counting)
    verdicts = whole.verdicts.copy()
    verdicts[:3] = TopSet.UNDECIDED
    proofs = [None if n < 3 else proof for n, proof in enumerate(whole.proofs)]
    again = retrieve(ITEMS, SETS, k=3, resume=replace(whole, verdicts=verdicts, proofs=proofs))
    assert asked[0] == 3
    assert bounds(again) == bounds(whole)


def test_a_false_claim_of_an_earlier_run_is_decided_anew() -> None:
    whole = retrieve(ITEMS, SETS, k=3)
    lost, won = int(whole.impossible[0]), int(whole.possible[0])
    verdicts, proofs = whole.verdicts.copy(), list(whole.proofs)
    verdicts[lost], proofs[lost] = TopSet.POSSIBLE, whole.proofs[won]
    again = retrieve(ITEMS, SETS, k=3, resume=replace(whole, verdicts=verdicts, proofs=proofs))
    assert again.verdicts.tolist() == whole.verdicts.tolist()


def test_an_earlier_run_of_something_else_is_refused() -> None:
    whole = retrieve(ITEMS, SETS, k=3)
    with pytest.raises(UncorkError, match="another k"):
        retrieve(ITEMS, SETS, k=2, resume=whole)
    with pytest.raises(UncorkError, match="its domain is another"):
        retrieve(ITEMS, SETS, k=3, domain=Ball(1), resume=whole)
    with pytest.raises(UncorkError, match="other items"):
        retrieve(ITEMS.replace(metric="cosine"), SETS, k=3, resume=whole)
