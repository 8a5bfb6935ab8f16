"""Paddle: programs old and new, parameters in order, labels; held to what Paddle computes.

The models in made/paddle were written by paddlepaddle itself, by made/make_paddle.py.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import yaml

from uncork import UncorkError
from uncork.loading import find
from uncork.loading.onnx.file import OnnxModel
from uncork.loading.paddle.labels import labels_beside, listed
from uncork.loading.paddle.operators import Translation
from uncork.loading.paddle.parameters import Parameter
from uncork.loading.paddle.program import Operator, Program, Variable

MADE = Path(__file__).parent / "made" / "paddle"
MODELS = sorted(path.parent.relative_to(MADE).as_posix() for path in MADE.rglob("computed.npz"))
DOMAINS = {
    "recogniser": "Swish", "classifier": "box:0,6", "tagger": "LSTM", "encoder": "LayerNorm",
}  # fmt: skip


def copied(model: str, folder: Path) -> Path:
    shutil.copytree(MADE / model, folder / "model")
    return folder / "model"


@pytest.mark.parametrize("model", MODELS)
def test_the_head_computes_what_paddle_computes(model: str) -> None:
    found = find(MADE / model, domain="auto")
    computed = np.load(MADE / model / "computed.npz")
    head = found.head
    x = computed["x"].reshape(-1, head.features).astype(np.float64)
    z = computed["z"].reshape(-1, head.classes)
    logits = x @ np.asarray(head.weight, np.float64).T + np.asarray(head.bias, np.float64)
    np.testing.assert_allclose(logits, z, atol=1e-5)
    assert logits.std(axis=0).min() > 0.01  # so that agreeing is no accident
    assert all(head.domain.contains(row, 1e-6) for row in x)
    name = model.rpartition("/")[2]
    assert DOMAINS[name] in f"{found.domain_from} {head.domain}"
    assert found.contents.format == "paddle"
    assert not found.head.reading.doubts


def test_the_one_file_of_parameters_is_in_the_order_of_names() -> None:
    """Read for themselves, in order, the bytes are those that each name stands for."""
    found = find(MADE / "newer" / "recogniser")
    data = (MADE / "newer" / "recogniser" / "inference.pdiparams").read_bytes()
    stored = [t for name, t in sorted(found.contents.tensors.items()) if "_0." in name]
    place = 0
    for tensor in stored:
        place = data.index(b"\x08\x05", place)
        place += 2 + 2 * len(tensor.shape)
        values = np.frombuffer(data, "<f4", int(np.prod(tensor.shape)), place)
        np.testing.assert_array_equal(tensor.read(), values.reshape(tensor.shape))
        place += values.nbytes
    assert place == len(data)


@pytest.mark.parametrize("kind", ["older", "newer"])
@pytest.mark.parametrize("end", ["", "inference.pdiparams", "inference.*[ln]"])
def test_a_model_is_found_from_its_folder_its_program_or_its_parameters(
    kind: str, end: str
) -> None:
    folder = MADE / kind / "recogniser"
    path = next(p for p in sorted(folder.glob(end)) if p.suffix != ".yml") if end else folder
    head = find(path).head
    assert head.fingerprint == find(folder).head.fingerprint
    assert head.labels == ("<blank>", "!", "a", "'", "\u3000", "-", "宀", "1", " ")


def test_characters_are_read_as_yaml_reads_them() -> None:
    text = (MADE / "newer" / "recogniser" / "inference.yml").read_text(encoding="utf-8")
    assert listed(text, "character_dict") == yaml.safe_load(text)["PostProcess"]["character_dict"]
    every = [chr(k) for k in (*range(33, 127), 0xA0, 0x3000, 0x4E00, 0x1F600, 9)]
    written = yaml.safe_dump({"PostProcess": {"label_list": every}}, allow_unicode=True)
    assert listed(written, "label_list") == every
    assert listed("a: 1\n", "label_list") is None
    assert listed("label_list:\n- &a b\n- *a\n", "label_list") is None  # more than a list of texts


def test_a_list_of_characters_beside_the_model_names_the_classes(tmp_path: Path) -> None:
    folder = copied("newer/recogniser", tmp_path)
    (folder / "inference.yml").unlink()
    (folder / "ppocr_keys_v1.txt").write_text("".join(f"{c}\n" for c in "abcdefg"))
    assert find(folder).head.labels == ("<blank>", *"abcdefg", " ")
    found = find(folder, labels=folder / "ppocr_keys_v1.txt")
    assert found.vocabulary.source.endswith("blank first, space last")
    (folder / "ppocr_keys_v1.txt").write_text("a\nb\n")
    said = labels_beside(folder, 9)
    assert said.labels is None
    assert "2 labels for 9 classes" in said.source


def test_parameters_of_a_file_each(tmp_path: Path) -> None:
    """As before Paddle 2: the program is called __model__, a parameter's file as the parameter."""
    folder = copied("older/recogniser", tmp_path)
    whole = find(folder)
    for name, tensor in whole.contents.tensors.items():
        if not name.endswith(("_0", "_1", "_2")) or "constant" in name:
            continue
        described = b"\x08\x05" + b"".join(b"\x10" + bytes([n]) for n in tensor.shape)
        start = struct.pack("<IQIi", 0, 0, 0, len(described)) + described
        (folder / name).write_bytes(start + tensor.read().tobytes())
    (folder / "inference.pdmodel").rename(folder / "__model__")
    (folder / "inference.pdiparams").unlink()
    for path in (folder, folder / "__model__"):
        assert find(path).head.fingerprint == whole.head.fingerprint
    (folder / "__model__").unlink()
    alone = find(folder / whole.weight_name)  # and without a program at all
    assert alone.bias_name == whole.bias_name
    assert alone.head.fingerprint == whole.head.fingerprint
    with (folder / whole.weight_name).open("ab") as file:
        file.write(b"more")
    with pytest.raises(UncorkError, match="4 bytes follow its values"):
        find(folder / whole.weight_name)
    shutil.copy(MADE / "older" / "recogniser" / "inference.pdmodel", folder / "__model__")
    (folder / whole.weight_name).unlink()
    with pytest.raises(UncorkError, match=f"{whole.weight_name}' has no file of its own"):
        find(folder)


