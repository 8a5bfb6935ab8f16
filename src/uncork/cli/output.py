"""What commands print: the console, JSON, errors and notices on stderr, progress."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from rich.console import Console

from uncork.core.head import Head
from uncork.core.progress import Progress, ProgressBar
from uncork.core.reading import Reading, doubt_lines
from uncork.core.text import printable, visible, without_infinities
from uncork.core.whole_file import whole_file

_PIPE_WIDTH = 120  # columns where there is no terminal to ask
_LONGEST_LABEL = 40


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the program with status 1, which here means that a check failed."""
        raise BrokenPipeError


def console() -> Console:
    """Where results go: stdout. Text is printed as it is, without markup."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return _Output(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)


def fail(message: str) -> None:
    """One line on stderr for what went wrong."""
    sys.stderr.write(f"uncork: error: {printable(' '.join(message.split()))}\n")


def note(message: str) -> None:
    """One line on stderr that is not a result."""
    sys.stderr.write(f"uncork: {printable(' '.join(message.split()))}\n")


def watched(quiet: bool) -> bool:
    """Whether somebody wants to see progress: stderr is a terminal, and not with --quiet."""
    return not quiet and sys.stderr.isatty()


def progress_bar(quiet: bool) -> Progress:
    """A bar on stderr where somebody watches it."""
    return ProgressBar() if watched(quiet) else Progress()


def shown(label: str) -> str:
    """A label as text for a terminal: nothing in it can move the cursor, hide or overflow."""
    return visible(label, _LONGEST_LABEL)


def some_labels(head: Head, classes: np.ndarray, most: int = 10) -> str:
    """The labels of the first classes, and how many more there are."""
    rest = len(classes) - most
    listed = ", ".join(shown(head.label(int(t))) for t in classes[:most])
    return listed + (f" and {rest:,} more" if rest > 0 else "")


def print_head(out: Console, source: str, head: Head) -> None:
    """The first line of a result: which head it is about, and its inputs; then what is doubtful."""
    out.print(
        f"{printable(source)}: {head.classes:,} classes × {head.features:,} features; "
        f"inputs in {printable(str(head.domain))}",
        soft_wrap=True,
    )
    print_doubts(out, head.reading)


def print_doubts(out: Console, reading: Reading | None) -> None:
    """What is doubtful about the head, one line each: directly under the first line of a result."""
    for line in doubt_lines(reading):
        out.print(line, style="bold", soft_wrap=True)


def emit_json(result: Any, path: str) -> None:
    """Write a result as JSON to a file, or to stdout for "-"."""
    result = without_infinities(result)
    text = json.dumps(result, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    encoding = (sys.stdout.encoding or "utf-8") if path == "-" else "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:  # a lone surrogate in a label, or a stdout that knows only ASCII
        text = json.dumps(result, ensure_ascii=True, indent=2, allow_nan=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    with whole_file(path) as target:
        target.write_text(text, encoding="utf-8")
