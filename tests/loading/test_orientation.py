"""Which side of a lone matrix the classes are on: what fits one side decides, else it is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from uncork.loading import find, load

ROWS, COLUMNS = 8, 300
W = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
OPEN = "says whether the classes of {} are its 8 rows or its 300 columns: the rows were taken; use "


def npy(path: Path, arrays: dict[str, np.ndarray]) -> None:
    (array,) = arrays.values()
    with path.open("wb") as file:
        np.save(file, array)


def npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def safetensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    save_file(arrays, path)


def pickled(path: Path, arrays: dict[str, np.ndarray]) -> None:
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)


Write = Callable[[Path, dict[str, np.ndarray]], None]
EVERY = pytest.mark.parametrize("write", [npy, npz, safetensors, pickled])
NAMED = pytest.mark.parametrize("write", [npz, safetensors, pickled])


@EVERY
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_lone_wide_array_says_first_that_its_sides_are_open(
    write: Write, by_hand: bool, tmp_path: Path
) -> None:
    write(tmp_path / "m", {"weight": W})
    name = "array" if write is npy else "weight"
    found = find(tmp_path / "m", weight=name if by_hand else None)
    assert found.head.classes == ROWS
    assert OPEN.format(name) + "--transpose" in found.notes[0]
    turned = find(tmp_path / "m", weight=name if by_hand else None, transpose=True)
    assert turned.head.classes == COLUMNS
    assert not any("--transpose" in note for note in turned.notes)


@EVERY
def test_a_tall_or_square_array_is_taken_without_a_word(write: Write, tmp_path: Path) -> None:
    for array in (W.T.copy(), W[:, :ROWS].copy()):
        write(tmp_path / "m", {"weight": array})
        found = find(tmp_path / "m")
        assert found.head.classes == len(array)
        assert not any("rows" in note for note in found.notes)


@EVERY
@pytest.mark.parametrize("from_file", [False, True])
def test_labels_that_fit_one_side_decide(write: Write, from_file: bool, tmp_path: Path) -> None:
    write(tmp_path / "m", {"weight": W})
    for classes in (ROWS, COLUMNS):
        labels: list[str] | Path = [f"class {k}" for k in range(classes)]
        if from_file:
            (tmp_path / "labels.txt").write_text("\n".join(map(str, labels)))
            labels = tmp_path / "labels.txt"
        found = find(tmp_path / "m", labels=labels)
        assert found.head.classes == classes
        assert found.head.labels is not None
        assert not any("--transpose" in note for note in found.notes)
        assert "the number of labels fits them alone" in (
            found.notes[0] if classes == COLUMNS else found.why
        )


@NAMED
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_bias_that_fits_one_side_decides(write: Write, by_hand: bool, tmp_path: Path) -> None:
    name = "offset" if by_hand else "bias"
    for classes in (ROWS, COLUMNS):
        bias = np.arange(classes, dtype=np.float32)
        write(tmp_path / "m", {"weight": W, name: bias})
        found = find(tmp_path / "m", weight="weight", bias=name if by_hand else None)
        assert found.head.classes == classes
        np.testing.assert_array_equal(found.head.bias, bias)
        np.testing.assert_array_equal(found.head.weight, W if classes == ROWS else W.T)
        assert not any("--transpose" in note for note in found.notes)
        said = found.notes[0] if classes == COLUMNS else found.why
        assert f"bias {name} fits them alone" in said
        assert find(tmp_path / "m", weight="weight", drop_bias=True).head.classes == (
            ROWS if by_hand else classes
        )


def test_an_embedding_stored_features_by_classes_is_turned_to_its_bias(tmp_path: Path) -> None:
    """As the files of the paper's own tool have it: decoder_Wemb is dims × classes."""
    bias = np.arange(COLUMNS, dtype=np.float32)[None]
    np.savez(tmp_path / "m.npz", decoder_Wemb=W, decoder_ff_logit_out_b=bias)
    found = find(tmp_path / "m.npz")
    assert found.contents.format == "marian npz"
    np.testing.assert_array_equal(found.head.weight, W.T)
    np.testing.assert_array_equal(found.head.bias, bias[0])
    assert any("bias decoder_ff_logit_out_b fits them alone" in note for note in found.notes)
    np.savez(tmp_path / "alone.npz", decoder_Wemb=W)
    assert OPEN.format("decoder_Wemb") in find(tmp_path / "alone.npz").notes[0]
    np.savez(tmp_path / "layer.npz", decoder_Wemb=W, decoder_l1_ffn_W1=W)
    assert OPEN.format("decoder_Wemb") in find(tmp_path / "layer.npz").notes[0]


@pytest.mark.parametrize("by_hand", [False, True])
def test_turning_what_the_configuration_settles_is_said_first(
    tmp_path: Path, by_hand: bool
) -> None:
    config = {"model_type": "llama", "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({"lm_head.weight": np.eye(9, 4, dtype=np.float32)}, tmp_path / "model.safetensors")
    name = "lm_head.weight" if by_hand else None
    assert load(tmp_path, weight=name).reading.doubts == ()
    turned = load(tmp_path, weight=name, transpose=True)
    assert turned.classes == 4
    assert "configuration says that they are its rows" in turned.reading.doubts[0]
