"""PyTorch checkpoints: every tensor torch would load, and none of the code."""

from __future__ import annotations

import argparse
import collections
import pickle
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from uncork import UncorkError
from uncork.domain import Image, LayerNorm
from uncork.loading import find, load
from uncork.loading.torch.file import read_torch

BOTH = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def save(value: Any, path: Path, zipped: bool = True) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TypedStorage is deprecated, says torch of its own code
        torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach()
    exact = tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor
    return exact.numpy()


@BOTH
def test_a_saved_state_dict_is_read_as_torch_reads_it(tmp_path: Path, zipped: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 7))
    path = save(model.state_dict(), tmp_path / "m.pt", zipped)
    head = load(path, weight="2.weight", bias="2.bias")
    np.testing.assert_array_equal(head.weight, model[2].weight.detach().numpy())
    np.testing.assert_array_equal(head.bias, model[2].bias.detach().numpy())


def test_a_bias_of_another_length_is_named(tmp_path: Path) -> None:
    path = save({"fc.weight": torch.ones(4, 3), "fc.bias": torch.ones(7)}, tmp_path / "m.pt")
    names = r"fc\.bias \(7\) is by its name the bias of fc\.weight \(4 × 3\)"
    with pytest.raises(UncorkError, match=f"{names}.*--drop-bias"):
        load(path)


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    torch.uint16, torch.uint32,
]  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), dtype=st.sampled_from(DTYPES), zipped=st.booleans())
def test_any_view_of_any_type_has_torchs_own_values(
    tmp_path: Path, data: st.DataObject, dtype: torch.dtype, zipped: bool
) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    whole = (torch.arange(int(np.prod(shape))) % 100).reshape(shape).to(dtype)
    view = whole
    for axis in range(view.ndim):
        first = data.draw(st.integers(0, 2))
        step = data.draw(st.integers(1, 2))
        view = view[(slice(None),) * axis + (slice(first, None, step),)]
    if view.ndim > 1 and data.draw(st.booleans()):
        view = view.transpose(0, 1)
    saved = {"whole": whole, "view": view, "parameter": torch.nn.Parameter(view, False)}
    path = save(saved, tmp_path / "m.pt", zipped)
    tensors = read_torch(path).tensors
    assert list(tensors) == list(saved)
    for name, tensor in tensors.items():
        assert tensor.shape == tuple(saved[name].shape)
        found = tensor.read()
        if found.dtype.itemsize < 4 and found.dtype.kind in "fV":
            found = found.astype(np.float32)
        np.testing.assert_array_equal(found, as_numpy(saved[name]))


def test_tensors_are_mapped_not_read(tmp_path: Path) -> None:
    path = save({"weight": torch.zeros(1000, 10)}, tmp_path / "m.pt")
    found = read_torch(path).tensors["weight"].read()
    assert not found.flags.writeable
    assert not found.flags.owndata


W, B = torch.arange(12.0).reshape(4, 3), torch.arange(4.0)


@BOTH
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state, "optimizer": {"state": {0: {"exp_avg": W}}}},
        lambda state: {"model": {"state_dict": state}},
        lambda state: {"model_state_dict": state, "loss": np.float64(0.5)},
        lambda state: {"state_dict": {f"model.{k}": v for k, v in state.items()},
                       "pytorch-lightning_version": "2.6", "callbacks": {}, "loops": {},
                       "optimizer_states": [{"state": {0: {"exp_avg": W + 1}}}],
                       "hparams_name": "kwargs", "hyper_parameters": {"lr": 0.1}},
        lambda state: {"model": state, "args": argparse.Namespace(arch="x", lr=[0.1])},
    ],
)  # fmt: skip
def test_training_checkpoints_are_unwrapped(tmp_path: Path, zipped: bool, wrap: Any) -> None:
    state = collections.OrderedDict([("lm_head.weight", W), ("lm_head.bias", B)])
    found = find(save(wrap(state), tmp_path / "m.ckpt", zipped))
    assert found.weight_name.endswith("lm_head.weight")
    np.testing.assert_array_equal(found.head.weight, W.numpy())
    np.testing.assert_array_equal(found.head.bias, B.numpy())


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(2, 3)
        self.classifier = torch.nn.Linear(3, 4)


