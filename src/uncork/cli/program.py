"""The program `uncork`: its commands, and the one place where errors become exit statuses.

Exit status: 0 done; 1 the check asked for failed; 2 bad input or usage, one line on stderr and
nothing written; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from uncork import __version__
from uncork.cli.files import check_files
from uncork.cli.help import PlainCommand, write_sections
from uncork.cli.output import fail, note
from uncork.cli.parameters import Command, old_names, written_out
from uncork.core import early
from uncork.core.errors import UncorkError

# Each command is the function of that name in the file of that name in `commands/`.
COMMANDS: dict[str, Sequence[str]] = {
    "Decide": ("check", "audit", "labels", "retrieve", "verify"),
    "Look": ("show", "activations", "help"),
    "Reach and repair": ("reach", "repair", "prevent"),
    "Many models": ("sweep", "table", "figure", "export", "serve"),
    "Theory and pictures": ("random", "lost", "count", "rank", "draw", "playground"),
}

BAD_INPUT = 2
INTERRUPTED = 130
_BROKEN_PIPE = 141  # what a shell reports of a program that SIGPIPE ended

# Newer Typers carry a copy of Click, older ones import it: the base of their errors either way.
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])


def command(name: str) -> Command:
    """The function behind a command."""
    return cast(Command, getattr(import_module(f"uncork.cli.commands.{name}"), name))


def one_command(name: str) -> typer.Typer:
    """A command as a program of its own, begun only once its files have been checked."""
    function = command(name)
    only = typer.Typer(add_completion=False, rich_markup_mode=None)
    kind = type("Command", (PlainCommand,), {"old_names": old_names(function)})
    run = written_out(function, partial(check_files, function))
    only.command(name, cls=kind)(run)
    return only


class _Program(TyperGroup):
    """Imports a command when it is asked for, and turns errors into exit statuses."""

    table: Mapping[str, Sequence[str]] = COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in self.table.values() for name in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        names = self.list_commands(ctx)
        # For a name that does not exist Typer suggests others, of those it knows.
        for name in [cmd_name] if cmd_name in names else names:
            if name not in self.commands:
                self.commands[name] = typer.main.get_command(one_command(name))
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        longest = max(map(len, self.list_commands(ctx)))
        for panel, names in self.table.items():
            lines = [
                (name.ljust(longest), self.get_command(ctx, name).get_short_help_str(200))
                for name in names
            ]
            write_sections(formatter, {panel: lines})

    def main(self, *args: Any, **settings: Any) -> Any:
        early.imported()
        _never_fail_to_print()
        standalone = settings.pop("standalone_mode", True)
        try:
            status = super().main(*args, **{**settings, "standalone_mode": False})
        except _UsageError as error:
            raised: Any = error
            where = "uncork" if raised.ctx is None else raised.ctx.command_path
            fail(f"{raised.format_message()} (see {where} --help)")
            status = BAD_INPUT
        except (typer.Abort, KeyboardInterrupt):
            status = INTERRUPTED
        except OSError as error:  # there was no command yet: --version
            status = _reported(error)
        if standalone:
            sys.exit(status)
        return status

    def invoke(self, ctx: Any) -> Any:
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:  # a command that saves something has said so itself
            note("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except UncorkError as error:
            if _was_interrupted(error):
                note("interrupted")
                raise typer.Exit(INTERRUPTED) from None
            fail(str(error))
        except OSError as error:
            raise typer.Exit(_reported(error)) from None
        except MemoryError:
            fail("there is not enough memory for this")
        else:
            return 0
        raise typer.Exit(BAD_INPUT)


def _was_interrupted(error: BaseException | None) -> bool:
    """Ctrl-C while a library is being imported can arrive as an error of the import."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _reported(error: OSError) -> int:
    """Say what the system refused; the exit status that goes with it."""
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has left: print nothing more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    where = f"{error.filename}: " if error.filename else ""
    fail(f"{where}{error.strerror or error}")
    return BAD_INPUT


def _show_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"uncork {__version__}\n")
        sys.stdout.flush()
        raise typer.Exit


def program(commands: Mapping[str, Sequence[str]] = COMMANDS) -> typer.Typer:
    """The program with these commands, by heading."""
    made = typer.Typer(
        cls=type("Program", (_Program,), {"table": commands}),
        name="uncork",
        help="What can the output layer of a model say, and what can it never say?\n\n"
        "Example: uncork audit model.onnx --report audit.html",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @made.callback()
    def uncork(
        version: Annotated[
            bool,
            typer.Option(
                "--version",
                callback=_show_version,
                is_eager=True,
                help="Print the version and exit.",
            ),
        ] = False,
    ) -> None:
        pass

    return made


app = program()


def _never_fail_to_print() -> None:
    """Labels may hold what the terminal's encoding lacks: print an escape in its place. Where
    stdout or stderr is closed, what would go there goes nowhere."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def main() -> None:
    """The console script `uncork`."""
    try:
        app(prog_name="uncork")
    except KeyboardInterrupt:  # while the commands were being put together
        sys.exit(INTERRUPTED)
