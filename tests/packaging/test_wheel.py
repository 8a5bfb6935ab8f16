"""What people get who type `pip install uncork`, with none of the extras."""

from __future__ import annotations

import email
import hashlib
import json
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

import uncork

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src"


def source_files() -> set[str]:
    """What lies in the package's folder, as the wheel would name it."""
    return {
        file.relative_to(PACKAGE).as_posix()
        for file in (PACKAGE / "uncork").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def contents(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_package_with_its_data_files_and_nothing_else(wheel: Path) -> None:
    names = set(contents(wheel))
    own = {name for name in names if ".dist-info/" not in name}
    assert own == source_files()
    assert {"uncork/py.typed", "uncork/report/page.html"} <= own
    for folder in ("report/assets/", "web/static/", "web/templates/", "store/migrations/versions/"):
        assert any(name.startswith(f"uncork/{folder}") for name in own), folder
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_holds_what_the_wheel_is_built_from_and_no_tests(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    outside = {name for name in names if not name.startswith("src/uncork/")}
    assert outside == {
        ".gitignore", "CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md",
        "pyproject.toml",
    }  # fmt: skip
    assert {f"src/{name}" for name in source_files()} == names - outside


def test_the_sdist_builds_the_same_wheel(wheel: Path, wheel_of_sdist: Path) -> None:
    assert wheel_of_sdist.name == wheel.name
    assert contents(wheel_of_sdist) == contents(wheel)


def test_the_metadata_says_who_what_and_which_extras(wheel: Path) -> None:
    said = metadata(wheel)
    assert said["Version"] == uncork.__version__
    assert said["Author"] == "The uncork authors"
    assert said["License-Expression"] == "MIT"
    assert {url.partition(",")[0] for url in said.get_all("Project-URL", [])} >= {"Source"}
    extras = set(said.get_all("Provides-Extra", []))
    assert extras >= {"torch", "hf", "onnx", "gguf", "web", "postgres", "cluster", "all", "store"}
    needed = [line for line in said.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not [line for line in needed if line.startswith(("torch", "sqlalchemy", "safetensors"))]


@pytest.fixture
def square(tmp_path: Path) -> Path:
    """Four corners, the last of them twice, and a class in the middle that can never win."""
    corners = np.array([[1, 1], [1, -1], [-1, 1], [0.1, 0], [-1, -1], [-1, -1]], dtype=np.float32)
    path = tmp_path / "square.npz"
    np.savez(path, weight=corners, bias=np.zeros(6, dtype=np.float32))
    return path


def run(
    python: Path, *arguments: object, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the environment's own Python, away from the source tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(python), *map(str, arguments)],
        capture_output=True, text=True, encoding="utf-8", cwd=folder or python.parent, env=kept,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.network
class TestInstalled:
    """The wheel in an environment with its core dependencies only."""

    def test_the_import_finds_the_installed_package(self, python: Path) -> None:
        done = run(python, "-c", "import uncork; print(uncork.__version__, uncork.__file__)")
        version, place = done.stdout.split(maxsplit=1)
        assert version == uncork.__version__
        assert python.parent.parent in Path(place.strip()).parents

    def test_the_program_helps(self, python: Path) -> None:
        program = python.with_name(python.name.replace("python", "uncork"))
        done = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("Usage: uncork")

    def test_an_audit_decides_proves_and_verifies(
        self, python: Path, square: Path, tmp_path: Path
    ) -> None:
        proofs, page = tmp_path / "proofs.npz", tmp_path / "page.html"
        done = run(
            python, "-m", "uncork", "audit", square, "--json", "-", "--certificates", proofs,
            "--report", page, "--quiet",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said["counts"] == {
            "argmaxable": 3, "unargmaxable": 1, "tied": 2, "undecided": 0,
        }  # fmt: skip
        assert said["proven"] is True
        assert [found["class"] for found in said["unargmaxable"]] == [3]
        assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
        assert run(python, "-m", "uncork", "verify", proofs, square).returncode == 0

    @pytest.mark.parametrize(
        ("command", "extra"),
        [
            (["audit", "square.npz", "--store", "results.db"], "store"),
            (["sweep", "sweep.toml", "--store", "results.db"], "store"),
            (["table", "--store", "results.db"], "store"),
            (["serve", "--store", "results.db"], "web"),
        ],
        ids=lambda value: value[0] if isinstance(value, list) else "",
    )
    def test_what_keeps_results_asks_for_its_extra_before_any_work(
        self, python: Path, square: Path, command: list[str], extra: str
    ) -> None:
        folder = square.parent
        (folder / "sweep.toml").write_text('[[model]]\nsource = "square.npz"\n', encoding="utf-8")
        before = sorted(folder.iterdir())
        done = run(python, "-m", "uncork", *command, folder=folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert f"pip install 'uncork[{extra}]'" in done.stderr
        assert sorted(folder.iterdir()) == before

    def test_every_module_imports_or_names_the_extra_it_needs(self, python: Path) -> None:
        done = run(python, "-c", IMPORT_ALL)
        assert done.returncode == 0, done.stderr
        refused = json.loads(done.stdout)
        assert set(refused.values()) <= EXTRA_LIBRARIES, refused
        rooms = {name.split(".")[1] for name in refused}
        assert not rooms & {"auditing", "cli", "core", "domain", "reach", "repair", "save"}, refused
        assert "uncork.web.playground" not in refused


EXTRA_LIBRARIES = {
    "alembic", "distributed", "fastapi", "h11", "matplotlib", "onnx", "sqlalchemy", "store",
    "torch", "triton", "uvicorn",
}  # fmt: skip
# Prints a JSON object: each module that cannot be imported → the library or extra that is missing.
IMPORT_ALL = r"""
import importlib, json, pkgutil, re, uncork
refused = {}
for found in pkgutil.walk_packages(uncork.__path__, "uncork.", lambda name: None):
    name = found.name
    if name.endswith("__main__") or ".migrations" in name:
        continue
    try:
        importlib.import_module(name)
    except (ImportError, uncork.UncorkError) as error:
        while error.__cause__ is not None:
            error = error.__cause__
        asked = re.search(r"uncork\[(\w+)\]", str(error))
        refused[name] = (getattr(error, "name", None) or asked[1]).split(".")[0]
print(json.dumps(refused))
"""