@BOTH
def test_a_whole_module_is_read_without_its_class(tmp_path: Path, zipped: bool) -> None:
    model = Classifier()
    path = save(model, tmp_path / "m.pt", zipped)
    program = (
        "import sys; from uncork.loading import find; found = find(sys.argv[1]); "
        "assert 'torch' not in sys.modules; print(found.weight_name, found.head.classes)"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
    assert ran.stdout == "classifier.weight 4\n", ran.stderr
    np.testing.assert_array_equal(load(path).weight, model.classifier.weight.detach().numpy())


@pytest.mark.filterwarnings("ignore")
def test_a_torchscript_archive_is_read(tmp_path: Path) -> None:
    model = Classifier()
    torch.jit.save(torch.jit.script(model.classifier), tmp_path / "m.pt")
    np.testing.assert_array_equal(load(tmp_path / "m.pt").weight, model.classifier.weight.detach())


class Attack:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("how", ["plain", "zip", "legacy", "beside weights"])
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path, how: str, protocol: int) -> None:
    touched = tmp_path / "touched"
    attack = Attack(exec, f"open({str(touched)!r}, 'w')")
    path = tmp_path / "m.pt"
    if how == "plain":
        path.write_bytes(pickle.dumps(attack, protocol))
    elif how == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("m/data.pkl", pickle.dumps({"weight": attack}, protocol))
    elif how == "legacy":
        with path.open("wb") as file:
            for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, attack, []):
                pickle.dump(part, file, protocol)
    else:
        torch.save({"weight": W, "extra": attack}, path, pickle_protocol=protocol)
    with pytest.raises(UncorkError, match=r"calls (builtins|__builtin__).exec.*Nothing was run"):
        load(path)
    assert not touched.exists()


@pytest.mark.parametrize("name", ["posix.system", "subprocess.Popen", "builtins.eval", "os.system"])
def test_calls_that_no_checkpoint_makes_are_named(tmp_path: Path, name: str) -> None:
    module, _, function = name.rpartition(".")
    call = f"c{module}\n{function}\n(S'touch here'\ntR.".encode()
    (tmp_path / "m.bin").write_bytes(b"\x80\x02" + call)
    with pytest.raises(UncorkError, match=name):
        load(tmp_path / "m.bin")


def test_a_pickle_of_something_else_says_so(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(pickle.dumps({"weight": [[1.0, 2.0], [3.0, 4.0]]}))
    with pytest.raises(UncorkError, match="holds no tensors"):
        load(tmp_path / "m.pt")


@BOTH
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (lambda: W.to_sparse(), "is sparse: save it with to_dense"),
        (lambda: torch.quantize_per_tensor(W, 0.1, 0, torch.qint8), "is quantised"),
        (lambda: W[0].expand(5, 3), "repeats its elements"),
        (lambda: torch.empty(4, 3, device="meta"), "meta tensor"),
        (lambda: torch.complex(W, W).conj().imag, "stored negated"),
    ],
)
def test_tensors_without_plain_values_are_named(
    tmp_path: Path, tensor: Any, message: str, zipped: bool
) -> None:
    path = save({"weight": W, "odd.weight": tensor()}, tmp_path / "m.pt", zipped)
    np.testing.assert_array_equal(load(path, weight="weight").weight, W.numpy())
    contents = read_torch(path)
    with pytest.raises(UncorkError, match=rf"'odd.weight'.*{message}"):
        contents.tensors["odd.weight"].read()


