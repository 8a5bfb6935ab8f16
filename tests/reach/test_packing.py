"""Packings of mixtures that share classes, and trees of cases: sound, and refused if wrong."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_heads import quick
from uncork import Head, Unbounded
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Mixture
from uncork.reach.bounds.packing import DEEPEST, UNIT, Tree, count_of, packing_bound

HALF = UNIT // 2
Leaf = list[tuple[int, int]]  # (mixture, share)


def tree(*nodes: int | Leaf) -> Tree:
    """Classes to ask about, and leaves, in the order in which they are met."""
    shares = [one for node in nodes if isinstance(node, list) for one in node]
    return Tree(
        np.array([-1 - len(n) if isinstance(n, list) else n for n in nodes], dtype=np.int64),
        np.array([j for j, _ in shares], dtype=np.int64),
        np.array([y for _, y in shares], dtype=np.int64),
    )


def fewest(sets: list[set[int]]) -> int:
    """How few elements hit every set, by trying all choices."""
    everything = sorted(set().union(*sets)) if sets else []
    for size in range(len(everything) + 1):
        for chosen in itertools.combinations(everything, size):
            if all(one & set(chosen) for one in sets):
                return size
    raise AssertionError


TRIANGLE = {0: {1, 2}, 1: {2, 3}, 2: {1, 3}}  # any two of the three classes hit all, and no one


def test_halves_of_three_sets_that_meet_in_pairs_prove_two() -> None:
    assert count_of(tree([(0, HALF), (1, HALF), (2, HALF)]), TRIANGLE) == 2


def test_disjoint_sets_prove_as_many_as_they_are() -> None:
    sets = {0: {1, 2}, 1: {3}, 2: {4, 5, 6}}
    assert count_of(tree([(0, UNIT), (1, UNIT), (2, UNIT)]), sets) == 3


def test_cases_prove_what_no_packing_does() -> None:
    """All triples of five classes: it takes three to hit them, and a packing proves two."""
    sets = {k: set(c) for k, c in enumerate(itertools.combinations(range(5), 3))}
    assert fewest(list(sets.values())) == 3
    assert count_of(tree([(k, UNIT // 6) for k in sets]), sets) == 2

    def leaf(of: set[int], share: int) -> Leaf:
        return [(k, share) for k, one in sets.items() if of <= one]

    above = [(k, UNIT // 3) for k, one in sets.items() if 0 not in one]
    then_above = [(k, HALF) for k, one in sets.items() if 0 in one and 1 not in one]
    proof = tree(0, above, 1, then_above, leaf({0, 1}, UNIT))
    assert count_of(proof, sets) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        tree([(0, HALF), (1, HALF), (2, HALF + 1)]),  # more than one at a class
        tree([(0, UNIT), (1, -HALF), (2, UNIT)]),
        tree(1, [(1, UNIT)]),  # the case without class 1 is forgotten
        tree(1, [(1, UNIT)], [(0, UNIT), (2, UNIT)], [(1, UNIT)]),  # a leaf that no case leads to
        tree(1, [(0, UNIT)], [(0, UNIT), (2, UNIT)]),  # 0 has class 1, which is known to be above
        tree(1, 1, [(1, UNIT)], [(1, UNIT)], [(0, UNIT)]),  # asked twice
        Tree(np.array([-4]), np.array([0, 1]), np.array([UNIT, UNIT])),  # a share is missing
        Tree(np.array([-2]), np.array([0, 1]), np.array([UNIT, UNIT])),  # one too many
        tree(),
    ],
    ids=range(9),
)
def test_what_is_no_tree_of_packings_proves_nothing(wrong: Tree) -> None:
    assert count_of(wrong, TRIANGLE) is None


def test_a_case_may_leave_a_set_without_members() -> None:
    """Class 1 above: {2, 3} must be hit. Not: 2 and 3 must be above, each the last of its set."""
    proof = tree(1, [(1, UNIT)], [(0, UNIT), (2, UNIT)])
    assert count_of(proof, TRIANGLE) == 2
    none_left = tree(1, [(1, UNIT)], 2, [(2, UNIT)], [(0, 7 * UNIT)])
    assert count_of(none_left, TRIANGLE) == 2


def test_a_tree_deeper_than_any_that_is_written_is_refused() -> None:
    deep = tree(*range(10, 11 + DEEPEST), *([[]] * (DEEPEST + 2)))
    assert count_of(deep, TRIANGLE) is None


@quick(60)
@given(data=st.data())
def test_no_tree_proves_more_than_it_takes_to_hit_every_set(data: st.DataObject) -> None:
    sets = data.draw(st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=6))
    leaf = st.lists(
        st.tuples(st.integers(0, len(sets) - 1), st.sampled_from([-HALF, 0, HALF, UNIT, 3 * UNIT])),
        max_size=4,
    )
    nodes: list[int | Leaf] = []
    open_ = 1
    while open_ and len(nodes) < 12:
        node = data.draw(st.one_of(st.integers(0, 5), leaf))
        open_ += 1 if isinstance(node, int) else -1
        nodes.append(node)
    nodes += [data.draw(leaf) for _ in range(open_)]
    found = count_of(tree(*nodes), dict(enumerate(sets)))
    if found is not None:
        assert found <= fewest(sets)


def square() -> tuple[Certifier, list[Mixture]]:
    """The centre of a square, and its two diagonals; a side, which is no mixture of it."""
    weight = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1], [0, 0]])
    head = Head(weight, domain=Unbounded())
    pairs = [(0, 1), (2, 3), (0, 2)]
    return Certifier(head), [Mixture(np.array(p), np.array([0.5, 0.5])) for p in pairs]


def test_mixtures_are_certified_before_they_are_counted() -> None:
    certifier, mixtures = square()
    assert packing_bound(certifier, 4, mixtures, tree([(0, UNIT), (1, UNIT)])) == 2
    assert packing_bound(certifier, 4, mixtures, tree([(0, UNIT), (2, 0)])) == 0
    assert packing_bound(certifier, 4, mixtures, tree([(0, UNIT), (3, UNIT)])) == 0
    assert packing_bound(certifier, 4, mixtures, tree([(-1, UNIT)])) == 0
    assert packing_bound(certifier, 0, mixtures, tree([(1, UNIT)])) == 0
