"""`uncork sweep`: audit many models into a store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from uncork.cli import options
from uncork.cli.help import OUTPUT, RUN
from uncork.cli.output import console, emit_json, note, shown
from uncork.cli.parameters import Reads
from uncork.core.errors import UncorkError
from uncork.core.reading import doubt_lines, json_keys
from uncork.core.text import printable

if TYPE_CHECKING:
    from uncork.sweep import Outcome, Task

_STORE = "uncork.db"


def sweep(
    manifest: Annotated[
        str,
        typer.Argument(help="TOML file that lists the models.", metavar="MANIFEST"),
        Reads("the manifest"),
    ],
    store: Annotated[
        str,
        typer.Option(
            help="File or postgresql:// URL of the store that results go to.",
            metavar="URL",
            rich_help_panel=OUTPUT,
        ),
        Reads("the store"),
    ] = _STORE,
    certificates: Annotated[
        str | None,
        typer.Option(
            help="Write the proofs of every model to this folder, for uncork verify.",
            metavar="FOLDER",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json_file: options.Json = None,
    engine: Annotated[
        options.Engine,
        typer.Option(help="Local processes, or a Dask or Ray cluster.", rich_help_panel=RUN),
    ] = options.Engine.local,
    address: options.Address = None,
    workers: options.Workers = None,
    resume: options.Resume = False,
    quiet: options.Quiet = False,
) -> None:
    """Audit every model of a manifest into a store.

    A model that fails is recorded, and the others go on. Exit status 1 if one failed or was not
    run. Example: uncork sweep models.toml --store results.db
    """
    from uncork.sweep import read_manifest

    folder = None if certificates is None else Path(certificates)
    if folder is not None and not folder.is_dir():
        raise UncorkError(f"--certificates {certificates} is not a folder: create it first")
    outcomes = sweep_and_print(
        read_manifest(manifest), store, engine=engine.value, address=address, workers=workers,
        resume=resume, certificates=folder, json_file=json_file, quiet=quiet,
    )  # fmt: skip
    if not all(outcome.is_stored for outcome in outcomes):
        raise typer.Exit(1)


def sweep_and_print(
    tasks: list[Task],
    store: str,
    *,
    engine: str,
    address: str | None,
    workers: int | None,
    resume: bool,
    certificates: Path | None,
    json_file: str | None,
    quiet: bool,
) -> list[Outcome]:
    """Run a sweep, show its progress, and print the results."""
    from uncork.store import Store
    from uncork.sweep import sweep as run_sweep
    from uncork.sweep.run import work_folder
    from uncork.workers.engines import open_engine, stop
    from uncork.workers.lock import check_free

    with Store(store) as opened:
        work = work_folder(opened.name)
        opened.check_writable()
        check_free(work)
        if not resume and work.is_dir() and any(work.iterdir()):
            note("there was an unfinished sweep into this store: --resume would have continued it")
        display = _display(quiet)
        with open_engine(engine, address, workers) as executor, display:
            try:
                outcomes = run_sweep(
                    tasks, opened, executor, work=work, resume=resume, certificates=certificates,
                    changed=display.changed,
                )  # fmt: skip
            except BaseException as error:
                stop(executor)
                if not isinstance(error, KeyboardInterrupt):
                    raise
                note("interrupted: what was decided is saved; --resume continues")
                raise typer.Exit(130) from None
    if json_file is not None:
        emit_json([_described(outcome) for outcome in outcomes], json_file)
    if json_file != "-":
        for outcome in outcomes:
            for line in doubt_lines(outcome.reading):
                name = shown(outcome.task.name)
                console().print(f"{name}: {line}", style="bold", soft_wrap=True)
        console().print(_table(outcomes))
        stored = sum(outcome.is_stored for outcome in outcomes)
        where = printable(opened.name)
        console().print(f"{stored} of {len(outcomes)} models are in {where}", soft_wrap=True)
    return outcomes


def _described(outcome: Outcome) -> dict[str, object]:
    return {
        "name": outcome.task.name,
        "group": outcome.task.group,
        "source": outcome.task.source,
        "state": outcome.state,
        "audit": outcome.audit_id,
        "classes": None if outcome.plan is None else outcome.plan.classes,
        "unargmaxable": outcome.unargmaxable,
        "undecided": outcome.undecided,
        "error": outcome.error,
        **json_keys(outcome.reading),
    }


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("model", no_wrap=True)
    table.add_column("classes", justify="right")
    table.add_column("features", justify="right")
    table.add_column("unargmaxable", justify="right")
    table.add_column("weight", overflow="fold")
    table.add_column("")
    for outcome in outcomes:
        found = outcome.plan
        table.add_row(
            shown(outcome.task.name),
            "" if found is None else f"{found.classes:,}",
            "" if found is None else f"{found.features:,}",
            "" if outcome.unargmaxable is None else f"{outcome.unargmaxable:,}",
            "" if outcome.reading is None else shown(outcome.reading.weight),
            _state(outcome),
        )
    return table


def _state(outcome: Outcome) -> str:
    if outcome.error:
        return f"{outcome.state}: {printable(outcome.error)}"
    if outcome.state == "deciding" and outcome.ranges > 1:
        return f"deciding, {outcome.done} of {outcome.ranges} ranges"
    if outcome.undecided:
        return f"{outcome.state}, {outcome.undecided:,} undecided"
    return outcome.state


class _Display:
    """Nothing, for --quiet."""

    def changed(self, outcome: Outcome) -> None:
        pass

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _Lines(_Display):
    """A line whenever a model's state changes: for a log."""

    def changed(self, outcome: Outcome) -> None:
        note(f"{outcome.task.name}: {_state(outcome)}")


class _LiveTable(_Display):
    """A table that changes in place: for a terminal."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        out = Console(stderr=True, markup=False, highlight=False, emoji=False)
        self.live = Live(console=out, transient=True, refresh_per_second=4)

    def changed(self, outcome: Outcome) -> None:
        self.outcomes[id(outcome)] = outcome
        rows = sorted(self.outcomes.values(), key=lambda o: o.is_stored)
        self.live.update(_table(rows[: max(5, self.live.console.height - 4)]))

    def __enter__(self) -> _Display:
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()


def _display(quiet: bool) -> _Display:
    if quiet:
        return _Display()
    return _LiveTable() if sys.stderr.isatty() else _Lines()
