"""What an import costs: no library is loaded that the work at hand does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HEAVY = {
    "alembic", "fastapi", "gguf", "h5py", "highspy", "huggingface_hub", "matplotlib", "onnx",
    "onnxruntime", "pandas", "PIL", "pyarrow", "ray", "scipy", "sqlalchemy", "torch",
    "transformers", "triton", "uvicorn",
}  # fmt: skip
LOADED = "import json, sys; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"


def run(program: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, encoding="utf-8", cwd=folder,
    )  # fmt: skip


@pytest.mark.parametrize(
    "program",
    [
        "import uncork",
        "import uncork.cli",
        "from typer.testing import CliRunner; from uncork.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0",
        "from typer.testing import CliRunner; from uncork.cli import app\n"
        "assert CliRunner().invoke(app, ['audit', '--help']).exit_code == 0",
    ],
    ids=["import uncork", "import uncork.cli", "uncork --help", "uncork audit --help"],
)
def test_no_heavy_library_is_loaded_by(program: str) -> None:
    done = run(f"{program}\n{LOADED}")
    assert done.returncode == 0, done.stderr
    assert HEAVY & set(json.loads(done.stdout)) == set()


# As on Windows: modules that only POSIX systems have cannot be found.
WITHOUT_POSIX = """
import sys
POSIX = ("fcntl", "grp", "pwd", "resource", "termios", "tty")
sys.modules.update(dict.fromkeys(POSIX))
"""
IMPORT_ALL = """
import importlib, pkgutil, uncork
for found in pkgutil.walk_packages(uncork.__path__, "uncork.", lambda name: None):
    if found.name.startswith(("uncork.nn", "uncork.__main__", "uncork.store.migrations")):
        continue
    if found.name == "uncork.workers.held_value":  # Dask's; its psutil asks which system this is
        continue
    try:
        importlib.import_module(found.name)
    except (ImportError, uncork.UncorkError) as error:  # a library that is not installed
        if getattr(error, "name", None) in POSIX:
            raise
"""
SWEEP = """
from typer.testing import CliRunner
from uncork.cli import app
ran = CliRunner().invoke(app, ["sweep", "sweep.toml", "--store", "results.db"])
sys.stderr.write(ran.stderr)
sys.exit(ran.exit_code)
"""


def test_without_posix_every_module_imports() -> None:
    done = run(WITHOUT_POSIX + IMPORT_ALL)
    assert done.returncode == 0, done.stderr


def test_without_posix_a_sweep_says_what_to_do_instead(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    np.save(tmp_path / "head.npy", np.eye(3, dtype=np.float32))
    (tmp_path / "sweep.toml").write_text('[[model]]\nsource = "head.npy"\n', encoding="utf-8")
    done = run(WITHOUT_POSIX + SWEEP, tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "uncork: error: a sweep into this store locks its folder as Linux and macOS do"
    )
    assert "uncork audit --store" in line
