"""The README is short, and what it shows is what happens."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from uncork.cli import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text("utf-8")


def test_its_example_and_the_reference_are_what_the_program_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make docs-reference` writes them anew; times are not compared."""
    recogniser()
    monkeypatch.setattr(sys, "argv", ["generated.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(DOCS / "generated.py"), run_name="__main__")
    assert ended.value.code == 0, capsys.readouterr().out


def test_it_is_short_and_the_install_comes_early() -> None:
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    assert len(prose.split()) < 750
    headings = re.findall(r"^## (.*)$", README, re.M)
    assert headings[0] == "Install"


def test_every_target_of_make_that_it_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.M))
    assert {"demo", "test", "docs", "bench", "lint", "clean"} <= targets
    named = set(re.findall(r"`make ([\w-]+)", README))
    assert {"demo", "test", "docs"} <= named <= targets


def test_every_link_leads_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)", README):
        assert (ROOT / link).exists(), link


def test_its_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").symlink_to(recogniser())
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    assert len(names["audit"].unargmaxable) == 202  # type: ignore[attr-defined]
    assert (tmp_path / "audit.html").exists()


def test_its_other_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a small head in place of the recogniser, which takes longer to repair."""
    monkeypatch.chdir(tmp_path)
    make_small_model(tmp_path / "model.onnx")
    lines = re.findall(r"`uncork ([^`]*model\.onnx[^`]*)`", README)
    assert {line.split()[0] for line in lines} == {
        "audit", "verify", "reach", "labels", "repair", "check",
    }  # fmt: skip
    for line in lines:
        ran = CliRunner().invoke(app, shlex.split(line), prog_name="uncork", catch_exceptions=False)
        fails = line.startswith("check")  # as it says: one class of this head is lost
        assert ran.exit_code == fails, f"{line}: {ran.output}"
    assert {"proofs.npz", "repaired.onnx"} <= {path.name for path in tmp_path.iterdir()}


def recogniser() -> Path:
    found = importlib.util.find_spec("rapidocr_onnxruntime")
    if found is None or not found.submodule_search_locations:
        pytest.skip("rapidocr-onnxruntime is not installed")
    return Path(found.submodule_search_locations[0]) / "models" / "ch_PP-OCRv4_rec_infer.onnx"


def make_small_model(path: Path) -> None:
    """Four classes, one of them inside the triangle of the others."""
    onnx = pytest.importorskip("onnx")
    weight = np.array([[0, 2], [2, -1], [-2, -1], [0, 0.1]], np.float32).T
    tensor = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Gemm", ["x", "weight", "bias"], ["z"])],
        "head",
        [tensor("x", onnx.TensorProto.FLOAT, ["n", 2])],
        [tensor("z", onnx.TensorProto.FLOAT, ["n", 4])],
        [onnx.numpy_helper.from_array(weight, "weight"),
         onnx.numpy_helper.from_array(np.zeros(4, np.float32), "bias")],
    )  # fmt: skip
    onnx.save(onnx.helper.make_model(graph), path)
