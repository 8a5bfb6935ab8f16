"""Options: the same everywhere, under headings; old names still work and warn."""

from __future__ import annotations

import importlib
import pkgutil
import re
import types
from pathlib import Path

import numpy as np
import pytest
from running import Run

import uncork.cli
from uncork.cli import options, program
from uncork.cli.help import DECIDE, DOMAIN, INPUT, OUTPUT, RUN
from uncork.cli.parameters import old_names, parameters

COMMANDS = tuple(name for names in program.COMMANDS.values() for name in names)
# One text each, but for defaults, and for --classes and --certificates where more is to be said.
SHARED = (
    "--base", "--weight", "--transpose", "--drop-bias", "--labels", "--domain", "--classes",
    "--json", "--device", "--jobs", "--quiet", "--resume", "--time-limit", "--format", "--plot",
    "--approximate", "--patience", "--algorithm",
)  # fmt: skip


def described(run: Run, command: str) -> dict[str, str]:
    """Every long option of a command's help, and its text."""
    text = run(command, "--help").out
    found = re.findall(r"^  (?:-\w, )?(--[\w-]+)(.*(?:\n {8,}.*)*)", text, re.M)
    return {name: " ".join(more.split()).partition(" [default")[0] for name, more in found}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("option", SHARED)
def test_an_option_means_the_same_in_every_command(run: Run, option: str) -> None:
    texts = {described(run, command).get(option) for command in COMMANDS} - {None}
    # Which formats there are differs: a check is no table, and a table is no test.
    texts = {re.sub(r"^[a-z]+(\|[a-z]+)+ ", "", str(text)) for text in texts}
    assert len(texts) == 1


def test_certificates_are_written_and_an_earlier_audit_is_read(run: Run) -> None:
    for command in ("audit", "reach", "repair", "sweep"):
        assert "Write the proofs" in described(run, command)["--certificates"]
    assert "An earlier audit" in described(run, "repair")["--audit"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_stands_under_a_heading(command: str) -> None:
    headings = {INPUT, DOMAIN, DECIDE, OUTPUT, RUN}
    for name, parameter in parameters(program.command(command)).items():
        info = parameter.annotation.__metadata__[0]
        if type(info).__name__ == "OptionInfo":
            panel = info.rich_help_panel
            assert panel in headings or str(panel).startswith("What to "), name


@pytest.mark.usefixtures("narrow")
def test_the_list_of_commands_is_grouped_and_not_cut_off_at_80_columns(run: Run) -> None:
    text = run("--help").out
    assert "…" not in text
    assert "..." not in text.partition("ARGS]...")[2]
    assert max(map(len, text.splitlines())) <= 80
    assert all(f"\n{heading}:\n" in text for heading in program.COMMANDS)
    for command in COMMANDS:
        (line,) = re.findall(rf"^  {command} +(.*)$", text, re.M)
        assert line.endswith(".")  # the whole sentence, on one line


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_into_80_columns(run: Run, command: str) -> None:
    text = run(command, "--help").out
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "<str>" not in text
    assert "<int>" not in text


def test_no_dotted_name_is_both_a_module_and_something_else() -> None:
    for info in pkgutil.walk_packages(uncork.cli.__path__, "uncork.cli."):
        parent, _, name = info.name.rpartition(".")
        module = importlib.import_module(info.name)
        assert getattr(importlib.import_module(parent), name) is module
        assert isinstance(module, types.ModuleType)


@pytest.mark.parametrize(
    ("old", "new", "command"),
    [
        ("--classes", "--number-of-classes", ["count", "OLD", "4", "-d", "2"]),
        ("--classes", "--number-of-classes", ["random", "OLD=8", "-d", "2"]),
        ("--check", "--verify", ["reach", "MODEL", "OLD", "bounds.npz"]),
        ("--output", "--transform", ["reach", "MODEL", "--classes", "0", "OLD", "sparsemax"]),
        ("--proofs", "--certificates", ["repair", "MODEL", "-o", "new.npz", "OLD", "proofs.npz"]),
        ("--out", "--output", ["prevent", "MODEL", "OLD", "new.npz"]),
        ("--bias-name", "--bias", ["draw", "MODEL", "-o", "a.svg", "OLD", "bias"]),
        ("--bias", "--with-bias", ["draw", "--figure", "1", "OLD", "-o", "a.svg"]),
    ],
)
def test_an_old_name_works_and_says_what_it_is_called_now(
    run: Run,
    square: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    command: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("reach", square, "--classes", "0", "--certificates", "bounds.npz").status == 0
    given = [word.replace("OLD", old).replace("MODEL", str(square)) for word in command]
    ran = run(*given)
    assert ran.status == 0, ran.err
    assert f"uncork: {old} is now called {new}; the old name will be removed\n" in ran.err
    fresh = run(*(word.replace(old, new) for word in given))
    assert (fresh.status, "is now called" in fresh.err) == (0, False)
    if old != "--bias":  # which now names a tensor
        assert old not in described(run, given[0])


def test_an_old_name_beside_the_new_one_is_a_mistake(run: Run) -> None:
    ran = run("count", "--classes", 4, "--number-of-classes", 5, "-d", 2)
    assert "--classes is the old name of --number-of-classes: give one of them" in ran.error


def test_repair_does_not_take_the_audit_that_certificates_used_to_name_for_an_output(
    run: Run, square: Path, tmp_path: Path
) -> None:
    proofs, out = tmp_path / "proofs.npz", tmp_path / "new.npz"
    assert run("audit", square, "--certificates", proofs).status == 0
    before = proofs.read_bytes()
    ran = run("repair", square, "-o", out, "--certificates", proofs)
    assert "would overwrite an audit of SOURCE: --audit reads it" in ran.error
    assert (proofs.read_bytes(), out.exists()) == (before, False)
    assert run("repair", square, "-o", out, "--audit", proofs).status == 0


def test_old_names_are_found_behind_groups_of_options() -> None:
    assert {old: new for old, (new, _) in old_names(program.command("draw")).items()} == {
        "--classes": "--number-of-classes", "--bias-name": "--bias", "--bias": "--with-bias",
    }  # fmt: skip


def test_a_group_of_options_reaches_the_command_as_one_value() -> None:
    found = options.Tensors(weight="w", transpose=True)
    assert found.given() == ("--weight", "w", "--transpose")
    head = options.RandomHead(classes=5, features=3, seed=1).draw(True, "ball:2")
    assert (head.classes, head.features, str(head.domain)) == (5, 3, "ball:2")
    np.testing.assert_array_equal(head.weight, np.random.default_rng(1).normal(size=(5, 3)))
