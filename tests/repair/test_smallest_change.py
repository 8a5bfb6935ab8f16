"""The change of least 1-norm: its parts against plain linear programmes, its result against Z3."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from test_repair import best_by_brute_force

from oracle import first_somewhere
from small_heads import quick
from uncork import Box, Head, Mixture, audit
from uncork.auditing.backend import Backend
from uncork.auditing.certify.certifier import Certifier
from uncork.reach.searched_head import SearchedHead
from uncork.reach.surface import Surface, depths
from uncork.repair import repair
from uncork.repair.smallest_change import _dealt, _Master, _shared_input


def head_of(seed: int, classes: int = 12, features: int = 2) -> Head:
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(classes, features)), rng.normal(size=classes)
    return Head(weight, bias, domain=Box(3))


def surface_of(head: Head, carriers: np.ndarray) -> Surface:
    return Surface(SearchedHead(head, head.domain, Backend(1)), carriers)


def cost_of_one_input(head: Head, below: np.ndarray) -> float:
    """min over u and s of Σ |s − z_t(u)| over those below + Σ [z_i(u) − s]₊ over the others."""
    classes, features = head.weight.shape
    # u, s, then what each class pays.
    cost = np.concatenate([np.zeros(features + 1), np.ones(classes)])
    pays = -np.eye(classes)
    above = np.column_stack([head.weight, -np.ones(classes), pays])  # z_i − s ≤ pay_i
    under = np.column_stack([-head.weight, np.ones(classes), pays])[below]  # s − z_t ≤ pay_t
    solved = linprog(
        cost, A_ub=np.vstack([above, under]),
        b_ub=np.concatenate([-head.offsets, head.offsets[below]]),
        bounds=[(-3, 3)] * features + [(None, None)] + [(0, None)] * classes,
    )  # fmt: skip
    return float(solved.fun)


@quick(12)
@given(seed=st.integers(0, 2**20))
def test_one_input_for_all_costs_what_a_plain_programme_says(seed: int) -> None:
    head = head_of(seed)
    below, others = np.arange(3), np.arange(3, 12)
    surface = surface_of(head, others)
    shared = _shared_input(surface, below, others)
    assert shared is not None
    assert shared.cost == pytest.approx(cost_of_one_input(head, below), abs=1e-7)
    z = surface.all_rows @ shared.input + surface.all_bias - shared.height
    assert np.abs(z[:3]).sum() + np.maximum(z[3:], 0).sum() == pytest.approx(shared.cost)


@quick(12)
@given(seed=st.integers(0, 2**20))
def test_what_mixtures_prove_is_no_more_than_the_least_change(seed: int) -> None:
    head = head_of(seed)
    found = audit(head, device="cpu", jobs=1)
    below = found.unargmaxable
    if not len(below):
        return
    surface, certifier = surface_of(head, found.argmaxable), Certifier(head)
    exact = best_by_brute_force(head, "1")
    master = _Master(12)
    new = master.add(certifier, surface, depths(surface, below))
    assert new == master.add(certifier, surface, depths(surface, below)) + new  # known ones are not
    change, needed = master.solve()
    assert 0 < needed <= exact * (1 + 1e-6)
    assert np.abs(change).sum() == pytest.approx(needed, rel=1e-6)
    for row in master.rows:
        assert row.weights @ change[row.classes] >= row.lead - 1e-9
    # One input for all of them, dealt out as mixtures, proves no more either.
    others = np.setdiff1d(np.arange(12), below)
    shared = _shared_input(surface, below, others, lowering=0.0)
    assert shared is not None
    master.add_dealt(certifier, _dealt(surface, shared, below, others))
    assert needed * (1 - 1e-9) <= master.solve()[1] <= exact * (1 + 1e-6)


def test_without_inequalities_nothing_is_needed() -> None:
    change, needed = _Master(4).solve()
    assert needed == 0
    assert not change.any()


def test_a_mixture_that_the_certifier_refuses_is_no_inequality() -> None:
    head = Head([[1.0, 0], [-1, 0], [0, 1], [0, -1], [0, 0]], [0.0, 0, 0, 0, -1], domain=Box(1))
    master = _Master(5)
    wrong = Mixture(np.array([0, 2]), np.ones(2))
    master.add_dealt(Certifier(head), [(4, 1.0, wrong)])
    assert not master.rows
    right = Mixture(np.array([0, 1]), np.ones(2))
    master.add_dealt(Certifier(head), [(4, 1.0, right)])
    # c_4 − ½ c_0 − ½ c_1 ≥ 1: cheapest by raising class 4.
    assert master.solve()[1] == pytest.approx(1.0)


@quick(8)
@given(seed=st.integers(0, 2**20))
def test_no_change_is_larger_than_it_need_be_and_z3_finds_every_class_first(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(8, 2)), rng.normal(size=8)
    head = Head(weight, bias, domain=Box(2))
    made = repair(head, norm="1", margin=0, device="cpu", jobs=1)
    exact = best_by_brute_force(head, "1")
    assert made.needed <= exact * (1 + 1e-6) + 1e-9
    assert made.touching <= exact * 1.05 + 1e-6
    after = made.head(head)
    np.testing.assert_array_equal(after.weight, head.weight)
    assert all(first_somewhere(after, t) for t in range(8))
