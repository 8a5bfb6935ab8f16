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

    def stage(self, name: str, total: int | None) -> None:
        """A new stage of `total` steps begins, and the one before is over. None: nobody knows how
        many steps there are, and no time left is shown."""

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


def progress_bar(progress: bool | Progress | None) -> Progress:
    """What `progress=` asks for: the display given, a bar on stderr, or nothing."""
    if isinstance(progress, Progress):
        return progress
    return ProgressBar() if progress else Progress()


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
            TextColumn("{task.description:<13}"),
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

    def stage(self, name: str, total: int | None) -> None:
        self._end_stage()
        self._task = self._bars.add_task(name, total=total)

    def _end_stage(self) -> None:
        """A stage that ended before its last step is done all the same."""
        if self._task is not None:
            done = next(task.completed for task in self._bars.tasks if task.id == self._task)
            self._bars.update(self._task, total=done)

    def advance(self, steps: int) -> None:
        if self._task is not None:
            self._bars.advance(self._task, steps)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._end_stage()
        self._bars.stop()
