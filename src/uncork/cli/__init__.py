"""The command line: the program, and what commands share. Each is a file in `commands/`."""

from __future__ import annotations

from uncork.cli.program import app, main

__all__ = ["app", "main"]
