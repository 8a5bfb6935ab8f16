"""Which sets of items some query brings to the top: decided, and right."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import pytest
from sets_by_z3 import compare, most_among_first

from uncork.core.errors import UncorkError
from uncork.core.items import Items
from uncork.domain import Ball, Box, Hull, LayerNorm, Unbounded
from uncork.retrieval import Judgements, TopSet, retrieve, verify_retrieval
from uncork.retrieval.certify import Mixtures, SetCertifier
from uncork.retrieval.examples import moment_curve, polygon, random_items
from uncork.retrieval.places import Places, PlaceSearch, upper_bound
from uncork.retrieval.questions import Question, Questions


def test_hundreds_of_sets_agree_with_z3_under_every_metric_and_domain() -> None:
    total: collections.Counter[str] = collections.Counter()
    for seed in range(120):
        total += compare(seed)
    assert set(total) <= {"agree", "undecided"}
    # By cosine, rows that touch exactly have lengths that floats and fractions cannot hold.
    assert total["undecided"] <= 8
    assert total["agree"] > 400


@pytest.mark.parametrize("metric", ["inner", "cosine"])
def test_only_neighbours_of_a_pentagon_can_be_the_first_two(metric: str) -> None:
    items = Items(polygon(5).vectors, metric)
    found = retrieve(items, Judgements.every(5, 2), k=2)
    assert found.counts == {"possible": 5, "impossible": 5, "undecided": 0}
    assert found.recall == (0.75, 0.75)
    neighbours = {(i, (i + 1) % 5) for i in range(5)}
    for q in found.possible:
        i, j = found.judgements.relevant[q].tolist()
        assert (i, j) in neighbours or (j, i) in neighbours


def test_by_distance_the_pairs_of_a_rounded_pentagon_are_the_edges_of_a_triangulation() -> None:
    items = Items(polygon(5).vectors.astype(np.float32), "euclidean")
    assert retrieve(items, Judgements.every(5, 2), k=2).counts["possible"] == 7


@pytest.mark.parametrize("k", [1, 2, 3])
def test_on_the_moment_curve_in_twice_k_features_every_set_of_k_is_possible(k: int) -> None:
    items = moment_curve(11, 2 * k)
    found = retrieve(items, Judgements.every(11, k), k=k)
    assert found.counts["possible"] == len(found.judgements)
    assert found.recall == (1.0, 1.0)
    # One feature fewer is too few.
    fewer = retrieve(moment_curve(11, 2 * k - 1), Judgements.every(11, k), k=k)
    assert fewer.counts["impossible"] > 0
    assert fewer.counts["undecided"] == 0


@pytest.mark.parametrize("domain", [Unbounded(), Box(0, np.inf), Box(0.25, 1)])
@pytest.mark.parametrize("metric", ["inner", "euclidean", "cosine"])
def test_bounds_on_places_hold_what_trying_every_choice_finds(metric: str, domain: Box) -> None:
    rng = np.random.default_rng(3)
    rows = np.array([[3, 4], [-4, 3], [5, 12], [12, -5], [-3, -4], [8, 15], [-8, 6]], float)
    items = Items(rows / 4, metric)
    sets = [np.sort(rng.choice(7, size, replace=False)) for size in (1, 2, 3, 4)]
    names = tuple(map(str, range(4)))
    for k in (1, 2, 3):
        found = retrieve(items, Judgements(names, tuple(sets)), k=k, domain=domain)
        for q, relevant in enumerate(sets):
            most = most_among_first(items, domain, relevant, k)
            assert found.places[q].lower <= most <= found.places[q].upper
        assert verify_retrieval(found, items).ok


def test_a_bound_between_box_and_box_holds_for_the_ball() -> None:
    """A box in the ball makes no more possible than the ball, a box around it no less."""
    rng = np.random.default_rng(1)
    items = Items(rng.normal(size=(30, 3)), "euclidean")
    asked = [Question(np.sort(rng.choice(30, 2, replace=False))) for _ in range(60)]

    def decided(domain: Box | Ball) -> np.ndarray:
        found = Questions(SetCertifier(items, domain)).ask(asked)
        assert all(d.possible is not None for d in found)
        return np.array([d.possible for d in found])

    inner, ball, outer = (decided(d) for d in (Box(1 / np.sqrt(3)), Ball(1.0), Box(1.0)))
    assert (inner <= ball).all()
    assert (ball <= outer).all()
    assert inner.sum() < outer.sum()


def test_what_leaves_a_layer_norm_is_a_domain_of_queries() -> None:
    rng = np.random.default_rng(2)
    items = Items(rng.normal(size=(15, 4)).astype(np.float32))
    judged = Judgements.every(7, 2)
    free = retrieve(items, judged, k=2)
    norm = LayerNorm(rng.normal(size=4), rng.normal(size=4))
    bound = retrieve(items, judged, k=2, domain=norm)
    assert bound.counts["undecided"] == 0
    assert set(bound.possible) < set(free.possible)
    assert verify_retrieval(bound, items).ok
    x = np.array([bound.witness(q) for q in bound.possible.tolist()])
    assert norm.contains(x, 1e-9).all()


def test_the_hull_of_queries_bounds_what_they_can_find() -> None:
    rng = np.random.default_rng(4)
    items, queries = Items(rng.normal(size=(9, 3))), rng.normal(size=(6, 3)) + 1
    found = retrieve(items, Judgements.every(9, 2), k=2, domain=Hull(queries))
    free = retrieve(items, Judgements.every(9, 2), k=2)
    assert found.counts["undecided"] == 0
    assert 0 < found.counts["possible"] < free.counts["possible"]
    assert verify_retrieval(found, items).ok


def test_equal_items_can_never_be_told_apart() -> None:
    rows = np.random.default_rng(5).normal(size=(8, 6)).astype(np.float32)
    rows[3] = rows[1]
    found = retrieve(Items(rows), Judgements(("q", "p"), (np.array([1]), np.array([1, 3]))), k=1)
    assert found.verdicts.tolist() == [TopSet.IMPOSSIBLE, TopSet.POSSIBLE]
    proof = found.proofs[0]
    assert proof is not None
    assert proof.mixtures is not None
    assert proof.mixtures.others.tolist() == [3]
    # By cosine, twice a vector is the same direction.
    rows[3] = 2 * rows[1]
    judged = Judgements(("q",), (np.array([1]),))
    assert retrieve(Items(rows, "cosine"), judged, k=1).counts["impossible"] == 1
    assert retrieve(Items(rows, "euclidean"), judged, k=1).counts["possible"] == 1


def test_a_witness_ranks_the_set_on_top_in_plain_floats() -> None:
    items = random_items(46, 6, seed=1)
    found = retrieve(items, Judgements.every(46, 2), k=2)
    assert min(found.counts["possible"], found.counts["impossible"]) > 100
    for q in found.possible.tolist():
        x = found.witness(q)
        assert x is not None
        order = np.argsort(-(items.vectors.astype(np.float64) @ x))
        assert set(order[:2].tolist()) == set(found.judgements.relevant[q].tolist())


def test_working_sets_give_what_all_rows_at_once_do() -> None:
    """The fast path looks at few items; the slow one is SciPy's programme over all pairs."""
    from scipy.optimize import linprog

    rng = np.random.default_rng(6)
    rows = rng.normal(size=(700, 4))
    asked = [Question(np.sort(rng.choice(700, 2, replace=False))) for _ in range(20)]
    near = np.argsort(((rows - rows[0]) ** 2).sum(axis=1))[:4]
    asked += [Question(np.sort(np.array(p))) for p in itertools.combinations(near.tolist(), 2)]
    decided = Questions(SetCertifier(Items(rows), Unbounded())).ask(asked)
    for question, decision in zip(asked, decided, strict=True):
        others = np.setdiff1d(np.arange(700), question.items)
        table = np.concatenate([-rows[question.items], rows[others]])
        level = np.repeat([1.0, -1.0], [len(question.items), len(others)])[:, None]
        solved = linprog(
            np.append(np.zeros(5), -1.0), A_ub=np.hstack([table, level, np.ones((700, 1))]),
            b_ub=np.zeros(700), bounds=[(-1, 1)] * 4 + [(None, None), (None, 1)],
        )  # fmt: skip
        assert decision.possible == (solved.x[-1] > 1e-9)


