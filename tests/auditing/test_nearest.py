"""A ball and a bias, however close the call: decided exactly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle import expected, false_verdicts
from small_heads import quick
from uncork import Ball, Head, Verdict, audit, verify
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Mixture, Witness
from uncork.auditing.search import rows
from uncork.auditing.search.exact import decide_exactly

TRIPLES = [(3, 4, 5), (5, 12, 13), (8, 15, 17), (20, 21, 29)]


@pytest.mark.parametrize("scale", [1.0, 2.0**-40, 2.0**60])
@pytest.mark.parametrize("triple", TRIPLES, ids=str)
def test_a_region_that_only_touches_the_ball_is_out_of_reach(
    triple: tuple[int, int, int], scale: float
) -> None:
    """Class 1 wins where (a, b)·x > c·R: that half-plane touches the ball in one point."""
    a, b, c = triple
    weight = np.array([[0.0, 0.0], [a, b]]) * scale
    bias = np.array([0.0, -c]) * scale
    touching = audit(Head(weight, bias, domain=Ball(1.0)), jobs=1)
    assert list(touching.verdicts) == [Verdict.ARGMAXABLE, Verdict.UNARGMAXABLE]
    wider = audit(Head(weight, bias, domain=Ball(float(np.nextafter(1.0, 2.0)))), jobs=1)
    assert list(wider.verdicts) == [Verdict.ARGMAXABLE, Verdict.ARGMAXABLE]
    narrower = audit(Head(weight, bias, domain=Ball(float(np.nextafter(1.0, 0.0)))), jobs=1)
    assert list(narrower.verdicts) == [Verdict.ARGMAXABLE, Verdict.UNARGMAXABLE]


@quick(60)
@given(
    corner=st.sampled_from(TRIPLES),
    slopes=st.lists(st.integers(-3, 3), min_size=2, max_size=4, unique=True),
    moved=st.sampled_from([0, 1, -1]),
)
def test_a_corner_on_the_sphere_moved_by_an_ulp_changes_the_verdict(
    corner: tuple[int, int, int], slopes: list[int], moved: int
) -> None:
    """Class 0 wins inside a wedge whose tip (a, b) lies on the sphere of radius c."""
    a, b, c = corner
    radius = float(np.nextafter(float(c), c + moved)) if moved else float(c)
    tip = np.array([a, b], dtype=np.float64)
    across = np.array([-b, a], dtype=np.float64)
    rows = np.array([4 * tip + s * across for s in slopes])  # z_0 − z_i = row·(x − tip)
    head = Head(np.vstack([np.zeros(2), -rows]), np.append(0.0, rows @ tip), domain=Ball(radius))
    found = audit(head, jobs=1)
    assert false_verdicts(found, head) == {}
    assert list(found.verdicts) == expected(head)
    assert verify(found, head, jobs=1).ok


@quick(60)
@given(seed=st.integers(0, 2**32), features=st.integers(1, 3))
def test_exact_solving_answers_every_class_with_a_proof_that_holds(
    seed: int, features: int
) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.integers(-3, 4, (7, features)).astype(np.float64)
    head = Head(weight, rng.integers(-3, 4, 7), domain=Ball(float(rng.integers(1, 3))))
    certifier = Certifier(head)
    for t in range(7):
        others = [i for i in range(7) if not certifier.equal(i, t)]
        repeats = np.array([i for i in range(7) if i not in others and i != t], dtype=np.int64)
        found = decide_exactly(head, head.domain, t, np.empty(0, np.int64), repeats)
        if isinstance(found, Mixture):
            assert certifier.mixture(t, found) >= 0
        else:
            group = {t: np.array([t, *repeats.tolist()])}
            assert isinstance(found, Witness)
            assert certifier.exact_witness(t, found, group) > 0
            assert sum(v * v for v in found.fractions()) <= Fraction(head.domain.radius) ** 2


def test_the_floats_decide_nearly_all_of_a_larger_head_in_a_ball_that_cuts_regions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    head = Head(rng.standard_normal((800, 12)), 2 * rng.standard_normal(800), domain=Ball(1.0))
    one_by_one: list[int] = []

    def count(space: Any, t: int, stop: Any) -> tuple[None, None, list[int]]:
        one_by_one.append(t)
        return None, None, []

    monkeypatch.setattr(rows, "decide_by_rows", count)
    found = audit(head, jobs=1)
    assert not len(found.undecided)
    assert len(found.unargmaxable) > 400
    assert len(found.argmaxable) > 10
    assert len(one_by_one) <= 2
