"""The best rank of a class: bounds that hold, equal to exact sweeps on small heads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import uncork
from models import PP_OCR_V4
from oracle import equals, first_somewhere
from small_heads import ORDINARY, heads, quick
from uncork import Ball, Box, Domain, Head, Unbounded
from uncork.auditing.backend import Backend
from uncork.core.progress import Progress
from uncork.reach.rank import _Ranks, best_rank
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


def rank_by_oracle(head: Head, t: int, most: int) -> int:
    """The best rank by Z3: the fewest other classes to leave out for t to be first somewhere.

    `most` + 1 stands for any rank beyond `most`.
    """
    others = [i for i in range(head.classes) if i not in equals(head, t)]
    for above in range(most):
        for left_out in itertools.combinations(others, above):
            rest = [t, *(i for i in others if i not in left_out)]
            if len(rest) == 1:
                return 1 + above
            part = Head(head.weight[rest], head.offsets[rest], domain=head.domain)
            if first_somewhere(part, 0):
                return 1 + above
    return most + 1


@pytest.mark.parametrize("kind", [*ORDINARY][:4])
@quick(4)
@given(data=st.data())
def test_bounds_enclose_the_rank_that_z3_finds(kind: str, data: st.DataObject) -> None:
    head = data.draw(heads(ORDINARY[kind]))
    found = best_rank(head, jobs=1)
    for t in range(head.classes):
        exact = rank_by_oracle(head, t, 3)
        assert min(found.lower[t], 4) <= exact
        if exact <= 3:
            assert exact <= found.upper[t]


def test_the_centre_of_a_square_is_third_at_best() -> None:
    weight = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1], [0, 0]])
    found = best_rank(Head(weight), jobs=1)
    assert found.lower.tolist() == found.upper.tolist() == [1, 1, 1, 1, 3]
    assert found.never_in_top(2).tolist() == [4]
    assert found.never_in_top(3).tolist() == []


def test_on_a_line_the_rank_is_the_distance_from_the_nearer_end() -> None:
    weight = np.array([[5.0], [1.0], [4.0], [2.0], [3.0]])
    found = best_rank(Head(weight), jobs=1)
    assert found.upper.tolist() == found.lower.tolist() == [1, 1, 2, 2, 3]


def test_a_bias_far_below_all_others_is_last_in_a_small_box() -> None:
    head = Head(np.eye(4, 2), [0.0, 0.0, 0.0, -9.0], domain=Box(1.0))
    found = best_rank(head, [3], jobs=1)
    assert (found.lower[0], found.upper[0]) == (4, 4)


@pytest.mark.parametrize("domain", [Box(2.0), Ball(2.0), Unbounded()], ids=str)
def test_a_class_with_a_witness_is_first(domain: Domain) -> None:
    rng = np.random.default_rng(7)
    head = Head(rng.normal(size=(25, 4)), rng.normal(size=25), domain=domain)
    known = uncork.audit(head, device="cpu", jobs=1)
    found = best_rank(head, known.argmaxable, audit=known, jobs=1)
    assert (found.lower == 1).all()
    assert (found.upper == 1).all()
    assert (best_rank(head, known.unargmaxable, audit=known, jobs=1).lower > 1).all()


def test_a_larger_domain_gives_no_worse_a_rank() -> None:
    rng = np.random.default_rng(4)
    head = Head(rng.normal(size=(8, 2)), rng.normal(size=8))
    small, middle, large = (
        best_rank(head, domain=domain, jobs=1) for domain in (Box(0.1), Box(1), Unbounded())
    )
    assert (small.upper >= middle.lower).all()
    assert (middle.upper >= large.lower).all()
    assert (small.lower > large.upper).any()


def test_ranks_depend_on_differences_of_rows_alone_and_follow_a_permutation() -> None:
    rng = np.random.default_rng(5)
    weight, bias = rng.normal(size=(12, 3)), rng.normal(size=12)
    plain = best_rank(Head(weight, bias, domain=Box(2)), jobs=1)
    shifted = best_rank(Head(weight + rng.normal(size=3), bias + 5, domain=Box(2)), jobs=1)
    order = rng.permutation(12)
    mixed = best_rank(Head(weight[order], bias[order], domain=Box(2)), jobs=1)
    assert plain.upper.tolist() == plain.lower.tolist()
    assert shifted.upper.tolist() == shifted.lower.tolist() == plain.upper.tolist()
    assert mixed.upper.tolist() == mixed.lower.tolist() == plain.upper[order].tolist()


def test_inputs_attain_the_rank_that_is_claimed() -> None:
    rng = np.random.default_rng(6)
    head = Head(rng.normal(size=(30, 5)), rng.normal(size=30), domain=Ball(1.5))
    found = best_rank(head, jobs=1)
    assert (np.linalg.norm(found.inputs, axis=1) <= 1.5).all()
    z = found.inputs @ head.weight.T + head.offsets
    assert ((z >= np.diag(z)[:, None]).sum(axis=1) <= found.upper).all()
