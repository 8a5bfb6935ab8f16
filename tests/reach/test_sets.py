"""Which classes can share the top, and in which order: against the enumeration of all rankings."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import z3
from hypothesis import given
from hypothesis import strategies as st

import uncork
from models import PP_OCR_V4
from oracle import exact_rows, logit
from small_heads import quick
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


def test_only_neighbours_of_a_pentagon_are_the_top_two() -> None:
    turn = 2 * np.pi * np.arange(5) / 5
    head = Head(np.column_stack([np.cos(turn), np.sin(turn)]), domain=Unbounded())
    pairs = itertools.combinations(range(5), 2)
    possible = {pair for pair in pairs if can_be_top(head, pair).possible}
    assert possible == {(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)}


def test_on_the_moment_curve_every_pair_is_possible() -> None:
    t = np.linspace(-1, 1, 6)
    head = Head(np.column_stack([t, t**2, t**3, t**4]), domain=Unbounded())
    for pair in itertools.combinations(range(6), 2):
        assert can_be_top(head, pair).possible is True


def in_order_somewhere(head: Head, pairs: list[tuple[int, int]]) -> bool:
    """Whether some x of the box has z_i > z_j for each pair (i, j), by Z3."""
    assert isinstance(head.domain, Box)
    solver = z3.Solver()
    x = z3.Reals([f"x{k}" for k in range(head.features)])  # type: ignore[arg-type]
    for value, low, high in zip(x, *head.domain.bounds(head.features), strict=True):
        solver.add(value >= float(low), value <= float(high))
    rows = exact_rows(head)
    for i, j in pairs:
        gap = [a - b for a, b in zip(rows[i], rows[j], strict=True)]
        terms = [z3.Q(g.numerator, g.denominator) * v for g, v in zip(gap, x, strict=False)]
        solver.add(sum(terms) + z3.Q(gap[-1].numerator, gap[-1].denominator) > 0)
    return bool(solver.check() == z3.sat)


@quick(12)
@given(st.integers(0, 2**20), st.sampled_from([0.5, 3.0]))
def test_what_is_possible_on_a_box_is_what_z3_says(seed: int, side: float) -> None:
    rng = np.random.default_rng(seed)
    classes, features = int(rng.integers(4, 8)), int(rng.integers(1, 4))
    weight = rng.integers(-3, 4, (classes, features)).astype(float)
    head = Head(weight, rng.integers(-2, 3, classes).astype(float), domain=Box(side))
    a, b = rng.permutation(classes)[:2].tolist()
    rest = [i for i in range(classes) if i not in (a, b)]
    questions = [
        (can_rank_above(head, a, b), [(a, b)]),
        (can_be_top(head, [a, b]), [(i, j) for i in (a, b) for j in rest]),
        (can_lead(head, [a, b]), [(a, b), *((b, j) for j in rest)]),
    ]
    for found, pairs in questions:
        assert found.possible is in_order_somewhere(head, pairs)
        if found.possible:
            assert found.input is not None
            rows, x = exact_rows(head), [Fraction(v) for v in found.input.tolist()]
            assert max(abs(v) for v in x) <= side
            assert all(logit(rows[i], x) > logit(rows[j], x) for i, j in pairs)
        else:
            assert found.pairs is not None
            assert {tuple(pair) for pair in found.pairs.tolist()} <= set(pairs)


@quick(15)
@given(st.integers(0, 2**20))
def test_a_prefix_is_a_set_and_what_a_small_box_allows_a_large_one_does_too(seed: int) -> None:
    rng = np.random.default_rng(seed)
    head = Head(rng.normal(size=(8, 2)), rng.normal(size=8), domain=Box(1))
    some = rng.permutation(8)[:2].tolist()
    if can_lead(head, some).possible:
        assert can_be_top(head, some).possible
        assert can_lead(head, some, Box(3)).possible
        assert can_rank_above(head, *some).possible
    if can_be_top(head, some).possible:
        either = [can_lead(head, order).possible for order in (some, some[::-1])]
        assert any(either)