def test_compressed_archives_are_refused_not_misread(tmp_path: Path) -> None:
    save({"weight": W}, tmp_path / "m.pt")
    with (
        zipfile.ZipFile(tmp_path / "m.pt") as old,
        zipfile.ZipFile(tmp_path / "z.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(UncorkError, match="is compressed"):
        load(tmp_path / "z.pt")


def test_weights_of_the_other_byte_order_are_turned(tmp_path: Path) -> None:
    save({"weight": W}, tmp_path / "m.pt")
    with (
        zipfile.ZipFile(tmp_path / "m.pt") as old,
        zipfile.ZipFile(tmp_path / "b.pt", "w") as new,
    ):
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("byteorder"):
                data = b"big"
            elif "/data/" in name:
                data = np.frombuffer(data, "<f4").astype(">f4").tobytes()
            new.writestr(name, data)
    np.testing.assert_array_equal(load(tmp_path / "b.pt").weight, W.numpy())


# fairseq


def fairseq(layers: int = 2, d: int = 4, width: int = 4, classes: int = 12) -> dict[str, Any]:
    state = {"decoder.version": torch.Tensor([3]), "encoder.embed_tokens.weight": torch.randn(9, d)}
    state["decoder.embed_tokens.weight"] = torch.randn(classes, width)
    for n in range(layers):
        state[f"decoder.layers.{n}.final_layer_norm.weight"] = torch.rand(d) + n
        state[f"decoder.layers.{n}.final_layer_norm.bias"] = torch.randn(d)
        state[f"decoder.layers.{n}.fc1.weight"] = torch.randn(5, d)
    return state


def test_fairseq_takes_its_output_projection_else_the_shared_embedding(tmp_path: Path) -> None:
    state = fairseq()
    args = argparse.Namespace(arch="transformer", decoder_normalize_before=False)
    found = find(save({"args": args, "model": state}, tmp_path / "a.pt"), domain="auto")
    assert found.weight_name == "decoder.embed_tokens.weight"
    assert "shares its input embedding" in found.why
    norm = "decoder.layers.1.final_layer_norm"
    assert found.head.domain == LayerNorm(
        state[f"{norm}.weight"].numpy(), state[f"{norm}.bias"].numpy()
    )
    state["decoder.output_projection.weight"] = torch.randn(12, 4)
    found = find(save({"args": args, "model": state}, tmp_path / "b.pt"))
    assert found.weight_name == "decoder.output_projection.weight"


def test_fairseq_with_norms_before_ends_in_the_decoders_own(tmp_path: Path) -> None:
    state = fairseq(d=6, width=4)
    state["decoder.layer_norm.weight"], state["decoder.layer_norm.bias"] = (
        torch.rand(6),
        torch.rand(6),
    )
    state["decoder.project_out_dim.weight"] = torch.randn(4, 6)
    found = find(save({"cfg": {"model": {}}, "model": state}, tmp_path / "m.pt"), domain="auto")
    assert isinstance(found.head.domain, Image)
    assert "decoder.layer_norm" in found.domain_from
    hidden = torch.nn.functional.layer_norm(
        torch.randn(50, 6) * 9, (6,), state["decoder.layer_norm.weight"],
        state["decoder.layer_norm.bias"],
    ) @ state["decoder.project_out_dim.weight"].T  # fmt: skip
    assert found.head.domain.contains(hidden.double().numpy(), 1e-5).all()


def test_fairseq_whose_norms_are_in_doubt_shows_no_domain(tmp_path: Path) -> None:
    state = fairseq()
    found = find(save({"model": state}, tmp_path / "m.pt"), domain="auto")
    assert found.shown_domain is None
    norm = {f"decoder.layer_norm.{part}": torch.ones(4) for part in ("weight", "bias")}
    old = {**state, **norm, "decoder.version": torch.Tensor([2])}
    assert find(save({"model": old}, tmp_path / "m.pt"), domain="auto").shown_domain is None


def test_fairseq_with_an_adaptive_softmax_is_refused(tmp_path: Path) -> None:
    state = fairseq() | {"decoder.adaptive_softmax.head.weight": W}
    with pytest.raises(UncorkError, match="adaptive softmax"):
        load(save({"model": state}, tmp_path / "m.pt"))


def test_fairseq_words_and_padding_come_from_dict_txt(tmp_path: Path) -> None:
    lines = ["the 100", "of 50", "cat 9", "madeupword0000 0", "madeupword0001 0"]
    (tmp_path / "dict.txt").write_text("\n".join(lines) + "\n")
    found = find(save({"model": fairseq(classes=9)}, tmp_path / "m.pt"))
    assert found.head.labels is not None
    assert found.head.labels[4:7] == ("the", "of", "cat")
    assert found.vocabulary.special == (0, 1, 2, 3)
    assert found.vocabulary.unused == (7, 8)
