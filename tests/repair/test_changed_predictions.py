"""What an edit costs: predictions that change, counted; hidden states read from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_heads import quick
from uncork import Head, UncorkError
from uncork.repair import Price, price
from uncork.repair.changed_predictions import predictions, read_inputs


@quick(20)
@given(seed=st.integers(0, 2**20))
def test_it_counts_what_a_plain_argmax_counts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    before = Head(rng.integers(-2, 3, (9, 2)), rng.integers(-1, 2, 9))
    after = before.replace(bias=before.offsets + rng.integers(0, 2, 9))
    x, freed = rng.integers(-3, 4, (50, 2)).astype(np.float32), np.array([1, 4])
    was, now = ((x @ h.weight.T + h.offsets).argmax(axis=1) for h in (before, after))
    found = price(before, after, x, freed)
    changed = was != now
    assert found == Price(50, changed.sum(), (changed & np.isin(now, freed)).sum())
    assert found.share == changed.mean()


def test_the_lowest_class_is_predicted_where_logits_are_equal() -> None:
    head = Head(np.zeros((20_000, 1)), np.tile([0.0, 1.0, 1.0, 0.0], 5000))
    assert predictions(head, np.zeros((3, 1))).tolist() == [1, 1, 1]


def test_blocks_of_inputs_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    before, x = Head(rng.normal(size=(6, 3))), rng.normal(size=(100, 3))
    after = before.replace(weight=rng.normal(size=(6, 3)))
    whole = price(before, after, x, np.array([2]))
    monkeypatch.setattr("uncork.repair.changed_predictions._BYTES", 8 * 6 * 7)
    assert price(before, after, x, np.array([2])) == whole


def test_hidden_states_are_read_from_npy_and_npz(tmp_path: Path) -> None:
    states = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "one.npy", states)
    np.savez(tmp_path / "only.npz", whatever=states)
    np.savez(tmp_path / "named.npz", inputs=states, other=np.ones((9, 9)))
    for name in ("one.npy", "only.npz", "named.npz"):
        np.testing.assert_array_equal(read_inputs(tmp_path / name, 3), states)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.ones((2, 3)), "b": np.ones((2, 3))}, "holds a, b: expected hidden states named"),
        ({"inputs": np.ones((2, 4))}, r"shape \(2, 4\): expected hidden states, \(any number, 3\)"),
        ({"inputs": np.ones(3)}, "expected hidden states"),
        ({"inputs": np.ones((0, 3))}, "expected hidden states"),
        ({"inputs": np.ones((2, 3), int)}, "not finite floats"),
        ({"inputs": np.array([[1.0, 2, np.nan]])}, "not finite floats"),
    ],
)
def test_other_files_are_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "states.npz", **arrays)
    with pytest.raises(UncorkError, match=message):
        read_inputs(tmp_path / "states.npz", 3)
