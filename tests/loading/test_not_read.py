"""What is not read is named for what it is, with what to do: one line, exit status 2."""

from __future__ import annotations

import json
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from uncork import UncorkError
from uncork.cli import app
from uncork.loading import load
from uncork.loading.contents import Tensor, listing


def archive(*names: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as made:
            for name in names:
                made.writestr(name, "{}")

    return write


def holding(data: bytes | str | dict | list) -> Callable[[Path], None]:
    raw = json.dumps(data).encode() if isinstance(data, dict | list) else data
    return lambda path: (path.write_bytes(raw if isinstance(raw, bytes) else raw.encode()), None)[1]


FILES = {
    "m.mar": (archive("MAR-INF/MANIFEST.json", "model.pt"), "a TorchServe archive: unpack"),
    "m.nemo": (holding(bytes(600)), "a NeMo archive: unpack"),
    "flax_model.msgpack": (holding(b"\x81\xa6params"), "Flax weights"),
    "m.ptd": (holding(b"\x1c\0\0\0FT01" + bytes(40)), "the weights of an ExecuTorch program"),
    "maia-1900.pb.gz": (holding(b"\x1f\x8b\x08" + bytes(40)), "a network of Leela Chess Zero"),
    "m.mlmodelc": (holding(bytes(40)), "a compiled Core ML model"),
    "m.engine": (holding(b"ftrt" + bytes(40)), "a TensorRT engine"),
    "other.plan": (holding(bytes(40)), "a TensorRT engine"),
    "model.safetensors.index.json": (
        holding({"weight_map": {"a": "b"}}), "index of a model in several files: give the folder",
    ),
    "config.json": (holding({"model_type": "llama"}), "configuration, not the model: give the fol"),
    "adapter_config.json": (holding({"peft_type": "LORA"}), "settings of an adapter"),
    "tokenizer.json": (holding({"model": {}}), "a tokenizer's file, not a model.*--labels"),
    "tokenizer.model": (holding(b"\n\x0e\n\x05<unk>"), "a tokenizer's file, not a model"),
    "other.json": (holding([1, 2]), "a JSON file, not a model"),
    "README.md": (holding("# A model"), "a text about a model"),
    "model.py": (holding("import torch"), "source code, not a model"),
    "saved_model.pb": (holding(b"\x08\x01\x12\x04"), "no SavedModel, or is damaged"),
    "graph.pb": (holding(b"\x1a\x01a"), "a TensorFlow graph"),
    "model.pdparams": (holding(bytes(40)), "PaddlePaddle weights"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_named_for_what_it_is(name: str, tmp_path: Path) -> None:
    write, message = FILES[name]
    write(tmp_path / name)
    with pytest.raises(UncorkError, match=message):
        load(tmp_path / name)
    before = sorted(tmp_path.iterdir())
    report = tmp_path / "report.html"
    done = CliRunner().invoke(app, ["audit", str(tmp_path / name), "--report", str(report)])
    assert done.exit_code == 2
    assert len(done.output.strip().splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def distributed(folder: Path) -> None:
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": torch.nn.Linear(4, 3).state_dict()}, checkpoint_id=folder)


def files(*names: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"\x08\x01" + bytes(30))

    return write


FOLDERS = {
    "TensorFlow SavedModel: convert": files("saved_model.pbtxt", "variables/variables.index"),
    "distributed checkpoint of PyTorch": distributed,
    "a checkpoint of FSDP in pieces": files("pytorch_model_fsdp_0/x.txt", "trainer_state.json"),
    r"DeepSpeed checkpoint in pieces.*python zero_to_fp32\.py": files(
        "zero_to_fp32.py", "latest", "global_step3/mp_rank_00_model_states.pt"
    ),
    "a DeepSpeed checkpoint": files(
        "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    ),
    "a Megatron checkpoint": files("mp_rank_00/model_optim_rng.pt", "mp_rank_01/x.pt"),
    "the package of a spaCy pipeline": files("meta.json", "en_small-1.0/config.cfg"),
    "a compiled Core ML model": files("coremldata.bin", "model.espresso.net"),
    r"flax_model\.msgpack, which is Flax weights": files("flax_model.msgpack"),
    r"rank0\.engine, which is a TensorRT engine": files("rank0.engine"),
    "an Orbax checkpoint": files("_METADATA", "manifest.ocdbt"),
}


@pytest.mark.parametrize("config", [False, True])
@pytest.mark.parametrize("message", FOLDERS)
def test_a_folder_is_named_for_what_it_is(message: str, config: bool, tmp_path: Path) -> None:
    FOLDERS[message](tmp_path)
    if config:
        (tmp_path / "config.json").write_text('{"vocabulary_size": 3}')
    with pytest.raises(UncorkError, match=message):
        load(tmp_path)


def test_pieces_of_a_distributed_checkpoint_are_known_alone(tmp_path: Path) -> None:
    distributed(tmp_path)
    for name in (".metadata", "__0_0.distcp"):
        with pytest.raises(UncorkError, match=r"distributed checkpoint.*dcp_to_torch"):
            load(tmp_path / name)


@pytest.mark.parametrize("name", ["m.pkl", "m.joblib"])
def test_a_pickled_scikit_learn_model_says_what_to_type(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    model = LogisticRegression().fit(rng.normal(size=(30, 4)), np.arange(30) % 3)
    path = tmp_path / name
    if name.endswith(".pkl"):
        path.write_bytes(pickle.dumps(model))
    else:
        joblib.dump(model, path)
    with pytest.raises(UncorkError, match="scikit-learn") as raised:
        load(path)
    first = "import joblib, skops.io"
    second = f"skops.io.dump(joblib.load('{name}'), 'm.skops')"
    assert f"{first}; {second}; then: uncork audit m.skops" in str(raised.value)
    import os

    before = os.getcwd()
    try:
        os.chdir(tmp_path)
        exec(f"{first}\n{second}")
        np.testing.assert_array_equal(load("m.skops").weight, model.coef_)
    finally:
        os.chdir(before)


def test_other_pickles_are_still_refused(tmp_path: Path) -> None:
    (tmp_path / "m.pkl").write_bytes(pickle.dumps({"weight": [1.0]}))
    with pytest.raises(UncorkError, match="opening a pickle runs its code"):
        load(tmp_path / "m.pkl")


def test_lists_of_tensors_begin_with_the_likely_ones() -> None:
    def tensor(name: str, *shape: int) -> Tensor:
        return Tensor(name, shape, "float32", lambda: np.zeros(shape))

    inside = [tensor(f"layers.{k}.mlp.output.weight", 64, 64) for k in range(20)]
    others = [tensor("norm.weight", 64), tensor("adapter.weight", 32, 64)]
    likely = [tensor("vocab_head.weight", 500, 64), tensor("embed.weight", 900, 64)]
    shown = listing([*inside, *others, *likely])
    assert shown.startswith("vocab_head.weight (500 × 64), embed.weight (900 × 64), adapter.weight")
    assert shown.endswith("and 16 more")
