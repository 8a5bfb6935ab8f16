"""Going through the data: progress, a state on disk to resume from, nothing lost by Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uncork.activations.batch import Batch, Runner
from uncork.activations.statistics import STATISTICS, Statistics
from uncork.core.errors import UncorkError
from uncork.core.own_archive import open_archive, write_archive
from uncork.core.progress import Progress

_SAVED_EVERY = 30.0  # seconds
_VERSION = 1
_NAMES = ("version", "identity", "done", *STATISTICS)
_LONGEST = 1 << 20  # characters that tell a recording from another


class Stopped(Exception):
    """Ctrl-C: what was recorded is in `statistics`, and in the state if there is one."""

    def __init__(self, statistics: Statistics, done: int) -> None:
        super().__init__("interrupted")
        self.statistics, self.done = statistics, done


class State:
    """The unfinished recording in a file, replaced as a whole each time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def save(self, identity: str, done: int, statistics: Statistics) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        facts = {"version": np.array(_VERSION), "identity": np.array(identity)}
        write_archive(self.path, {**facts, "done": np.array(done), **statistics.arrays()})

    def load(self, identity: str, features: int, classes: int) -> tuple[int, Statistics] | None:
        """How many items were done, and what was recorded; None where there is nothing."""
        if not self.path.is_file():
            return None
        try:
            with open_archive(self.path, "an unfinished recording", _NAMES) as arrays:
                if int(arrays.array("version", ())) != _VERSION:
                    raise UncorkError("it is of another version of uncork")
                if arrays.text("identity", _LONGEST) != identity:
                    raise UncorkError("it is of another model, other data or other settings")
                found = Statistics.from_archive(arrays, features, classes)
                return int(arrays.array("done", ())), found
        except UncorkError as error:
            raise UncorkError(f"{error}: delete it, or leave out --resume") from None

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def record(
    runner: Runner,
    *,
    limit: int | None = None,
    state: State | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    watch: Sequence[Callable[[Batch], Any]] = (),
) -> Statistics:
    """Run the model over its data and take note of what arrives at its head.

    `watch` sees every batch too. With a state, Ctrl-C raises `Stopped` after what was recorded is
    saved, and `resume` goes on from there: the result is the one of an undisturbed run.
    """
    if limit is not None and limit < 1:
        raise UncorkError(f"--limit {limit}: expected a positive number of items")
    stop = runner.total if limit is None else min(limit, runner.total)
    statistics = Statistics(runner.head.features, runner.head.classes)
    done = 0
    if resume and state is not None:
        earlier = state.load(runner.identity, runner.head.features, runner.head.classes)
        if earlier is not None:
            done, statistics = earlier
    shown = Progress() if progress is None else progress
    shown.stage("running", stop)
    shown.advance(min(done, stop))
    saved = time.monotonic()
    with _between_batches() as asked_to_stop:
        for batch in runner.batches(done, stop):
            for look in watch:
                look(batch)
            statistics.add(batch)
            done += batch.items
            shown.advance(batch.items)
            late = time.monotonic() - saved > _SAVED_EVERY
            if state is not None and (late or asked_to_stop()):
                state.save(runner.identity, done, statistics)
                saved = time.monotonic()
            if asked_to_stop() and done < stop:
                raise Stopped(statistics, done)
    if not statistics.count:
        raise UncorkError(f"{runner.name}: no input arrived at the head on this data")
    return statistics


@contextlib.contextmanager
def _between_batches() -> Iterator[Callable[[], bool]]:
    """Ctrl-C waits until a batch is taken note of as a whole; a second one does not wait."""
    asked: list[int] = []

    def stop(number: int, frame: Any) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
