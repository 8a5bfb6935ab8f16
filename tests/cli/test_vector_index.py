"""Commands on vector indices: metrics, ids, and the nodes that no path leads to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from running import Run

X = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", np.vstack([X, 2 * X[:1]]))
    return tmp_path / "rows.npy"


def test_a_plain_array_is_audited_by_inner_product_unless_asked_otherwise(
    run: Run, rows: Path
) -> None:
    plain = run("audit", rows, "--json", "-").json()
    assert plain["metric"] == "inner"
    assert plain["counts"]["unargmaxable"] > 0
    assert (
        run("audit", rows, "--metric", "inner", "--json", "-").json()["counts"] == plain["counts"]
    )


@pytest.mark.parametrize(("metric", "tied"), [("cosine", 2), ("euclidean", 0)])
def test_other_metrics_lose_nothing_and_say_why(
    run: Run, rows: Path, tmp_path: Path, metric: str, tied: int
) -> None:
    proofs = tmp_path / "proofs.npz"
    ran = run("audit", rows, "--metric", metric, "--certificates", proofs)
    assert ran.status == 0
    assert "why: an item is first when the query is its own vector" in ran.out
    assert "proven: each of the 61 verdicts" in ran.out
    found = run("audit", rows, "--metric", metric, "--json", "-", "--fail-if-unargmaxable").json()
    assert found["counts"] == {"argmaxable": 61 - tied, "unargmaxable": 0, "tied": tied,
                               "undecided": 0}  # fmt: skip
    assert found["metric"] == metric
    assert found["proven"] is True
    held = run("verify", proofs, rows, "--metric", metric)
    assert held.status == 0
    assert "every proof holds" in held.out
    other = run("verify", proofs, rows)
    assert other.status in (1, 2)
    assert "every proof holds" not in other.out


def test_some_items_by_label_and_the_gate(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.vstack([X, np.zeros((1, 4))]))
    (tmp_path / "titles.txt").write_text("\n".join(f"title {k}" for k in range(61)))
    arguments = ("audit", tmp_path / "rows.npy", "--metric", "cosine", "--labels",
                 tmp_path / "titles.txt", "--json", "-")  # fmt: skip
    found = run(*arguments, "--classes", "0-9,60").json()
    assert found["counts"]["argmaxable"] == 10
    assert found["undecided"][0]["label"] == "title 60"
    assert "no direction" in found["undecided"][0]["reason"]
    assert run(*arguments, "--fail-if-unargmaxable").status == 1


def test_what_means_nothing_for_another_metric_is_refused(
    run: Run, rows: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    assert "--report" in run("audit", rows, "--metric", "cosine", "--report", page).error
    assert not page.exists()
    assert "--reach" in run("audit", rows, "--metric", "euclidean", "--reach").error
    assert "are not a head" in run("reach", rows, "--metric", "cosine", "--classes", "0").error
    assert "hamming" in run("audit", rows, "--metric", "hamming").error


def test_a_graph_that_loses_items_is_a_count_of_its_own(run: Run, tmp_path: Path) -> None:
    hnswlib = pytest.importorskip("hnswlib")
    index = hnswlib.Index("ip", 4)
    index.init_index(60, M=2, ef_construction=4, random_seed=1)
    index.add_items(X, np.arange(60) + 1000, num_threads=1)
    path = tmp_path / "index.hnsw"
    index.save_index(str(path))
    assert "give --metric" in run("audit", path).error
    shown = run("show", path)
    assert shown.status == 0
    assert "does not say which" in shown.out
    ran = run("audit", path, "--metric", "inner", "--domain", "unbounded")
    assert "no path leads from the entry" in ran.out
    found = run("audit", path, "--metric", "inner", "--domain", "unbounded", "--json", "-").json()
    graph = found["graph"]
    assert graph["nodes"] == 60
    assert graph["unreachable"] == len(graph["items"]) > 0
    assert all(one["label"] == str(one["class"] + 1000) for one in graph["items"])
    cosine = run("audit", path, "--metric", "cosine", "--json", "-").json()
    assert cosine["graph"] == graph
    assert cosine["counts"]["argmaxable"] == 60


def test_an_index_of_faiss_names_its_items_by_their_ids(run: Run, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexIDMap(faiss.IndexFlatIP(4))
    index.add_with_ids(X, np.arange(60) + 500)
    faiss.write_index(index, str(tmp_path / "products.faiss"))
    path = tmp_path / "products.faiss"
    found = run("audit", path, "--json", tmp_path / "audit.json")
    assert found.status == 0
    lost = json.loads((tmp_path / "audit.json").read_text())["unargmaxable"]
    assert lost
    assert all(one["label"] == str(one["class"] + 500) for one in lost)
    assert "60 classes × 4 features" in run("show", path).out
    faiss.write_index(faiss.IndexFlatL2(4), str(path))
    assert "without vectors" in run("audit", path).error
