"""A small valid file of every format of vectors, by the library that writes it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)


def _faiss(kind: str, path: Path) -> None:
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.index_factory(4, kind, faiss.METRIC_INNER_PRODUCT)
    if hasattr(index, "pq") and hasattr(index, "do_polysemous_training"):
        index.do_polysemous_training = False
    index.train(X)
    if "IDMap" in kind:
        index.add_with_ids(X, np.arange(24) + 9)
    else:
        index.add(X)
    faiss.write_index(index, str(path))


def _hnswlib(path: Path) -> None:
    import hnswlib

    index = hnswlib.Index("ip", 4)
    index.init_index(30, M=2, ef_construction=8, random_seed=1)
    index.add_items(X, np.arange(24) + 9, num_threads=1)
    index.save_index(str(path))


def _usearch(path: Path) -> None:
    from usearch.index import Index

    index = Index(ndim=4, metric="ip", dtype="f32", connectivity=2)
    index.add(np.arange(24), X, threads=1)
    index.save(str(path))


def _annoy(path: Path) -> None:
    from annoy import AnnoyIndex

    index = AnnoyIndex(4, "angular")
    for k, row in enumerate(X):
        index.add_item(k, row)
    index.set_seed(1)
    index.build(2, n_jobs=1)
    index.save(str(path))


def _fvecs(path: Path) -> None:
    path.write_bytes(b"".join(np.int32(4).tobytes() + row.tobytes() for row in X))


def _word2vec(path: Path) -> None:
    rows = [b"w%d " % k + row.tobytes() + b"\n" for k, row in enumerate(X)]
    path.write_bytes(b"24 4\n" + b"".join(rows))


def _glove(path: Path) -> None:
    lines = (f"w{k} " + " ".join(map(str, row)) for k, row in enumerate(X.tolist()))
    path.write_text("\n".join(lines))


def _points(path: Path) -> None:
    lines = (json.dumps({"id": k, "vector": row}) for k, row in enumerate(X.tolist()))
    path.write_text("\n".join(lines))


def _lists(path: Path) -> None:
    path.write_text(json.dumps({"ids": list(range(9, 33)), "embeddings": X.tolist()}))


def _columns(path: Path) -> None:
    import pyarrow
    from pyarrow import feather, parquet

    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(X.ravel()), 4)
    table = pyarrow.table({"id": [f"d{k}" for k in range(24)], "v": vectors})
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        feather.write_feather(table, str(path), compression="uncompressed")


def _factors(path: Path) -> None:
    np.savez(path, item_factors=X, user_factors=np.hstack([X[:, 1:], np.ones((24, 1))]))


def _navec(path: Path) -> None:
    from test_slovnet_file import navec

    navec(path)


VECTOR_SAMPLES: dict[str, Callable[[Path], None]] = {
    **{
        f"{kind.replace(',', '-')}.faiss": functools.partial(_faiss, kind)
        for kind in ("Flat", "IDMap,SQ8", "PQ2x4", "IVF2,PQ2x4", "HNSW2,Flat", "PCA2,SQfp16")
    },
    "a.hnsw": _hnswlib, "a.usearch": _usearch, "a.ann": _annoy, "a.fvecs": _fvecs,
    "a.w2v": _word2vec, "a.vec": _glove, "points.jsonl": _points, "lists.json": _lists,
    "a.parquet": _columns, "a.arrow": _columns, "factors.npz": _factors, "navec.tar": _navec,
}  # fmt: skip


def read_everything(path: Path) -> None:
    """What `show` and `audit` do with an index before anything is decided."""
    from uncork import load_items
    from uncork.loading import describe, open_source
    from uncork.loading.source import links_of

    describe(path)
    items = load_items(path, metric="inner")
    np.asarray(items.vectors)
    links = links_of(open_source(path))
    if links is not None:
        links.unreachable()
