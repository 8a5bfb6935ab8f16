"""Compiled Core ML models: the text of their program, written as coremlc writes it."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from uncork import UncorkError
from uncork.cli import app
from uncork.loading import find, load

CLASSES, FEATURES = 6, 4
RANDOM = np.random.default_rng(0)
W = RANDOM.normal(size=(CLASSES, FEATURES)).astype(np.float16)
B = RANDOM.normal(size=CLASSES).astype(np.float16)


def hexed(values: np.ndarray) -> str:
    return ", ".join(float(value).hex() for value in values)


PROGRAM = f"""program(1.0)
[buildInfo = dict<tensor<string, []>, tensor<string, []>>({{{{"coremlc-version", "3402.4.1"}}}})]
{{
    func main<ios15>(tensor<fp32, [1, 5, {FEATURES}]> x) {{
            tensor<string, []> half = const()[name = tensor<string, []>("half"), val = tensor<string, []>("fp16")];
            tensor<fp16, [1, 5, {FEATURES}]> given = cast(dtype = half, x = x)[name = tensor<string, []>("cast_1")];
            tensor<fp16, [1, 5, {FEATURES}]> hidden = tanh(x = given)[name = tensor<string, []>("hidden")];
            tensor<fp16, [{CLASSES}, {FEATURES}]> head_weight = const()[name = tensor<string, []>("head_weight"), val = tensor<fp16, [{CLASSES}, {FEATURES}]>(BLOBFILE(path = tensor<string, []>("@model_path/weights/weight.bin"), offset = tensor<uint64, []>(64)))];
            tensor<fp16, [{CLASSES}]> head_bias = const()[name = tensor<string, []>("head_bias"), val = tensor<fp16, [{CLASSES}]>([{hexed(B)}])];
            tensor<fp16, [1, 5, {CLASSES}]> scores = linear(bias = head_bias, weight = head_weight, x = hidden)[name = tensor<string, []>("scores")];
            tensor<int32, []> axis = const()[name = tensor<string, []>("axis"), val = tensor<int32, []>(-1)];
            tensor<fp16, [1, 5, {CLASSES}]> shares = softmax(axis = axis, x = scores)[name = tensor<string, []>("shares")];
            tensor<fp16, []> none = const()[name = tensor<string, []>("none"), val = tensor<fp16, []>(0x0p+0)];
            tensor<fp16, [1, 5, {CLASSES}]> logs = log(epsilon = none, x = shares)[name = tensor<string, []>("logs")];
        }} -> (logs);
}}
"""  # noqa: E501


def compiled(folder: Path, text: str = PROGRAM) -> Path:
    """A folder as coremlc leaves it: the text, and the weights behind their headers."""
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    (folder / "coremldata.bin").write_bytes(bytes(8))
    (folder / "model.mil").write_text(text)
    header = struct.pack("<IIQQ", 0xDEADBEEF, 1, W.nbytes, 128) + bytes(40)
    (folder / "weights" / "weight.bin").write_bytes(bytes(64) + header + W.tobytes())
    return folder


def test_the_head_of_a_compiled_model(tmp_path: Path) -> None:
    found = find(compiled(tmp_path / "m.mlmodelc"), domain="auto")
    np.testing.assert_array_equal(found.head.weight, W)
    np.testing.assert_array_equal(found.head.bias, B)
    assert found.weight_name == "head_weight"
    assert str(found.head.domain).startswith("box:-1.00")
    assert "Tanh (hidden)" in found.domain_from
    assert found.head.reading is not None
    assert not found.head.reading.doubts


def test_of_several_functions_main_is_read(tmp_path: Path) -> None:
    inside = PROGRAM[PROGRAM.index("    func main") : PROGRAM.rindex("}")]
    other = inside.replace("func main", "func other").replace("bias = head_bias, ", "")
    text = PROGRAM.replace(inside, other + inside)
    np.testing.assert_array_equal(load(compiled(tmp_path / "m.mlmodelc", text)).bias, B)
    with pytest.raises(UncorkError, match="2 functions and none is main"):
        load(compiled(tmp_path / "m.mlmodelc", text.replace("func main", "func third")))


def test_names_that_begin_as_numbers_and_attributes_of_a_function(tmp_path: Path) -> None:
    shapes = ' x) [Shapes = tuple<string>((("Default", {{"x", [1, 5]}})))] {'
    text = PROGRAM.replace("hidden", "inference").replace(" x) {", shapes)
    np.testing.assert_array_equal(load(compiled(tmp_path / "m.mlmodelc", text)).weight, W)


def test_a_bias_of_a_type_that_is_not_read_is_not_left_out(tmp_path: Path) -> None:
    place = PROGRAM[PROGRAM.index("(BLOBFILE") : PROGRAM.index(";", PROGRAM.index("BLOBFILE")) - 1]
    text = PROGRAM.replace(f"tensor<fp16, [6]>([{hexed(B)}])", f"tensor<int4, [6]>{place}")
    assert text != PROGRAM
    with pytest.raises(UncorkError, match="no output comes from"):
        load(compiled(tmp_path / "m.mlmodelc", text))


DAMAGE = {
    "is no program": '\\"' * 1_000_000,  # a text that begins everywhere and never ends
    "is there twice": PROGRAM.replace("head_bias = const", "head_weight = const"),
    "is no program, or truncated": PROGRAM[:900],
    "without operators or outputs": PROGRAM.split("{")[0] + "{ func main() { } -> (y); }",
    "outside the package: refused": PROGRAM.replace("@model_path/weights", "@model_path/../x"),
    "no header at byte": PROGRAM.replace("uint64, []>(64)", "uint64, []>(99999)"),
    r"does not fit \(7,\)": PROGRAM.replace("[6]>([", "[7]>(["),
    "truncated or damaged": PROGRAM.replace("[6, 4]", "[6, 5]"),
    "nested|no program": PROGRAM.replace(
        "(bias = head_bias", "(bias = " + "(" * 5000 + "head_bias"
    ),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_refused_in_one_line(message: str, tmp_path: Path) -> None:
    folder = compiled(tmp_path / "m.mlmodelc", DAMAGE[message])
    with pytest.raises(UncorkError, match=message):
        load(folder)
    done = CliRunner().invoke(app, ["audit", str(folder)])
    assert (done.exit_code, done.stdout) == (2, "")
