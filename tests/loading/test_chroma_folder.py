"""Chroma's folders: hnswlib files, ids in a pickle that is not run, and what waits in the queue.

The folders here are laid out as Chroma 1.5 writes them, with files by hnswlib itself.
"""

from __future__ import annotations

import pickle
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from uncork import UncorkError, load_items

hnswlib = pytest.importorskip("hnswlib")

X = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
SEGMENT = "949a70fa-a6f8-4e2a-b40c-1290794de2e4"


def folder(path: Path, space: str | None = "ip", stored: int = 30) -> Path:
    """A collection of 40 vectors, the first `stored` of them in files, the others in the queue."""
    path.mkdir(exist_ok=True)
    with sqlite3.connect(path / "chroma.sqlite3") as database:
        database.executescript(
            "CREATE TABLE collections (id TEXT, name TEXT, dimension INTEGER, schema_str TEXT);"
            "CREATE TABLE segments (id TEXT, type TEXT, scope TEXT, collection TEXT);"
            "CREATE TABLE collection_metadata (collection_id TEXT, key TEXT, str_value TEXT);"
            "CREATE TABLE max_seq_id (segment_id TEXT, seq_id INTEGER);"
            "CREATE TABLE embeddings_queue (seq_id INTEGER, operation INTEGER, topic TEXT, id TEXT,"
            " vector BLOB, encoding TEXT);"
        )
        database.execute("INSERT INTO collections VALUES ('c-1', 'docs', 4, NULL)")
        database.execute("INSERT INTO segments VALUES (?, '', 'VECTOR', 'c-1')", (SEGMENT,))
        if space is not None:
            row = ("c-1", "hnsw:space", space)
            database.execute("INSERT INTO collection_metadata VALUES (?, ?, ?)", row)
        database.execute("INSERT INTO max_seq_id VALUES (?, ?)", (SEGMENT, stored))
        queued = [
            (k + 1, 0, "persistent://x/c-1", f"d{k}", X[k].tobytes(), "FLOAT32")
            for k in range(stored - 2, 40)
        ]
        database.executemany("INSERT INTO embeddings_queue VALUES (?, ?, ?, ?, ?, ?)", queued)
    (path / SEGMENT).mkdir(exist_ok=True)
    index = hnswlib.Index("ip", 4)
    index.init_index(40, M=4, random_seed=1)
    index.add_items(X[:stored], np.arange(stored) + 1, num_threads=1)
    index.save_index(str(path / "whole"))
    data = (path / "whole").read_bytes()
    (path / SEGMENT / "header.bin").write_bytes(b"\1\0\0\0" + data[:96])
    (path / SEGMENT / "data_level0.bin").write_bytes(data[96:])
    labels = {f"d{k}": k + 1 for k in range(stored)}
    pickled = pickle.dumps({"dimensionality": None, "id_to_label": labels}, protocol=3)
    (path / SEGMENT / "index_metadata.pickle").write_bytes(pickled)
    return path


@pytest.mark.parametrize(
    ("space", "metric"),
    [("ip", "inner"), ("l2", "euclidean"), ("cosine", "cosine"), (None, "euclidean")],
)
def test_files_and_queue_are_one_collection(tmp_path: Path, space: str | None, metric: str) -> None:
    items = load_items(folder(tmp_path, space))
    assert items.metric == metric
    assert items.labels is not None
    rows = dict(zip(items.labels, items.vectors, strict=True))
    assert set(rows) == {f"d{k}" for k in range(40)}
    for k in range(40):
        np.testing.assert_array_equal(rows[f"d{k}"], X[k])


def test_what_was_deleted_or_changed_after_the_files_were_written(tmp_path: Path) -> None:
    path = folder(tmp_path)
    with sqlite3.connect(path / "chroma.sqlite3") as database:
        row = "INSERT INTO embeddings_queue VALUES (?, ?, 'persistent://x/c-1', ?, ?, 'FLOAT32')"
        database.execute(row, (101, 3, "d3", None))
        database.execute(row, (102, 1, "d5", (X[5] * 2).tobytes()))
        database.execute(row, (103, 1, "d6", None))  # only its document was changed
    items = load_items(path)
    assert items.labels is not None
    rows = dict(zip(items.labels, items.vectors, strict=True))
    assert "d3" not in rows
    np.testing.assert_array_equal(rows["d5"], 2 * X[5])
    np.testing.assert_array_equal(rows["d6"], X[6])


def test_collections_of_different_metrics_ask_which(tmp_path: Path) -> None:
    path = folder(tmp_path)
    with sqlite3.connect(path / "chroma.sqlite3") as database:
        database.execute("INSERT INTO collections VALUES ('c-2', 'more', 4, NULL)")
        database.execute(
            "INSERT INTO embeddings_queue VALUES (200, 0, 'x/c-2', 'a', ?, 'FLOAT32')",
            (X[0].tobytes(),),
        )
    with pytest.raises(UncorkError, match="give --metric"):
        load_items(path, vectors="docs")
    found = load_items(path, vectors="more", metric="euclidean")
    assert found.labels == ("a",)


def test_a_database_with_changes_that_wait_beside_it_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "chroma.sqlite3-wal").write_bytes(b"frames")
    with pytest.raises(UncorkError, match="changes that wait"):
        load_items(path)


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    "damage", ["pickle", "evil", "label", "short", "view", "sqlite", "traversal"]
)
def test_damaged_and_hostile_folders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = folder(tmp_path / "db")
    pickled = path / SEGMENT / "index_metadata.pickle"
    if damage == "pickle":
        pickled.write_bytes(pickled.read_bytes()[:50])
    elif damage == "evil":
        pickled.write_bytes(pickle.dumps(_Evil()))
    elif damage == "label":
        pickled.write_bytes(pickle.dumps({"id_to_label": {"d0": 1}}, protocol=3))
    elif damage == "short":
        data = path / SEGMENT / "data_level0.bin"
        data.write_bytes(data.read_bytes()[:500])
    elif damage == "sqlite":
        (path / "chroma.sqlite3").write_bytes((path / "chroma.sqlite3").read_bytes()[:3000])
    elif damage == "view":
        with sqlite3.connect(path / "chroma.sqlite3") as database:
            database.execute("DROP TABLE max_seq_id")
            database.execute(
                "CREATE VIEW max_seq_id AS WITH RECURSIVE n(seq_id) AS "
                "(SELECT 1 UNION ALL SELECT seq_id FROM n) SELECT 'x' AS segment_id, seq_id FROM n"
            )
    else:
        with sqlite3.connect(path / "chroma.sqlite3") as database:
            database.execute("UPDATE segments SET id = '../../../../../../../../../../../../etc'")
            database.execute("DELETE FROM embeddings_queue")
    with pytest.raises(UncorkError):
        load_items(path)
    assert not (tmp_path / "evil").exists()
