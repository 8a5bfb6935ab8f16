"""No result of any command overwrites an input of it: every output against every input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from uncork import UncorkError
from uncork.cli import program
from uncork.cli.files import check_files
from uncork.cli.parameters import Reads, Writes, marks, parameters

COMMANDS = {name: program.command(name) for names in program.COMMANDS.values() for name in names}
# What a value may be that names a file: by itself, or behind an @.
PLAIN, AT = "{}", "@{}"
FORMS = {"the domain": AT, "the classes": AT, "the thresholds": AT}
PAIRS = [
    (name, output, given)
    for name, command in COMMANDS.items()
    for output in marks(command, Writes)
    for given in marks(command, Reads)
]
# Metavars of parameters that are no files.
NO_FILES = {
    "NAME", "N", "SHARE", "SECONDS", "TEXT", "GROUP", "HOST:PORT", "NUMBER", "T", "K", "A,B",
    "A,B,…", "C", "R", "FOLDER", "LOGITS", "D", "S", "N,…", "D,…", "ALPHA", "ADDRESS", "PORT",
    "text|markdown|csv|latex|json", "unargmaxable|iterations", "TOPIC", "OWNER/NAME",
    "text|json|junit|sarif|github|markdown",
}  # fmt: skip


def value_for(mark: Reads, hint: Any, file: Path) -> Any:
    text = FORMS.get(mark.what, PLAIN).format(file)
    return [text] if "list" in str(hint) else text


@pytest.mark.parametrize(("name", "output", "given"), PAIRS)
def test_an_output_that_would_overwrite_an_input_is_refused(
    name: str, output: str, given: str, tmp_path: Path
) -> None:
    command, file = COMMANDS[name], tmp_path / "both.npz"
    file.write_bytes(b"an input")
    hint = parameters(command)[given].annotation
    pairs = marks(command, Writes)[output].files is not None  # format=file, repeatable
    values = {
        output: [f"json={file}"] if pairs else str(file),
        given: value_for(marks(command, Reads)[given], hint, file),
    }
    with pytest.raises(UncorkError, match="would overwrite"):
        check_files(command, values)
    assert file.read_bytes() == b"an input"


def test_the_pairs_are_those_that_there_are() -> None:
    assert len(PAIRS) > 60
    assert {name for name, _, _ in PAIRS} >= {"audit", "reach", "repair", "prevent", "verify"}
    for pair in (("reach", "json_file", "domain"), ("prevent", "out", "domain")):
        assert pair in PAIRS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_parameter_that_names_a_file_says_whether_it_is_read_or_written(name: str) -> None:
    command = COMMANDS[name]
    named = {**marks(command, Reads), **marks(command, Writes)}
    for name, parameter in parameters(command).items():
        for info in getattr(parameter.annotation, "__metadata__", ()):
            metavar = getattr(info, "metavar", None)
            if metavar is not None and metavar not in NO_FILES:
                assert name in named, (name, metavar)


@pytest.mark.parametrize("first", ["--report", "--certificates"])
def test_two_results_do_not_share_a_file(first: str, tmp_path: Path) -> None:
    option = first.removeprefix("--")
    with pytest.raises(UncorkError, match="would overwrite"):
        check_files(
            COMMANDS["audit"],
            {"source": "m.npz", option: str(tmp_path / "x"), "json_file": str(tmp_path / "x")},
        )
