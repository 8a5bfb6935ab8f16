"""The sweep: plan every model, hand its ranges to the engine, store what comes back.

A model that fails is recorded and the rest goes on. A worker that is lost is no failure of its
model: what it had is tried again, and in the end not run. A range that is finished is on disk
before anything else happens, so that whatever is killed, nothing is decided twice after `resume`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.core.reading import Reading
from uncork.store import Store, StoredAudit
from uncork.sweep.engines import in_one_line, local_processes, stop
from uncork.sweep.finished_ranges import Kept
from uncork.sweep.join import join
from uncork.sweep.lock import held
from uncork.sweep.manifest import Task
from uncork.sweep.unit import UNIT_CLASSES, Decided, Failed, Plan, decide, patience_of, plan

_TRIES = 3  # how often a range is started again after its worker died


@dataclass
class Outcome:
    """Where one model stands."""

    task: Task
    state: str = "waiting"  # looking, deciding; stored, was stored, failed, not run
    plan: Plan | None = None
    done: int = 0  # ranges finished
    ranges: int = 0
    audit_id: int | None = None
    unargmaxable: int | None = None
    undecided: int | None = None
    error: str = ""
    reading: Reading | None = None  # of what is stored

    @property
    def is_over(self) -> bool:
        return self.state in ("stored", "was stored", "failed", "not run")

    @property
    def is_stored(self) -> bool:
        return self.state in ("stored", "was stored")


@dataclass
class _Job:
    """Something handed to the engine: a look at a model (start is None), or a range of it."""

    outcome: Outcome
    start: int | None
    tries: int = 0


@dataclass
class _Model:
    parts: dict[int, Decided] = field(default_factory=dict)


def sweep(
    tasks: list[Task],
    store: Store,
    engine: Executor,
    *,
    work: Path,
    resume: bool = False,
    certificates: Path | None = None,
    changed: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Audit every task into the store; one outcome a task, in the order given.

    `work` keeps finished ranges until their model is stored. `resume` takes what is there, and
    leaves models alone that the store holds already; without it everything is decided anew. Only
    one sweep at a time can have that folder.
    `certificates` is a folder to keep every range's certificate file in. `changed` is called
    whenever a model's outcome moves on.
    """
    with held(work):
        return _Sweep(tasks, store, engine, Kept(work), resume, certificates, changed).run()


