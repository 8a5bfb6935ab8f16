"""Which classes can share the top, and in which order: against the enumeration of all rankings."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

import uncork
from models import PP_OCR_V4
from uncork import Ball, Box, Head, LayerNorm, Unbounded, UncorkError
from uncork.reach.sets import Arrangement, can_be_top, can_lead, can_rank_above
from uncork.theory.braid import rankings


def is_proof(head: Head, found: Arrangement) -> bool:
    """Weights on pairs balance exactly and leave nothing above zero (no bounds on inputs)."""
    assert found.pairs is not None
    total = [Fraction(0)] * (head.features + 1)
    for (i, j), weight in zip(found.pairs.tolist(), found.weights, strict=True):
        own = [*head.weight[i].tolist(), head.offsets[i]]
        other = [*head.weight[j].tolist(), head.offsets[j]]
        total = [
            c + weight * (Fraction(a) - Fraction(b))
            for c, a, b in zip(total, own, other, strict=True)
        ]
    return not any(total[:-1]) and total[-1] <= 0 and all(w >= 0 for w in found.weights)


@pytest.mark.parametrize("seed", range(3))
def test_sets_and_prefixes_are_those_of_the_enumerated_rankings(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.integers(-4, 5, (6, 2)).astype(float)
    head = Head(weight, rng.integers(-2, 3, 6).astype(float), domain=Unbounded())
    orders = [ranking.order for ranking in rankings(head)]
    if len({(*row, b) for row, b in zip(weight.tolist(), head.offsets, strict=True)}) < 6:
        pytest.skip("two equal classes")
    tops = {frozenset(order[:2]) for order in orders}
    leads = {order[:2] for order in orders}
    for pair in itertools.permutations(range(6), 2):
        ordered = can_lead(head, pair)
        assert ordered.possible == (pair in leads), pair
        if not ordered.possible:
            assert is_proof(head, ordered)
        if pair[0] < pair[1]:
            together = can_be_top(head, pair)
            assert together.possible == (frozenset(pair) in tops), pair


def test_a_class_ranks_above_another_unless_it_is_dominated() -> None:
    head = Head([[1.0, 0.0], [1.0, 0.0], [0.9, 0.1]], [0.0, -1.0, -5.0], domain=Box(2.0))
    assert can_rank_above(head, 0, 1).possible is True
    assert can_rank_above(head, 1, 0).possible is False
    assert can_rank_above(head, 2, 0).possible is False  # the box is too small
    assert can_rank_above(head, 2, 0, Box(100.0)).possible is True


@pytest.mark.parametrize("domain", [Box(1.0), Ball(1.0), LayerNorm(features=3)], ids=str)
def test_an_input_that_is_named_does_what_is_claimed(domain) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(4)
    head = Head(rng.standard_normal((30, 3)), 0.1 * rng.standard_normal(30), domain=domain)
    x = domain.affine(3).image(np.array([[0.5, -0.3, 0.2]]))[0]
    z = head.weight @ x + head.offsets
    order = np.argsort(-z)[:3].tolist()
    for found in (can_lead(head, order), can_be_top(head, order[::-1])):
        assert found.possible is True
        assert found.input is not None
        at = domain.affine(3).image(found.input)
        first = np.argsort(-(head.weight @ at + head.offsets))[:3].tolist()
        assert sorted(first) == sorted(order)
    lead = can_lead(head, order).input
    assert lead is not None
    z = head.weight @ domain.affine(3).image(lead) + head.offsets
    assert np.argsort(-z)[:3].tolist() == order


def test_a_lost_character_of_pp_ocr_v4_is_proven_never_first_here_too() -> None:
    head = uncork.load(str(PP_OCR_V4))
    assert can_be_top(head, [200]).possible is False
    assert can_lead(head, [300, 301]).possible is True


@pytest.mark.parametrize(
    ("classes", "said"), [([], "at least one"), ([1, 1], "each once"), ([0, 9], "class 9"),
                          ([0, 1, 2], "leave some out")],
)  # fmt: skip
def test_questions_that_mean_nothing_are_refused(classes: list[int], said: str) -> None:
    with pytest.raises(UncorkError, match=said):
        can_be_top(Head(np.eye(3)), classes)
