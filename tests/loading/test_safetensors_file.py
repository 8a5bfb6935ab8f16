"""Safetensors: types kept, nothing copied, damage noticed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from uncork import UncorkError
from uncork.loading import find, load

W = np.arange(12, dtype=np.float32).reshape(4, 3)


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str = "F32", shape: Any = (4, 3), offsets: Any = (0, 48)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_file_of_the_safetensors_library(tmp_path: Path) -> None:
    bias = np.arange(4, dtype=np.float32)
    save_file({"lm_head.weight": W, "lm_head.bias": bias, "other": W.T.copy()}, tmp_path / "m")
    head = load(tmp_path / "m")
    np.testing.assert_array_equal(head.weight, W)
    np.testing.assert_array_equal(head.bias, bias)


def test_a_bias_of_another_length_is_named(tmp_path: Path) -> None:
    save_file({"head.weight": W, "head.bias": np.ones(7, np.float32)}, tmp_path / "m")
    names = r"head\.bias \(7\) is by its name the bias of head\.weight \(4 × 3\)"
    with pytest.raises(UncorkError, match=f"{names}.*--drop-bias"):
        load(tmp_path / "m")


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("BF16", ml_dtypes.bfloat16), ("F8_E4M3", ml_dtypes.float8_e4m3fn),
        ("F8_E5M2", ml_dtypes.float8_e5m2), ("F16", np.float16), ("F64", np.float64),
        ("I8", np.int8),
    ],
)  # fmt: skip
def test_types_are_kept_and_the_file_is_mapped(tmp_path: Path, kind: str, dtype: Any) -> None:
    values = W.astype(dtype)
    data = values.tobytes()
    path = write(tmp_path / "m.safetensors", {"w": entry(kind, (4, 3), (0, len(data)))}, data)
    head = load(path)
    assert head.weight.dtype == np.dtype(dtype)
    assert not head.weight.flags.owndata
    assert not head.weight.flags.writeable
    np.testing.assert_array_equal(head.rows(0, 4), values.astype(np.float64))


def test_a_1x1_convolution_is_a_weight(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.safetensors", {"classifier.weight": entry(shape=(4, 3, 1, 1))}, W.tobytes()
    )
    np.testing.assert_array_equal(load(path).weight, W)


def test_a_type_that_is_not_read_does_not_hide_the_others(tmp_path: Path) -> None:
    header = {"odd": entry("F4", (4, 6), (48, 60)), "lm_head.weight": entry()}
    path = write(tmp_path / "m.safetensors", header, W.tobytes() + bytes(12))
    assert find(path).weight_name == "lm_head.weight"
    with pytest.raises(UncorkError, match="'odd' is of type F4"):
        load(path, weight="odd")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"w": entry(offsets=(0, 480))}, "truncated or damaged"),
        ({"w": entry(offsets=(48, 0))}, "truncated or damaged"),
        ({"w": entry(offsets=(-48, 0))}, "not a natural number"),
        ({"w": entry(shape=(4, 4))}, "is not 48 bytes"),
        ({"w": entry(shape=(2**62, 2**62))}, "is not 48 bytes"),
        ({"w": entry(shape=(-4, -3))}, "not a natural number"),
        ({"w": entry(shape=("4", "3"))}, "not a natural number"),
        ({"w": entry(shape=(True, 12))}, "not a natural number"),
        ({"w": entry(offsets=(0,))}, "damaged"),
        ({"w": {"dtype": "F32"}}, "damaged"),
        ({"w": 3}, "damaged"),
        ({}, "holds no tensors"),
        ({"__metadata__": {}}, "holds no tensors"),
        (b"{" * 50_000, "no readable safetensors header"),
        (b'{"w": ', "no readable safetensors header"),
        (b"\xff\xff\xff", "no readable safetensors header"),
        ([1, 2], "not a table"),
    ],
)
def test_damaged_headers_end_in_one_line(tmp_path: Path, header: Any, message: str) -> None:
    path = write(tmp_path / "m.safetensors", header, W.tobytes())
    with pytest.raises(UncorkError, match=message) as raised:
        load(path)
    assert "\n" not in str(raised.value)


def test_a_header_longer_than_the_file(tmp_path: Path) -> None:
    for length in (100, 2**40, 2**64 - 1):
        path = tmp_path / "m.safetensors"
        path.write_bytes(struct.pack("<Q", length) + b'{"w": 1}')
        with pytest.raises(UncorkError, match="truncated or damaged"):
            load(path)


def test_truncation_anywhere_ends_in_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", {"w": entry()}, W.tobytes())
    data = path.read_bytes()
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        with pytest.raises(UncorkError):
            load(path)


def test_nan_is_named_with_its_tensor(tmp_path: Path) -> None:
    bad = W.copy()
    bad[2, 1] = np.nan
    path = write(tmp_path / "m.safetensors", {"w": entry()}, bad.tobytes())
    with pytest.raises(UncorkError, match=r"weight 'w'.*weight\[2, 1\] is nan"):
        load(path)
