"""Adding a command: one file in `cli/commands/`, and its name in one table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from uncork.cli import commands
from uncork.cli.program import COMMANDS, program

# [docs: begin]
# cli/commands/longest.py: a function of the file's name. Its docstring is the help.
FILE = '''
"""`uncork longest`: the class whose row is longest."""

import numpy as np

from uncork.cli import options
from uncork.cli.output import console, emit_json, print_doubts, shown


def longest(
    source: options.Source,
    tensors: options.Tensors,  # --base, --weight, --bias and --transpose
    labels: options.Labels = None,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Print the class whose row is longest.

    Example: uncork longest model.onnx
    """
    head = tensors.find(source, labels=labels).head
    best = int(np.linalg.norm(head.weight, axis=1).argmax())
    if json_file is not None:
        emit_json({"class": best, "label": head.label(best)}, json_file)
    if json_file != "-":
        print_doubts(console(), head.reading)
        console().print(f"class {best} {shown(head.label(best))}")
'''
# cli/program.py: its name under a heading of `uncork --help`.
TABLE = {**COMMANDS, "Look": (*COMMANDS["Look"], "longest")}
# [docs: end]


def test_a_command_is_one_file_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model, result = tmp_path / "commands", tmp_path / "m.npz", tmp_path / "r.json"
    folder.mkdir()
    (folder / "longest.py").write_text(FILE, encoding="utf-8")
    np.savez(model, weight=np.array([[1.0, 0], [3, 4], [0, 2]]))
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(folder)])
    app = program(TABLE)

    def run(*arguments: object) -> tuple[int, str, str]:
        ran = CliRunner().invoke(app, list(map(str, arguments)), prog_name="uncork")
        return ran.exit_code, ran.stdout, ran.stderr

    assert run("longest", model, "--json", result)[1] == "class 1 1\n"
    assert '"class": 1' in result.read_text("utf-8")
    assert "longest      Print the class whose row is longest." in run("--help")[1]
    assert "Example:\n  uncork longest model.onnx\n" in run("longest", "--help")[1]
    # Bad input and files that would be overwritten are handled for it.
    status, out, error = run("longest", model, "--json", model)
    assert (status, out) == (2, "")
    assert "would overwrite the model" in error
    assert run("longest", tmp_path / "none.npz")[0] == 2
