"""A cluster that loses a worker: named so that its workers find this module too."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any


def once(fn: Any, mark: Path, *args: Any) -> Any:
    """The work, in a worker that dies the first time it begins the second range."""
    if args[2][0] == 100 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return fn(*args)


class Dying(Executor):
    """A cluster that loses a worker in the middle of a range."""

    def __init__(self, engine: Any, mark: Path) -> None:
        self.engine, self.mark = engine, mark

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.engine.submit(once, fn, self.mark, *args)

    def share(self, value: Any) -> Any:
        return self.engine.share(value)
