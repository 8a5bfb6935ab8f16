"""The command line. Each command has its own module; this one gathers them and handles errors.

Exit status: 0 done; 1 the check asked for failed; 2 bad input or usage, one line on stderr and
nothing written; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from uncork import __version__
from uncork.cli.activations import activations
from uncork.cli.audit import audit
from uncork.cli.count import count
from uncork.cli.draw import draw
from uncork.cli.export import export
from uncork.cli.figure import figure
from uncork.cli.files import guarded
from uncork.cli.lost import lost
from uncork.cli.output import fail, note
from uncork.cli.playground import playground
from uncork.cli.prevent import prevent_command
from uncork.cli.random import random
from uncork.cli.rank import rank
from uncork.cli.reach import reach
from uncork.cli.repair import repair_command
from uncork.cli.serve import serve
from uncork.cli.show import show
from uncork.cli.sweep import sweep
from uncork.cli.table import table
from uncork.cli.verify import verify
from uncork.core import early
from uncork.core.errors import UncorkError

BAD_INPUT = 2
INTERRUPTED = 130
_BROKEN_PIPE = 141  # what a shell reports of a program that SIGPIPE ended

# Newer Typers carry a copy of Click, older ones import it: the base of their errors either way.
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])


class _Commands(TyperGroup):
    """The one place where errors become exit statuses."""

    def main(self, *args: Any, **settings: Any) -> Any:
        early.imported()
        _never_fail_to_print()
        standalone = settings.pop("standalone_mode", True)
        try:
            status = super().main(*args, **{**settings, "standalone_mode": False})
        except _UsageError as error:
            raised: Any = error
            command = "uncork" if raised.ctx is None else raised.ctx.command_path
            fail(f"{raised.format_message()} (see {command} --help)")
            status = BAD_INPUT
        except (typer.Abort, KeyboardInterrupt):
            status = INTERRUPTED
        except OSError as error:  # there was no command yet: --version
            status = _told(error)
        if standalone:
            sys.exit(status)
        return status

    def invoke(self, ctx: Any) -> Any:
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:  # a command that keeps something has said so itself
            note("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except UncorkError as error:
            if _was_interrupted(error):
                note("interrupted")
                raise typer.Exit(INTERRUPTED) from None
            fail(str(error))
        except OSError as error:
            raise typer.Exit(_told(error)) from None
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


def _told(error: OSError) -> int:
    """Say what the system refused; the exit status that goes with it."""
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has left. Nothing more can be said, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    where = f"{error.filename}: " if error.filename else ""
    fail(f"{where}{error.strerror or error}")
    return BAD_INPUT


app = typer.Typer(
    cls=_Commands,
    name="uncork",
    help="What can the output layer of a model say, and what can it never say?\n\n"
    "Example: uncork audit model.onnx --report audit.html",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (
    audit,
    verify,
    show,
    random,
    activations,
    sweep,
    count,
    lost,
    rank,
    reach,
    table,
    figure,
    export,
    serve,
    draw,
    playground,
):
    app.command()(guarded(_command))
app.command("prevent")(guarded(prevent_command))
app.command("repair")(guarded(repair_command))


def _show_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"uncork {__version__}\n")
        sys.stdout.flush()
        raise typer.Exit


@app.callback()
def _uncork(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


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
