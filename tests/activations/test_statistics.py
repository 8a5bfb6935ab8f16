"""Running statistics: exact or sampled as they say, and the same after a pause."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uncork import UncorkError
from uncork.activations import Batch, Statistics
from uncork.activations.recording import State
from uncork.activations.statistics import QUANTILES, sample_size

RNG = np.random.default_rng(0)


def batches(x: np.ndarray, size: int, classes: int = 7) -> list[Batch]:
    first = np.arange(len(x)) % classes
    shared = np.arange(len(x)) % 3 == 0
    return [
        Batch(x[k : k + size], first[k : k + size], shared[k : k + size], size)
        for k in range(0, len(x), size)
    ]


@given(st.integers(1, 200), st.integers(1, 60), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_they_do_not_depend_on_how_the_data_is_cut(count: int, size: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(count, 3)) * 10 + 5
    found = Statistics(3, 7)
    for batch in batches(x, size):
        found.add(batch)
    np.testing.assert_array_equal(found.lower, x.min(axis=0))
    np.testing.assert_array_equal(found.upper, x.max(axis=0))
    np.testing.assert_allclose(found.mean, x.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.deviation(), x.std(axis=0), rtol=1e-9, atol=1e-12)
    norms = np.linalg.norm(x, axis=1)
    assert (found.norm_lower, found.norm_upper) == (norms.min(), norms.max())
    assert found.norm_mean == pytest.approx(norms.mean())
    assert found.count == count
    assert found.first.sum() == count
    # Everything fits into the sample, so that quantiles are exact but for float32.
    expected = np.quantile(x, QUANTILES, axis=0)
    np.testing.assert_allclose(list(found.quantiles().values()), expected, rtol=1e-5, atol=1e-5)


def test_the_sample_is_uniform_over_all_that_was_seen() -> None:
    found = Statistics(1, 2)
    found._sample = np.zeros((500, 1), dtype=np.float32)
    x = np.arange(20_000, dtype=np.float64)[:, None]
    for batch in batches(x, 333, classes=2):
        found.add(batch)
    assert len(np.unique(found.sample)) == 500
    # 500 places of 20,000 inputs: each quarter holds 125 ± 10 or so.
    quarters = np.histogram(found.sample, bins=4, range=(0, 20_000))[0]
    assert (np.abs(quarters - 125) < 45).all()
    assert abs(found.quantiles()[0.5][0] - 10_000) < 1_000


def test_memory_is_bounded_by_the_sample() -> None:
    assert sample_size(120) == 16_384
    assert sample_size(8192) * 8192 * 4 <= 64 << 20
    assert sample_size(10**9) == 64


def test_a_pause_changes_nothing(tmp_path: Path) -> None:
    x = RNG.normal(size=(3000, 4))
    whole, first = Statistics(4, 7), Statistics(4, 7)
    for statistics in (whole, first):
        statistics._sample = np.zeros((100, 4), dtype=np.float32)
    parts = batches(x, 50)
    for batch in parts:
        whole.add(batch)
    for batch in parts[:20]:
        first.add(batch)
    State(tmp_path / "state.npz").save("model", 1000, first)
    loaded = State(tmp_path / "state.npz").load("model", 4, 7)
    assert loaded is not None
    done, second = loaded
    assert done == 1000
    second._sample = second._sample[:100].copy()
    for batch in parts[20:]:
        second.add(batch)
    assert second.as_dict() == whole.as_dict()


def test_inputs_that_are_not_finite_end_in_an_error() -> None:
    x = np.array([[1.0, 2.0], [np.inf, 0.0]])
    with pytest.raises(UncorkError, match="input 1 of the head is not finite"):
        Statistics(2, 7).add(batches(x, 2)[0])
