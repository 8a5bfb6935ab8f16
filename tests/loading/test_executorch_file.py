"""ExecuTorch's .pte: programs its own tools wrote, held to what its own runtime computes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from uncork import UncorkError
from uncork.cli import app
from uncork.loading import find, load
from uncork.loading.aten.contents import contents_of_program
from uncork.loading.aten.program import About, Constant, Operation, Program, Ref
from uncork.loading.contents import FoundDomain

MADE = Path(__file__).parent / "made" / "executorch"
# How the domain begins (None: the program shows none).
PROGRAMS = {
    "images": "box:0,6",
    "text": "rmsnorm",
    "xnnpack-text": "rmsnorm",
    "xnnpack-dense": "box:0,inf",
    "xnnpack-int8": None,  # inputs are rounded to 8 bits
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_head_is_the_one_that_executorch_computes_with(name: str) -> None:
    found = find(MADE / name / "m.pte", domain="auto")
    with np.load(MADE / name / "expected.npz") as expected:
        weight, inputs, scores = (expected[key] for key in ("weight", "x", "z"))
        bias = expected.get("bias")
    np.testing.assert_array_equal(found.head.weight, weight)
    assert (found.head.bias is None) == (bias is None)
    if bias is not None:
        np.testing.assert_array_equal(found.head.bias, bias)
    own = inputs.astype(np.float64) @ np.asarray(found.head.weight, np.float64).T
    own = own if found.head.bias is None else own + found.head.bias
    np.testing.assert_array_equal(own.argmax(-1), scores.argmax(-1))
    assert found.head.reading is not None
    assert not found.head.reading.doubts
    domain = PROGRAMS[name]
    if domain is None:
        assert found.shown_domain is None
        assert "rounds the inputs of such a layer to 8 bits" in found.head.reading.folded[0]
    else:
        assert str(found.head.domain).startswith(domain)
        assert all(found.head.domain.contains(row.astype(np.float64)) for row in inputs)


def test_kernels_and_xnnpack_are_two_forms_of_one_head() -> None:
    both = [load(MADE / name / "m.pte") for name in ("text", "xnnpack-text")]
    assert both[0].fingerprint == both[1].fingerprint


def test_a_folder_with_one_program_is_that_program(tmp_path: Path) -> None:
    whole = (MADE / "text" / "m.pte").read_bytes()
    (tmp_path / "m.pte").write_bytes(whole)
    assert load(tmp_path).fingerprint == load(MADE / "text" / "m.pte").fingerprint


def refused(path: Path, message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        find(path, domain="auto")
    done = CliRunner().invoke(app, ["audit", str(path)])
    assert (done.exit_code, done.stdout) == (2, "")


def test_a_part_for_another_backend_is_named(tmp_path: Path) -> None:
    whole = (MADE / "xnnpack-dense" / "m.pte").read_bytes()
    (tmp_path / "m.pte").write_bytes(whole.replace(b"XnnpackBackend", b"VulkanBackend\0"))
    refused(tmp_path / "m.pte", "was compiled for VulkanBackend")


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_cut_off_is_refused(name: str, tmp_path: Path) -> None:
    whole = (MADE / name / "m.pte").read_bytes()
    for size in (9, 40, len(whole) // 2, len(whole) - len(whole) // 8):
        (tmp_path / "m.pte").write_bytes(whole[:size])
        refused(tmp_path / "m.pte", "truncated|damaged|not there|past its end")


def test_a_constant_that_claims_more_than_there_is(tmp_path: Path) -> None:
    """The head's own shape, as four bytes a side, made larger."""
    whole = (MADE / "images" / "m.pte").read_bytes()
    shape = struct.pack("<3I", 2, 12, 8)
    assert shape in whole
    for side in (13, 2**30, 2**31 - 1):
        (tmp_path / "m.pte").write_bytes(whole.replace(shape, struct.pack("<3I", 2, side, 8)))
        refused(tmp_path / "m.pte", "not there: truncated or damaged")


def test_lists_that_many_calls_share_are_counted_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uncork.loading.executorch.program._MOST_ENTRIES", 20)
    (tmp_path / "m.pte").write_bytes((MADE / "images" / "m.pte").read_bytes())
    refused(tmp_path / "m.pte", "calls with too many arguments")


def test_files_with_the_name_alone_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.pte").write_bytes(bytes(100))
    refused(tmp_path / "m.pte", "is not a .pte file, whatever its name")


def test_numbers_beside_halves_are_not_rounded_to_halves(tmp_path: Path) -> None:
    """torch multiplies in float32: 1.9990234375 times 1.00048 is 2 in float16."""
    half = np.dtype("float16")
    weight = Constant("head", (3, 4), half, lambda: np.eye(3, 4).astype(half))
    values = {name: About(half, (1, 4)) for name in "xab"} | {"z": About(half, (1, 3))}
    calls = [
        Operation("aten.clamp", "", {}, (Ref("x"), 0.0, 1.9990234375), ("a",)),
        Operation("aten.mul", "", {}, (Ref("a"), 1.00048), ("b",)),
        Operation("aten.linear", "", {}, (Ref("b"), Ref("w")), ("z",)),
    ]
    program = Program(tmp_path / "m.pte", ["x"], ["z"], {"w": weight}, values, calls)
    contents = contents_of_program(program, "executorch", "")
    found = contents.domain(contents.choose())
    assert isinstance(found, FoundDomain)
    assert found.domain.contains(np.full(4, 2.0))
