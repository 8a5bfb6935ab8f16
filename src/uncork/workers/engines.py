"""Where the work is done: local processes, a Dask cluster or a Ray cluster. No scheduler of ours:
each engine is an executor that takes a function and hands back a future."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from uncork.core.errors import UncorkError
from uncork.core.text import printable

ENGINES = ("local", "dask", "ray")
ANSWERS_WITHIN = 20  # seconds a scheduler may take to answer
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST = 300  # characters of an engine's error that are told


def open_engine(kind: str, address: str | None, workers: int | None) -> Executor:
    """An executor of that kind; closing it closes what was started for it."""
    if kind not in ENGINES:
        raise UncorkError(f"engine {kind!r}: expected {', '.join(ENGINES)}")
    if workers is not None and workers < 1:
        raise UncorkError(f"{workers} workers: at least one is needed")
    if kind == "local":
        if address is not None:
            raise UncorkError("--address goes with --engine dask or ray")
        return local_processes(workers)
    return _dask(address, workers) if kind == "dask" else _Ray(address, workers)


def local_processes(workers: int | None) -> ProcessPoolExecutor:
    count = workers or os.cpu_count() or 1
    # Not forked: threads of BLAS in the parent would be missing in the child, locks held.
    return ProcessPoolExecutor(
        count, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_work
    )


def stop(engine: Executor) -> None:
    """Shut an engine down without waiting for what it is doing: nobody will look at that."""
    processes = getattr(engine, "_processes", None)
    if not isinstance(engine, ProcessPoolExecutor) or not processes:
        engine.shutdown(wait=False, cancel_futures=True)
        return
    # Nothing is cancelled first: the pool gives each future an error when its processes are gone,
    # which it cannot give to one that is cancelled.
    for process in list(processes.values()):
        process.terminate()
    engine.shutdown(wait=True)


held: dict[str, Any] = {}  # what this process, a worker of a Dask cluster, was brought


@dataclass(frozen=True)
class Held:
    """Stands for a value that every worker holds under this name."""

    name: str


def share(engine: Executor, value: Any) -> Any:
    """Bring a value to all workers, once each: what to give a job in its place."""
    bring = getattr(engine, "share", None)
    return value if bring is None else bring(value)


def shared(given: Any) -> Any:
    """In a worker: the value that was shared, from what the job was given."""
    return held[given.name] if isinstance(given, Held) else given


def in_one_line(error: BaseException) -> str:
    """What an engine raised: of a report of many lines, with colours, what it comes down to."""
    if isinstance(error, BrokenProcessPool):
        return "it died (out of memory?)"
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    where = -1 if any(line.startswith("Traceback") for line in lines) else 0
    said = lines[where] if lines else ""
    name = type(error).__name__
    return printable(said if said.startswith(name) else f"{name}: {said}")[:_LONGEST]


def _begin_work() -> None:
    """Ctrl-C is for the process that decides what to do about it; when that one is gone, however
    it went, nobody will look at the work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # a pipe that the system closes with it, on every system
        os._exit(1)


class _Dask(Executor):
    def __init__(self, client: Any, cluster: Any) -> None:
        self._client, self._cluster = client, cluster
        self._executor = client.get_executor(pure=False)
        self._shared: list[str] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(fn, *args, **kwargs)
        return future

    def share(self, value: Any) -> Held:
        from uncork.workers.held_value import HeldValue

        name = f"uncork-{uuid.uuid4().hex}"
        self._client.register_plugin(HeldValue(name, value), name=name)
        self._shared.append(name)
        return Held(name)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait=wait)
        for name in self._shared:  # a cluster that lives on has no use for them
            self._client.unregister_worker_plugin(name)
        self._shared.clear()
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def _dask(address: str | None, workers: int | None) -> Executor:
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise UncorkError(
            "--engine dask needs dask.distributed: pip install 'uncork[cluster]'"
        ) from None
    cluster = None
    if address is None:
        cluster = LocalCluster(
            n_workers=workers or os.cpu_count(), threads_per_worker=1, dashboard_address=None,
            host="127.0.0.1",
        )  # fmt: skip
        address = cluster.scheduler_address
    try:
        client = Client(address, timeout=ANSWERS_WITHIN)
    except (OSError, ValueError, TimeoutError) as error:
        raise UncorkError(f"no Dask scheduler answers at {address}: {error}") from error
    return _Dask(client, cluster)


class _Ray(Executor):
    def __init__(self, address: str | None, workers: int | None) -> None:
        try:
            import ray
        except ImportError:
            raise UncorkError("--engine ray needs ray: pip install 'uncork[cluster]'") from None
        self._ray = ray
        try:
            if address is None:
                ray.init(
                    address="local", num_cpus=workers or os.cpu_count(), include_dashboard=False,
                    log_to_driver=False, logging_level=logging.ERROR,
                )  # fmt: skip
            else:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UncorkError(f"no Ray cluster answers at {address}: {error}") from error
        # What was lost is tried again by the queue: once for all engines.
        self._remote = ray.remote(max_retries=0)(_call)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._remote.remote(fn, *args, **kwargs).future()
        return future

    def share(self, value: Any) -> Any:
        return self._ray.put(value)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ray.shutdown()


def _call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)
