"""Running commands: in this process for speed, or as a real process where signals matter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from running import Ran, Run
from typer.testing import CliRunner

from optional import skip_if_absent
from uncork.cli import app


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Unfinished audits go to a folder of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def run() -> Run:
    """Run a command with the error handling of the real program."""

    def running(*arguments: object) -> Ran:
        result = CliRunner().invoke(
            app, [str(a) for a in arguments], prog_name="uncork", catch_exceptions=False
        )
        if result.exit_code == 2:
            skip_if_absent(result.stderr)
        return Ran(result.exit_code, result.stdout, result.stderr)

    return running


@pytest.fixture
def start() -> Callable[..., subprocess.Popen[str]]:
    """Start the program as a process, with Ctrl-C alive even where the tests' own is ignored."""
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from uncork.cli import main; main()"
    )

    def starting(*arguments: object, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, **environment},
        )

    return starting


@pytest.fixture
def square(tmp_path: Path) -> Path:
    """Four corners, the middle (lost), and the last corner twice (tied)."""
    path = tmp_path / "square.npz"
    corners = np.array([[1, 1], [1, -1], [-1, 1], [0.1, 0], [-1, -1], [-1, -1]], dtype=np.float32)
    np.savez(path, weight=corners, bias=np.zeros(6, dtype=np.float32))
    return path


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.txt"
    path.write_text("alpha\nбета\nγάμμα\n[red]middle\nfive\n15\n", encoding="utf-8")
    return path
