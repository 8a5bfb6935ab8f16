"""Writes the parts of the documentation that the program itself says: `make docs-reference`.

The help of every command in reference/cli.md, the table of rules in reference/domain-rules.md,
every module in architecture.md by its first sentence, and the output of the README's example.
`--check` writes nothing and exits with 1 if one is outdated.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from uncork.cli import app
from uncork.cli.program import COMMANDS

ROOT = Path(__file__).parents[1]
BEGIN = "<!-- written by docs/generated.py: begin -->\n"
END = "<!-- end -->\n"
EXAMPLE = "uncork audit ch_PP-OCRv4_rec_infer.onnx --report demo-report.html"
PACKAGE = ROOT / "src" / "uncork"
# Rooms in the order of the page: what crosses them first, the commands last.
ROOMS = (
    "core", "domain", "loading", "auditing", "reach", "labels", "repair", "save", "theory", "check",
    "nn", "activations", "store", "sweep", "draw", "report", "web", "cli",
)  # fmt: skip
_WIDTH = "96"
_PLAIN = {"COLUMNS": _WIDTH, "TERMINAL_WIDTH": _WIDTH, "NO_COLOR": "1", "TERM": "dumb"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if one is outdated")
    check = parser.parse_args().check
    outdated = []
    for page, written in PAGES.items():
        present = (ROOT / page).read_text(encoding="utf-8")
        wanted = updated(present, written())
        if without_times(present) == without_times(wanted):
            continue
        outdated.append(page)
        if not check:
            (ROOT / page).write_text(wanted, encoding="utf-8")
    for page in outdated:
        print(page, "is outdated: make docs-reference" if check else "written")
    sys.exit(1 if check and outdated else 0)


def updated(page: str, text: str) -> str:
    """The page with `text` between its two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"a page has lost its marks {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def without_times(page: str) -> str:
    """Times differ from run to run; everything else must not."""
    return re.sub(r"\d+\.\d+ s\b", "… s", page)


def help_of_commands() -> str:
    parts = [_fenced(_output("--help"))]
    for name in commands():
        parts += [f"### `uncork {name}`", _fenced(_output(name, "--help"))]
    return "\n\n".join(parts) + "\n"


def commands() -> list[str]:
    """Every command, in the program's own order."""
    return [name for names in COMMANDS.values() for name in names]


def rules_of_operators() -> str:
    from uncork.loading.onnx.arriving import ranges  # noqa: F401  (fills the table)
    from uncork.loading.onnx.rules.table import as_markdown

    return as_markdown()


def every_module() -> str:
    """A table for each folder of the package: its modules, each with what it says of itself."""
    folders = [path.parent for path in PACKAGE.rglob("__init__.py")]
    folders += [PACKAGE / "store/migrations", PACKAGE / "store/migrations/versions"]  # not packages
    order = {name: number for number, name in enumerate(ROOMS)}
    parts = []
    for folder in sorted(
        folders, key=lambda at: (order.get(_in_package(at).partition("/")[0], -1), _in_package(at))
    ):
        modules = [path for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]
        if modules:
            heading = f"### `{f'uncork/{_in_package(folder)}'.rstrip('/')}/`"
            about = _said(folder / "__init__.py")
            rows = [f"| `{path.name}` | {_said(path)} |" for path in modules]
            table = "\n".join(["| module | what it does |", "| --- | --- |", *rows])
            parts += filter(None, (heading, about, table))
    return "\n\n".join(parts) + "\n"


def _in_package(folder: Path) -> str:
    name = folder.relative_to(PACKAGE).as_posix()
    return "" if name == "." else name


def _said(module: Path) -> str:
    """The first sentence of a module's docstring."""
    said = ast.get_docstring(ast.parse(module.read_bytes())) if module.exists() else None
    paragraph = " ".join((said or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.?!]) (?=[A-Z`])", paragraph)[0].replace("|", "\\|")


def example() -> str:
    """The README's example, run in an empty folder beside the model."""
    package = importlib.util.find_spec("rapidocr_onnxruntime")  # without running its code
    if package is None or not package.submodule_search_locations:
        sys.exit("rapidocr-onnxruntime is not installed: see OCR_MODEL in the Makefile")
    _, *arguments = shlex.split(EXAMPLE)
    model = Path(package.submodule_search_locations[0]) / "models" / arguments[1]
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the output names the files as they are given
        os.symlink(model, arguments[1])
        printed = _output(*arguments)
        os.chdir(here)
    return _fenced(f"$ {EXAMPLE}\n{printed}", "console") + "\n"


def _output(*arguments: str) -> str:
    ran = CliRunner().invoke(app, arguments, prog_name="uncork", env=_PLAIN, catch_exceptions=False)
    return "\n".join(line.rstrip() for line in ran.stdout.strip("\n").splitlines())


def _fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"


PAGES: dict[str, Callable[[], str]] = {
    "docs/architecture.md": every_module,
    "docs/reference/cli.md": help_of_commands,
    "docs/reference/domain-rules.md": rules_of_operators,
    "README.md": example,
}

if __name__ == "__main__":
    main()