def test_mixtures_that_do_not_balance_or_are_not_mixtures_are_refused() -> None:
    items = polygon(5)
    certifier = SetCertifier(items, Unbounded())
    found = retrieve(items, Judgements.every(5, 2), k=2)
    proof = found.proofs[int(found.impossible[0])]
    assert proof is not None
    good = proof.mixtures
    assert good is not None
    assert certifier.mixtures(good) >= 0
    lam, mu = good.relevant_weights, good.other_weights
    wrong = [
        Mixtures(good.others, mu, good.relevant[:1], lam[:1]),
        Mixtures(good.relevant, (lam[0] + 1, *lam[1:]), good.others, mu),
        Mixtures(good.relevant, (-lam[0], *lam[1:]), good.others, mu),
        Mixtures(good.relevant, lam, np.roll(good.relevant, 1), lam),
        Mixtures(good.relevant + 5, lam, good.others, mu),
        Mixtures(good.relevant[:1], (sum(mu),), good.others, mu),
        Mixtures(np.repeat(good.relevant[:1], 2), lam[:2], good.others, mu),
    ]
    assert not any(certifier.mixtures(w) >= 0 for w in wrong)
    assert certifier.conflict(found.judgements.relevant[int(found.impossible[0])], [good]) == 1
    # Two proofs that share others do not count twice.
    assert certifier.conflict(found.judgements.relevant[int(found.impossible[0])], [good] * 2) == 0


