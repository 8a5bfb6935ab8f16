"""Shell completion: what Tab offers, asked for as bash does, and the script that bash loads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from uncork.cli import app

BASH = shutil.which("bash")


def offered(line: str) -> list[str]:
    """What the program answers the shell when Tab is pressed at the end of the line."""
    asked = {"_UNCORK_COMPLETE": "complete_bash", "COMP_WORDS": line}
    asked["COMP_CWORD"] = str(len(line.split(" ")) - 1)
    ran = CliRunner().invoke(app, [], prog_name="uncork", env=asked, catch_exceptions=False)
    assert (ran.exit_code, ran.stderr) == (0, "")
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("uncork re", ["retrieve", "reach", "repair"]),
        ("uncork audit --cert", ["--certificates"]),
        ("uncork audit --device c", ["cpu", "cuda"]),
        ("uncork count --format m", ["markdown"]),
        ("uncork reach --che", []),  # an old name is not offered
        ("uncork audit mo", []),  # then bash offers files
    ],
)
def test_tab_completes_commands_options_and_values(line: str, answers: list[str]) -> None:
    assert offered(line) == answers


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_completes_with_the_script_that_install_completion_writes(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "uncork"
    command.write_text(f"#!{sys.executable}\nfrom uncork.cli import main\nmain()\n")
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "HOME": str(tmp_path), "PATH": path}
    written = subprocess.run(
        [str(BASH), "-c", "uncork --install-completion; true"],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (script,) = tmp_path.glob(".bash_completions/*")
    assert str(script) in written.stdout
    shown = subprocess.run(
        [str(BASH), "-c", "uncork --show-completion; true"],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout.strip() == script.read_text("utf-8").strip()
    tab = (
        f"source {script}; COMP_WORDS=(uncork ver); COMP_CWORD=1; "
        "_uncork_completion uncork; echo ${COMPREPLY[@]}; complete -p uncork"
    )
    ran = subprocess.run(
        [str(BASH), "-c", tab], env=env, capture_output=True, text=True, check=True
    )
    answer, registered = ran.stdout.splitlines()
    assert answer == "verify"
    assert "-o default" in registered  # where nothing is offered, bash completes files
