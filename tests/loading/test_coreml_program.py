"""Core ML's ML Programs: packages that coremltools wrote, held to torch and to its own decoding."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from test_coreml_file import field, model
from typer.testing import CliRunner

from uncork import UncorkError
from uncork.cli import app
from uncork.loading import find, load

MADE = Path(__file__).parent / "made" / "coreml"
INSIDE = Path("Data") / "com.apple.CoreML"
PROGRAM = 502
# How the domain begins, and what was worked into the weight.
PACKAGES = {
    "classifier": ("box:0,inf", ""),
    "text": ("image(offset, of rmsnorm(gain)", ""),
    "gated": ("rmsnorm", ""),
    "int8": ("box:0,inf", "dequantised: (code − zero point) times scale, in float64"),
    "table-2": ("box:0,inf", "picked from a table by codes of 2 bits"),
    "table-6": ("box:0,inf", "picked from a table by codes of 6 bits"),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_hold_the_head_that_coremltools_wrote(name: str) -> None:
    found = find(MADE / name / "m.mlpackage", domain="auto")
    with np.load(MADE / name / "expected.npz") as expected:
        weight, inputs = expected["weight"], expected["x"]
        bias = expected.get("bias")
    if name == "classifier":  # the package is in float16
        weight, bias = weight.astype(np.float16), np.asarray(bias, np.float16)
    if name == "int8":  # rounded to float32 by coremltools, not here
        np.testing.assert_array_equal(np.asarray(found.head.weight).astype(np.float32), weight)
    else:
        np.testing.assert_array_equal(found.head.weight, weight)
    # Without a bias coremltools writes one of zeros.
    np.testing.assert_array_equal(found.head.bias, np.zeros(12) if bias is None else bias)
    domain, folded = PACKAGES[name]
    assert str(found.head.domain).startswith(domain), found.domain_from
    assert found.head.reading is not None
    assert "".join(found.head.reading.folded) == folded
    assert not found.head.reading.doubts
    for row in inputs.astype(np.float64):
        assert found.head.domain.contains(row)


def test_the_model_file_itself_is_read_with_its_weights_beside_it() -> None:
    package = MADE / "classifier" / "m.mlpackage"
    head = load(package / INSIDE / "model.mlmodel")
    assert head.fingerprint == load(package).fingerprint
    assert head.labels == tuple(f"label {n}" for n in range(12))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    shutil.copytree(MADE / "text" / "m.mlpackage", tmp_path / "m.mlpackage")
    return tmp_path / "m.mlpackage"


def refused(package: Path, message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        load(package)
    done = CliRunner().invoke(app, ["audit", str(package)])
    assert (done.exit_code, done.stdout) == (2, "")


def test_missing_cut_and_foreign_weights_are_refused(package: Path) -> None:
    weights = package / INSIDE / "weights" / "weight.bin"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-9])
    refused(package, "truncated or damaged")
    weights.write_bytes(whole[:70])
    refused(package, "truncated")
    changed = bytearray(whole)
    at = whole.index(struct.pack("<I", 0xDEADBEEF))
    changed[at + 8 : at + 16] = struct.pack("<Q", 2**63)
    weights.write_bytes(bytes(changed))
    refused(package, "truncated or damaged")
    weights.unlink()
    refused(package, "does not lie beside it: give the whole .mlpackage")


def test_a_manifest_cannot_lead_outside_the_package(package: Path) -> None:
    manifest = package / "Manifest.json"
    said = json.loads(manifest.read_text())
    shutil.copy(package / INSIDE / "model.mlmodel", package.parent / "other.mlmodel")
    said["itemInfoEntries"][said["rootModelIdentifier"]]["path"] = "../../other.mlmodel"
    manifest.write_text(json.dumps(said))
    refused(package, "no manifest that names its model")
    manifest.write_text("{")
    refused(package, "no manifest that names its model")


def test_weights_cannot_lie_outside_the_package(package: Path) -> None:
    file = package / INSIDE / "model.mlmodel"
    whole = file.read_bytes()
    name = b"@model_path/weights/weight.bin"
    file.write_bytes(whole.replace(name, b"@model_path/../../../weights/a"))
    refused(package, "outside the package: refused")


def function(name: str, bodies: int = 1) -> bytes:
    block = field(1, "CoreML6") + field(2, field(2, "y"))
    return field(2, field(1, name) + field(2, field(3, block) * bodies))


DAMAGE = {
    "2 functions and none is main": function("a") + function("b"),
    "has 0 bodies": function("main", 0),
    "has 2 bodies": function("main", 2),
    "without operators or outputs": function("main"),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_programs_that_are_none_are_refused(message: str, tmp_path: Path) -> None:
    (tmp_path / "m.mlmodel").write_bytes(model(DAMAGE[message], kind=PROGRAM))
    refused(tmp_path / "m.mlmodel", message)


def test_a_model_may_name_the_function_that_runs(tmp_path: Path) -> None:
    file = tmp_path / "m.mlmodel"
    both = field(PROGRAM, function("main") + function("other", 2))
    file.write_bytes(field(1, 9) + field(2, field(21, "other")) + both)
    refused(file, "has 2 bodies")
    file.write_bytes(field(1, 9) + field(2, field(21, "third")) + both)
    refused(file, "2 functions and none is third: main, other")
