"""A recommender trained here, audited: what it can recommend to nobody, it recommends to nobody."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import threadpoolctl
from running import Run

import uncork


def test_items_that_are_never_first_are_recommended_first_to_nobody(
    run: Run, tmp_path: Path
) -> None:
    implicit = pytest.importorskip("implicit")
    from scipy import sparse

    rng = np.random.default_rng(0)
    # Users of six tastes, items that are popular or not: the usual long tail.
    taste, kind = rng.normal(size=(300, 6)), rng.normal(size=(200, 6))
    liked = taste @ kind.T + rng.exponential(2.0, size=200) - 6 > 0
    with threadpoolctl.threadpool_limits(1, "blas"):  # it warns of more
        model = implicit.als.AlternatingLeastSquares(
            factors=6, iterations=10, num_threads=1, random_state=0
        )
        seen = sparse.csr_matrix(liked.astype(np.float32))
        model.fit(seen, show_progress=False)
    model.save(str(tmp_path / "model.npz"))
    page = tmp_path / "audit.html"
    ran = run(
        "audit", tmp_path / "model.npz", "--domain", "unbounded", "--json", "-", "--report", page
    )
    found = ran.json()
    assert found["counts"]["undecided"] == 0
    lost = {item["class"] for item in found["unargmaxable"]}
    assert 10 < len(lost) < 190
    # Trained users, and many more than there are: none is shown a lost item first.
    items = np.asarray(model.item_factors, dtype=np.float64)
    anyone = np.concatenate([model.user_factors, rng.normal(size=(5000, 6))])
    first = set(np.argmax(anyone @ items.T, axis=1).tolist())
    assert first
    assert not lost & first
    head = uncork.load(tmp_path / "model.npz", domain="unbounded")
    assert uncork.audit(head).unargmaxable.tolist() == sorted(lost)
    assert "items can never be retrieved first, whatever the query" in page.read_text("utf-8")
    text = run("audit", tmp_path / "model.npz", "--domain", "unbounded").out
    assert f"{len(items)} items × 6 features" in text
    assert "never retrieved" in text
