"""Jobs on an engine: handed over as there is room, and started again when their worker is lost.

What a job answers is for whoever asked. What an engine raises is about the engine: a worker or its
machine is gone, and what it had is tried again, so many times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from uncork.core.errors import UncorkError
from uncork.workers.engines import in_one_line, local_processes, stop

TRIES = 3  # how often a job is started again after its worker died
Job = TypeVar("Job")
Call = tuple[Callable[..., Any], tuple[Any, ...]]  # a function and what it is called with


@dataclass(frozen=True)
class Lost:
    """Instead of an answer: the job's worker was lost too often."""

    why: str


@dataclass
class _Entry(Generic[Job]):
    job: Job
    tries: int = 0


class Queue(Generic[Job]):
    """Jobs in the order they are added, on one engine.

    `call` says what to do for a job, or None if there is no need any more.
    """

    def __init__(self, engine: Executor, call: Callable[[Job], Call | None]) -> None:
        self.engine, self.call = engine, call
        self._waiting: deque[_Entry[Job]] = deque()
        self._running: dict[Future[Any], _Entry[Job]] = {}
        self._ending: tuple[Future[Any], _Entry[Job]] | None = None  # taken out of `running` last
        self._own_engine: Executor | None = None

    def add(self, job: Job) -> None:
        self._waiting.append(_Entry(job))

    def run(self, take: Callable[[Job, Any], None], rescue: Callable[[Job, Any], None]) -> None:
        """Hand every answer, or `Lost`, to `take`, which may add jobs; return when all are done.

        Where anything is raised on the way, Ctrl-C too, `rescue` is given the answers that are
        there and were not taken yet, and then it is raised on.
        """
        try:
            self._feed(take)
            while self._running:
                finished, _ = wait(self._running, return_when=FIRST_COMPLETED)
                for future in finished:
                    if future in self._running:
                        self._ending = future, self._running.pop(future)
                        self._finish(*self._ending, take)
                        self._ending = None
                self._feed(take)
        except BaseException:
            self._rescue(rescue)
            if self._own_engine is not None:
                stop(self._own_engine)
            raise
        if self._own_engine is not None:
            self._own_engine.shutdown(wait=True)

    def _rescue(self, rescue: Callable[[Job, Any], None]) -> None:
        ended = [] if self._ending is None else [self._ending]
        for future, entry in [*self._running.items(), *ended]:
            if future.done() and not future.cancelled() and future.exception() is None:
                rescue(entry.job, future.result())

    def _feed(self, take: Callable[[Job, Any], None]) -> None:
        """Hand to the engine what it has room for."""
        while self._waiting and self._has_room(self._waiting[0]):
            entry = self._waiting.popleft()
            try:
                call = self.call(entry.job)
                if call is not None:
                    self._running[self.engine.submit(call[0], *call[1])] = entry
            except UncorkError:
                raise
            except Exception as error:  # the engine's own
                self._again(entry, error, take)

    def _has_room(self, entry: _Entry[Job]) -> bool:
        """A process that dies takes its whole pool with it: little is handed over at a time, and
        what was there when one died is tried again alone, so that others do not pay for it."""
        if not isinstance(self.engine, ProcessPoolExecutor) or not self._running:
            return True
        if entry.tries or any(one.tries for one in self._running.values()):
            return False
        workers: int = getattr(self.engine, "_max_workers", 1)
        return len(self._running) <= workers

    def _finish(
        self, future: Future[Any], entry: _Entry[Job], take: Callable[[Job, Any], None]
    ) -> None:
        try:
            answer = future.result()
        except Exception as error:  # the engine's own: what goes wrong with a job is an answer
            self._again(entry, error, take)
            return
        take(entry.job, answer)

    def _again(
        self, entry: _Entry[Job], error: Exception, take: Callable[[Job, Any], None]
    ) -> None:
        """A worker or its machine was lost: what it had is started once more, or given up."""
        lost = [(entry, error)]
        if isinstance(error, BrokenProcessPool):  # one that dies takes the pool with it
            for future in list(self._running):
                broken = future.exception() if future.done() else None
                if isinstance(broken, BrokenProcessPool):
                    lost.append((self._running.pop(future), broken))
            self._renew()
        for one, why in lost:
            one.tries += 1
            if one.tries <= TRIES:
                self._waiting.appendleft(one)
            else:
                take(one.job, Lost(f"its worker was lost {one.tries} times: {in_one_line(why)}"))

    def _renew(self) -> None:
        workers = getattr(self.engine, "_max_workers", None)
        self.engine.shutdown(wait=False, cancel_futures=False)
        self.engine = self._own_engine = local_processes(workers)