@pytest.mark.parametrize(
    ("judged", "words"),
    [
        (Judgements(("q",), (np.array([9]),)), "item 9 does not exist"),
        (Judgements(("q",), (np.arange(5),)), "every item is relevant"),
    ],
)
def test_judgements_that_ask_for_nothing_are_refused(judged: Judgements, words: str) -> None:
    with pytest.raises(UncorkError, match=words):
        retrieve(polygon(5), judged)


@pytest.mark.parametrize("rounds", [2, 9, 40])
def test_bounds_that_were_cut_off_are_proven_all_the_same(rounds: int) -> None:
    items, k = random_items(30, 3, seed=3), 3
    sets = Judgements.every(8, 2).relevant
    engine = Questions(SetCertifier(items, Unbounded()))
    first = engine.ask([Question(ids) for ids in sets])
    lost = [n for n, decision in enumerate(first) if decision.possible is False]
    places = [Places(0, 2) for _ in lost]
    asked = iter(range(rounds))
    search = PlaceSearch(engine, k, lambda: next(asked, None) is None)
    search.bound([(sets[n], p, first[n].proof) for n, p in zip(lost, places, strict=True)])
    assert rounds < 40 or any(place.lower or place.upper < 2 for place in places)
    for n, place in zip(lost, places, strict=True):
        assert upper_bound(engine.certifier, sets[n], k, place) <= place.upper
        if place.lower:
            assert place.u is not None
            seen = engine.certifier.look(place.u[None], [sets[n]], k + 1)[0]
            assert seen is not None
            assert seen.among_first(k) >= place.lower


def test_without_time_everything_is_undecided_and_says_so() -> None:
    found = retrieve(random_items(46, 8), Judgements.every(46, 2), k=2, time_limit=1e-9)
    assert found.counts["undecided"] == 1035
    assert "time limit" in found.reasons[0]
    assert verify_retrieval(found, random_items(46, 8)).ok
