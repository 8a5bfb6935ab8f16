"""Damaged and hostile files of vectors end in one line or in vectors, in little memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz_files import damaged
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from vector_samples import VECTOR_SAMPLES, X, read_everything

from uncork import UncorkError, load_items

for library in ("faiss", "hnswlib", "usearch", "annoy", "pyarrow"):
    pytest.importorskip(library)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, make in VECTOR_SAMPLES.items():
        made[name] = tmp_path_factory.mktemp("vectors") / name
        make(made[name])
    return made


@pytest.mark.parametrize("name", VECTOR_SAMPLES)
def test_every_sample_holds_its_vectors_before_it_is_damaged(
    name: str, samples: dict[str, Path]
) -> None:
    read_everything(samples[name])
    assert len(load_items(samples[name], metric="inner")) == len(X)


@pytest.mark.parametrize("name", VECTOR_SAMPLES)
@settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@seed(1)
@given(number=st.integers(0, 2**32))
def test_damage_ends_in_one_line_or_in_vectors(
    name: str, samples: dict[str, Path], number: int
) -> None:
    path = samples[name]
    whole = path.read_bytes()
    line = ""
    try:
        path.write_bytes(damaged(whole, whole, random.Random(number)) or b"x")
        read_everything(path)
    except UncorkError as error:
        line = str(error)
    finally:
        path.write_bytes(whole)
    assert not line or line.isprintable()
    assert "does not fit into memory" not in line


def refused(path: Path, data: bytes, **options: Any) -> str:
    """The line that a hostile file is refused with, in little memory."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(UncorkError) as error:
            np.asarray(load_items(path, **options).vectors)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    return str(error.value)


def flat(count: int, features: int, values: int) -> bytes:
    head = struct.pack("<iqqqBi", features, count, 0, 0, 1, 0)
    return b"IxFI" + head + struct.pack("<Q", values)


@pytest.mark.parametrize(
    ("count", "features", "values"),
    [(2**40, 64, 2**46), (2**62, 2**20, 2**63), (-1, 4, 0), (4, -4, 16), (4, 0, 0), (3, 4, 16)],
)
def test_faiss_headers_that_promise_too_much(
    tmp_path: Path, count: int, features: int, values: int
) -> None:
    refused(tmp_path / "a.faiss", flat(count, features, values) + bytes(64))


def test_a_faiss_index_inside_itself_without_end(tmp_path: Path) -> None:
    header = b"IxMp" + struct.pack("<iqqqBi", 4, 1, 0, 0, 1, 0)
    assert "inside one another" in refused(tmp_path / "a.faiss", header * 5000)


def test_faiss_codes_that_stand_for_far_more_than_they_are(tmp_path: Path) -> None:
    features, count = 40_000, 2_000
    head = struct.pack("<iqqqBi", features, count, 0, 0, 1, 0)
    quantiser = struct.pack("<QQQQ", features, 1, 1, 2 * features) + bytes(8 * features)
    data = b"IxPQ" + head + quantiser + struct.pack("<Q", count) + bytes(count)
    assert "-fold" in refused(tmp_path / "a.faiss", data)


def test_links_that_lead_nowhere_are_refused(tmp_path: Path, samples: dict[str, Path]) -> None:
    whole = samples["a.hnsw"].read_bytes()
    changed = bytearray(whole)
    changed[96:100] = struct.pack("<HBB", 4, 0, 0)
    changed[100:116] = b"\xff" * 16
    path = tmp_path / "a.hnsw"
    path.write_bytes(bytes(changed))
    with pytest.raises(UncorkError):
        read_everything(path)


def test_a_usearch_matrix_larger_than_its_file(tmp_path: Path) -> None:
    for rows, each in ((2**32 - 1, 2**32 - 1), (2**31, 16)):
        refused(tmp_path / "a.usearch", struct.pack("<II", rows, each) + b"usearch" + bytes(200))


def test_word_vectors_that_announce_more_than_there_are(tmp_path: Path) -> None:
    refused(tmp_path / "a.w2v", b"999999999999 300\nword " + bytes(1200))
    refused(tmp_path / "a.vec", b"1000 65535\nword 1 2 3\n")


def test_json_nested_without_end(tmp_path: Path) -> None:
    refused(tmp_path / "a.json", b"[[1, 2], " + b"[" * 100_000)


@pytest.mark.parametrize("library", ["surprise", "lightfm"])
def test_a_pickled_recommender_is_refused_and_told_what_to_save(
    tmp_path: Path, library: str
) -> None:
    pickled = b"\x80\x02c" + library.encode() + b".prediction\nSVD\n)\x81."
    assert 'numpy.savez("factors.npz"' in refused(tmp_path / "model.pkl", pickled)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    """Those that hold anything but numbers: numbers alone are decoded, and nothing is called."""
    import pickle

    for name in ("a.pkl", "index_metadata.pickle", "model.joblib"):
        model = pickle.dumps({"qi": X, "where": Path("somewhere")})
        assert "pickle" in refused(tmp_path / name, model)
