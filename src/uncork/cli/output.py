"""What every command shares: the console, JSON results, errors, checks on files to be written."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rich.console import Console

from uncork.core.errors import UncorkError
from uncork.core.reading import Reading, doubt_lines
from uncork.core.text import printable, visible
from uncork.core.whole_file import whole_file

_PIPE_WIDTH = 120  # columns where there is no terminal to ask
_LONGEST_LABEL = 40
_TO_STDOUT = ("--json", "--output", "--csv")  # what "-" can stand for in some command
# What a model's folder is made of. Other files in it, earlier results say, may be written again.
_OF_MODELS = (
    "*.safetensors", "*.bin", "*.pt", "*.pth", "*.onnx", "*.gguf", "*.keras", "*.h5", "*.tflite",
    "*.skops", "*.model", "*config.json", "*.index.json", "*vocab*", "*token*", "merges.txt",
    "labels.txt", "classes.txt",
)  # fmt: skip


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
    """One line on stderr that is no result."""
    sys.stderr.write(f"uncork: {printable(' '.join(message.split()))}\n")


def shown(label: str) -> str:
    """A label as text for a terminal: nothing in it can steer, hide or overflow the line."""
    return visible(label, _LONGEST_LABEL)


def print_doubts(out: Console, reading: Reading | None) -> None:
    """What is doubtful about the head, a line each: right under the first line of a result."""
    for line in doubt_lines(reading):
        out.print(line, style="bold", soft_wrap=True)


def check_outputs(outputs: Mapping[str, str | None], inputs: Mapping[str, str | None]) -> None:
    """Raise before any work if a result could not be written, or would overwrite an input (or a
    store, which may be about to be made).

    An input is a file, a model's folder, or an option's text that names files by @.
    """
    taken = {
        os.path.realpath(file): name for name, text in inputs.items() for file in _files_of(text)
    }
    folders = {place: name for place, name in taken.items() if os.path.isdir(place)}
    for option, path in outputs.items():
        if path is None:
            continue
        if path == "-":
            if option not in _TO_STDOUT:
                raise UncorkError(f"{option} - cannot be written: only --json goes to stdout")
            continue
        check_writable(path, option)
        place = os.path.realpath(path)
        if place in taken and place != os.devnull:
            raise UncorkError(f"{option} {path} would overwrite {taken[place]}")
        for folder, name in folders.items():
            inside = os.path.dirname(place) == folder and os.path.exists(place)
            if inside and any(fnmatch(os.path.basename(place), like) for like in _OF_MODELS):
                raise UncorkError(f"{option} {path} would overwrite a file of {name}")
        taken[place] = f"what {option} writes"


def _files_of(text: str | None) -> list[str]:
    """The files an input's text may mean: `model.onnx`, `sqlite:///results.db`, `0-9,@more.txt`."""
    if not text:
        return []
    named = [part.strip()[1:] for part in text.split(",") if part.strip().startswith("@")]
    return [text.removeprefix("sqlite:///"), text.removeprefix("@"), *named]


def check_writable(path: str | None, option: str) -> None:
    """Raise before any work if a result could not be written to that file ("-" is stdout)."""
    if path is None or path == "-":
        return
    target = Path(path)
    try:
        if not path:
            problem = "the name is empty"
        elif target.is_dir():
            problem = "it is a folder"
        elif not target.parent.is_dir():
            problem = f"there is no folder {target.parent}"
        elif not os.access(target if target.exists() else target.parent, os.W_OK):
            problem = "permission denied"
        else:
            return
    except (OSError, ValueError) as error:
        problem = str(getattr(error, "strerror", None) or error)
    raise UncorkError(f"{option} {path} cannot be written: {problem}")


def emit_json(result: Any, path: str) -> None:
    """Write a result as JSON to a file, or to stdout for "-"."""
    result = _finite(result)
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


def _finite(value: Any) -> Any:
    """JSON knows no infinity and no NaN: null in their place."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
