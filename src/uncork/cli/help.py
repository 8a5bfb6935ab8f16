"""`--help` as plain text, options and commands under headings; and old names of options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from uncork.cli.output import note
from uncork.cli.parameters import Was

# The headings of options, in the order in which they are shown.
INPUT, DOMAIN, DECIDE, OUTPUT, RUN = "Input", "Domain", "What to decide", "Output", "Run"

_EXAMPLES = re.compile(r"\s(Examples?):\s")


class PlainCommand(TyperCommand):
    """A command whose options are listed by `rich_help_panel`, and whose old options still work."""

    old_names: ClassVar[Mapping[str, tuple[str, Was]]] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._with_new_names(ctx, args))

    def _with_new_names(self, ctx: Any, args: list[str]) -> list[str]:
        renamed = []
        for arg, following in zip(args, [*args[1:], "-"], strict=False):
            old, equals, value = arg.partition("=")
            new, was = self.old_names.get(old, (old, None))
            if was is None or (was.alone and (equals or not following.startswith("-"))):
                renamed.append(arg)
                continue
            if any(other.partition("=")[0] == new for other in args):
                raise typer.BadParameter(f"{old} is the old name of {new}: give one of them", ctx)
            if not ctx.resilient_parsing:  # or else the shell is only completing the line
                note(f"{old} is now called {new}; the old name will be removed")
            renamed.append(new + equals + value)
        return renamed

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *(_usage(argument) for argument in _arguments(self, ctx))]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """The text as paragraphs, and the examples at its end in lines that can be copied."""
        text, *examples = _EXAMPLES.split(self.help or "", maxsplit=1)
        for paragraph in text.split("\n\n"):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(" ".join(paragraph.split()))
        for title, commands in [examples] if examples else []:
            with formatter.section(title):
                for line in re.split(r";\s+(?=uncork )", commands):
                    indent = " " * formatter.current_indent
                    formatter.write(f"{indent}{' '.join(line.split())}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments = [(_name(param), param.help or "") for param in _arguments(self, ctx)]
        write_sections(formatter, {"Arguments": arguments, **_by_panel(self, ctx)})


def write_sections(formatter: Any, sections: Mapping[str, Iterable[tuple[str, str]]]) -> None:
    """Write two columns under each heading that has lines."""
    for heading, lines in sections.items():
        rows = list(lines)
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


def _by_panel(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    panels: dict[str, list[tuple[str, str]]] = {INPUT: [], DOMAIN: []}
    last: dict[str, list[tuple[str, str]]] = {OUTPUT: [], RUN: []}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None and param.param_type_name == "option":
            panel = getattr(param, "rich_help_panel", None) or RUN
            (last if panel in last else panels).setdefault(panel, []).append(record)
    return panels | last


def _arguments(command: Any, ctx: Any) -> list[Any]:
    return [
        param
        for param in command.get_params(ctx)
        if param.param_type_name == "argument" and not param.hidden
    ]


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _usage(argument: Any) -> str:
    name = _name(argument) if argument.required else f"[{_name(argument)}]"
    return name if argument.nargs == 1 else f"{name}..."
