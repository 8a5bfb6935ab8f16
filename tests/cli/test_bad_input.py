"""A user's mistake: one clear line, status 2, nothing written, no traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from running import Run

from models import PP_OCR_V4


def _no_model(path: Path) -> None:
    path.write_text("this is no model\n")


def _truncated(path: Path) -> None:
    path.write_bytes(PP_OCR_V4.read_bytes()[: 5 << 20])


def _saved(**arrays: object) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)  # type: ignore[arg-type]


_W = np.eye(3)
BAD_FILES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "no model": ("m.bin", _no_model, "is not a .bin file"),
    "no model, named onnx": ("m.onnx", _no_model, "m.onnx"),
    "truncated": ("m.onnx", _truncated, "m.onnx"),
    "empty file": ("m.npz", lambda path: path.write_bytes(b""), "is empty"),
    "shapes that do not fit": ("m.npz", _saved(weight=_W, bias=np.ones(4)), "bias"),
    "NaN": ("m.npz", _saved(weight=_W * np.nan), "nan"),
    "infinity": ("m.npz", _saved(weight=_W, bias=np.array([0, np.inf, 0])), "inf"),
    "no rows": ("m.npz", _saved(weight=np.empty((0, 3))), "m.npz"),
    "no features": ("m.npz", _saved(weight=np.empty((3, 0))), "m.npz"),
    "one class": ("m.npz", _saved(weight=np.ones((1, 3))), "at least two classes"),
    "complex numbers": ("m.npz", _saved(weight=_W * 1j), "complex"),
}


@pytest.mark.parametrize("command", ["audit", "show", "verify"])
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_answered_with_one_line(
    run: Run, tmp_path: Path, name: str, command: str
) -> None:
    file, make, expected = BAD_FILES[name]
    make(tmp_path / file)
    out = tmp_path / "out"
    out.mkdir()
    arguments: dict[str, list[object]] = {
        "audit": [
            *(tmp_path / file, "--report", out / "r.html", "--certificates", out / "c.npz"),
            *("--store", out / "s.db"),
        ],
        "show": [tmp_path / file],
        "verify": [_certificates(run, tmp_path), tmp_path / file],
    }
    options = [*arguments[command], "--json", out / "j.json"]
    if name == "shapes that do not fit":
        options += ["--weight", "weight", "--bias", "bias"]
    assert expected in run(command, *options).error
    assert list(out.iterdir()) == []


def _certificates(run: Run, folder: Path) -> Path:
    np.savez(folder / "good.npz", weight=_W)
    assert run("audit", folder / "good.npz", "--certificates", folder / "c.npz").status == 0
    return folder / "c.npz"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--weight", "wieght"], "did you mean weight"),
        (["--bias", "nothing"], "no tensor 'nothing'"),
        (["--labels", "nowhere.txt"], "nowhere.txt does not exist"),
        (["--domain", "box:2,1"], "lower bound 2 is above upper bound 1"),
        (["--domain", "box:1,2;3,4"], "2 bounds but the head has 3 features"),
        (["--domain", "sphere"], "not understood"),
        (["--domain", "ball:-1"], "positive"),
        (["--domain", "automatic"], "not understood"),
        (["--classes", "0-2,x"], "'x' is not a class number"),
        (["--classes", "2-1"], "ends before it begins"),
        (["--classes", "0-99999999999999999"], "the head has classes 0 to 2"),
        (["--classes", ""], "no class number"),
        (["--classes", "@nowhere"], "nowhere does not exist"),
        (["--classes", "script:LATIN"], "needs labels"),
        (["--patience", "-1"], "patience"),
        (["--patience", "many"], "--patience"),
        (["--time-limit", "0"], "time limit"),
        (["--time-limit", "nan"], "time limit"),
        (["--jobs", "0"], "jobs"),
        (["--device", "abacus"], "abacus"),
        (["--algorithm", "guess"], "guess"),
        (["--unknown"], "--unknown"),
        (["--report", "no/folder/r.html"], "there is no folder no/folder"),
        (["--json", "."], "it is a folder"),
        (["--report", "-"], "only --json goes to stdout"),
        (["--json", "new.db", "--store", "new.db"], "would overwrite the store"),
        (["--json", "new.db", "--store", "sqlite:///new.db"], "would overwrite the store"),
        (["--certificates", "m.npz"], "would overwrite the model"),
        (["--certificates", "x", "--report", "x"], "would overwrite what --"),
        (["--domain", "@m.npz", "--certificates", "m.npz"], "would overwrite the"),
        (["--classes", "0,@m.npz", "--certificates", "m.npz"], "would overwrite the"),
        (["--baseline", "m.npz", "--certificates", "m.npz"], "would overwrite the"),
        (["--check", "x.onnx", "--data", "m.npz", "--junit", "m.npz"], "would overwrite the"),
        (["--store", ""], "the store's name is empty"),
    ],
)
def test_a_bad_option_is_answered_with_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "m.npz", weight=_W)
    before = (tmp_path / "m.npz").read_bytes()
    assert expected in run("audit", "m.npz", "--json", "j.json", *options).error
    assert [p.name for p in tmp_path.iterdir()] == ["m.npz"]
    assert (tmp_path / "m.npz").read_bytes() == before


@pytest.mark.parametrize("command", ["audit", "show", "verify", "random", "nonsense", ""])
def test_a_command_with_nothing_to_work_on_says_what_is_missing(run: Run, command: str) -> None:
    assert "--help" in run(*([command] if command else [])).error


def test_a_missing_file(run: Run, tmp_path: Path) -> None:
    for command in (["audit"], ["show"], ["verify", tmp_path / "c.npz"]):
        assert "does not exist" in run(*command, tmp_path / "m.onnx").error
    for name in ("runs[1]/m.onnx", "m[1.onnx"):  # no addresses, whatever brackets mean there
        assert "does not exist" in run("audit", name).error


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut short"])
def test_certificates_that_cannot_be_read(
    run: Run, square: Path, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "c.npz").write_bytes(content)
    assert "c.npz" in run("verify", tmp_path / "c.npz", square).error


@pytest.mark.parametrize("content", [b"x\n", b"\x93NUMPY\x01\x00", b"PK\x03\x04 cut short"])
def test_reach_says_what_it_checks(run: Run, square: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.txt").write_bytes(content)
    said = run("reach", square, "--check", tmp_path / "c.txt").error
    assert "c.txt: not a file of uncork reach --certificates: no zip archive" in said
    assert "pickle" not in said


def test_a_model_is_no_certificate(run: Run, square: Path) -> None:
    assert "not a certificate file" in run("verify", square, square).error


def test_the_real_program_gives_one_line_and_no_traceback(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "uncork", "audit", str(tmp_path / "none.onnx")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert ran.stdout == ""
    missing = f"{tmp_path / 'none.onnx'} does not exist: check the path (a hub id is hf:owner/name)"
    assert ran.stderr == f"uncork: error: {missing}\n"


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (["export", "s.csv", "--store", "s.csv"], "s.csv"),
        (["figure", "unargmaxable", "--store", "s.png", "-o", "s.png"], "s.png"),
        (["audit", "m.npz", "--save", "--json", "own.db"], "own.db"),
        (["audit", "folder", "--json", "folder/config.json"], "folder/config.json"),
    ],
)
def test_no_result_overwrites_a_store_or_a_models_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNCORK_STORE", "own.db")
    np.savez("m.npz", weight=_W)
    (tmp_path / "folder").mkdir()
    Path(file).write_bytes(b"dear to someone")
    assert "would overwrite" in run(*command).error
    assert Path(file).read_bytes() == b"dear to someone"


def test_a_result_in_the_models_folder_can_be_written_again(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", weight=_W)
    for _ in range(2):
        assert run("audit", tmp_path, "--json", tmp_path / "audit.json").status == 0


def test_a_model_without_a_name_is_not_the_folder_one_is_in(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("m.npz", weight=_W)
    assert "name is empty" in run("audit", "").error


def test_a_baseline_that_cannot_be_compared_is_said_before_anything_is_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("m.npz", weight=_W)
    np.savez("other.npz", weight=[[1, 1], [1, -1], [-1, 1], [-1, -1], [0.1, 0]])
    assert run("audit", "other.npz", "--json", "base.json").status == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    ran = run("audit", "m.npz", "--baseline", "base.json", "--json", "j.json", "--store", "s.db")
    assert "cannot be compared" in ran.error
    assert sorted(path.name for path in tmp_path.iterdir()) == names