def test_a_crf_after_the_head_is_said() -> None:
    """A CRF chooses the best path, not the best class."""
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    variables = {
        name: Variable(np.dtype("<f4"), dims, kept)
        for name, dims, kept in (("x", (-1, 2), False), ("w", (2, 3), True), ("z", (-1, 3), False))
    }
    operators = [
        Operator("feed", {}, {"Out": ["x"]}),
        Operator("mul", {"X": ["x"], "Y": ["w"]}, {"Out": ["z"]}, {"x_num_col_dims": 1}),
        Operator("crf_decoding", {"Transition": ["w"], "Emission": ["z"]}, {"ViterbiPath": ["p"]}),
        Operator("fetch", {"X": ["p"]}),
    ]
    program = Program(Path("m"), variables, operators)
    stored = Parameter("w", (2, 3), np.dtype("<f4"), lambda: weight)
    choice = OnnxModel(program.path, Translation(program, [stored]).draft).choose()
    np.testing.assert_array_equal(choice.weight, weight.T)
    assert len(choice.doubts) == 1
    assert "paddle::crf_decoding" in choice.doubts[0]


def test_a_variable_that_is_written_twice_is_two_values() -> None:
    """What an operator writes into a parameter's place is not that parameter any more."""
    values = np.eye(2, dtype=np.float32)
    variables = {name: Variable(np.dtype("<f4"), (2, 2), name == "w") for name in "xwz"}
    operators = [
        Operator("feed", {}, {"Out": ["x"]}),
        Operator("my_op", {"X": ["w"]}, {"Out": ["w"]}),
        Operator("matmul_v2", {"X": ["x"], "Y": ["w"]}, {"Out": ["z"]}),
        Operator("fetch", {"X": ["z"]}),
    ]
    program = Program(Path("m"), variables, operators)
    stored = Parameter("w", (2, 2), np.dtype("<f4"), lambda: values)
    model = OnnxModel(program.path, Translation(program, [stored]).draft)
    with pytest.raises(UncorkError, match="no output comes from"):
        model.choose()


def test_another_programs_parameters_are_refused(tmp_path: Path) -> None:
    folder = copied("older/recogniser", tmp_path)
    shutil.copy(MADE / "older" / "classifier" / "inference.pdiparams", folder)
    with pytest.raises(UncorkError, match="another program, or damaged"):
        find(folder)
    (folder / "inference.pdiparams").unlink()
    with pytest.raises(UncorkError, match="put them there"):
        find(folder / "inference.pdmodel")


def test_a_parameter_cannot_lie_outside_the_folder(tmp_path: Path) -> None:
    folder = copied("older/recogniser", tmp_path)
    (folder / "inference.pdiparams").unlink()
    program = (folder / "inference.pdmodel").read_bytes().replace(b"linear_0.w_0", b"../../../x_0")
    (folder / "inference.pdmodel").unlink()
    (folder / "__model__").write_bytes(program)
    with pytest.raises(UncorkError, match="outside the model's folder"):
        find(folder)


def test_parameters_alone_say_what_is_missing(tmp_path: Path) -> None:
    shutil.copy(MADE / "older" / "classifier" / "inference.pdiparams", tmp_path)
    with pytest.raises(UncorkError, match="does not lie beside it: put it there"):
        find(tmp_path / "inference.pdiparams")
