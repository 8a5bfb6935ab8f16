"""The wheel and the sdist, built once, and an environment that holds the wheel and what it needs.

All three are shared by the processes of a test run: whoever comes first makes them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder` as `make` fills it, in whichever process asks first; the others wait."""
    done, failed = folder.with_suffix(".done"), folder.with_suffix(".failed")
    try:
        folder.mkdir()
    except FileExistsError:
        while not done.exists():
            assert not failed.exists(), f"another process could not make {folder}"
            time.sleep(0.1)
        return folder
    try:
        make(folder)
    except BaseException:
        failed.touch()
        raise
    done.touch()
    return folder


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of one test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def build(source: Path, target: Path, kind: str) -> Path:
    """Build with the hatchling that is installed: no other environment, nothing downloaded."""
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)],
        cwd=source, check=True, capture_output=True,
    )  # fmt: skip
    (built,) = target.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return built


@pytest.fixture(scope="session")
def wheel(shared: Path) -> Path:
    """The wheel of the working tree."""
    folder = once(shared / "wheel", lambda folder: void(build(ROOT, folder, "wheel")))
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def sdist(shared: Path) -> Path:
    """The source archive of the working tree."""
    folder = once(shared / "sdist", lambda folder: void(build(ROOT, folder, "sdist")))
    return next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="session")
def wheel_of_sdist(shared: Path, sdist: Path) -> Path:
    """The wheel that somebody builds who has only the source archive."""

    def make(folder: Path) -> None:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        build(folder / sdist.name.removesuffix(".tar.gz"), folder, "wheel")

    return next(once(shared / "wheel-of-sdist", make).glob("*.whl"))


@pytest.fixture(scope="session")
def python(shared: Path, wheel: Path) -> Path:
    """The Python of an environment with the wheel and its core dependencies, and nothing else."""

    def make(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        install = ["-m", "pip", "install", "--quiet", "--no-compile", str(wheel)]
        done = subprocess.run([program(folder, "python"), *install], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    return program(once(shared / "environment", make), "python")


def program(environment: Path, name: str) -> Path:
    windows = os.name == "nt"
    return environment / ("Scripts" if windows else "bin") / (name + ".exe" * windows)


def void(_: object) -> None:
    pass
