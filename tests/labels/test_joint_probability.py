"""The highest joint probability: bounds that hold at every input, and meet."""

from __future__ import annotations

import numpy as np
import pytest

from uncork import Ball, Box, Head
from uncork.domain import Domain
from uncork.labels import LabelSets
from uncork.labels.probability import highest_joint_probability


@pytest.mark.parametrize(("domain", "apart"), [(Box(1), 1e-6), (Ball(2), 0.05)], ids=str)
def test_bounds_hold_everywhere_and_meet(domain: Domain, apart: float) -> None:
    rng = np.random.default_rng(0)
    head = Head(rng.normal(size=(6, 2)), rng.normal(size=6), domain=domain)
    sets = LabelSets.of(6, [[0, 1], [2], []])
    found = highest_joint_probability(head, sets)
    x = rng.uniform(-2, 2, size=(20_000, 2))
    x = x[domain.contains(x)]
    z = x @ head.weight.T + head.offsets
    for k, signs in enumerate(sets.signs()):
        seen = np.exp(-np.logaddexp(0, -signs * z).sum(axis=1)).max()
        assert seen <= found.upper[k] * (1 + 1e-9)
        assert seen <= found.lower[k] * (1 + apart)
        assert found.lower[k] <= found.upper[k] <= found.lower[k] * (1 + apart)


def test_free_labels_do_not_count() -> None:
    head = Head([[1.0], [1.0]], domain=Box(1))
    found = highest_joint_probability(head, LabelSets.question(2, [0]))
    assert found.lower[0] == pytest.approx(1 / (1 + np.exp(-1)), rel=1e-6)
