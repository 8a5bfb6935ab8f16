"""No result overwrites an input: the files of a command, looked at before it begins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from uncork.cli.parameters import Command, Reads, Writes, marks
from uncork.core.errors import UncorkError

_TO_STDOUT = ("--json", "--output", "--csv")  # what "-" can stand for in some command
# What a model's folder is made of. Other files in it, such as earlier results, may be overwritten.
_OF_MODELS = (
    "*.safetensors", "*.bin", "*.pt", "*.pth", "*.onnx", "*.gguf", "*.keras", "*.h5", "*.tflite",
    "*.skops", "*.model", "*config.json", "*.index.json", "*vocab*", "*token*", "merges.txt",
    "labels.txt", "classes.txt",
)  # fmt: skip


def check_files(command: Command, given: Mapping[str, Any]) -> None:
    """Raise if a result of the command could not be written, or would overwrite an input."""
    outputs: dict[str, str | None] = {}
    inputs: dict[str, str | None] = {}
    for name, mark in marks(command, Writes).items():
        outputs |= mark.named(given.get(name))
    for name, mark in marks(command, Reads).items():
        inputs |= mark.named(given.get(name))
    check_outputs(outputs, inputs)


def check_outputs(outputs: Mapping[str, str | None], inputs: Mapping[str, str | None]) -> None:
    """Raise before any work if a result could not be written, or would overwrite an input (or a
    store, which may not exist yet).

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
