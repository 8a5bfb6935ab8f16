"""Which of a command's parameters name files: from here no result overwrites an input.

A parameter says so in its own annotation, beside the help that people read:

    labels: Annotated[str | None, typer.Option(help="…"), Reads("the labels")] = None
    report: Annotated[str | None, typer.Option(help="…"), Writes("--report")] = None

and `guarded` looks at both before the command does anything.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from uncork.cli.output import check_outputs
from uncork.store.default import default_store


@dataclass(frozen=True)
class Reads:
    """A parameter that names an input: a file, a folder, a store, or text with @FILE in it.

    `files` gives the names that its value stands for, where these are not the value itself.
    """

    what: str
    files: Callable[[Any], list[str]] | None = None

    def named(self, value: Any) -> dict[str, str | None]:
        if self.files is None:
            return {self.what: value}
        return {f"{self.what} {name}": name for name in self.files(value)}


@dataclass(frozen=True)
class Writes:
    """A parameter that names a result's file."""

    option: str


def stores(store: str | None) -> list[str]:
    """The store that was named, and the user's own otherwise."""
    return [default_store(create=False) if store is None else store]


@functools.cache
def marks(command: Callable[..., Any]) -> dict[str, Reads | Writes]:
    """The command's parameters that name files."""
    hints = typing.get_type_hints(command, include_extras=True)
    return {
        name: mark
        for name, hint in hints.items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, Reads | Writes)
    }


def check_files(command: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise if a result of the command could not be written, or would overwrite an input."""
    outputs: dict[str, str | None] = {}
    inputs: dict[str, str | None] = {}
    for name, mark in marks(command).items():
        if isinstance(mark, Writes):
            outputs[mark.option] = given.get(name)
        else:
            inputs |= mark.named(given.get(name))
    check_outputs(outputs, inputs)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The command, begun only once its files have been looked at."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        check_files(command, given)
        command(**given)

    return run
