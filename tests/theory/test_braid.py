"""Every ranking of small heads: as many as the formula says, each with a witness that ranks so."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle import exact_rows, lies_in, logit
from small_heads import quick
from uncork import Box, Head, Unbounded, UncorkError, audit
from uncork.theory import counting
from uncork.theory.braid import Rankings, rankings
from uncork.theory.random_heads import random_head
from uncork.theory.walls import Walls, explain

Array = list[list[float]]


def check_witnesses(head: Head, found: Rankings) -> None:
    rows = exact_rows(head)
    for ranking in found:
        values = [logit(rows[i], ranking.witness) for i in ranking.order]
        assert all(a > b for a, b in itertools.pairwise(values))
        assert lies_in(found.domain, ranking.witness)
    assert len(found.orders) == len(found)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_enumeration_equals_the_formula_in_general_position(seed: int, bias: bool) -> None:
    rng = np.random.default_rng(seed)
    classes, features = int(rng.integers(2, 7)), int(rng.integers(1, 5))
    init = ("normal", "uniform")[seed % 2]
    head = random_head(classes, features, init, bias, seed)
    found = rankings(head)
    check_witnesses(head, found)
    assert len(found) == counting.rankings(classes, features, bias=bias)
    assert found.bounded == counting.bounded_rankings(classes, features, bias=bias)
    assert not list(found.walls.coincidences())


@pytest.mark.parametrize("bias", [False, True])
def test_seven_classes_in_four_features(bias: bool) -> None:
    head = random_head(7, 4, bias=bias, seed=3)
    found = rankings(head)
    check_witnesses(head, found)
    assert len(found) == (2556 if bias else 1512)


@pytest.mark.parametrize("bias", [False, True])
def test_counting_from_how_walls_meet_agrees_where_enumerating_takes_long(bias: bool) -> None:
    walls = Walls(random_head(8, 4, bias=bias, seed=1))
    assert walls.regions == counting.rankings(8, 4, bias=bias)
    assert walls.bounded_regions == counting.bounded_rankings(8, 4, bias=bias)


@st.composite
def lattice_heads(draw: st.DrawFn) -> Head:
    """Small whole numbers: equal rows, parallel differences and walls through one point abound."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    classes, features = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    weight = rng.integers(-2, 3, (classes, features)).astype(np.float64)
    kind = draw(st.sampled_from(["none", "lattice", "constant"]))
    bias = {"none": None, "lattice": rng.integers(-1, 2, classes), "constant": np.full(classes, 3)}
    return Head(weight, bias[kind], domain=Unbounded())


@given(lattice_heads())
@quick(60)
def test_degenerate_heads_are_enumerated_and_explained(head: Head) -> None:
    found, why = rankings(head), explain(head)
    check_witnesses(head, found)
    # Two ways that share nothing but the walls: linear programmes, and Zaslavsky's theorem.
    assert len(found) == why.regions
    assert found.bounded == why.bounded
    assert why.regions == why.expected or why.coincidences


@given(lattice_heads())
@quick(40)
def test_the_classes_ranked_first_are_those_an_audit_finds(head: Head) -> None:
    result = audit(head, device="cpu", jobs=1)
    first = {group[0] for group in Walls(head).groups}
    assert set(rankings(head).firsts) == {*result.argmaxable, *result.tied} & first


@given(lattice_heads())
@quick(40)
def test_neighbours_share_a_facet_and_no_other_regions_do(head: Head) -> None:
    found = rankings(head)
    rows = exact_rows(head)

    def sides(index: int) -> frozenset[int]:
        x = found[index].witness
        pairs = [wall.pairs[0] for wall in found.walls.walls]
        return frozenset(
            k for k, (i, j) in enumerate(pairs) if logit(rows[i], x) > logit(rows[j], x)
        )

    of = [sides(k) for k in range(len(found))]
    expected = {
        (a, b) for a, b in itertools.combinations(range(len(found)), 2) if len(of[a] ^ of[b]) == 1
    }
    assert {(n.first, n.second) for n in found.neighbours()} == expected


def test_crossing_one_wall_in_general_position_swaps_two_neighbours_in_the_ranking() -> None:
    found = rankings(random_head(5, 2, bias=True, seed=5))
    for near in found.neighbours():
        ((i, j),) = near.pairs
        a, b = (found[k].order for k in (near.first, near.second))
        assert abs(a.index(i) - a.index(j)) == 1
        assert [j if c == i else i if c == j else c for c in a] == list(b)


@pytest.mark.parametrize(
    ("weight", "bias", "regions", "reasons"),
    [
        ([[0, 0], [1, 0], [2, 0], [0, 1]], None, 8, {"classes on a line"}),
        ([[0, 0], [1, 0], [0, 1], [1, 1]], None, 8, {"shared wall"}),
        ([[0, 0], [1, 0], [0, 1], [1, 1]], [0, 0, 0, 1], 16, {"parallel walls"}),
        ([[1, 0], [1, 0], [0, 1], [2, 3]], [0, 1, 0, 1], 12, {"equal rows"}),
        ([[1, 0], [1, 0], [0, 1], [2, 3]], [0, 0, 0, 1], 6, {"equal classes"}),
        ([[1, 1], [2, 2], [4, 4], [-1, -1]], None, 2, {"fewer dimensions"}),
        ([[0, 0], [2, 0], [1, 1], [1, 4]], [0, 2, 1, 1], 12, {"concurrent walls"}),
    ],
)
def test_coincidences_by_name(
    weight: Array, bias: list[float] | None, regions: int, reasons: set[str]
) -> None:
    head = Head(np.array(weight, float), None if bias is None else np.array(bias, float))
    why = explain(head)
    assert why.regions == regions == len(rankings(head))
    assert {c.kind for c in why.coincidences} == reasons
    assert why.expected > regions
    assert all(c.text in str(why) for c in why.coincidences)


def test_a_box_has_the_rankings_whose_regions_reach_into_it() -> None:
    head = random_head(5, 2, bias=True, seed=2)
    everywhere = rankings(head)
    within = rankings(head, domain=Box(0.2))
    check_witnesses(head, within)
    assert set(within.orders) < set(everywhere.orders)
    assert all(ranking.bounded for ranking in within)
    assert set(rankings(head, domain=Box(1e9)).orders) == set(everywhere.orders)
    inside = {r.order for r in everywhere if lies_in(Box(0.2), r.witness)}
    assert inside <= set(within.orders)


def test_extreme_magnitudes_are_nothing_special_in_whole_numbers() -> None:
    head = Head(np.array([[1e300, 0], [0, 1e-300], [-1e300, 5e-324], [1, 1]]))
    found = rankings(head)
    check_witnesses(head, found)
    assert len(found) == explain(head).regions
    assert all(isinstance(v, Fraction) for v in found[0].witness)


def test_heads_too_large_to_enumerate_are_refused_at_once() -> None:
    with pytest.raises(UncorkError, match=r"10\^\d+ rankings: at most 100,000"):
        rankings(random_head(500, 20))
    with pytest.raises(UncorkError, match="12 rankings: at most 11"):
        rankings(random_head(4, 2), most=11)