class _Sweep:
    def __init__(
        self,
        tasks: list[Task],
        store: Store,
        engine: Executor,
        kept: Kept,
        resume: bool,
        certificates: Path | None,
        changed: Callable[[Outcome], None],
    ) -> None:
        self.store, self.engine, self.kept, self.resume = store, engine, kept, resume
        self.certificates, self.changed = certificates, changed
        self.outcomes = [Outcome(task) for task in tasks]
        self.models: dict[int, _Model] = {}
        self.waiting: deque[_Job] = deque()
        self.running: dict[Future[Any], _Job] = {}
        self.finishing: tuple[Future[Any], _Job] | None = None  # taken out of `running` last
        self.own_engine: Executor | None = None

    def run(self) -> list[Outcome]:
        if not self.resume:
            self.kept.clear()
        try:
            self.waiting.extend(_Job(outcome, None) for outcome in self.outcomes)
            self._feed()
            while self.running:
                finished, _ = wait(self.running, return_when=FIRST_COMPLETED)
                for future in finished:
                    if future in self.running:
                        self.finishing = future, self.running.pop(future)
                        self._finish(self.finishing[1], future)
                        self.finishing = None
                self._feed()
        except BaseException as error:
            self._rescue()
            if self.own_engine is not None:
                stop(self.own_engine)
            if isinstance(error, UncorkError) and not self.kept.is_empty():
                raise UncorkError(
                    f"{error} (what was decided is kept: --resume goes on)"
                ) from error
            raise
        if self.own_engine is not None:
            self.own_engine.shutdown(wait=True)
        return self.outcomes

    def _rescue(self) -> None:
        """Keep the ranges that are finished but were not looked at yet."""
        ended = [] if self.finishing is None else [self.finishing]
        for future, job in [*self.running.items(), *ended]:
            found = job.outcome.plan
            finished = future.done() and not future.cancelled() and future.exception() is None
            stored = job.outcome.audit_id is not None
            if finished and not stored and found is not None and job.start is not None:
                result = future.result()
                if isinstance(result, Decided):
                    self.kept.put(found.key, job.start, result)

    def _feed(self) -> None:
        """Hand to the engine what it has room for."""
        while self.waiting and self._has_room(self.waiting[0]):
            job = self.waiting.popleft()
            if job.outcome.is_over:
                continue
            if job.outcome.state == "waiting":
                self._move(job.outcome, "looking")
            try:
                self._submit(job, job.outcome.task)
            except Exception as error:  # the engine's own
                self._again(job, error)

    def _has_room(self, job: _Job) -> bool:
        """A process that dies takes its whole pool with it: little is handed over at a time, and
        what was there when one died is tried again alone, so that others do not pay for it."""
        if not isinstance(self.engine, ProcessPoolExecutor) or not self.running:
            return True
        if job.tries or any(one.tries for one in self.running.values()):
            return False
        workers: int = getattr(self.engine, "_max_workers", 1)
        return len(self.running) <= workers

    def _submit(self, job: _Job, task: Task) -> None:
        future: Future[Any]
        if job.start is None:
            future = self.engine.submit(plan, task)
        else:
            future = self.engine.submit(decide, task, job.start, job.start + UNIT_CLASSES)
        self.running[future] = job

    def _finish(self, job: _Job, future: Future[Any]) -> None:
        outcome = job.outcome
        if outcome.is_over:
            return
        try:
            result = future.result()
        except Exception as error:  # the engine's own: what goes wrong with a model is an answer
            self._again(job, error)
            return
        if isinstance(result, Failed):
            self._fail(outcome, result)
        elif job.start is None:
            self._planned(outcome, result)
        else:
            assert outcome.plan is not None
            self.kept.put(outcome.plan.key, job.start, result)
            self._decided(outcome, job.start, result)

    def _again(self, job: _Job, error: Exception) -> None:
        """A worker or its machine was lost: what it had is started once more."""
        lost = [(job, error)]
        if isinstance(error, BrokenProcessPool):  # one that dies takes the pool with it
            for future in list(self.running):
                broken = future.exception() if future.done() else None
                if isinstance(broken, BrokenProcessPool):
                    lost.append((self.running.pop(future), broken))
            self._renew()
        for one, why in lost:
            self._lost(one, why)
            self.waiting.appendleft(one)

    def _lost(self, job: _Job, error: Exception) -> None:
        """Count it; a unit that was lost too often says nothing about its model: it was not run."""
        job.tries += 1
        if job.tries > _TRIES and not job.outcome.is_over:
            job.outcome.error = f"its worker was lost {job.tries} times: {in_one_line(error)}"
            self._move(job.outcome, "not run")

    def _renew(self) -> None:
        workers = getattr(self.engine, "_max_workers", None)
        self.engine.shutdown(wait=False, cancel_futures=False)
        self.engine = self.own_engine = local_processes(workers)

    def _planned(self, outcome: Outcome, found: Plan) -> None:
        outcome.plan = found
        starts = range(0, found.asked, UNIT_CLASSES)
        outcome.ranges = len(starts)
        there = self.store.find(found.key, iterations=self._counts(outcome))
        if self.resume and there is not None:
            self._take(outcome, found, there)
            return
        self._move(outcome, "deciding")
        for start in starts:
            earlier = self.kept.get(found.key, start) if self.resume else None
            if earlier is None or (earlier.iterations is None and self._counts(outcome)):
                self.waiting.append(_Job(outcome, start))
            else:
                self._decided(outcome, start, earlier)

    def _take(self, outcome: Outcome, found: Plan, there: StoredAudit) -> None:
        """The audit is in the store: for this name, or for another one with the same weights."""
        task = outcome.task
        is_new = self.store.add_name(
            there, name=task.name, group=task.group, source=found.source, reading=found.reading,
            options=task.options,
        )  # fmt: skip
        outcome.audit_id, outcome.unargmaxable = there.id, there.unargmaxable
        outcome.reading = found.reading
        self._move(outcome, "stored" if is_new else "was stored")

    def _counts(self, outcome: Outcome) -> bool:
        return bool(outcome.task.options.get("iterations"))

    def _decided(self, outcome: Outcome, start: int, result: Decided) -> None:
        index = self.outcomes.index(outcome)
        model = self.models.setdefault(index, _Model())
        model.parts[start] = result
        outcome.done = len(model.parts)
        if outcome.done < outcome.ranges:
            self.changed(outcome)
            return
        del self.models[index]
        self._store(outcome, [model.parts[k] for k in sorted(model.parts)])

    def _store(self, outcome: Outcome, parts: list[Decided]) -> None:
        found, task = outcome.plan, outcome.task
        assert found is not None
        audit, iterations = join(parts, whole=found.asked == found.classes)
        outcome.audit_id = self.store.save(
            audit,
            name=task.name,
            group=task.group,
            certificates=self._keep_certificates(outcome, parts),
            iterations=iterations,
            patience=None if iterations is None else patience_of(task),
            options=task.options,
        )
        outcome.unargmaxable = len(audit.unargmaxable)
        outcome.undecided = len(audit.undecided)
        outcome.reading = audit.reading
        self.kept.forget(found.key)
        self._move(outcome, "stored")

    def _keep_certificates(self, outcome: Outcome, parts: list[Decided]) -> str | None:
        if self.certificates is None or outcome.plan is None:
            return None
        safe = re.sub(r"[^\w.-]+", "-", outcome.task.name)[:80] or "model"
        name = f"{safe}-{outcome.plan.key[:8]}"
        for number, part in enumerate(parts):
            many = f"-{number}" if len(parts) > 1 else ""
            (self.certificates / f"{name}{many}.npz").write_bytes(part.certificates)
        many = "-*" if len(parts) > 1 else ""
        return str(self.certificates / f"{name}{many}.npz")

    def _fail(self, outcome: Outcome, failed: Failed) -> None:
        outcome.error = failed.error
        task, found = outcome.task, outcome.plan
        self.store.record_failure(
            task.source, failed.error, name=task.name, group=task.group, options=task.options,
            weights=failed.file if found is None else found.fingerprint,
        )  # fmt: skip
        self._move(outcome, "failed")

    def _move(self, outcome: Outcome, state: str) -> None:
        outcome.state = state
        self.changed(outcome)


def work_folder(store_name: str) -> Path:
    """Where a sweep into that store keeps its finished ranges."""
    if "://" not in store_name:
        return Path(f"{store_name}.sweep")
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = cache if cache.is_absolute() else Path.home() / ".cache"
    return folder / "uncork" / "sweep" / hashlib.sha256(store_name.encode()).hexdigest()[:16]
