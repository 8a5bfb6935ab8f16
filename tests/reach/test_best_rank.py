"""The best rank of a class: bounds that hold, equal to exact sweeps on small heads."""

from __future__ import annotations

import numpy as np
import pytest

import uncork
from models import PP_OCR_V4
from uncork import Box, Head, Unbounded
from uncork.auditing.backend import Backend
from uncork.core.progress import Progress
from uncork.reach.rank.search import _Ranks, best_rank
from uncork.theory.braid import rankings


def sweep(weight: np.ndarray, t: int) -> int:
    """The best rank over all directions of the plane: it changes only where a rival draws level."""
    away = np.delete(weight - weight[t], t, axis=0)
    level = np.arctan2(away[:, 1], away[:, 0])
    turns = np.sort(np.concatenate([level + np.pi / 2, level - np.pi / 2]) % (2 * np.pi))
    middle = (turns + np.append(turns[1:], turns[0] + 2 * np.pi)) / 2
    x = np.column_stack([np.cos(middle), np.sin(middle)])
    return 1 + int((x @ away.T >= 0).sum(axis=1).min())


@pytest.mark.parametrize("seed", range(2))
def test_in_the_plane_it_equals_a_rotating_sweep(seed: int) -> None:
    weight = np.random.default_rng(seed).standard_normal((14, 2))
    found = best_rank(Head(weight), jobs=1)
    exact = [sweep(weight, t) for t in range(14)]
    assert found.upper.tolist() == exact
    assert found.lower.tolist() == exact


@pytest.mark.parametrize("bias", [False, True])
def test_it_equals_the_enumeration_of_all_rankings_in_three_dimensions(bias: bool) -> None:
    rng = np.random.default_rng(3)
    weight = rng.integers(-3, 4, (7, 3)).astype(float)
    weight[6] = weight[:6].mean(axis=0).round()
    offsets = rng.integers(-2, 3, 7).astype(float) if bias else None
    head = Head(weight, offsets, domain=Unbounded())
    orders = [ranking.order for ranking in rankings(head)]
    exact = [1 + min(order.index(t) for order in orders) for t in range(7)]
    found = best_rank(head, jobs=1)
    assert found.upper.tolist() == exact
    assert found.lower.tolist() == exact


def test_rank_one_is_argmaxable() -> None:
    head = Head(np.random.default_rng(0).standard_normal((16, 3)), domain=Box(5.0))
    audit = uncork.audit(head)
    found = best_rank(head, audit=audit, jobs=1)
    assert np.flatnonzero(found.upper == 1).tolist() == audit.argmaxable.tolist()
    assert np.flatnonzero(found.lower > 1).tolist() == audit.unargmaxable.tolist()


def test_mixtures_against_one_class_are_disjoint_and_do_not_name_it() -> None:
    head = uncork.load(str(PP_OCR_V4))
    found = best_rank(head, [200, 2218], jobs=1)
    assert (found.lower <= found.upper).all()
    assert found.lower[0] >= 9
    for t, mixtures in zip(found.classes.tolist(), found.mixtures, strict=True):
        members = np.concatenate([m.classes for m in mixtures])
        assert len(np.unique(members)) == len(members)
        assert t not in members


def test_never_in_the_top_k_is_answered_for_one_k() -> None:
    weight = np.random.default_rng(1).standard_normal((14, 2))
    exact = np.array([sweep(weight, t) for t in range(14)])
    found = best_rank(Head(weight), top=2, jobs=1)
    assert found.never_in_top(2).tolist() == np.flatnonzero(exact > 2).tolist()


def test_equal_classes_do_not_count_against_one_another() -> None:
    head = Head([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.5], [-1.0, -0.5]])
    assert best_rank(head, jobs=1).upper.tolist() == [1, 1, 1, 1]


def test_an_audit_of_one_lost_class_knows_of_nobody_who_is_first() -> None:
    """The deepest mixture is then of classes that it was not asked about, but for equals."""
    weight = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1], [0.1, 0.1], [0.1, 0.1]])
    head = Head(weight, np.array([0, 0, 0, 0, -1, -1.0]))
    known = uncork.audit(head, classes=[4], device="cpu", jobs=1)
    ranks = _Ranks(head, head.domain, Backend(1, np.float64), Progress())
    ranks.audit = known
    (mixture,) = ranks._deepest(4)
    assert not np.isin(mixture.classes, [4, 5]).any()
