"""The sweep: plan every model, hand its ranges to the engine, store what comes back.

A model that fails is recorded and the rest goes on. A lost worker is not a failure of its
model: what it had is tried again, and in the end not run. A range that is finished is on disk
before anything else happens, so that whatever is killed, nothing is decided twice after `resume`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from uncork.auditing.result import Audit
from uncork.core.errors import UncorkError
from uncork.core.reading import Reading
from uncork.store import Store, StoredAudit
from uncork.sweep.manifest import Task
from uncork.sweep.unit import UNIT_CLASSES, Failed, Plan, decide, open_head, patience_of, plan
from uncork.workers.finished_ranges import Kept
from uncork.workers.join import join
from uncork.workers.lock import held
from uncork.workers.queue import Call, Lost, Queue
from uncork.workers.ranges import Decided, unpacked


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
        self.store, self.kept, self.resume = store, kept, resume
        self.certificates, self.changed = certificates, changed
        self.outcomes = [Outcome(task) for task in tasks]
        self.models: dict[int, _Model] = {}
        self.queue: Queue[_Job] = Queue(engine, self._call)

    def run(self) -> list[Outcome]:
        if not self.resume:
            self.kept.clear()
        for outcome in self.outcomes:
            self.queue.add(_Job(outcome, None))
        try:
            self.queue.run(self._finish, self._rescue)
        except UncorkError as error:
            stored = any(outcome.is_stored for outcome in self.outcomes)
            if self.kept.is_empty() and not stored:
                raise
            raise UncorkError(f"{error} (what was decided is kept: --resume goes on)") from error
        return self.outcomes

    def _call(self, job: _Job) -> Call | None:
        outcome = job.outcome
        if outcome.is_over:
            return None
        if outcome.state == "waiting":
            self._move(outcome, "looking")
        if job.start is None:
            return plan, (outcome.task,)
        return decide, (outcome.task, job.start, job.start + UNIT_CLASSES)

    def _rescue(self, job: _Job, answer: Any) -> None:
        """Keep a range that is finished but was not looked at yet."""
        found, stored = job.outcome.plan, job.outcome.audit_id is not None
        if isinstance(answer, Decided) and not stored and found is not None:
            assert job.start is not None
            self.kept.put(found.key, job.start, answer)

    def _finish(self, job: _Job, answer: Any) -> None:
        outcome = job.outcome
        if outcome.is_over:
            return
        if isinstance(answer, Lost):  # says nothing about the model: it was not run
            outcome.error = answer.why
            self._move(outcome, "not run")
        elif isinstance(answer, Failed):
            self._fail(outcome, answer)
        elif job.start is None:
            self._planned(outcome, answer)
        else:
            assert outcome.plan is not None
            self.kept.put(outcome.plan.key, job.start, answer)
            self._decided(outcome, job.start, answer)

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
                self.queue.add(_Job(outcome, start))
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
        audit = self._joined(outcome, parts)
        iterations = _iterations(audit, parts)
        outcome.audit_id = self.store.save(
            audit,
            name=task.name,
            group=task.group,
            certificates=self._keep_certificates(outcome, audit),
            iterations=iterations,
            patience=None if iterations is None else patience_of(task),
            options=task.options,
        )
        outcome.unargmaxable = len(audit.unargmaxable)
        outcome.undecided = len(audit.undecided)
        outcome.reading = audit.reading
        self.kept.forget(found.key)
        self._move(outcome, "stored")

    def _joined(self, outcome: Outcome, parts: list[Decided]) -> Audit:
        found, task = outcome.plan, outcome.task
        assert found is not None
        ranges = [unpacked(part.proofs) for part in parts]
        whole = found.asked == found.classes
        asked = None if whole else np.unique(np.concatenate([part.asked for part in ranges]))
        audit = join(ranges, found.classes, asked, lambda: open_head(task)[0])
        audit.labels, audit.source = parts[0].labels, found.source
        return audit

    def _keep_certificates(self, outcome: Outcome, audit: Audit) -> str | None:
        if self.certificates is None or outcome.plan is None:
            return None
        safe = re.sub(r"[^\w.-]+", "-", outcome.task.name)[:80] or "model"
        path = self.certificates / f"{safe}-{outcome.plan.key[:8]}.npz"
        audit.save(path)
        return str(path)

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


def _iterations(audit: Audit, parts: list[Decided]) -> np.ndarray | None:
    """How often the paper's algorithm reflected for each class: (C,), −1 where not asked."""
    if parts[0].iterations is None:
        return None
    counts = [np.array(part.iterations, dtype=np.int64) for part in parts]
    if audit.asked is None:
        return np.concatenate(counts)
    iterations = np.full(audit.classes, -1, dtype=np.int64)
    iterations[audit.asked] = np.concatenate(counts)
    return iterations


def work_folder(store_name: str) -> Path:
    """Where a sweep into that store keeps its finished ranges."""
    if "://" not in store_name:
        return Path(f"{store_name}.sweep")
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = cache if cache.is_absolute() else Path.home() / ".cache"
    return folder / "uncork" / "sweep" / hashlib.sha256(store_name.encode()).hexdigest()[:16]
