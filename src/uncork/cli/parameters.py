"""A command's parameters: groups of options written out, and the marks that parameters carry.

A command is a function. A parameter whose type is a dataclass stands for a group of options that
several commands share: Typer sees every field as an option of its own, and the command receives one
value. Beside the help that people read, a parameter's annotation can carry marks:

    labels: Annotated[str | None, typer.Option(help="…"), Reads("the labels")] = None
    report: Annotated[str | None, typer.Option(help="…"), Writes("--report")] = None
    output: Annotated[str, typer.Option("-o", "--output"), Writes("-o"), Was("--out")]
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

Command = Callable[..., None]


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
    """A parameter that names a result's file.

    `files` gives the names that its value stands for, where these are not the value itself.
    """

    option: str
    files: Callable[[Any], list[str]] | None = None

    def named(self, value: Any) -> dict[str, str | None]:
        if self.files is None:
            return {self.option: value}
        return {f"{self.option} {name}": name for name in self.files(value)}


@dataclass(frozen=True)
class Was:
    """An option that had another name, which still works and warns.

    `alone`: the old name was a flag, and now names an option with a value. It is the old one where
    no value follows.
    """

    old: str
    alone: bool = False


@functools.cache
def parameters(command: Command) -> dict[str, inspect.Parameter]:
    """What Typer sees: every parameter by name, each field of a group being one."""
    hints = typing.get_type_hints(command, include_extras=True)
    seen: dict[str, inspect.Parameter] = {}
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        of_group = _fields(hint) if is_dataclass(hint) else {}
        for name, (annotation, default) in (
            of_group or {parameter.name: (hint, parameter.default)}
        ).items():
            seen[name] = inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
            )
    return seen


def marks(command: Command, kind: type) -> dict[str, Any]:
    """The marks of a kind on the command's parameters, by the parameter's name."""
    return {
        name: mark
        for name, parameter in parameters(command).items()
        for mark in getattr(parameter.annotation, "__metadata__", ())
        if isinstance(mark, kind)
    }


def old_names(command: Command) -> dict[str, tuple[str, Was]]:
    """Options that had another name: by the old one, the one to use and its mark."""
    renamed = {}
    for name, mark in marks(command, Was).items():
        option = parameters(command)[name].annotation.__metadata__[0]
        declared = [option.default, *(option.param_decls or ())]  # Typer keeps the first as default
        long = [text for text in declared if isinstance(text, str) and text.startswith("--")]
        renamed[mark.old] = (long[0] if long else "--" + name.replace("_", "-")), mark
    return renamed


def written_out(command: Command, begin: Callable[[dict[str, Any]], None]) -> Command:
    """The command with its groups written out; `begin` sees what was given before it runs."""
    groups: dict[str, Any] = {
        name: hint
        for name, hint in typing.get_type_hints(command).items()
        if is_dataclass(hint) and name != "return"
    }

    @functools.wraps(command)
    def run(**given: Any) -> None:
        begin(given)
        for name, group in groups.items():
            given[name] = group(**{field: given.pop(field) for field in _fields(group)})
        command(**given)

    seen = parameters(command)
    run.__signature__ = inspect.Signature(list(seen.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in seen.items()}
    return run


def _fields(group: Any) -> dict[str, tuple[Any, Any]]:
    hints = typing.get_type_hints(group, include_extras=True)
    return {
        field.name: (
            hints[field.name],
            inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(group)
    }
