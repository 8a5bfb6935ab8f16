"""Pickles of NumPy arrays: every protocol gives the arrays, and anything else stays closed."""

from __future__ import annotations

import collections
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uncork import UncorkError
from uncork.loading import describe, find, load

W = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
B = np.arange(6, dtype=np.float32)


def saved(path: Path, value: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2"])
def test_arrays_come_out_as_numpy_pickled_them(
    protocol: int, order: str, dtype: str, tmp_path: Path
) -> None:
    weight = np.array(W, dtype=dtype, order=order)  # type: ignore[call-overload]
    head = load(saved(tmp_path / "m.pkl", {"weight": weight, "bias": B}, protocol))
    np.testing.assert_array_equal(head.weight, weight)
    np.testing.assert_array_equal(head.bias, B)


def test_arrays_in_lists_and_tables_are_named_by_their_place(tmp_path: Path) -> None:
    value = collections.OrderedDict(layers=[{"W": W}, {"W": -W, "b": B}], epoch=3, names=["a"])
    path = saved(tmp_path / "m.pickle", value)
    names = {tensor.name for tensor in describe(path).tensors}
    assert names == {"layers.0.W", "layers.1.W", "layers.1.b"}
    found = find(path, weight="layers.1.W")
    np.testing.assert_array_equal(found.head.weight, -W)
    assert found.bias_name == "layers.1.b"
    np.testing.assert_array_equal(load(saved(tmp_path / "one.pkl", W)).weight, W)


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["beside", "inside", "objects", "no arrays", "class"])
def test_a_pickle_with_anything_else_in_it_stays_closed(how: str, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    values = {
        "beside": {"weight": W, "more": Attack(touched)},
        "inside": [W, [Attack(touched)]],
        "objects": {"weight": np.array([[Attack(touched)] * 2] * 2, dtype=object)},
        "no arrays": {"weight": [[1.0, 2.0]]},
        "class": {"weight": W, "path": Path("x")},
    }
    with pytest.raises(UncorkError, match="opening a pickle runs its code"):
        load(saved(tmp_path / "m.pkl", values[how]))
    assert not touched.exists()


def test_values_that_hold_each_other_without_end_are_refused(tmp_path: Path) -> None:
    value: Any = [W]
    for _ in range(14):
        value = [value] * 8
    with pytest.raises(UncorkError, match="opening a pickle runs its code"):
        load(saved(tmp_path / "m.pkl", value))
    around: list[Any] = [W]
    around.append(around)
    with pytest.raises(UncorkError, match="opening a pickle runs its code"):
        load(saved(tmp_path / "n.pkl", around))


def test_an_array_of_another_size_than_its_bytes_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.pkl", {"weight": W}, 4)
    data = path.read_bytes()
    wrong = data.replace(b"K\x06K\x04\x86", b"K\x07K\x04\x86")
    assert wrong != data
    path.write_bytes(wrong)
    with pytest.raises(UncorkError, match="damaged: the array 'weight' has shape"):
        load(path)
