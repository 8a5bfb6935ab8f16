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
    ran = run("audit", rows, "--metric", "cosine", "--report", page, "--top", "10")
    assert "--top" in ran.error
    assert not page.exists()
    assert "--reach" in run("audit", rows, "--metric", "euclidean", "--reach").error
    assert "--engine" in run("audit", rows, "--metric", "cosine", "--engine", "local").error
    assert "--approximate" in run("audit", rows, "--metric", "cosine", "--approximate").error
    assert "are not a head" in run("reach", rows, "--metric", "cosine", "--classes", "0").error
    assert "hamming" in run("audit", rows, "--metric", "hamming").error


@pytest.mark.parametrize(
    ("metric", "words"), [("cosine", "cosine"), ("euclidean", "Euclidean distance")]
)
def test_a_report_of_another_metric_names_it_and_speaks_of_no_dot_product(
    run: Run, rows: Path, tmp_path: Path, metric: str, words: str
) -> None:
    page = tmp_path / "page.html"
    ran = run("audit", rows, "--metric", metric, "--domain", "unbounded", "--report", page)
    assert ran.status == 0
    text = page.read_text()
    shown = text[text.index("<body>") : text.index('id="data"')]
    assert f"61 items × 4 features, float32, compared by {words}" in shown
    assert "First when the query is its own vector" in shown
    for wrong in ("z = Wx", "no bias", "classes,", "slack", "witness", "argmaxable<"):
        assert wrong not in shown
    checking = f"uncork verify proofs.npz {rows} --metric {metric}"
    assert checking in shown  # which is what holds the proofs to this metric


def test_audits_by_three_metrics_are_three_in_the_store(
    run: Run, rows: Path, tmp_path: Path
) -> None:
    store = tmp_path / "results.db"
    for metric in ("inner", "cosine", "euclidean"):
        ran = run("audit", rows, "--metric", metric, "--store", store, "--name", metric)
        assert "stored as audit" in ran.out
    again = run("audit", rows, "--metric", "cosine", "--store", store, "--name", "cosine")
    assert "stored as audit 2" in again.out
    assert run("export", tmp_path / "rows.jsonl", "--store", store).status == 0
    kept = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {(row["name"], row["metric"]) for row in kept} == {
        (name, name) for name in ("inner", "cosine", "euclidean")
    }
    assert len({row["fingerprint"] for row in kept}) == 3
    assert not any(row["verdict"] == "unargmaxable" for row in kept if row["metric"] != "inner")
    table = run("table", "--store", store, "--format", "csv")
    assert table.out.count("compared by") == 2


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
    page = tmp_path / "page.html"
    cosine = run("audit", path, "--metric", "cosine", "--json", "-", "--report", page).json()
    assert cosine["graph"] == graph
    assert "nodes no path leads from the entry point" in page.read_text()
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
    assert "60 items × 4 features" in run("show", path).out
    faiss.write_index(faiss.IndexFlatL2(4), str(path))
    assert "without vectors" in run("audit", path).error


def test_ids_of_several_vectors_are_found_where_any_of_them_is(run: Run, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexIDMap(faiss.IndexFlatIP(4))
    index.add_with_ids(X, np.arange(60) // 2)
    path = tmp_path / "products.faiss"
    faiss.write_index(index, str(path))
    found = run("audit", path, "--domain", "unbounded", "--json", "-").json()
    lost = [item["class"] for item in found["unargmaxable"]]
    both = [str(k) for k in range(30) if {2 * k, 2 * k + 1} <= set(lost)]
    assert both
    assert found["ids"]["never_retrieved"] == both
    text = run("audit", path, "--domain", "unbounded").out
    assert "ids: 30 of 30 have several vectors, and are found where any of them is" in text
    assert f"{len(both)} are never retrieved first by any" in text
    assert "ids" not in run("audit", path, "--labels", _titles(tmp_path), "--json", "-").json()


def _titles(folder: Path) -> Path:
    (folder / "titles.txt").write_text("\n".join(f"title {k}" for k in range(60)))
    return folder / "titles.txt"


def test_an_index_of_one_item_or_none_is_answered_in_one_line(run: Run, tmp_path: Path) -> None:
    hnswlib = pytest.importorskip("hnswlib")
    index = hnswlib.Index("ip", 4)
    index.init_index(10)
    path = tmp_path / "index.hnsw"
    index.save_index(str(path))
    assert "is an index without vectors" in run("audit", path, "--metric", "inner").error
    index.add_items(X[:1])
    index.save_index(str(path))
    assert "holds one item" in run("audit", path, "--metric", "inner").error
    alone = run("audit", path, "--metric", "cosine", "--json", "-", "--report",
                tmp_path / "page.html", "--store", tmp_path / "s.db").json()  # fmt: skip
    assert alone["counts"]["argmaxable"] == 1


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_what_real_queries_never_find_is_counted_by_the_metric_of_the_index(
    run: Run, tmp_path: Path, metric: str
) -> None:
    faiss = pytest.importorskip("faiss")
    asked = np.random.default_rng(2).standard_normal((9, 4)).astype(np.float32)
    np.save(tmp_path / "queries.npy", asked)
    np.save(tmp_path / "rows.npy", X)
    rows = X
    index = faiss.IndexFlatL2(4)
    if metric == "cosine":
        index = faiss.IndexFlatIP(4)
        rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    index.add(rows)
    command = ["audit", tmp_path / "rows.npy", "--metric", metric]
    command += ["--queries", tmp_path / "queries.npy"]
    found = run(*command, "--json", "-").json()["queries"]
    for k in (1, 10):
        first = set(index.search(asked, k)[1].ravel().tolist())
        assert found["never_among_first"][str(k)] == sorted(set(range(60)) - first)
    assert "are first at none of the 9 queries" in run(*command).out
    refused = run(*command, "--queries-as", "hull").error
    assert "uncork retrieve --every 1" in refused
