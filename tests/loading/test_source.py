"""Sources that are no model at all: one clear line each."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import PP_OCR_V4
from uncork import Box, Head, UncorkError
from uncork.loading import describe, find, load
from uncork.loading.description import odd_rows


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match="does not exist"):
        load(tmp_path / "nothing.onnx")


def test_a_folder_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match=tmp_path.name) as raised:
        load(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["m.onnx", "m.npz", "m.npy", "m.safetensors", "m"])
def test_an_empty_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UncorkError, match="is empty"):
        load(tmp_path / name)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.npz")
    with pytest.raises(UncorkError, match="not a regular file"):
        load(tmp_path / "m.npz")


def test_a_name_with_a_null_byte() -> None:
    with pytest.raises(UncorkError):
        load("m\0.npz")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x89HDF\r\n\x1a\n" + bytes(99), "hdf5|HDF5|Keras"),
        (b"GGUF" + bytes(99), "GGUF|gguf"),
        (b"\xba\x16\x4f\x2f" + bytes(99), "fastText|fasttext"),
        (b"\xf5\x17\x34\x01\xd5\x48\x1a\xf1" + bytes(99), "a lexical shortlist of Bergamot"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"\x1f\x8b" + bytes(99), "gzip"),
        (b"just some text, really", "not a model that uncork reads"),
    ],
)
def test_other_files_are_named_for_what_they_are(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "model.dat").write_bytes(data)
    with pytest.raises(UncorkError, match=message):
        load(tmp_path / "model.dat")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    start=st.sampled_from([b"", b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"\x40" + bytes(7) + b"{",
                           b"\x08\x07", b"\x80\x02"]),
    data=st.binary(max_size=300),
    suffix=st.sampled_from(["npz", "npy", "safetensors", "onnx", "bin"]),
)  # fmt: skip
def test_noise_never_ends_in_another_error(
    tmp_path: Path, start: bytes, data: bytes, suffix: str
) -> None:
    path = tmp_path / f"m.{suffix}"
    path.write_bytes(start + data)
    with pytest.raises(UncorkError) as raised:
        load(path)
    assert "\n" not in str(raised.value)


def saved(path: Path) -> Path:
    np.save(path / "m.npy", np.eye(3))
    return path / "m.npy"


@pytest.mark.parametrize(
    ("name", "text", "labels"),
    [
        ("l.txt", " a \n\u2028\nc\n", (" a ", "\u2028", "c")),
        ("l.txt", "a\r\nb\r\nc", ("a", "b", "c")),
        ("l.txt", "a\n\n \n", ("a", "", " ")),
        ("l.txt", "[\n]\n{", ("[", "]", "{")),
        ("l.json", '["a", "b", "c"]', ("a", "b", "c")),
        ("l.json", '{"2": "c", "0": "a", "1": "b"}', ("a", "b", "c")),
        ("l.json", '{"c": 2, "a": 0, "b": 1}', ("a", "b", "c")),
        ("l.json", '{"id2label": {"0": "a", "1": "b", "2": "c"}, "x": 1}', ("a", "b", "c")),
    ],
)
def test_labels_are_read_exactly(
    tmp_path: Path, name: str, text: str, labels: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(text.encode())
    assert load(saved(tmp_path), labels=tmp_path / name).labels == labels


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("l.txt", b"a\nb\n", "2 labels for 3 classes"),
        ("l.txt", b"\xff\xfe\n", "not UTF-8"),
        ("l.json", b"[1, 2", "not valid JSON"),
        ("l.json", b"3", "without 3 labels"),
        ("l.json", b"[" * 100_000, "not valid JSON"),
    ],
)
def test_labels_that_do_not_fit(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UncorkError, match=message):
        load(saved(tmp_path), labels=tmp_path / name)


def test_labels_file_missing(tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match=r"labels file .*no\.txt does not exist"):
        load(saved(tmp_path), labels=tmp_path / "no.txt")


def test_the_domain_is_box_100_unless_said(tmp_path: Path) -> None:
    assert load(saved(tmp_path)).domain == Box(100)
    assert load(saved(tmp_path), domain="box:0,1").domain == Box(0, 1)
    with pytest.raises(UncorkError, match="lower bound 2 is above upper bound 1"):
        load(saved(tmp_path), domain="box:2,1")


def test_odd_rows_and_columns_are_pointed_out() -> None:
    weight = np.array(
        [
            [1.0, 5.0, 1e-9, 2.0],
            [0.0, 5.0, 0.0, 3.0],
            [1.0, 5.0, 1e-9, 2.0],
            [1.0, 5.0, 1e-9, 2.0],
            [-0.0, 5.0, 0.0, 3.0],
        ]
    )
    odd = odd_rows(Head(weight, bias=np.array([0.0, 1.0, 7.0, 0.0, 2.0])))
    assert odd.equal_rows == ((0, 2, 3), (1, 4))
    assert odd.tied_rows == ((0, 3),)
    assert odd.constant_columns == (1,)
    assert odd.near_constant_columns == (2,)
    assert odd_rows(Head(np.vstack([weight, np.zeros(4), -np.zeros(4)]))).zero_rows == (5, 6)


def test_describe_as_plain_values(tmp_path: Path) -> None:
    shown = describe(saved(tmp_path)).as_dict()
    assert shown["weight"] == "array"
    assert shown["tensors"] == [
        {"name": "array", "shape": [3, 3], "dtype": "float64", "role": "weight"}
    ]
    assert shown["domain"] == "box:-100,100"


def test_where_a_domain_rests_on_several_steps_running_the_model_is_the_advice() -> None:
    reading = find(PP_OCR_V4, domain="auto").head.reading
    assert reading is not None
    assert ", through " in reading.preceded_by
    assert "--check MODEL --data FILES" in reading.domain_from
    assert "--check" not in find(PP_OCR_V4).head.reading.domain_from
