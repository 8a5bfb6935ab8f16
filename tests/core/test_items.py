"""Items: vectors as stored, with the metric that compares them; only inner products are a head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import uncork
from uncork import Items, UncorkError

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_items_by_inner_product_are_a_head_of_the_same_rows() -> None:
    items = Items(ROWS, labels=("a", "b", "c", "d"), bias=np.arange(4), source="here")
    head = items.head(uncork.Ball(2))
    assert head.weight is items.vectors
    assert head.bias is items.bias
    assert head.labels == items.labels
    assert head.fingerprint == items.fingerprint
    assert str(head.domain) == str(uncork.Ball(2))


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_items_by_another_metric_are_no_head(metric: str) -> None:
    with pytest.raises(UncorkError, match="are not a head"):
        Items(ROWS, metric).head()


def test_the_fingerprint_covers_metric_values_and_bias_and_no_labels() -> None:
    made = [
        Items(ROWS), Items(ROWS, "cosine"), Items(ROWS, "euclidean"), Items(ROWS + 1),
        Items(ROWS, bias=np.zeros(4)), Items(ROWS.astype(np.float64)),
    ]  # fmt: skip
    assert len({one.fingerprint for one in made}) == len(made)
    assert Items(ROWS, labels=("a", "b", "c", "d")).fingerprint == made[0].fingerprint


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"vectors": ROWS, "metric": "dot"}, "not one of inner, cosine, euclidean"),
        ({"vectors": ROWS[0]}, "items × features"),
        ({"vectors": ROWS[:0]}, "at least one"),
        ({"vectors": ROWS[:, :0]}, "at least one"),
        ({"vectors": np.float32(1)}, "items × features"),
        ({"vectors": np.full((2, 2), np.nan)}, "must be finite"),
        ({"vectors": np.full((2, 2), 2**60)}, "not exact in float64"),
        ({"vectors": ROWS.astype(object)}, "float64 cannot hold exactly"),
        ({"vectors": ROWS, "labels": ("a",)}, "1 labels for 4 items"),
        ({"vectors": ROWS, "bias": np.zeros(3)}, "4 items"),
        ({"vectors": ROWS, "bias": np.full(4, np.inf)}, "must be finite"),
        ({"vectors": ROWS, "metric": "cosine", "bias": np.zeros(4)}, "have no bias"),
    ],
)
def test_what_cannot_be_compared_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        Items(**given)  # type: ignore[arg-type]


def test_rows_come_in_float64_exactly() -> None:
    items = Items(ROWS.astype(np.float16))
    assert items.rows(1, 3).dtype == np.float64
    np.testing.assert_array_equal(np.vstack([b for _, b in items.blocks(3)]), ROWS)
    np.testing.assert_array_equal(items.take(np.array([2, 0])), ROWS[[2, 0]])


def test_an_array_is_compared_by_inner_product_unless_another_metric_is_asked_for(
    tmp_path: Path,
) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    found = uncork.load_items(tmp_path / "rows.npy", labels=list("abcd"))
    assert (found.metric, found.labels) == ("inner", ("a", "b", "c", "d"))
    assert found.head().fingerprint == uncork.load(tmp_path / "rows.npy").fingerprint
    assert uncork.load_items(tmp_path / "rows.npy", metric="cosine").metric == "cosine"
    with pytest.raises(UncorkError, match="not one of"):
        uncork.load_items(tmp_path / "rows.npy", metric="hamming")
