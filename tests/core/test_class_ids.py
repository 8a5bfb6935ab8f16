"""Classes asked for by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import uncork
from uncork import UncorkError
from uncork.core.class_ids import class_ids
from uncork.reach.probability.search import highest_probability
from uncork.theory.random_heads import random_head


def test_ids_are_kept_as_given() -> None:
    assert class_ids(4, None).tolist() == [0, 1, 2, 3]
    for asked in ([2, 0, 2], (2, 0, 2), np.array([2.0, 0, 2]), np.array([2, 0, 2], np.uint8)):
        assert class_ids(4, asked).tolist() == [2, 0, 2]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (np.arange(9) == 7, "flatnonzero"), ([True, False], "flatnonzero"), ([1.5], "class 1.5"),
        ([np.nan], "class nan"), ([np.inf], "class inf"), ([-1], "class -1"), ([9], "9 classes"),
        ([], "no classes"), ({1, 2}, "whole numbers"), ("12", "whole numbers"),
        ([[1]], "whole numbers"), (["a"], "whole numbers"), (3, "whole numbers"),
    ],
)  # fmt: skip
def test_what_names_no_class_is_refused_everywhere(asked: Any, says: str) -> None:
    head = random_head(9, 2)
    for ask in (
        lambda: class_ids(9, asked),
        lambda: uncork.audit(head, classes=asked, device="cpu"),
        lambda: highest_probability(head, asked, device="cpu"),
    ):
        with pytest.raises(UncorkError, match=says):
            ask()


def test_an_audit_of_another_head_is_no_help() -> None:
    head, smaller = random_head(30, 2), random_head(9, 2)
    audit = uncork.audit(smaller, device="cpu")
    found = highest_probability(head, [20], audit=audit, device="cpu", jobs=1)
    assert found.upper[0] >= found.lower[0] > 0
