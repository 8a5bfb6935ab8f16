"""Writes reference/cli.md from the program itself: every command with its help.

`make docs-reference` writes it, `python docs/cli_reference.py --check` says whether it is current.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import typer.main
from typer.testing import CliRunner

from uncork.cli import app

PAGE = Path(__file__).parent / "reference" / "cli.md"
BEGIN = "<!-- written by docs/cli_reference.py: begin -->\n"
END = "<!-- end -->\n"
_WIDTH = 96
_PLAIN = {"COLUMNS": str(_WIDTH), "TERMINAL_WIDTH": str(_WIDTH), "NO_COLOR": "1", "TERM": "dumb"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it is outdated")
    present = PAGE.read_text(encoding="utf-8")
    wanted = updated(present)
    if not parser.parse_args().check:
        PAGE.write_text(wanted, encoding="utf-8")
    elif present != wanted:
        sys.exit(f"{PAGE.name} is not what the program says: make docs-reference")


def updated(page: str) -> str:
    """The page with everything between its two marks written anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{commands()}{END}{after}"


def commands() -> str:
    parts = [_block("--help")]
    parts += [f"## `uncork {name}`\n\n{_block(name, '--help')}" for name in names()]
    return "\n".join(parts) + "\n"


def names() -> list[str]:
    """Every command, in the program's own order."""
    return list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def _block(*arguments: str) -> str:
    ran = CliRunner().invoke(app, arguments, prog_name="uncork", env=_PLAIN, catch_exceptions=False)
    lines = [line.rstrip() for line in ran.stdout.strip("\n").splitlines()]
    return "```text\n" + "\n".join(lines) + "\n```\n"


if __name__ == "__main__":
    main()
