"""The program itself: version, help, pipes and encodings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from running import Run

import uncork
from uncork.cli import program

ROOT = Path(__file__).parents[2]
COMMANDS = tuple(name for names in program.COMMANDS.values() for name in names)


def test_version(run: Run) -> None:
    assert run("--version").out == f"uncork {uncork.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_that_runs_that_command(run: Run, command: str) -> None:
    ran = run(command, "--help")
    assert ran.status == 0
    assert re.search(rf"Examples?: uncork {command} ", " ".join(ran.out.split()))


def test_help_lists_every_command(run: Run) -> None:
    text = run("--help").out
    assert all(re.search(rf"^  {command} ", text, re.M) for command in COMMANDS)


def test_a_reader_that_leaves_is_no_error(square: Path) -> None:
    code = "from uncork.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "audit", str(square), "--json", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=120)
    assert err == b""
    assert process.returncode == 141


@pytest.mark.parametrize("arguments", ["count -C 4 -d 2", "audit nowhere", "--version"])
def test_a_closed_stdout_or_stderr_is_no_error(arguments: str) -> None:
    line = f"{sys.executable} -m uncork {arguments} >&- 2>&-"
    status = subprocess.run(["sh", "-c", line], check=False).returncode
    assert status == (2 if "nowhere" in arguments else 0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", ["count -C 4 -d 2", "--version"])
def test_a_full_stdout_is_one_line(arguments: str) -> None:
    line = f"{sys.executable} -m uncork {arguments} >/dev/full"
    done = subprocess.run(["sh", "-c", line], check=False, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "uncork: error: No space left on device\n")


def test_a_terminal_without_unicode_is_no_error(
    start: Callable[..., subprocess.Popen[str]], square: Path, labels: Path
) -> None:
    process = start("audit", square, "--labels", labels, PYTHONIOENCODING="ascii")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert "6 classes \\xd7 2 features" in out


def test_continuous_integration_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text("utf-8").rstrip().endswith("make test")
