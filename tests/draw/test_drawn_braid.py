"""The braid arrangement as it is drawn: logits across (1, …, 1), and a colour for each ranking."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from uncork.core.errors import UncorkError
from uncork.draw import EXAMPLES, example
from uncork.draw.braid import across, tint
from uncork.theory.braid import rankings


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_what_is_drawn_keeps_differences_of_logits_and_nothing_else(classes: int) -> None:
    basis = across(classes)
    assert basis @ basis.T == pytest.approx(np.eye(classes - 1))
    assert basis @ np.ones(classes) == pytest.approx(np.zeros(classes - 1))
    middle = np.eye(classes) - np.full((classes, classes), 1 / classes)
    assert basis.T @ basis == pytest.approx(middle)


@pytest.mark.parametrize("classes", [3, 4])
def test_every_ranking_has_a_colour_of_its_own_up_to_its_second_class(classes: int) -> None:
    orders = list(itertools.permutations(range(classes)))
    shades = {tint(order) for order in orders}
    assert len(shades) == classes * (classes - 1)
    for order in orders:  # what a head lacks is paler than what it reaches
        assert sum(tint(order, feasible=False)) > sum(tint(order))


@pytest.mark.parametrize("figure", EXAMPLES)
def test_every_example_is_small_enough_to_rank(figure: int) -> None:
    head = example(figure)
    assert head.bias is None
    with_bias = example(figure, bias=True)
    assert with_bias.bias is not None
    assert (with_bias.weight == head.weight).all()
    assert len(rankings(head)) <= len(rankings(with_bias))


def test_a_figure_without_an_example_is_refused_by_number() -> None:
    with pytest.raises(UncorkError, match="no example after Figure 4: there are 1, 2, 3, 7, 8"):
        example(4)
