"""Deciding label sets: verdicts agree with exact solvers, and each has a proof that holds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from against_z3 import compared

from uncork import Ball, Box, Head, Unbounded, UncorkError
from uncork.domain import Domain, LayerNorm
from uncork.labels import LabelAudit, LabelSets, SetVerdict, decide_sets
from uncork.labels.certify import LabelCertifier
from uncork.labels.verify import verify_sets
from uncork.theory.label_sets import label_sets


@pytest.mark.parametrize("seed", [3, 17, 531, 1201])
def test_verdicts_are_those_of_z3(seed: int) -> None:
    assert compared(seed)[1] == []


@pytest.mark.slow
def test_verdicts_are_those_of_z3_on_many_heads() -> None:
    assert [seed for seed in range(15) if compared(seed)[1]] == []


@pytest.mark.parametrize(
    ("labels", "features", "bias"), [(5, 2, False), (5, 2, True), (6, 3, False), (4, 5, True)]
)
def test_as_many_sets_are_feasible_as_cover_counts(labels: int, features: int, bias: bool) -> None:
    rng = np.random.default_rng(labels)
    head = Head(
        rng.normal(size=(labels, features)), rng.normal(size=labels) if bias else None,
        domain=Unbounded(),
    )  # fmt: skip
    every = [s for k in range(labels + 1) for s in itertools.combinations(range(labels), k)]
    found = decide_sets(head, LabelSets.of(labels, every), jobs=1)
    assert not len(found.undecided)
    assert len(found.feasible) == label_sets(labels, features, bias=bias)


def random_head(domain: Domain, bias: float | None, seed: int = 0) -> Head:
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(30, 6)).astype(np.float32)
    offsets = None if bias is None else (bias + rng.normal(size=30)).astype(np.float32)
    return Head(weight, offsets, domain=domain)


DOMAINS = [
    (Box(100), None), (Box(1), -2.0), (Ball(2), -2.0), (Box(0, np.inf), -1.0), (Unbounded(), -1.0),
    (LayerNorm(features=6), None), (LayerNorm(np.ones(6), np.full(6, 0.5)), -1.0),
]  # fmt: skip


@pytest.mark.parametrize(("domain", "bias"), DOMAINS, ids=lambda value: str(value)[:12])
def test_every_set_is_decided_and_verified_from_its_file(
    domain: Domain, bias: float | None, tmp_path: object
) -> None:
    head = random_head(domain, bias)
    sets = LabelSets.of_size(30, 1).joined(LabelSets.sample(30, 3, 40))
    sets = sets.joined(LabelSets.question(30, [0, 1], [2]))
    audit = decide_sets(head, sets, jobs=1)
    assert not len(audit.undecided)
    path = f"{tmp_path}/proofs.npz"
    audit.save(path)
    again = LabelAudit.load(path, head)
    assert verify_sets(again, head).ok
    np.testing.assert_array_equal(again.verdicts, audit.verdicts)
    for k in audit.feasible[:5].tolist():
        x = again.witness(k)
        assert x is not None
        on = np.flatnonzero(head.weight @ x + head.offsets > 0)
        if not sets.partial[k]:
            np.testing.assert_array_equal(on, sets.on[k])


def test_a_false_claim_is_not_verified() -> None:
    head = random_head(Box(1), -2.0)
    audit = decide_sets(head, LabelSets.sample(30, 2, 60), jobs=1)
    assert len(audit.feasible)
    assert len(audit.infeasible)
    a, b = int(audit.feasible[0]), int(audit.infeasible[0])
    audit.verdicts[[a, b]] = audit.verdicts[[b, a]]
    assert set(verify_sets(audit, head).failed) == {a, b}


def test_an_audit_of_other_weights_is_not_verified() -> None:
    audit = decide_sets(random_head(Box(1), -2.0), LabelSets.of_size(30, 1), jobs=1)
    assert not verify_sets(audit, random_head(Box(1), -2.0, seed=1)).ok


def test_the_certifier_refuses_negative_weights_and_foreign_labels() -> None:
    head = Head([[1.0], [-1.0], [1.0]], domain=Unbounded())
    certifier = LabelCertifier(head, np.zeros(3))
    signs = np.array([1, 1, 0], dtype=np.int8)  # x > 0 and x < 0
    one = np.array([0, 1])
    assert certifier.mixture(signs, one, np.array([1.0, 1.0])) >= 0
    assert not certifier.mixture(signs, one, np.array([1.0, 2.0])) >= 0
    assert not certifier.mixture(signs, one, np.array([1.0, -1.0])) >= 0
    assert not certifier.mixture(signs, np.array([0, 2]), np.array([1.0, 1.0])) >= 0  # 2 is free
    assert not certifier.mixture(signs, np.array([0, 3]), np.array([1.0, 1.0])) >= 0
    assert not certifier.mixture(signs, one, np.zeros(2)) >= 0
    assert not certifier.witnesses(signs[None], np.array([[1.0]]))[0] > 0


def test_a_witness_outside_the_domain_is_refused() -> None:
    head = Head([[1.0], [1.0]], [-2.0, 2.0], domain=Box(1))
    certifier = LabelCertifier(head, np.zeros(2))
    signs = np.ones((1, 2), dtype=np.int8)
    assert not certifier.witnesses(signs, np.array([[3.0]]))[0] > 0
    assert decide_sets(head, LabelSets.of(2, [[0, 1]]), jobs=1).verdicts[0] == SetVerdict.INFEASIBLE


def test_residuals_are_absorbed_only_where_weights_are_positive_enough() -> None:
    """Three rows around zero in the plane: a mixture of all must vanish exactly, and does not in
    floats. Two of them alone never do."""
    angle = 2 * np.pi / 3 * np.arange(3)
    head = Head(np.column_stack([np.cos(angle), np.sin(angle)]), domain=Unbounded())
    certifier = LabelCertifier(head, np.zeros(3))
    signs = np.ones(3, dtype=np.int8)
    assert certifier.mixture(signs, np.arange(3), np.ones(3)) >= 0
    assert not certifier.mixture(signs, np.arange(2), np.ones(2)) >= 0
    assert not certifier.mixture(signs, np.arange(3), np.array([1.0, 1.0, 0.5])) >= 0


def test_thresholds_move_the_walls() -> None:
    head = Head([[1.0], [2.0]], domain=Box(1))
    sets = LabelSets.of(2, [[0, 1]])
    assert decide_sets(head, sets, thresholds=0.5).verdicts[0] == SetVerdict.FEASIBLE
    assert decide_sets(head, sets, thresholds=np.array([1.0, 0.0])).verdicts[0] == (
        SetVerdict.INFEASIBLE
    )


def test_a_label_that_is_always_at_its_threshold_is_in_no_set() -> None:
    head = Head([[0.0], [1.0]], domain=Box(1))
    found = decide_sets(head, LabelSets.of(2, [[0], [1], []]))
    assert (found.verdicts == SetVerdict.INFEASIBLE).all()
    assert found.conflict(0)[0]["label"] == 0


def test_more_labels_than_a_set_names_are_free_in_a_question() -> None:
    head = Head([[1.0], [-1.0], [1.0]], [0.0, 0.0, 5.0], domain=Box(1))
    assert decide_sets(head, LabelSets.of(3, [[0]])).verdicts[0] == SetVerdict.INFEASIBLE
    assert decide_sets(head, LabelSets.question(3, [0])).verdicts[0] == SetVerdict.FEASIBLE
    never = decide_sets(head, LabelSets.question(3, [0, 1]))
    assert never.verdicts[0] == SetVerdict.INFEASIBLE


def test_a_time_limit_leaves_sets_undecided_and_says_so() -> None:
    audit = decide_sets(random_head(Box(1), -2.0), LabelSets.of_size(30, 2), time_limit=1e-9)
    assert len(audit.undecided) == len(audit.sets)
    assert "time limit" in audit.reasons[0]


@pytest.mark.parametrize(
    ("thresholds", "message"), [(np.zeros(3), "shape"), (np.inf, "not finite")]
)
def test_bad_thresholds_are_refused(thresholds: object, message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        decide_sets(random_head(Box(1), None), LabelSets.of(30, [[1]]), thresholds=thresholds)  # type: ignore[arg-type]
