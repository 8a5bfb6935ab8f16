"""Files of vectors: each is read as the tool that wrote it reads it, or refused in one line."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import threadpoolctl

import uncork
from uncork import UncorkError, load, load_items
from uncork.loading.vectors import words

X = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
IDS = [f"doc-{k}" for k in range(len(X))]


def same(path: Path, labels: list[str] | None = None, **options: Any) -> None:
    """The file holds X, and is a head of the same rows."""
    items = load_items(path, **options)
    np.testing.assert_array_equal(items.vectors.astype(np.float32), X)
    assert items.labels == (None if labels is None else tuple(labels))
    assert items.metric == "inner"
    if not options:
        assert load(path).fingerprint == items.fingerprint


# .fvecs, .ivecs, .bvecs


@pytest.mark.parametrize(
    ("suffix", "kind"), [(".fvecs", "<f4"), (".ivecs", "<i4"), (".bvecs", "u1")]
)
def test_rows_that_begin_with_their_length(tmp_path: Path, suffix: str, kind: str) -> None:
    rows = np.abs(X * 50).astype(kind)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"".join(np.int32(6).tobytes() + row.tobytes() for row in rows))
    found = load_items(path).vectors
    np.testing.assert_array_equal(found, rows)
    assert found.dtype == np.dtype(kind)


def test_rows_of_another_length_are_refused(tmp_path: Path) -> None:
    rows = [np.int32(6).tobytes() + row.tobytes() for row in X]
    for data in (
        b"".join(rows)[:-1], b"".join([*rows[:3], np.int32(5).tobytes() + rows[3][4:]]),
        np.int32(-6).tobytes() + rows[0][4:], np.int32(2**30).tobytes(), b"\6\0",
    ):  # fmt: skip
        (tmp_path / "a.fvecs").write_bytes(data)
        with pytest.raises(UncorkError, match=r"a\.fvecs"):
            load_items(tmp_path / "a.fvecs")


# Word vectors


@pytest.fixture
def keyed() -> Any:
    models = pytest.importorskip("gensim.models")
    vectors = models.KeyedVectors(6)
    vectors.add_vectors([f"word{k}é" for k in range(len(X))], X)
    return vectors


def test_word2vec_and_glove_as_gensim_writes_them(tmp_path: Path, keyed: Any) -> None:
    named = [f"word{k}é" for k in range(len(X))]
    for name, options in (("a.txt", {}), ("a.vec", {}), ("a.bin", {"binary": True}),
                          ("glove.txt", {"write_header": False})):  # fmt: skip
        keyed.save_word2vec_format(str(tmp_path / name), **options)
        same(tmp_path / name, named)


def test_words_with_spaces_in_them(tmp_path: Path) -> None:
    lines = [
        f"{word} " + " ".join(map(str, row)) for word, row in zip(IDS, X.tolist(), strict=True)
    ]
    lines[3] = ". . . " + " ".join(map(str, X[3].tolist()))
    (tmp_path / "a.txt").write_text("\n".join(lines))
    same(tmp_path / "a.txt", [". . ." if k == 3 else word for k, word in enumerate(IDS)])


def test_many_lines_at_once_are_read_as_one_by_one() -> None:
    lines = [b"w " + b" ".join(b"%.9g" % v for v in row) for row in X.tolist()]
    fast = words._block(lines, 6)
    slow = [words._numbers(line, 6) for line in lines]
    assert fast is not None
    np.testing.assert_array_equal(fast, np.stack([row for row in slow if row is not None]))


@pytest.mark.parametrize(
    "text",
    ["3 2\na 1 2\nb 3 4\n", "2 2\na 1 2\nb 3 x\n", "2 2\na 1 2\nb 3\n", "a 1 2\nb 3 x\n",
     "2 2\na 1 2\nb 3 nan\n", "2 2\na 1 2\nb 3 1e999\n"],
)  # fmt: skip
def test_damaged_word_vectors_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.vec").write_text(text)
    with pytest.raises(UncorkError, match=r"a\.vec"):
        load_items(tmp_path / "a.vec")


@pytest.mark.parametrize("name", ["notes.txt", "README.md", "vocab.txt", "labels.txt"])
def test_other_texts_are_still_refused_as_such(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("the first line\nand the second one\n")
    with pytest.raises(UncorkError, match=r"a text|not a model"):
        load(tmp_path / name)


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_a_matrix_without_words_loses_no_column_to_them(tmp_path: Path, separator: str) -> None:
    for name in ("a.txt", "a.tsv", "vectors"):
        np.savetxt(tmp_path / name, X, delimiter=separator)
        with pytest.raises(UncorkError, match=r"not a model"):
            load_items(tmp_path / name)


# JSON


def _points() -> list[dict[str, Any]]:
    return [
        {"id": name, "payload": {"year": 1}, "vector": row}
        for name, row in zip(IDS, X.tolist(), strict=True)
    ]


@pytest.mark.parametrize("indent", [None, 1])
def test_json_in_the_shapes_that_tools_export(tmp_path: Path, indent: int | None) -> None:
    shapes: dict[str, tuple[Any, list[str] | None]] = {
        "lists": (X.tolist(), None),
        "words": (dict(zip(IDS, X.tolist(), strict=True)), IDS),
        "qdrant": ({"result": {"points": _points(), "next_page_offset": None}}, IDS),
        "chroma": ({"ids": IDS, "embeddings": X.tolist(), "documents": None}, IDS),
        "service": (
            {"object": "list",
             "data": [{"index": k, "embedding": row} for k, row in enumerate(X.tolist())]},
            None,
        ),
        "pinecone": (
            {"vectors": {name: {"id": name, "values": row}
                         for name, row in zip(IDS, X.tolist(), strict=True)}},
            IDS,
        ),
    }  # fmt: skip
    for name, (value, labels) in shapes.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value, indent=indent))
        same(tmp_path / f"{name}.json", labels)


def test_a_record_a_line_and_vectors_by_name(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    path.write_text("\n".join(map(json.dumps, _points())))
    same(path, IDS)
    both = [{**one, "vector": {"image": one["vector"], "text": [1, 2]}} for one in _points()]
    path.write_text("\n".join(map(json.dumps, both)) + "\n")
    with pytest.raises(UncorkError, match=r"2 kinds of vectors: .*image .*name one with --weight"):
        load_items(path)
    same(path, IDS, vectors="image")


@pytest.mark.parametrize(
    "text",
    ['[[1, 2], [3]]', '[[1, 2], [3, "x"]]', '[[1, 2], [3, null]]', '[[1, 2], [3, 4]',
     '{"id": 1, "vector": [1, 2]}\n{"id": 2, "vector": [1]}',
     '{"id": 1, "vector": [1, 2]}\n{"id": 2}', '{"id": 1, "vector": [1, 2]}\n{"id": 2, "vec',
     '[[1, 2], [1e999, 2]]', '[[1, 2], [' + "9" * 400 + ', 2]]',
     '[{"vector": {"a": [1, 2], "b": [1]}}, {"vector": {"b": [1]}}]'],
)  # fmt: skip
def test_damaged_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UncorkError, match=r"a\.json"):
        load_items(tmp_path / "a.json", vectors="vectors" if text.startswith("[[") else None)


# Columns


@pytest.fixture
def table() -> Any:
    pyarrow = pytest.importorskip("pyarrow")
    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(X.ravel()), 6)
    return pyarrow.table({"id": IDS, "embedding": vectors, "year": [1] * len(X)})


def test_columns_of_parquet_arrow_and_feather(tmp_path: Path, table: Any) -> None:
    import pyarrow
    from pyarrow import feather, parquet

    rows = pyarrow.array([row.tolist() for row in X], pyarrow.list_(pyarrow.float32()))
    lists = table.set_column(1, "embedding", rows)
    for number, one in enumerate((table, lists)):
        parquet.write_table(one, tmp_path / f"{number}.parquet", row_group_size=7)
        same(tmp_path / f"{number}.parquet", IDS)
        feather.write_feather(one, str(tmp_path / f"{number}.feather"), chunksize=9)
        same(tmp_path / f"{number}.feather", IDS)
        feather.write_feather(one, str(tmp_path / f"{number}.arrow"), compression="uncompressed")
        same(tmp_path / f"{number}.arrow", IDS)


def test_columns_of_lance(tmp_path: Path, table: Any) -> None:
    lance = pytest.importorskip("lance")
    lance.write_dataset(table, str(tmp_path / "a.lance"))
    same(tmp_path / "a.lance", IDS)


def test_two_columns_of_vectors_are_chosen_between(tmp_path: Path, table: Any) -> None:
    from pyarrow import parquet

    parquet.write_table(table.append_column("other", table["embedding"]), tmp_path / "a.parquet")
    with pytest.raises(UncorkError, match="2 kinds of vectors"):
        load_items(tmp_path / "a.parquet")
    same(tmp_path / "a.parquet", IDS, vectors="other")
    with pytest.raises(UncorkError, match="has no tensor 'year'"):
        load_items(tmp_path / "a.parquet", vectors="year")


def test_columns_that_are_no_matrix_are_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for rows, message in (
        ([[1.0, 2.0], [3.0]], "different lengths"),
        ([[1.0, 2.0], None], "without a vector"),
        ([[1.0, 2.0], [3.0, None]], "missing values"),
        ([[], []], "holds no vectors"),
    ):
        column = pyarrow.array(rows, pyarrow.list_(pyarrow.float32()))
        parquet.write_table(pyarrow.table({"v": column}), tmp_path / "a.parquet")
        with pytest.raises(UncorkError, match=message):
            load_items(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"v": [1.0]}), tmp_path / "a.parquet")
    with pytest.raises(UncorkError, match="no column of vectors"):
        load_items(tmp_path / "a.parquet")


# Factor models


@pytest.mark.parametrize("kind", ["als", "bpr", "lmf"])
def test_items_of_implicit_score_as_it_scores_them(tmp_path: Path, kind: str) -> None:
    implicit = pytest.importorskip("implicit")
    from scipy import sparse

    seen = sparse.random(40, 30, 0.2, format="csr", random_state=0, dtype=np.float32)
    model = {
        "als": implicit.als.AlternatingLeastSquares,
        "bpr": implicit.bpr.BayesianPersonalizedRanking,
        "lmf": implicit.lmf.LogisticMatrixFactorization,
    }[kind]  # fmt: skip
    with threadpoolctl.threadpool_limits(1, "blas"):  # it warns of more
        model = model(factors=4, iterations=2, num_threads=1, random_state=0)
        model.fit(seen, show_progress=False)
    model.save(str(tmp_path / "model.npz"))
    items = load_items(tmp_path / "model.npz")
    assert (items.bias is None) == (kind == "als")
    for user in range(5):
        theirs, scores = model.recommend(user, seen[user], N=30, filter_already_liked_items=False)
        factors = model.user_factors[user]
        query = factors if kind == "als" else np.delete(factors, 4)
        ours = items.vectors.astype(np.float64) @ query + (0 if items.bias is None else items.bias)
        np.testing.assert_allclose(ours[theirs], scores, rtol=1e-5, atol=1e-6)


def test_arrays_by_the_names_of_lightfm_surprise_and_recbole(tmp_path: Path) -> None:
    bias = np.arange(len(X), dtype=np.float32)
    np.savez(tmp_path / "lightfm.npz", item_embeddings=X, item_biases=bias, user_embeddings=X[:3])
    np.savez(tmp_path / "surprise.npz", qi=X, bi=bias, pu=X[:3], bu=bias[:3])
    for name in ("lightfm", "surprise"):
        items = load_items(tmp_path / f"{name}.npz")
        np.testing.assert_array_equal(items.vectors, X)
        np.testing.assert_array_equal(items.bias, bias)
    torch = pytest.importorskip("torch")
    state = {"item_embedding.weight": torch.tensor(X), "user_embedding.weight": torch.tensor(X[:3])}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "BPR.pth")
    items = load_items(tmp_path / "BPR.pth")
    np.testing.assert_array_equal(items.vectors, X)
    assert items.reading is not None
    assert "LightGCN" in items.reading.doubts[0]


@pytest.mark.parametrize(("model", "doubts"), [("BPR", 0), ("LightGCN", 1)])
def test_a_checkpoint_of_recbole_has_no_padding_among_its_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, doubts: int
) -> None:
    torch = pytest.importorskip("torch")

    def made(module: str, name: str) -> type:
        """A class as its pickle names it, of a library that is not here."""
        holder = types.ModuleType(module)
        one = type(name, (), {"__module__": module})
        setattr(holder, name, one)
        monkeypatch.setitem(sys.modules, module, holder)
        return one

    for parent in ("recbole", "recbole.config", "recbole.model"):
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    config = made("recbole.config.configurator", "Config")()
    config.final_config_dict = {
        "model": model, "model_class": made(f"recbole.model.{model.lower()}", model),
    }  # fmt: skip
    state = {"item_embedding.weight": torch.tensor(X), "user_embedding.weight": torch.tensor(X[:3])}
    torch.save({"config": config, "state_dict": state, "epoch": 3}, tmp_path / "model.pth")
    monkeypatch.undo()
    for named in (None, "item_embedding.weight"):
        items = load_items(tmp_path / "model.pth", vectors=named)
        np.testing.assert_array_equal(items.vectors, X[1:])
        assert items.labels == tuple(str(i) for i in range(1, len(X)))
        assert items.reading is not None
        assert any("padding" in text for text in items.reading.folded)
        assert len(items.reading.doubts) == doubts
    users = load_items(tmp_path / "model.pth", vectors="user_embedding.weight")
    assert (len(users), users.labels) == (3, None)


def test_files_that_do_not_say_the_metric_say_what_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "points.json").write_text(json.dumps(_points()), encoding="utf-8")
    for metric in (None, "inner", "cosine"):
        items = load_items(tmp_path / "points.json", metric=metric)
        assert items.reading is not None
        assert items.reading.words == "items"
        noted = any("this is about inner products" in text for text in items.reading.notes)
        assert noted == (metric is None)
    head = uncork.load(tmp_path / "points.json")
    assert head.reading is not None
    assert head.reading.words == "items"
    assert any("this is about inner products" in text for text in head.reading.notes)
