"""Indices of faiss, hnswlib, usearch and Annoy: read as these libraries wrote and search them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uncork
from uncork import UncorkError, load_items
from uncork.core.links import Links
from uncork.loading import open_source

faiss = pytest.importorskip("faiss")
hnswlib = pytest.importorskip("hnswlib")
usearch = pytest.importorskip("usearch.index")
annoy = pytest.importorskip("annoy")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 16)).astype(np.float32)
METRICS = {"inner": faiss.METRIC_INNER_PRODUCT, "euclidean": faiss.METRIC_L2}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    faiss.omp_set_num_threads(1)


def built(kind: str, metric: str = "inner", rows: np.ndarray = X) -> Any:
    index = faiss.index_factory(rows.shape[1], kind, METRICS[metric])
    if hasattr(index, "pq"):
        index.pq.cp.niter = 1  # which centroids there are does not matter
        if hasattr(index, "do_polysemous_training"):
            index.do_polysemous_training = False
    index.train(rows)
    index.add(rows)
    return index


# What faiss's arithmetic rounds differently on different processors, in units of the last place.
ROUNDED = {"SQ8", "SQ6", "SQ4", "IVF4,SQ8", "IVF4,PQ4x4", "HNSW8_SQ8"}


@pytest.mark.parametrize(
    "kind",
    ["Flat", "SQ8", "SQ6", "SQ4", "SQfp16", "SQbf16", "PQ4x4", "PQ8x6", "PQ2x8", "IVF4,Flat",
     "IVF4,SQ8", "IVF4,PQ4x4", "HNSW8,Flat", "HNSW8_SQ8"],
)  # fmt: skip
@pytest.mark.parametrize("metric", ["inner", "euclidean"])
def test_vectors_are_those_that_faiss_scores(tmp_path: Path, kind: str, metric: str) -> None:
    index = built(kind, metric)
    faiss.write_index(index, str(tmp_path / "a.faiss"))
    items = load_items(tmp_path / "a.faiss")
    assert items.metric == metric
    assert items.labels is None
    if hasattr(index, "make_direct_map"):
        index.make_direct_map()
    theirs = index.reconstruct_n(0, len(X))
    ours = items.vectors.astype(np.float64)
    if kind in ROUNDED:
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=4 * np.spacing(np.abs(X).max()))
    else:
        np.testing.assert_array_equal(ours, theirs)


def test_flat_vectors_are_mapped_and_not_copied(tmp_path: Path) -> None:
    faiss.write_index(built("HNSW8,Flat"), str(tmp_path / "a.faiss"))
    found: Any = load_items(tmp_path / "a.faiss").vectors
    while found is not None and not isinstance(found, np.memmap):
        found = found.base
    assert isinstance(found, np.memmap)


@pytest.mark.parametrize("kind", ["IDMap,Flat", "IDMap2,Flat", "IVF4,Flat", "IDMap,IVF4,Flat"])
def test_ids_of_the_index_are_labels(tmp_path: Path, kind: str) -> None:
    index = faiss.index_factory(16, kind, faiss.METRIC_INNER_PRODUCT)
    index.train(X)
    ids = RNG.permutation(len(X)) * 3 + 5
    index.add_with_ids(X, ids)
    faiss.write_index(index, str(tmp_path / "a.faiss"))
    items = load_items(tmp_path / "a.faiss")
    assert items.labels is not None
    rows = dict(zip(items.labels, items.vectors, strict=True))
    for label, row in zip(ids.tolist(), X, strict=True):
        np.testing.assert_array_equal(rows[str(label)], row)


def test_a_transform_before_the_index_is_said_first(tmp_path: Path) -> None:
    index = built("PCA8,Flat")
    faiss.write_index(index, str(tmp_path / "a.faiss"))
    items = load_items(tmp_path / "a.faiss")
    np.testing.assert_array_equal(items.vectors, index.index.reconstruct_n(0, len(X)))
    assert items.reading is not None
    assert "PCA" in items.reading.doubts[0]


@pytest.mark.parametrize("kind", ["PQ4x4fs", "NSG8,Flat", "IVF4,PQ4x4fs"])
def test_other_kinds_of_faiss_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    faiss.write_index(built(kind, "euclidean"), str(tmp_path / "a.faiss"))
    with pytest.raises(UncorkError, match="which uncork does not read"):
        load_items(tmp_path / "a.faiss")


def test_other_metrics_are_refused_by_name(tmp_path: Path) -> None:
    index = faiss.IndexFlat(16, faiss.METRIC_L1)
    index.add(X)
    faiss.write_index(index, str(tmp_path / "a.faiss"))
    with pytest.raises(UncorkError, match="the metric L1"):
        load_items(tmp_path / "a.faiss")
    angles = usearch.Index(ndim=2, metric="haversine", dtype="f32")
    angles.add(np.arange(4), X[:4, :2], threads=1)
    angles.save(str(tmp_path / "a.usearch"))
    with pytest.raises(UncorkError, match="only inner products, cosine and Euclidean"):
        load_items(tmp_path / "a.usearch")


def test_an_index_by_inner_product_is_a_head_and_another_is_not(tmp_path: Path) -> None:
    faiss.write_index(built("Flat"), str(tmp_path / "inner.faiss"))
    faiss.write_index(built("Flat", "euclidean"), str(tmp_path / "other.faiss"))
    np.testing.assert_array_equal(uncork.load(tmp_path / "inner.faiss").weight, X)
    with pytest.raises(UncorkError, match="Euclidean distance are not a head"):
        uncork.load(tmp_path / "other.faiss")
    asked = load_items(tmp_path / "other.faiss", metric="inner")
    assert asked.reading is not None
    assert "compares by Euclidean distance" in asked.reading.doubts[0]


# hnswlib


def hnsw(path: Path, space: str = "ip", rows: np.ndarray = X, m: int = 8, ef: int = 50) -> Any:
    index = hnswlib.Index(space, rows.shape[1])
    index.init_index(len(rows) + 7, M=m, ef_construction=ef, random_seed=3)
    index.add_items(rows, np.arange(len(rows)) + 100, num_threads=1)
    index.save_index(str(path))
    return index


def test_an_hnswlib_file_does_not_say_its_metric_so_it_is_asked_for(tmp_path: Path) -> None:
    hnsw(tmp_path / "a.hnsw")
    with pytest.raises(UncorkError, match="does not say how it compares"):
        load_items(tmp_path / "a.hnsw")
    for metric in ("inner", "cosine", "euclidean"):
        items = load_items(tmp_path / "a.hnsw", metric=metric)
        np.testing.assert_array_equal(items.vectors, X)
        assert items.metric == metric
        assert items.labels == tuple(str(k + 100) for k in range(len(X)))
        assert items.reading is not None
        assert items.reading.doubts == ()


def test_what_hnswlib_deleted_is_left_out_and_still_passed_through(tmp_path: Path) -> None:
    index = hnsw(tmp_path / "a.bin")
    for label in (100, 117, 399):
        index.mark_deleted(label)
    index.save_index(str(tmp_path / "a.bin"))
    items = load_items(tmp_path / "a.bin", metric="inner")
    kept = np.delete(np.arange(len(X)), [0, 17, 299])
    np.testing.assert_array_equal(items.vectors, X[kept])
    assert items.labels == tuple(str(k + 100) for k in kept)
    links = graph_of(tmp_path / "a.bin")
    assert links.nodes == len(X)
    assert sorted(set(links.items.tolist())) == [-1, *range(len(kept))]


# usearch


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i8"])
def test_usearch_says_its_metric_and_its_type(tmp_path: Path, dtype: str) -> None:
    for name, metric in (("ip", "inner"), ("cos", "cosine"), ("l2sq", "euclidean")):
        index = usearch.Index(ndim=16, metric=name, dtype=dtype)
        index.add(np.arange(len(X)) * 2, X, threads=1)
        index.save(str(tmp_path / "a.usearch"))
        items = load_items(tmp_path / "a.usearch")
        assert items.metric == metric
        assert items.labels == tuple(str(2 * k) for k in range(len(X)))
        if dtype != "bf16":  # which it gives back as float32
            theirs = np.vstack([index.get(2 * k) for k in range(len(X))])
            assert items.vectors.dtype == theirs.dtype or dtype == "f64"
            np.testing.assert_array_equal(items.vectors, theirs.astype(items.vectors.dtype))


def test_what_usearch_removed_is_left_out(tmp_path: Path) -> None:
    index = usearch.Index(ndim=16, metric="ip", dtype="f32")
    index.add(np.arange(len(X)), X, threads=1)
    index.remove(5)
    index.save(str(tmp_path / "a.usearch"))
    items = load_items(tmp_path / "a.usearch")
    np.testing.assert_array_equal(items.vectors, np.delete(X, 5, axis=0))
    assert items.labels is not None
    assert "5" not in items.labels


# Annoy


@pytest.mark.parametrize(
    ("name", "metric"),
    [("angular", "cosine"), ("dot", "inner"), ("euclidean", ""), ("manhattan", "")],
)
@pytest.mark.parametrize("features", [1, 2, 16])
def test_annoy_is_read_though_its_file_has_no_header(
    tmp_path: Path, name: str, metric: str, features: int
) -> None:
    index = annoy.AnnoyIndex(features, name)
    rows = X[:80, :features]
    for k, row in enumerate(rows):
        if k != 7:
            index.add_item(k, row)
    index.set_seed(1)
    index.build(5, n_jobs=1)
    index.save(str(tmp_path / "a.ann"))
    if metric == "":
        with pytest.raises(UncorkError, match="does not say how it compares"):
            load_items(tmp_path / "a.ann")
    items = load_items(tmp_path / "a.ann", metric=None if metric else "euclidean")
    assert items.metric == (metric or "euclidean")
    np.testing.assert_array_equal(items.vectors, np.delete(rows, 7, axis=0))
    assert items.labels == tuple(str(k) for k in range(80) if k != 7)


def test_annoys_bits_are_refused(tmp_path: Path) -> None:
    index = annoy.AnnoyIndex(16, "hamming")
    for k, row in enumerate(X[:40] > 0):
        index.add_item(k, row)
    index.build(3, n_jobs=1)
    index.save(str(tmp_path / "a.ann"))
    with pytest.raises(UncorkError, match="laid out in no way"):
        load_items(tmp_path / "a.ann")


# Graphs


def graph_of(path: Path) -> Links:
    links = open_source(path).links
    assert links is not None
    return links()


def neighbours(links: Links, level: int, node: int) -> np.ndarray:
    here = links.levels[level]
    return here.targets[here.starts[node] : here.starts[node + 1]]


def found_from(links: Links, node: int) -> set[int]:
    """What a search with no limit visits on the base level."""
    found, waiting = {node}, [node]
    while waiting:
        new = set(neighbours(links, 0, waiting.pop()).tolist()) - found
        found |= new
        waiting += new
    return found


def landed(links: Links, distances: np.ndarray) -> int:
    """Where the descent arrives on the base level: it moves while a neighbour is nearer."""
    at = links.entry
    for level in range(len(links.levels) - 1, 0, -1):
        moved = True
        while moved:
            moved = False
            for other in neighbours(links, level, at).tolist():
                if distances[other] < distances[at]:
                    at, moved = other, True
    return at


SPARSE = (RNG.standard_normal((250, 6)) * np.exp(RNG.standard_normal((250, 1)))).astype(np.float32)
QUERIES = np.vstack([RNG.standard_normal((30, 6)), SPARSE[:30]]).astype(np.float32)


def check_searches(links: Links, searched: list[set[int]], distances: np.ndarray) -> None:
    """Every search finds exactly what the links lead to from where it landed, and no search finds
    what is said to be unreachable."""
    lost = set(links.unreachable().tolist())
    assert lost, "this graph was meant to lose items"
    for query, found in enumerate(searched):
        assert found == found_from(links, landed(links, distances[query]))
        assert not found & lost


@pytest.mark.parametrize("metric", ["inner", "euclidean"])
def test_searches_of_faiss_find_what_the_links_lead_to(tmp_path: Path, metric: str) -> None:
    index = faiss.IndexHNSWFlat(6, 3, METRICS[metric])
    index.hnsw.efConstruction = 6
    index.add(SPARSE)
    index.hnsw.efSearch = len(SPARSE)
    faiss.write_index(index, str(tmp_path / "a.faiss"))
    _, ids = index.search(QUERIES, len(SPARSE))
    found = [set(row[row >= 0].tolist()) for row in ids]
    check_searches(graph_of(tmp_path / "a.faiss"), found, distances_to(metric))


@pytest.mark.parametrize("metric", ["inner", "euclidean"])
def test_searches_of_hnswlib_find_what_the_links_lead_to(tmp_path: Path, metric: str) -> None:
    space = {"inner": "ip", "euclidean": "l2"}[metric]
    index = hnsw(tmp_path / "a.hnsw", space, SPARSE, m=3, ef=6)
    index.set_ef(len(SPARSE))
    links = graph_of(tmp_path / "a.hnsw")
    distances = distances_to(metric)
    searched = []
    for query, distance in zip(QUERIES, distances, strict=True):
        # It raises unless it finds as many as it is asked for.
        count = len(found_from(links, landed(links, distance)))
        labels, _ = index.knn_query(query[None], k=count, num_threads=1)
        searched.append(set((labels[0].astype(np.int64) - 100).tolist()))
        if count < len(SPARSE):
            with pytest.raises(RuntimeError):
                index.knn_query(query[None], k=count + 1, num_threads=1)
    check_searches(links, searched, distances)


@pytest.mark.parametrize("metric", ["inner", "euclidean"])
def test_searches_of_usearch_find_what_the_links_lead_to(tmp_path: Path, metric: str) -> None:
    name = {"inner": "ip", "euclidean": "l2sq"}[metric]
    index = usearch.Index(
        ndim=6, metric=name, dtype="f32", connectivity=3, expansion_add=6,
        expansion_search=len(SPARSE),
    )  # fmt: skip
    index.add(np.arange(len(SPARSE)), SPARSE, threads=1)
    index.save(str(tmp_path / "a.usearch"))
    found = [set(index.search(q, len(SPARSE), threads=1).keys.tolist()) for q in QUERIES]
    check_searches(graph_of(tmp_path / "a.usearch"), found, distances_to(metric))


def distances_to(metric: str) -> np.ndarray:
    """In float32's exact image: what the libraries round is far from deciding a comparison."""
    rows, queries = SPARSE.astype(np.float64), QUERIES.astype(np.float64)
    if metric == "inner":
        return -queries @ rows.T
    return np.asarray(((queries[:, None] - rows) ** 2).sum(axis=2))


def test_an_index_without_links_has_no_graph(tmp_path: Path) -> None:
    faiss.write_index(built("Flat"), str(tmp_path / "a.faiss"))
    assert open_source(tmp_path / "a.faiss").links is None
