"""What every command shares: the console, JSON results, checks on files to be written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from uncork.errors import UncorkError

_PIPE_WIDTH = 120  # columns where there is no terminal to ask


def console() -> Console:
    """Where results go: stdout. Text is printed as it is, without markup."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)


def check_writable(path: str | None, option: str) -> None:
    """Raise before any work if a result could not be written to that file ("-" is stdout)."""
    if path is None or path == "-":
        return
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        what = "it is a folder" if target.is_dir() else f"there is no folder {target.parent}"
        raise UncorkError(f"{option} {path} cannot be written: {what}")


def emit_json(result: Any, path: str) -> None:
    """Write a result as JSON to a file, or to stdout for "-"."""
    text = json.dumps(result, ensure_ascii=False, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UncorkError(f"{path} cannot be written: {error.strerror or error}") from error
