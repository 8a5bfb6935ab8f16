"""One audit of one head, split by classes over workers, and put together again.

Every worker has all rows, and decides ranges of classes against them. Each range is proven and
certified where it is decided, so the verdicts are those of one machine. What a worker loses is
tried again; what is finished is on disk before anything else happens.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from uncork.auditing.proofs.proofs import Proofs
from uncork.auditing.proofs.range_file import Range
from uncork.auditing.proofs.verdict import Verdict
from uncork.auditing.result import Audit
from uncork.auditing.run import Interrupted, Options, audit
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress, progress_bar
from uncork.domain import Domain
from uncork.loading import find
from uncork.workers.engines import share, shared
from uncork.workers.finished_ranges import Kept
from uncork.workers.join import join
from uncork.workers.lock import AUDIT, held
from uncork.workers.queue import Call, Lost, Queue
from uncork.workers.ranges import Decided, packed, unpacked

_FEWEST, _MOST = 1024, 65_536  # classes of a range
_RANGES = 32  # of a head that has classes enough for them
_WIDTHS = 4  # classes of a range for each feature: else preparing takes longer than deciding
_KEY = "ranges"


@dataclass(frozen=True)
class Rows:
    """Where a worker reads the head: a source that it sees too, and the options it is read with."""

    source: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """How every range is decided."""

    options: Options = field(default_factory=Options)
    device: str = "cpu"
    jobs: int = 1  # threads of each worker
    until: float | None = None  # the time of day, in seconds since 1970, at which to stop


@dataclass(frozen=True)
class Work:
    """What all ranges of one audit share, in plain values."""

    fingerprint: str
    domain: Domain
    rows: Rows | None  # None: they are sent
    settings: Settings


@dataclass(frozen=True)
class Failed:
    """Why a range could not be decided, in one line: an answer, and no exception, because what an
    engine raises is about the engine."""

    error: str


def range_size(classes: int, features: int) -> int:
    """How many classes a range has. The same for any engine and any number of workers, so that
    each can go on with the ranges of another."""
    fewest = max(_FEWEST, _WIDTHS * features)
    return min(max(-(-classes // _RANGES), fewest), _MOST)


# What a worker does


def decide(work: Work, sent: Any, classes: np.ndarray, earlier: bytes | None) -> Decided | Failed:
    """Decide some classes; what is proven of them in `earlier` is checked again first."""
    try:
        head: Head = _opened(work) if sent is None else shared(sent)
        settings = work.settings
        left = None if settings.until is None else settings.until - time.time()
        if left is not None and left <= 0:
            return Decided(packed(_nothing(head, work, classes), classes))
        before = None if earlier is None else _as_audit(unpacked(earlier, head), head)
        options = settings.options
        # One thread unless asked for more: sums then come out the same wherever they are made.
        with threadpool_limits(settings.jobs):
            result = audit(
                head, domain=work.domain, classes=classes, approximate=options.approximate,
                patience=options.patience, algorithm=options.algorithm, strict=options.strict,
                time_limit=left, device=settings.device, jobs=settings.jobs, resume=before,
            )  # fmt: skip
        return Decided(packed(result, classes))
    except UncorkError as error:
        said = str(error)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return Failed(" ".join(said.split()))


_last: tuple[str, Head] | None = None  # what this process read last: a worker has many ranges


def _opened(work: Work) -> Head:
    global _last
    if _last is None or _last[0] != work.fingerprint:
        assert work.rows is not None
        try:
            head = find(work.rows.source, **work.rows.options).head
        except UncorkError as error:
            raise UncorkError(
                f"a worker cannot read it: {error} (workers need the file under the same path; "
                "--send-rows sends its rows to them)"
            ) from None
        if head.fingerprint != work.fingerprint:
            raise UncorkError(
                f"a worker reads other weights from {work.rows.source}: the file is another one "
                "there, or was changed (--send-rows sends its rows to the workers)"
            )
        _last = work.fingerprint, head
    return _last[1]


def _nothing(head: Head, work: Work, classes: np.ndarray) -> Audit:
    """No verdict on any of the classes: the time was over before their turn came."""
    proofs = Proofs.empty(head.classes)
    proofs.reasons = dict.fromkeys(classes.tolist(), "the time limit was reached before its turn")
    return Audit(
        proofs, head.fingerprint, work.domain, head.features, head.dtype, head.bias is not None,
        source=head.source, head=head, approximate=work.settings.options.approximate,
        algorithm=work.settings.options.algorithm, reading=head.reading,
    )  # fmt: skip


def _as_audit(part: Range, head: Head) -> Audit:
    """What a range proves, as the audit of some classes of the head."""
    return join([part], head.classes, part.asked, lambda: head)


# What the one who asks does


def _to_send(head: Head) -> Head:
    """The head in memory, without what only its owner needs, and with its fingerprint computed."""
    sent = head.replace(weight=np.asarray(head.weight), labels=None)
    assert sent.fingerprint == head.fingerprint
    return sent


def split_audit(
    head: Head,
    engine: Executor,
    rows: Rows | None,
    *,
    work: Path,
    settings: Settings | None = None,
    classes: np.ndarray | None = None,
    size: int | None = None,
    resume: Audit | None = None,
    progress: bool | Progress = False,
) -> Audit:
    """Decide the classes of a head (all, or those named) on the workers of an engine.

    Workers read the rows themselves, as `rows` says; where it is None they are sent to them, once
    each. `work` is a folder that keeps finished ranges, and stays where not everything was decided.
    `resume` is what is known already: it is checked again, by the workers. Ctrl-C raises
    `Interrupted` with what is finished.
    """
    shown = progress_bar(progress)
    with held(work, AUDIT), shown:
        return _Split(head, engine, rows, work, settings or Settings(), classes, size, resume,
                      shown).run()  # fmt: skip


class _Split:
    def __init__(
        self,
        head: Head,
        engine: Executor,
        rows: Rows | None,
        work: Path,
        settings: Settings,
        classes: np.ndarray | None,
        size: int | None,
        resume: Audit | None,
        progress: Progress,
    ) -> None:
        self.head, self.resume, self.progress = head, resume, progress
        self.kept = Kept(work)
        self.shared = Work(head.fingerprint, head.domain, rows, settings)
        self.asked = None if classes is None else np.unique(classes)
        self.ids = np.arange(head.classes) if self.asked is None else self.asked
        self.size = size or range_size(head.classes, head.features)
        self.sent = None if rows is not None else share(engine, _to_send(head))
        self.queue: Queue[int] = Queue(engine, self._call)
        self.done: dict[int, Decided] = {}
        self.began = time.perf_counter()

    def run(self) -> Audit:
        if self.resume is None:
            self.kept.clear()
        for start in range(0, len(self.ids), self.size):
            self.queue.add(start)
        self.progress.stage("deciding", len(self.ids))
        try:
            self.queue.run(self._take, self._keep)
        except KeyboardInterrupt:
            raise Interrupted(self._joined("interrupted")) from None
        result = self._joined("no worker decided it")
        if not len(result.undecided):
            self.kept.clear()
        return result

    def _range(self, start: int) -> np.ndarray:
        return self.ids[start : start + self.size]

    def _call(self, start: int) -> Call:
        classes = self._range(start)
        earlier = None
        if self.resume is not None and self.resume.proofs.verdicts[classes].any():
            earlier = packed(self.resume, classes)
        return decide, (self.shared, self.sent, classes, earlier)

    def _take(self, start: int, answer: Any) -> None:
        if isinstance(answer, Lost):
            raise UncorkError(f"{answer.why} (what was decided is kept: --resume goes on)")
        if isinstance(answer, Failed):
            raise UncorkError(answer.error)
        self._keep(start, answer)
        self.progress.advance(len(self._range(start)))

    def _keep(self, start: int, answer: Any) -> None:
        if isinstance(answer, Decided):
            self.kept.put(_KEY, start, answer)
            self.done[start] = answer

    def _joined(self, why_not: str) -> Audit:
        """What is finished, as one audit of the head; and what an earlier run had, where its range
        is not finished."""
        head = self.head
        parts = [unpacked(self.done[start].proofs, head) for start in sorted(self.done)]
        if self.resume is not None:
            for start in range(0, len(self.ids), self.size):
                if start not in self.done:
                    parts.append(unpacked(packed(self.resume, self._range(start)), head))
        if not parts:
            parts = [unpacked(packed(_nothing(head, self.shared, self.ids[:1]), self.ids[:1]))]
        result = join(parts, head.classes, self.asked, lambda: head)
        for t in result.undecided.tolist():
            result.proofs.reasons.setdefault(t, why_not)
        result.head, result.labels, result.reading = head, head.labels, head.reading
        result.source = head.source
        # What workers did side by side, and how long all of it took.
        result.seconds["total"] = time.perf_counter() - self.began
        return result


def kept_ranges(work: Path, head: Head, asked: np.ndarray | None) -> Audit | None:
    """What the finished ranges in a folder prove of a head, None where there is none of them.

    Nothing in them is believed until it is checked; one that cannot be read is left out.
    """
    kept = Kept(work)
    parts = []
    for start in kept.starts(_KEY):
        found = kept.get(_KEY, start)
        try:
            part = None if found is None else unpacked(found.proofs, head)
        except UncorkError:
            continue
        if part is not None and part.about.fingerprint == head.fingerprint:
            parts.append(part)
    if not parts:
        return None
    result = join(parts, head.classes, asked, lambda: head)
    result.head, result.labels = head, head.labels
    result.proven = False
    return result if (result.proofs.verdicts != Verdict.UNDECIDED).any() else None
