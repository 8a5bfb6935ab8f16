"""Which classes are ever among the first k: bounds for all of them, proven."""

from __future__ import annotations

import numpy as np
import pytest

from uncork import Box, Head, Unbounded, UncorkError, audit
from uncork.auditing.certify.certifier import Certifier
from uncork.reach import rank
from uncork.reach.bounds.rank import rank_at, ranks_at
from uncork.reach.first_places import first_places
from uncork.reach.rank import BestRank, best_rank


def small(features: int = 3, bias: bool = False) -> Head:
    rng = np.random.default_rng(features)
    weight = rng.normal(size=(60, features)).astype(np.float32)
    weight[7] = weight[50]
    return Head(weight, rng.normal(size=60) if bias else None, domain=Box(10))


@pytest.mark.parametrize("bias", [False, True])
def test_ranks_of_many_inputs_are_those_of_one_after_another(bias: bool) -> None:
    head = small(4, bias)
    certifier = Certifier(head)
    inputs = np.random.default_rng(0).uniform(-10, 10, size=(60, 4))
    inputs[5] = 11.0  # outside
    equals = {} if bias else {7: np.array([7, 50]), 50: np.array([7, 50])}
    many = ranks_at(certifier, np.arange(60), inputs, equals)
    one = [rank_at(certifier, t, inputs[t], equals.get(t, np.array([t]))) for t in range(60)]
    assert many.tolist() == one


def test_in_few_features_every_class_is_settled_for_every_k() -> None:
    head = small()
    found = first_places(head, audit(head), [1, 5, 10])
    exact = best_rank(head)
    for k in (1, 5, 10):
        assert set(found.never(k).tolist()) == set(exact.never_in_top(k).tolist())
        assert found.ever(k) == int((exact.upper <= k).sum())
        assert found.open(k) == 0


def test_bounds_hold_where_only_screening_is_done() -> None:
    head = small()
    found = first_places(head, audit(head), [3], most_asked=0)
    exact = best_rank(head, found.classes)
    assert (found.lower <= exact.lower).all()
    assert (found.upper >= exact.upper).all()
    assert (found.upper < 60).mean() > 0.9
    assert found.ever(3) + len(found.never(3)) + found.open(3) == 60


def test_where_every_class_can_be_first_there_is_nothing_to_ask() -> None:
    head = Head(np.eye(4), domain=Unbounded())
    found = first_places(head, audit(head), [1, 2])
    assert found.as_dict()["1"] == {"never": [], "ever": 4, "open": 0}
    with pytest.raises(UncorkError, match="counted from one"):
        first_places(head, audit(head), [0])


def test_ctrl_c_leaves_the_bounds_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    head = small()
    decided = audit(head)
    exact = first_places(head, decided, [5])
    bound, seen = rank._Ranks._bound, []

    def interrupted(self: rank._Ranks, result: BestRank, k: int, places: tuple[int, ...]) -> None:
        seen.append(k)
        if len(seen) > 6:
            raise KeyboardInterrupt
        bound(self, result, k, places)

    monkeypatch.setattr(rank._Ranks, "_bound", interrupted)
    found = first_places(head, decided, [5], jobs=1)
    assert found.interrupted
    assert "interrupted" in found.notes[0]
    assert (found.lower <= exact.upper).all()
    assert (found.upper >= exact.lower).all()
    assert 0 < len(found.never(5)) < len(exact.never(5))


def test_what_a_limit_on_planes_leaves_open_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    head = small()
    decided = audit(head)
    exact = first_places(head, decided, [5])
    assert exact.notes == ()
    monkeypatch.setattr(rank, "_ALL_PLANES", 0)
    monkeypatch.setattr(rank, "_ALL_WORK", 0)
    found = first_places(head, decided, [5])
    assert found.open(5)
    assert "more than the limit of 0" in found.notes[0]
    assert "not all cases" in found.notes[1]
    assert set(found.never(5).tolist()) <= set(exact.never(5).tolist())
