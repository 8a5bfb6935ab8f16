"""Sizes that float64 cannot square are refused in one line, at every entry."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from uncork import Ball, Box, Head, UncorkError
from uncork.reach.probability.search import highest_probability
from uncork.reach.rank.search import best_rank
from uncork.reach.sets import can_rank_above
from uncork.reach.sparse.search import sparse_probability
from uncork.repair.prevent import prevent
from uncork.repair.repair import bias_needed, repair

WEIGHT = np.random.default_rng(0).normal(size=(12, 2))
REACH: dict[str, Callable[[Head], object]] = {
    "probability": lambda head: highest_probability(head, [1], device="cpu", jobs=1),
    "sparse": lambda head: sparse_probability(head, [1], device="cpu", jobs=1),
    "rank": lambda head: best_rank(head, [1], jobs=1),
    "sets": lambda head: can_rank_above(head, 0, 1),
}
REPAIR: dict[str, Callable[[Head], object]] = {
    "bias": lambda head: repair(head, device="cpu", jobs=1),
    "norm 1": lambda head: repair(head, norm="1", device="cpu", jobs=1),
    "row": lambda head: repair(head, how="row", device="cpu", jobs=1),
    "needed": lambda head: bias_needed(head, [1], jobs=1),
}


@pytest.mark.parametrize("ask", {**REACH, **REPAIR}.values(), ids=[*REACH, *REPAIR])
def test_what_is_too_large_is_refused(ask: Callable[[Head], object]) -> None:
    for size in (1e152, 1e200, 1e307):
        with pytest.raises(UncorkError, match=r"weight's largest value is .*: scale"):
            ask(Head(WEIGHT * size))
        for sign in (-1, 1):
            bias = np.append(np.arange(11.0), sign * size)
            with pytest.raises(UncorkError, match=r"bias's largest value is .*: bring it"):
                ask(Head(WEIGHT, bias))


@pytest.mark.parametrize("ask", REPAIR.values(), ids=REPAIR)
def test_weights_too_small_to_be_repaired_are_refused(ask: Callable[[Head], object]) -> None:
    for size in (1e-162, 1e-200, 1e-320):
        with pytest.raises(UncorkError, match="scale the weights first"):
            ask(Head(WEIGHT * size))


@pytest.mark.parametrize(
    ("temperature", "alpha", "message"),
    [
        (1e-300, 1.5, "temperature 1e-300 is too small.*above 1e-140"),
        (1e-320, 1.5, "is too small"),
        (1.0, 1e308, r"alpha 1e\+308 is too large at temperature 1.*below 1e\+140"),
        (1e-100, 1e100, "alpha .* is too large at temperature 1e-100"),
    ],
)
def test_temperatures_that_float64_cannot_square_are_refused(
    temperature: float, alpha: float, message: str
) -> None:
    head = Head(WEIGHT)
    with pytest.raises(UncorkError, match=message):
        sparse_probability(head, [0], alpha, temperature=temperature, device="cpu", jobs=1)
    if alpha == 1.5:
        with pytest.raises(UncorkError, match=message):
            highest_probability(head, [0], temperature=temperature, device="cpu", jobs=1)


@pytest.mark.parametrize("how", ["norm", "bias"])
def test_prevention_does_not_look_at_a_bias_that_it_drops(how: str) -> None:
    head = Head(WEIGHT, np.append(np.zeros(10), [1e308, -1e308]))
    assert np.isfinite(prevent(head, how).weight).all()
    with pytest.raises(UncorkError, match="the bias's largest value"):
        prevent(head, "bias", least=True)


@pytest.mark.parametrize("domain", [Box(1e-200), Ball(1e-300)], ids=str)
def test_rows_are_not_moved_where_inputs_have_no_squares(domain: Box | Ball) -> None:
    head = Head(WEIGHT, np.append(np.zeros(11), -1e9), domain=domain)
    with pytest.raises(UncorkError, match="so short that float64 does not hold their squares"):
        repair(head, how="row", device="cpu", jobs=1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, np.nan])
def test_a_time_limit_is_some_time(seconds: float) -> None:
    with pytest.raises(UncorkError, match="the time limit must be positive, and is"):
        repair(Head(WEIGHT), time_limit=seconds)
