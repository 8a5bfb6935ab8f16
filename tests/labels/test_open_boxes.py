"""Searching where inputs are bounded on one side only, as behind a ReLU."""

from __future__ import annotations

import numpy as np
import pytest

from uncork import Box, Head
from uncork.auditing.backend import choose_backend
from uncork.labels import LabelSets, SetVerdict, decide_sets
from uncork.labels.certify import LabelCertifier
from uncork.labels.search import Asker, LabelSearch, Proposed


def head_behind_relu(lower: float = 0.0, upper: float = np.inf) -> Head:
    """Labels that most inputs leave off, as a trained classifier's are."""
    rng = np.random.default_rng(5)
    weight = rng.normal(-0.4, 1.0, size=(300, 64)).astype(np.float32)
    bias = rng.normal(-0.08, 0.05, size=300).astype(np.float32)
    if upper == 0:
        weight = -weight
    return Head(weight, bias, domain=Box(np.full(64, lower), np.full(64, upper)))


@pytest.mark.parametrize(("lower", "upper"), [(0.0, np.inf), (-np.inf, 0.0)])
def test_a_base_and_one_step_decide_nearly_all_singles(lower: float, upper: float) -> None:
    head = head_behind_relu(lower, upper)
    backend = choose_backend("cpu", 1)
    search = LabelSearch(head, np.zeros(300), head.domain, backend)
    certifier = LabelCertifier(head, np.zeros(300), head.domain, backend)

    def settle(proposed: Proposed, signs: np.ndarray) -> np.ndarray:
        return np.asarray(certifier.witnesses(signs, proposed.u) > 0)

    sets = LabelSets.of_size(300, 1)
    assert len(search._guess(np.arange(300), Asker(sets.signs, settle))) <= 30


@pytest.mark.parametrize("size", [1, 2])
def test_sets_behind_a_relu_are_all_decided(size: int) -> None:
    rng = np.random.default_rng(size)
    sets = LabelSets.of(300, [rng.choice(300, size, replace=False) for _ in range(20)])
    found = decide_sets(head_behind_relu(), sets, jobs=1)
    assert not len(found.undecided)


def test_an_impossible_set_behind_a_relu_stays_impossible() -> None:
    weight = np.array([[1.0, 0.5], [2.0, 1.0], [-1.0, -1.0]])  # 0 is on only where 1 is
    head = Head(weight, np.array([-1.0, -1.0, -1.0]), domain=Box(np.zeros(2), np.full(2, np.inf)))
    found = decide_sets(head, LabelSets.of(3, [[0], [1], [0, 1], [2], []]), jobs=1)
    assert found.verdicts.tolist() == [
        SetVerdict.INFEASIBLE, SetVerdict.FEASIBLE, SetVerdict.FEASIBLE, SetVerdict.INFEASIBLE,
        SetVerdict.FEASIBLE,
    ]  # fmt: skip
