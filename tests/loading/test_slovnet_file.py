"""Natasha's archives: slovnet's taggers and navec's vectors, as their libraries lay them out."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from uncork import UncorkError
from uncork.cli import app
from uncork.loading import find, load, load_items

CLASSES, FEATURES = 6, 4
RANDOM = np.random.default_rng(0)
W = RANDOM.normal(size=(FEATURES, CLASSES)).astype(np.float32)
B = RANDOM.normal(size=CLASSES).astype(np.float32)
NORM = {
    name: RANDOM.normal(size=FEATURES).astype(np.float32) for name in ("mean", "weight", "bias")
}
NORM["std"] = RANDOM.uniform(0.5, 2, FEATURES).astype(np.float32)
TAGS = ["<pad>", "NOUN", "VERB|Mood=Imp", "ADJ", "X", "PUNCT"]


def archive(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as made:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))


def tagger_members(crf: bool = False, **head: Any) -> dict[str, bytes]:
    arrays: list[np.ndarray] = []

    def kept(array: np.ndarray) -> dict[str, Any]:
        arrays.append(array)
        return {"shape": list(array.shape), "dtype": str(array.dtype), "array": len(arrays) - 1}

    layer = {"conv": {"weight": kept(RANDOM.normal(size=(FEATURES, 5, 3)).astype(np.float32)),
                      "bias": kept(B[:FEATURES]), "padding": 1},
             "relu": {}, "norm": {name: kept(values) for name, values in NORM.items()}}  # fmt: skip
    model = {
        "emb": {"word": {"id": "hudlit", "indexes": {"shape": [250002, 100], "dtype": "uint8"}}},
        "encoder": {"layers": [layer]},
        "head": head or {"proj": {"weight": kept(W), "bias": kept(B)}},
    }
    if crf:
        model["head"]["crf"] = {"transitions": kept(np.zeros((CLASSES, CLASSES), np.float32))}
    return {
        "meta.json": json.dumps({"id": "slovnet_morph", "protocol": 1}).encode(),
        "model.json": json.dumps(model, indent=2).encode(),
        **{f"arrays/{at}.bin": array.tobytes() for at, array in enumerate(arrays)},
        "vocabs/tag.gz": gzip.compress("\n".join(TAGS).encode()),
    }


def tagger(path: Path) -> None:
    archive(path, tagger_members())


def navec_members(rows: int = 6, parts: int = 2, centroids: int = 4) -> dict[str, bytes]:
    codes = RANDOM.integers(0, centroids, (rows, parts)).astype(np.uint8)
    books = RANDOM.normal(size=(parts, centroids, 3)).astype(np.float32)
    words = "\n".join(f"слово{n}" for n in range(rows)).encode()
    counts = np.array([rows, *range(rows)], np.uint32).tobytes()
    sizes = np.array([rows, 3 * parts, parts, centroids], np.uint32).tobytes()
    return {
        "meta.json": b'{"id": "hudlit_12B", "protocol": 1}',
        "vocab.bin": gzip.compress(counts + words),
        "pq.bin": sizes + codes.tobytes() + books.tobytes(),
    }


def navec(path: Path) -> None:
    archive(path, navec_members(rows=24))


def test_the_output_layer_of_a_tagger_with_its_tags_and_range(tmp_path: Path) -> None:
    tagger(tmp_path / "m.tar")
    found = find(tmp_path / "m.tar", domain="auto")
    np.testing.assert_array_equal(found.head.weight, W.T)
    np.testing.assert_array_equal(found.head.bias, B)
    assert found.head.labels == tuple(TAGS)
    assert found.head.reading is not None
    assert not found.head.reading.doubts
    # What slovnet computes with the layer before: np.clip, then the four steps of BatchNorm1d.
    given = RANDOM.normal(scale=[[0.01], [1], [100]] * 20, size=(60, FEATURES)).astype(np.float32)
    after = (given.clip(0) - NORM["mean"]) / NORM["std"] * NORM["weight"] + NORM["bias"]
    assert after.dtype == np.float32
    assert all(found.head.domain.contains(row.astype(np.float64)) for row in after)
    zero = (-NORM["mean"] / NORM["std"] * NORM["weight"] + NORM["bias"]).astype(np.float64)
    beyond = zero - 0.01 * np.sign(NORM["weight"])
    assert not found.head.domain.contains(beyond)
    assert found.head.domain.contains(zero)


def test_a_crf_after_the_head_is_a_doubt(tmp_path: Path) -> None:
    archive(tmp_path / "m.tar", tagger_members(crf=True))
    found = find(tmp_path / "m.tar")
    assert found.head.reading is not None
    assert found.head.reading.doubts[0].startswith("a CRF follows the head")


def other_model(**parts: Any) -> dict[str, bytes]:
    members = tagger_members()
    model = json.loads(members["model.json"])
    for name, value in parts.items():
        model[name] |= value
    return members | {"model.json": json.dumps(model).encode()}


@pytest.mark.parametrize(
    "parts",
    [{"head": {"relu": {}}}, {"encoder": {"norm": {}}}, {"encoder": {"layers": [{"conv": {}}]}}],
)
def test_parts_that_slovnet_does_not_have_show_no_range(
    parts: dict[str, Any], tmp_path: Path
) -> None:
    archive(tmp_path / "m.tar", other_model(**parts))
    assert find(tmp_path / "m.tar", domain="auto").shown_domain is None


def test_tags_are_those_of_the_output_layer_alone(tmp_path: Path) -> None:
    same = json.loads(tagger_members()["model.json"])["head"]["proj"]
    archive(tmp_path / "m.tar", other_model(emb={"proj": same}))
    assert load(tmp_path / "m.tar", weight="head.proj.weight").labels == tuple(TAGS)
    assert load(tmp_path / "m.tar", weight="emb.proj.weight").labels is None


def test_words_that_were_cut_or_go_on_are_not_used(tmp_path: Path) -> None:
    whole = tagger_members()["vocabs/tag.gz"]
    cut = zlib.compressobj(wbits=31)
    part = cut.compress("\n".join(TAGS).encode()[:-1]) + cut.flush(zlib.Z_SYNC_FLUSH)
    for data in (part, whole + gzip.compress(b"END"), whole[:-1]):
        archive(tmp_path / "m.tar", tagger_members() | {"vocabs/tag.gz": data})
        assert load(tmp_path / "m.tar").labels is None
    archive(tmp_path / "n.tar", navec_members() | {"vocab.bin": navec_members()["vocab.bin"][:-9]})
    assert load_items(tmp_path / "n.tar").labels is None


def test_a_small_vocabulary_does_not_grow(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(4) + b"ab\n" * (40 << 20))
    archive(tmp_path / "n.tar", navec_members() | {"vocab.bin": bomb})
    tracemalloc.start()
    assert load_items(tmp_path / "n.tar").labels is None
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 16 << 20


def test_navecs_codes_are_decoded_as_navec_decodes_them(tmp_path: Path) -> None:
    members = navec_members()
    archive(tmp_path / "n.tar", members)
    found = load_items(tmp_path / "n.tar")
    raw = members["pq.bin"]
    codes = np.frombuffer(raw[16:28], np.uint8).reshape(6, 2)
    books = np.frombuffer(raw[28:], np.float32).reshape(2, 4, 3)
    np.testing.assert_array_equal(found.vectors, books[np.arange(2), codes].reshape(6, 6))
    assert found.metric == "cosine"
    assert found.labels is not None
    assert found.labels[5] == "слово5"


def changed(**other: bytes) -> dict[str, bytes]:
    return tagger_members() | {name.replace("__", "/"): data for name, data in other.items()}


def deep() -> bytes:
    return b'{"a": ' * 400 + b"1" + b"}" * 400


def sizes(*numbers: int) -> bytes:
    return np.array(numbers, np.uint32).tobytes()


def with_pq(data: bytes) -> dict[str, bytes]:
    return navec_members() | {"pq.bin": data}


DAMAGE: dict[str, dict[str, bytes]] = {
    "has 7 bytes: truncated or damaged": changed(**{"arrays/6.bin": bytes(7)}),
    "has no model.json": {"meta.json": b"{}"},
    "is not JSON": changed(**{"model.json": b"{"}),
    "is not a JSON object": changed(**{"model.json": b"[]"}),
    "nested too deep": changed(**{"model.json": deep()}),
    "is not there: damaged": changed(
        **{"model.json": b'{"head": {"proj": {"weight": {"shape": [2, 2], "dtype": "float32", '
           b'"array": 77}}}}'}
    ),
    "no output layer": tagger_members(dense={}),
    "head.proj.weight has no bias of its width": other_model(head={"proj": {
        "weight": {"shape": [4, 6], "dtype": "float32", "array": 6}}}),
    "two arrays called 'head.proj.weight'": other_model(head={"proj.weight": {
        "shape": [4, 6], "dtype": "float32", "array": 6}}),
    "a name of 100005 characters": other_model(head={"x" * 100_000: {}}),
    "codebooks do not have the size": with_pq(sizes(1, 4, 2, 4) + bytes(2 + 60)),
    "are none: damaged": with_pq(sizes(1, 5, 2, 4) + bytes(2 + 64)),
    "a code beyond": with_pq(sizes(1, 4, 2, 4) + b"\4\0" + bytes(64)),
    "takes 4294967295 bytes": with_pq(sizes(2**32 - 1, 1, 1, 1) + bytes(64)),
    "would grow": with_pq(sizes(9000, 8192, 1, 1) + bytes(9000 + 4 * 8192)),
}  # fmt: skip


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_refused_in_one_line(message: str, tmp_path: Path) -> None:
    archive(tmp_path / "m.tar", DAMAGE[message])
    with pytest.raises(UncorkError, match=message):
        (load_items if "pq.bin" in DAMAGE[message] else load)(tmp_path / "m.tar")
    done = CliRunner().invoke(app, ["audit", str(tmp_path / "m.tar")])
    assert (done.exit_code, done.stdout) == (2, "")


def test_a_tar_that_announces_more_than_it_holds(tmp_path: Path) -> None:
    tagger(tmp_path / "m.tar")
    whole = (tmp_path / "m.tar").read_bytes()
    (tmp_path / "m.tar").write_bytes(whole[: whole.index(b"arrays/0.bin") + 600])
    with pytest.raises(UncorkError, match="truncated or damaged"):
        load(tmp_path / "m.tar")


def with_tar(path: Path, change: Callable[[tarfile.TarFile], None]) -> None:
    """A tagger to whose archive something was added."""
    tagger(path)
    with tarfile.open(path, "a") as made:
        change(made)


def put(made: tarfile.TarFile, name: str, data: bytes, **about: Any) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in about.items():
        setattr(info, field, value)
    made.addfile(info, io.BytesIO(data))


def test_what_a_later_entry_replaces_is_not_read(tmp_path: Path) -> None:
    """As tarfile sees it, which slovnet opens archives with."""
    other = (2 * W).tobytes()
    with_tar(tmp_path / "m.tar", lambda made: put(made, "arrays/6.bin", other))
    np.testing.assert_array_equal(load(tmp_path / "m.tar").weight, 2 * W.T)
    kind = {"type": tarfile.SYMTYPE, "linkname": "arrays/5.bin"}
    with_tar(tmp_path / "m.tar", lambda made: put(made, "arrays/6.bin", b"", **kind))
    with pytest.raises(UncorkError, match="is not there"):
        load(tmp_path / "m.tar")
    # A folder has no bytes, whatever its size says.
    tagger(tmp_path / "m.tar")
    with tarfile.open(tmp_path / "m.tar", "a") as made:
        folder = tarfile.TarInfo("x")
        folder.type, folder.size = tarfile.DIRTYPE, 512
        made.addfile(folder)
        put(made, "arrays/6.bin", other)
    np.testing.assert_array_equal(load(tmp_path / "m.tar").weight, 2 * W.T)


def test_headers_that_rename_or_resize_the_next_member(tmp_path: Path) -> None:
    with_tar(tmp_path / "m.tar", lambda made: put(made, "x", b"", pax_headers={"comment": "a"}))
    np.testing.assert_array_equal(load(tmp_path / "m.tar").weight, W.T)
    for said in ({"path": "arrays/6.bin"}, {"size": "96"}, {"GNU.sparse.name": "arrays/6.bin"}):
        with_tar(
            tmp_path / "m.tar",
            lambda made, said=said: put(made, "y", bytes(96), pax_headers=said),  # type: ignore[misc]
        )
        with pytest.raises(UncorkError, match="a header that changes"):
            load(tmp_path / "m.tar")
    tagger(tmp_path / "m.tar")
    with tarfile.open(tmp_path / "m.tar", "a", format=tarfile.GNU_FORMAT) as made:
        put(made, "n" * 200, b"")
    with pytest.raises(UncorkError, match="a header that changes"):
        load(tmp_path / "m.tar")


def test_a_header_that_does_not_add_up(tmp_path: Path) -> None:
    tagger(tmp_path / "m.tar")
    whole = (tmp_path / "m.tar").read_bytes()
    (tmp_path / "m.tar").write_bytes(whole.replace(b"arrays/6.bin", b"arrays/5.bin"))
    with pytest.raises(UncorkError, match="adds up wrong"):
        load(tmp_path / "m.tar")


def test_slovnets_own_arithmetic_agrees_on_a_file_of_its_own(tmp_path: Path) -> None:
    """pip install slovnet: its layers, packed by its own code, read back here."""
    pack = pytest.importorskip("slovnet.exec.pack")
    parts = pytest.importorskip("slovnet.exec.model")
    weight = parts.Weight(W.shape, "float32", W)
    linear = parts.Linear(weight, parts.Weight(B.shape, "float32", B))
    layers = parts.MorphHead(linear).separate_arrays()
    with pack.DumpPack(str(tmp_path / "m.tar")) as made:
        made.dump_meta(pack.Meta("slovnet_morph"))
        made.write(json.dumps({"head": layers[1].as_json}).encode(), "model.json")
        made.dump_arrays(layers[0])
        made.dump_vocab(pack.Vocab(TAGS), "tag")
    head = load(tmp_path / "m.tar")
    given = RANDOM.normal(size=(9, FEATURES)).astype(np.float32)
    own = given @ np.asarray(head.weight).T + np.asarray(head.bias)
    np.testing.assert_array_equal(own.argmax(-1), linear(given).argmax(-1))
    assert head.labels == tuple(TAGS)
