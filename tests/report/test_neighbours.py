"""Nearest rows and runners-up, held to an exhaustive search in float64."""

from __future__ import annotations

import numpy as np
import pytest

from uncork import Head, audit
from uncork.report import neighbours
from uncork.report.neighbours import nearest_rows, row_norms, runners_up

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("block", [3, 7, 8192], ids=lambda size: f"{size} rows at a time")
def test_nearest_rows_do_not_depend_on_how_the_head_is_read(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(neighbours, "_BLOCK", block)
    monkeypatch.setattr(neighbours, "_CHUNK", 5)
    head = Head(RNG.standard_normal((40, 6)))
    classes = np.arange(0, 40, 3)
    found, distances = nearest_rows(head, classes, 4)
    apart = np.linalg.norm(head.weight[classes][:, None] - head.weight[None], axis=2)
    apart[np.arange(len(classes)), classes] = np.inf
    assert found.tolist() == np.argsort(apart, axis=1)[:, :4].tolist()
    assert distances == pytest.approx(np.sort(apart, axis=1)[:, :4])


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_sizes_whose_squares_overflow_are_measured_all_the_same(size: float) -> None:
    head = Head(size * np.array([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]]))
    assert row_norms(head) == pytest.approx([5 * size, 0, 10 * size])
    found, distances = nearest_rows(head, np.array([0]), 9)  # more than there are
    assert sorted(found[0].tolist()) == [1, 2]
    assert distances[0] == pytest.approx([5 * size] * 2)


def test_a_class_without_a_witness_has_no_runners_up() -> None:
    head = Head(np.array([[1.0], [-1.0], [0.0]]))
    found, leads = runners_up(audit(head), head, np.arange(3), 1)
    assert found[:, 0].tolist()[2] == -1
    assert np.isnan(leads[2, 0])
    assert (leads[:2, 0] > 0).all()
