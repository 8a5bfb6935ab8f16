"""Vectors inside packages: read, audited once, and put into the table."""

import gzip
import io
import json
import struct
import tarfile

import numpy as np
import pytest
import retrieval_sets
import vector_sets
from vector_sets import SETS, VectorSet


def made(folder):
    """Twenty items of which two lie inside the hull of the others."""
    vectors = np.random.default_rng(0).normal(size=(20, 3))
    vectors[[4, 9]] *= 0.05
    return vectors, [f"item {i}" for i in range(20)]


def test_a_set_is_audited_once_and_asked_about_the_first_ten(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(retrieval_sets, "SETS", (VectorSet("made here", "none==0", (), made),))
    arguments = ["--out", str(tmp_path), "--sample", "50"]
    retrieval_sets.main(arguments)
    table = capsys.readouterr().out
    done = json.loads((tmp_path / "sets/made-here.json").read_text("utf-8"))
    assert done["counts"]["undecided"] == 0
    assert {4, 9} <= set(done["never_first"])
    assert done["top"]["asked"] == done["lost"]
    assert done["top"]["never"] + done["top"]["can"] + done["top"]["open"] == done["lost"]
    assert done["median_length"]["lost"] < done["median_length"]["first"]
    assert f"| made here | 20 × 3 | {done['lost']} " in table
    assert (tmp_path / "lengths.png").stat().st_size > 5_000

    def never(*more):
        raise AssertionError("audited again")

    monkeypatch.setattr(retrieval_sets, "audited", never)
    retrieval_sets.main(arguments)
    assert capsys.readouterr().out == table


def test_a_package_that_is_not_there_is_named_and_stops_nothing(tmp_path, capsys, monkeypatch):
    gone = VectorSet("gone", "no-such-package-of-uncork==0", ("a.npy",), made)
    monkeypatch.setattr(retrieval_sets, "SETS", (gone,))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SystemExit, match="1"):
        retrieval_sets.main(["--out", str(tmp_path)])
    assert "gone: no-such-package-of-uncork==0 cannot be downloaded" in capsys.readouterr().err


def test_codes_of_navec_are_decoded_chunk_by_chunk(tmp_path):
    picks = np.array([[0, 1], [1, 0]], dtype=np.uint8)
    table = np.arange(8, dtype="<f4").reshape(2, 2, 2)  # chunks, centroids, numbers
    words = struct.pack("<3I", 2, 10, 5) + "ёж\nлес".encode()
    parts = {
        "pq.bin": struct.pack("<4I", 2, 4, 2, 2) + picks.tobytes() + table.tobytes(),
        "vocab.bin": gzip.compress(words),
    }
    place = tmp_path / "natasha/data/emb"
    place.mkdir(parents=True)
    with tarfile.open(place / "navec_news_v1_1B_250K_300d_100q.tar", "w") as archive:
        for name, content in parts.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    vectors, labels = vector_sets.navec(tmp_path)
    assert vectors.tolist() == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert labels == ["ёж", "лес"]


def test_every_set_names_a_version() -> None:
    for one in SETS:
        assert ("==" in one.package) != one.package.startswith("npm:")
