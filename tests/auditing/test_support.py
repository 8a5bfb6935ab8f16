"""How large r·x + s can be: never underestimated, not even among the subnormals."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from uncork import Box, Domain, Head, Image, audit
from uncork.auditing.certify import support
from uncork.auditing.search import rows

LOW = [-np.inf, 0, 0, -1, -1e-160, -(2.0**-537), 2.0**-537, -5e-324, 1e-5]
HIGH = [np.inf, 0, 0, 1, 1e-160, 2.0**-537, 1.5 * 2.0**-537, 5e-324, 1e-5]
SIZES = [0, 1, 3, 5e-324, 1e-310, 1e-160, 0.3e-162, 2.0**-537, 1.6 * 2.0**-537]
TINY = [0, 0, 5e-324, -5e-324, 1e-323, -1e-323, 1.5e-323, -1e-310]


def true_maximum(
    box: Box, residual: np.ndarray, error: np.ndarray, constant: Fraction
) -> Fraction | None:
    """Over every r that the error allows, at the corners where it is largest; None: infinite."""
    worst = []
    for signs in itertools.product((-1, 1), repeat=len(residual)):
        r = [Fraction(a) + g * Fraction(b) for a, b, g in zip(residual, error, signs, strict=True)]
        worst.append(box.upper_bound_exactly(r, constant))
    return None if None in worst else max(w for w in worst if w is not None)


def test_a_bound_of_zero_is_never_below_the_truth() -> None:
    rng = np.random.default_rng(0)
    tight = accepted = 0
    for _ in range(8000):
        width = int(rng.integers(1, 4))
        ends = np.sort([rng.choice(LOW, width), rng.choice(HIGH, width)], axis=0)
        if (ends[0] == np.inf).any() or (ends[1] == -np.inf).any():
            continue
        box = Box(ends[0], ends[1])
        residual = rng.choice(SIZES, width) * rng.choice([-1, 1], width)
        error = rng.choice([0, 0, 0, 5e-324, 1e-170], width)
        constant, slack = float(rng.choice(TINY)), float(rng.choice([0, 0, 5e-324]))
        with np.errstate(all="ignore"):
            bound = support.upper_bound(box, residual, error, constant, slack)
        if bound <= 0:
            accepted += 1
            truth = true_maximum(box, residual, error, Fraction(constant) + Fraction(slack))
            assert truth is not None
            assert truth <= 0
            tight += truth == 0
    assert accepted > 500
    assert tight > 100  # where nothing is rounded, nothing is given away


@pytest.mark.parametrize(
    "domain",
    [
        Box(0, np.inf),
        Box(0, 1),
        Box(np.zeros(9), np.arange(1.0, 10.0)),
        Box(np.where(np.arange(9) % 2, -1.0, 0.0), np.full(9, 3.0)),
        Image(Box(0, np.inf), np.random.default_rng(7).standard_normal((9, 6))),
    ],
    ids=str,
)
def test_where_all_classes_tie_at_zero_floats_still_decide(
    domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No bias and a corner at x = 0: mixtures lead by nothing, yet none needs exact arithmetic."""
    rng = np.random.default_rng(0)
    head = Head(0.3 * rng.standard_normal((600, 9)) + 0.1, domain=domain)
    one_by_one: list[int] = []

    def count(space: Any, t: int, stop: Any) -> tuple[None, None, list[int]]:
        one_by_one.append(t)
        return None, None, []

    monkeypatch.setattr(rows, "decide_by_rows", count)
    found = audit(head, device="cpu", jobs=1)
    assert not len(found.undecided)
    assert len(found.unargmaxable) > 100
    assert len(one_by_one) <= 2
