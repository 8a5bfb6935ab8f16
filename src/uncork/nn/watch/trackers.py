"""Where runs are recorded: counts, the table of lost classes and the report, for each tracker.

A tracker of one's own is any object with a name and these four methods.
"""

from __future__ import annotations

import csv
import importlib
import io
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from uncork.core.errors import UncorkError
from uncork.core.text import printable, visible

_MOST_SHOWN = 200  # rows of a table that is read as text
_LONGEST = 60  # characters of a label there
_STEP = "uncork/step"
_MARKUP = re.compile(r"[!-/:-@\[-`{-~]")


@dataclass(frozen=True)
class Table:
    """Rows under the names of their columns, for people: text is as it came, from anywhere."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str | int, ...]]

    def printable(self) -> list[list[str | int]]:
        """Every row, with nothing in it that steers a terminal or cannot be encoded."""
        return [[printable(cell) if isinstance(cell, str) else cell for cell in row]
                for row in self.rows]  # fmt: skip


@dataclass(frozen=True)
class Page:
    """A file for the browser, which is gone once the trackers have been told."""

    name: str
    path: Path


@runtime_checkable
class Tracker(Protocol):
    """Takes what a watch has to say of a training. Nothing is given to it before `begin`."""

    name: str  # as `report_to` of transformers says it: what a trainer logs itself is not repeated

    def begin(self) -> None:
        """Training begins: find the run that is to have the records, which may end before it."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """The counts."""

    def table(self, table: Table, step: int) -> None:
        """The lost classes, whenever they have changed."""

    def page(self, page: Page, step: int) -> None:
        """The report."""


class MLflow:
    """A run of MLflow: the one that is active when training begins unless its id is given.

    Metrics, `uncork/lost_000300.csv` whenever the lost classes change, `uncork/report.html`.
    """

    name = "mlflow"

    def __init__(self, run_id: str | None = None, client: Any = None) -> None:
        self._given, self._client = run_id, client
        self._run: str | None = None

    def begin(self) -> None:
        mlflow = _imported("mlflow", "mlflow")
        self._client = self._client or mlflow.MlflowClient()
        if self._given is None:  # as mlflow.log_metric does, a run is started where none is
            self._run = (mlflow.active_run() or mlflow.start_run()).info.run_id
        else:
            self._run = self._given

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        metric = importlib.import_module("mlflow.entities").Metric
        now = int(time.time() * 1000)
        metrics = [metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def table(self, table: Table, step: int) -> None:
        text = io.StringIO()
        csv.writer(text).writerows([table.columns, *table.printable()])
        self._client.log_text(self._run, text.getvalue(), f"{table.name}_{step:06d}.csv")

    def page(self, page: Page, step: int) -> None:
        self._client.log_artifact(self._run, str(page.path), page.name.rpartition("/")[0])


class WandB:
    """A run of Weights & Biases: the one that is active when training begins unless given.

    Everything is drawn over `uncork/step`: the run's own steps may be those of other logs.
    """

    name = "wandb"

    def __init__(self, run: Any = None) -> None:
        self._given = self._run = run
        self._over_steps: set[str] = set()

    def begin(self) -> None:
        self._run = self._given or _imported("wandb", "wandb").run
        if self._run is None:
            raise UncorkError("WandB: no run is active; call wandb.init(...), or give WandB(run)")
        self._run.define_metric(_STEP, hidden=True)

    def _log(self, values: Mapping[str, Any], step: int) -> None:
        for name in set(values) - self._over_steps:
            self._run.define_metric(name, step_metric=_STEP)
            self._over_steps.add(name)
        self._run.log({**values, _STEP: step})

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._log(values, step)

    def table(self, table: Table, step: int) -> None:
        made = importlib.import_module("wandb").Table(list(table.columns), table.printable())
        self._log({table.name: made}, step)

    def page(self, page: Page, step: int) -> None:
        made = importlib.import_module("wandb").Html(str(page.path), inject=False)
        self._log({page.name: made}, step)


class TensorBoard:
    """Event files: those of a `SummaryWriter`, or new ones in a folder.

    TensorBoard keeps no files: the report is put beside the events, and a text says where. The
    table is a text, too, of its first rows.
    """

    def __init__(self, where: Any = "runs/uncork") -> None:
        folder = isinstance(where, str | os.PathLike)
        self._where, self._writer = where, None if folder else where
        self.name = f"tensorboard in {where}" if folder else "tensorboard"  # not the trainer's own

    def begin(self) -> None:
        if self._writer is None:
            try:
                module = importlib.import_module("torch.utils.tensorboard")
            except ImportError:
                module = _imported("tensorboardX", "tensorboard")
            self._writer = module.SummaryWriter(str(self._where))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        assert self._writer is not None
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def table(self, table: Table, step: int) -> None:
        self._text(table.name, as_markdown(table), step)

    def page(self, page: Page, step: int) -> None:
        assert self._writer is not None
        folder = Path(getattr(self._writer, "log_dir", None) or self._writer.logdir)
        kept = folder / page.name / page.path.name
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page.path, kept)
        self._text(page.name, f"The report of step {step}: {_plain(str(kept))}", step)

    def _text(self, name: str, text: str, step: int) -> None:
        assert self._writer is not None
        self._writer.add_text(name, text, step)
        self._writer.flush()


def as_markdown(table: Table) -> str:
    """The first rows, in which nothing of a cell is markup."""
    lines: list[Sequence[str]] = [table.columns, ["---"] * len(table.columns)]
    for row in table.rows[:_MOST_SHOWN]:
        lines.append([_plain(visible(str(cell), _LONGEST)) for cell in row])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    more = len(table.rows) - _MOST_SHOWN
    return text if more <= 0 else f"{text}\n\n… and {more:,} more, all of them in the report."


def _plain(text: str) -> str:
    """Text as every reader of Markdown shows it: whatever could be markup by its number."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", text)


def _imported(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UncorkError(f"this tracker needs {package}: pip install {package}") from error
