"""One progress display: stages with counts and time left, on stderr, for terminals only."""

from __future__ import annotations

from types import TracebackType

_silent = False


def silence(quiet: bool) -> bool:
    """Whether bars are shown at all from now on: what `--quiet` says, also to those far below."""
    global _silent
    _silent = quiet
    return quiet


class Progress:
    """Takes note of stages and steps; this one shows nothing."""

    def stage(self, name: str, total: int) -> None:
        """A new stage of `total` steps begins."""

    def advance(self, steps: int) -> None:
        """So many steps of the current stage are done."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The work is over, one way or another."""


class ProgressBar(Progress):
    """A bar a stage on stderr, with counts, time spent and time left; nothing in a log file."""

    def __enter__(self) -> ProgressBar:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TaskID,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bars

        console = Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=_silent or not console.is_terminal,
        )
        self._bars.start()
        self._task: TaskID | None = None
        return self

    def stage(self, name: str, total: int) -> None:
        self._task = self._bars.add_task(name, total=total)

    def advance(self, steps: int) -> None:
        if self._task is not None:
            self._bars.advance(self._task, steps)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()
