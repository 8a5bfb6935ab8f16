"""Thousands of small heads, each verdict held against exact rational arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle import expected, false_verdicts
from small_heads import EXTREME, ORDINARY, heads, quick
from uncork import Head, audit, verify


@pytest.mark.parametrize("kind", ORDINARY)
def test_every_verdict_is_exact_and_none_is_left_open(kind: str) -> None:
    @quick(200)
    @given(head=heads(ORDINARY[kind]))
    def check(head: Head) -> None:
        found = audit(head, device="cpu", jobs=1)
        assert false_verdicts(found, head) == {}
        assert found.counts["undecided"] == 0

    check()


@pytest.mark.parametrize("kind", EXTREME)
def test_at_the_edges_of_floating_point_a_verdict_is_true_or_undecided(kind: str) -> None:
    @quick(70)
    @given(head=heads(EXTREME[kind], extreme=True))
    def check(head: Head) -> None:
        found = audit(head, device="cpu", jobs=1, time_limit=10)
        assert false_verdicts(found, head) == {}
        assert verify(found, head, jobs=1).ok

    check()


@pytest.mark.parametrize("kind", ["normal", "ternary lattice", "a mixture moved by an ulp"])
def test_in_a_ball_a_verdict_is_true_or_undecided(kind: str) -> None:
    @quick(40)
    @given(head=heads(ORDINARY[kind], ball=True))
    def check(head: Head) -> None:
        found = audit(head, device="cpu", jobs=1)
        assert false_verdicts(found, head) == {}
        if head.bias is None:
            assert found.counts["undecided"] == 0

    check()


@quick(60)
@given(head=heads(ORDINARY["normal"]) | heads(ORDINARY["repeated rows"]), data=st.data())
def test_the_order_of_the_classes_does_not_matter(head: Head, data: st.DataObject) -> None:
    order = np.array(data.draw(st.permutations(range(head.classes))))
    shuffled = head.replace(
        weight=head.weight[order], bias=None if head.bias is None else head.bias[order]
    )
    before = audit(head, device="cpu", jobs=1).proofs.verdicts
    assert np.array_equal(audit(shuffled, device="cpu", jobs=1).proofs.verdicts, before[order])


@pytest.mark.parametrize("classes", [2, 3, 12])
@pytest.mark.parametrize("features", [1, 2, 5])
def test_verdicts_are_those_of_an_exact_linear_programme(classes: int, features: int) -> None:
    rng = np.random.default_rng(classes * 10 + features)
    head = Head(rng.standard_normal((classes, features)), rng.standard_normal(classes))
    assert list(audit(head, device="cpu", jobs=1).verdicts) == expected(head)
