"""Every command that the documentation shows exists, with its options."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import typer.main

from uncork.cli.program import COMMANDS, one_command

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [name for names in COMMANDS.values() for name in names]
# A line of a block, or a span of code in the text: `uncork audit model.onnx --report audit.html`.
SHOWN = re.compile(rf"(?:^(?:    )?(?:\$ )?|`)uncork ({'|'.join(NAMES)})\b([^`\n#]*)", re.M)
# What the reader types in place of our example is not an option of that command.
OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][a-z0-9-]*")


@cache
def options_of(command: str) -> set[str]:
    parameters = typer.main.get_command(one_command(command)).params
    names = [name for one in parameters for name in (*one.opts, *one.secondary_opts)]
    return {"--help", "-h", *names}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_on_the_page_exist(page: Path) -> None:
    for command, rest in SHOWN.findall(page.read_text("utf-8")):
        text = re.sub(r"'[^']*'", "", rest)  # patterns and URLs in quotes
        unknown = set(OPTION.findall(text)) - options_of(command)
        assert not unknown, f"uncork {command}{rest}: {unknown}"


def test_the_reference_lists_every_command() -> None:
    text = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")
    listed = re.findall(r"^### `uncork (\w+)`$", text, re.M)
    assert listed == NAMES
    table = text.partition("## Exit status")[0]
    assert set(re.findall(r"\(#uncork-(\w+)\)", table)) == set(NAMES)


def test_the_install_page_lists_every_extra() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^([\w-]+) = \[", section, re.M)) - {"docs", "test", "test-core"}
    page = (ROOT / "docs" / "how-to" / "install.md").read_text("utf-8")
    assert extras <= set(re.findall(r"^\| `([\w-]+)` \|", page, re.M))
