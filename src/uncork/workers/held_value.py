"""A value that every worker of a Dask cluster holds, those that join or start again later too.

Dask's own scattered data is gone with the workers that have it; a plugin's is with the scheduler.
"""

from __future__ import annotations

from typing import Any

from distributed import WorkerPlugin

from uncork.workers import engines


class HeldValue(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Puts a value into the process of a worker, under a name."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def setup(self, worker: Any) -> None:
        engines.held[self.name] = self.value

    def teardown(self, worker: Any) -> None:
        engines.held.pop(self.name, None)
