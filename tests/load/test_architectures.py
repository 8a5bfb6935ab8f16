"""Architectures of transformers: the right head, and every real input inside the found domain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_transformers import CASES, make

from uncork.load import find
from uncork.load.source import Found

_TOLERANCE = 1e-5  # of inputs computed in float32


@pytest.fixture(scope="module", params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def found(name: str, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What is found in the folder that the library saved."""
    folder: Path = make(name).save(tmp_path_factory.mktemp("model"))
    return find(folder, domain="auto")


def test_the_head_ranks_the_classes_as_the_model_does(name: str, found: Found) -> None:
    made = make(name)
    logits = made.hidden @ found.head.rows(0, found.head.classes).T + found.head.offsets
    np.testing.assert_array_equal(logits.argmax(axis=1), made.first)
    # Not only the first: scaled or capped, the model's logits are in the order of the head's.
    ordered = np.take_along_axis(made.logits, logits.argsort(axis=1), axis=1)
    assert np.diff(ordered, axis=1).min() > -1e-4 * np.abs(ordered).max()
    assert np.ptp(ordered, axis=1).min() > 1e-2 * np.abs(ordered).max()


def test_every_input_of_the_head_lies_in_the_found_domain(name: str, found: Found) -> None:
    assert type(found.head.domain).__name__ == CASES[name].before
    assert found.head.domain.contains(make(name).hidden, tolerance=_TOLERANCE).all()


def test_the_domain_is_no_larger_than_it_must_be(name: str, found: Found) -> None:
    if CASES[name].before == "Box":  # activations leave room
        outside = ~found.head.domain.contains(make(name).hidden - 1.5)
    else:
        # A projection maps a sphere onto a whole ball, of which most points are well inside.
        factor = 20 if CASES[name].before == "Image" else 1.5
        outside = ~found.head.domain.contains(make(name).hidden * factor, tolerance=_TOLERANCE)
    assert outside.mean() > 0.9


def test_the_tensor_is_the_one_that_was_saved_as_the_head(name: str, found: Found) -> None:
    if CASES[name].weight:
        assert found.weight_name == CASES[name].weight


def test_the_live_model_gives_the_same_as_its_folder(name: str, found: Found) -> None:
    live = find(make(name).model, domain="auto")
    np.testing.assert_array_equal(live.head.weight, found.head.weight)
    np.testing.assert_array_equal(live.head.offsets, found.head.offsets)
    assert live.head.domain == found.head.domain
    assert live.notes == found.notes
