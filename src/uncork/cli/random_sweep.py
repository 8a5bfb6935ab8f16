"""The random-initialisation study of the paper: `uncork random --sweep`."""

from __future__ import annotations

import sys

import typer

from uncork.cli.output import console
from uncork.cli.sweep import sweep_and_print
from uncork.core.text import printable
from uncork.theory.random_heads import INITS

FEATURES = (2, 4, 6, 8, 10, 15, 20, 30, 40, 50)


def run_study(
    classes: int,
    seed: int,
    domain: str,
    store: str,
    plot: str | None,
    json_file: str | None,
    quiet: bool,
    resume: bool,
) -> None:
    """Audit a head of every width and initialisation, store and draw them."""
    from uncork.report.drawing import check_figure
    from uncork.report.fleet_plots import plot_iterations
    from uncork.store import Store
    from uncork.sweep.manifest import Task

    if plot is not None:
        check_figure(plot)
    tasks = [
        Task(
            f"random:{init},{classes}x{width},seed={seed},bias",
            f"{init}, d = {width}",
            f"random {init}",
            {"domain": domain, "iterations": True},
        )
        for init in INITS
        for width in FEATURES
    ]
    outcomes = sweep_and_print(
        tasks, store, engine="local", address=None, workers=None, resume=resume,
        certificates=None, json_file=json_file, quiet=quiet,
    )  # fmt: skip
    if plot is not None:
        stored = [outcome.audit_id for outcome in outcomes if outcome.audit_id is not None]
        with Store(store, create=False) as opened:
            plot_iterations(opened, [opened.audit(number) for number in stored], plot)
        if json_file != "-":
            console().print(f"drawn to {printable(plot)}", soft_wrap=True)
    sys.stdout.flush()
    if not all(outcome.is_stored for outcome in outcomes):
        raise typer.Exit(1)
