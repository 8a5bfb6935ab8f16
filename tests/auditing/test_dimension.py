"""Rows that span less than their width: how much less is proven, and lost classes are decided."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_heads import quick
from uncork import Box, Domain, Head, Unbounded, audit, verify
from uncork.auditing.certify import dimension
from uncork.auditing.certify.dimension import affine_dimension, varying_features


def rank(rows: list[list[Fraction]]) -> int:
    """By elimination, the obvious way."""
    rows, found = [list(row) for row in rows], 0
    for column in range(len(rows[0]) if rows else 0):
        at = next((k for k in range(found, len(rows)) if rows[k][column]), None)
        if at is None:
            continue
        rows[found], rows[at] = rows[at], rows[found]
        for k in range(found + 1, len(rows)):
            factor = rows[k][column] / rows[found][column]
            rows[k] = [a - factor * b for a, b in zip(rows[k], rows[found], strict=True)]
        found += 1
    return found


@quick(200)
@given(
    classes=st.integers(2, 9),
    features=st.integers(1, 6),
    inner=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1.0, 2.0**-140, 3e30, 0.1]),
)
def test_the_dimension_is_the_rank_of_the_differences(
    classes: int, features: int, inner: int, seed: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-3, 4, (classes, inner)) @ rng.integers(-2, 3, (inner, features))
    head = Head(rows * scale + rng.choice([0.0, 0.3]))
    stored = [[Fraction(v) for v in row] for row in head.rows(0, classes).tolist()]
    away = [[a - b for a, b in zip(row, stored[0], strict=True)] for row in stored[1:]]
    assert affine_dimension(head, varying_features(head)) == rank(away)


def test_of_many_features_only_those_that_never_vary_are_counted() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, dimension._MOST + 1))
    rows = np.column_stack([rows, np.full(200, 0.3), rows[:, 0]])
    head = Head(rows)
    assert affine_dimension(head, varying_features(head)) == dimension._MOST + 2


WAYS = {
    "a zero": lambda rows: np.zeros(len(rows)),
    "a constant": lambda rows: np.full(len(rows), 0.3),
    "a copy": lambda rows: rows[:, 1],
    "a sum": lambda rows: rows[:, 0] - 2 * rows[:, 2],
}


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("domain", [Unbounded(), Box(100)], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_feature_that_says_nothing_new_changes_no_verdict(
    way: str, domain: Domain, bias: bool
) -> None:
    rng = np.random.default_rng(1)
    rows = np.round(rng.standard_normal((900, 4)) * rng.uniform(0.4, 1, (900, 1)) * 4096) / 4096
    wide = np.column_stack([rows, WAYS[way](rows)]).astype(np.float32)
    offsets = 0.1 * rng.standard_normal(900) if bias else None
    plain = audit(Head(rows.astype(np.float32), offsets), domain=domain, device="cpu", jobs=1)
    head = Head(wide, offsets, domain=domain)
    found = audit(head, device="cpu", jobs=1)
    assert not len(found.undecided)
    assert len(found.unargmaxable) > 500
    if domain == Unbounded():  # in a box a copy makes the input's room larger
        assert np.array_equal(found.proofs.verdicts, plain.proofs.verdicts)
    # Not in exact arithmetic one by one: together, as any other head.
    assert sum(m.integers is not None for m in found.proofs.mixtures.values()) < 10
    assert verify(found, head, jobs=1).ok
