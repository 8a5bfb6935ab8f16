"""Whatever sides of the domain a working set holds, it comes to the same verdicts."""

from __future__ import annotations

import numpy as np
import pytest

from uncork import Box, Domain, Head, audit, verify
from uncork.auditing.backend import Backend
from uncork.auditing.search import centre
from uncork.auditing.search.centre import Sides, WorkingSets, plans
from uncork.auditing.search.mixtures import balanced
from uncork.auditing.search.space import Space
from uncork.domain import Image

SILU = Box(-0.27846607565879822, np.inf)


def after_a_layer(inner: Domain, outer: int = 6, wide: int = 14) -> tuple[Head, Domain]:
    """Classes that see six numbers, made of fourteen by a linear layer; some are lost."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((500, outer)) * rng.uniform(0.5, 1, (500, 1))
    head = Head(rows.astype(np.float32), 0.2 * rng.standard_normal(500))
    return head, Image(inner, rng.standard_normal((outer, wide)) / 4, rng.standard_normal(outer))


@pytest.mark.parametrize("inner", [SILU, Box(0, 6), Box(-1, 1)], ids=str)
def test_every_kind_of_working_set_decides_alike(
    inner: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, domain = after_a_layer(inner)
    usual = audit(head, domain=domain, device="cpu", jobs=1)
    assert not len(usual.undecided)
    assert 0 < len(usual.unargmaxable) < head.classes
    assert verify(usual, head, jobs=1).ok
    for plan in (WorkingSets(), WorkingSets(3.0), WorkingSets(sides=Sides.ALL)):
        monkeypatch.setattr(centre, "plans", lambda space, plan=plan: iter([plan]))
        found = audit(head, domain=domain, device="cpu", jobs=1)
        assert np.array_equal(found.proofs.verdicts, usual.proofs.verdicts)


def test_classes_come_first_where_coordinates_are_unseen() -> None:
    head, domain = after_a_layer(SILU)
    space = Space(head, domain, Backend(1))
    assert space.unseen == 8
    first = next(plans(space))
    assert first.sides is Sides.NONE
    assert first.width(space) == 7  # six that classes see, and the height
    plain = Space(head, Box(100), Backend(1))
    assert next(plans(plain)) == WorkingSets()


def test_scores_leave_out_what_no_class_sees() -> None:
    head, domain = after_a_layer(SILU)
    space = Space(head, domain, Backend(1))
    y = np.random.default_rng(0).standard_normal((5, space.width)).astype(np.float32)
    assert np.allclose(space.scores(y), y @ space.points.T, atol=1e-4)
    part = slice(100, 200)
    assert np.array_equal(space.scores(y, part), space.scores(y)[:, part])


def test_weights_that_nothing_balances_are_not_called_a_mixture() -> None:
    """All rows on one side: steps may shrink the weights and never end."""
    backend = Backend(1, np.float64)
    for seed in range(300):
        rng = np.random.default_rng(seed)
        width = int(rng.integers(3, 12))
        rows = rng.standard_normal((1, int(rng.integers(width, 4 * width)), width))
        rows[:, :, 0] = 0.1 * np.abs(rows[:, :, 0]) + 0.01
        rows /= np.linalg.norm(rows, axis=2, keepdims=True)
        weights = rng.uniform(0.1, 1, rows.shape[:2]) ** int(rng.integers(1, 6))
        assert not balanced(backend, rows, weights)[1].any()
        both = np.concatenate([rows, -rows], axis=1)
        found, good = balanced(backend, both, np.tile(weights, 2) + 0.1)
        assert good.all()
        assert np.abs(found[0] @ both[0]).max() < 1e-13
