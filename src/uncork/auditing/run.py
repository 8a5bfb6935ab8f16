"""The audit: screen, decide, certify. Ties the steps together, keeps time, resumes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from uncork.auditing.backend import Backend, choose_backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.duplicates import equal_classes
from uncork.auditing.folded import Folded, searched
from uncork.auditing.low_precision import low_precision
from uncork.auditing.proofs.verdict import Mixture, Verdict
from uncork.auditing.recorder import Recorder
from uncork.auditing.result import Audit
from uncork.auditing.search import centre, screen
from uncork.auditing.search.exact import Limit, decide_exactly
from uncork.auditing.search.rows import decide_by_rows
from uncork.auditing.search.space import Space, magnitude_unit
from uncork.auditing.search.tilt import tilted_mixtures
from uncork.core.class_ids import class_ids
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress, ProgressBar
from uncork.domain import Domain

_WIDE = 256  # beyond this many features a working set costs more than products over all classes
STAGES = ("load", "prepare", "screen", "decide", "certify", "total")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of an audit; `audit` holds what was proven until then."""

    def __init__(self, audit: Audit) -> None:
        super().__init__("interrupted")
        self.audit = audit


@dataclass(frozen=True)
class Options:
    """How to audit. The defaults decide every class."""

    approximate: bool = False
    patience: int | None = None
    algorithm: str = "fast"
    time_limit: float | None = None
    low_precision: bool = False
    exact_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.algorithm not in ("fast", "reference"):
            raise UncorkError(f"algorithm {self.algorithm!r}: expected fast or reference")
        if self.patience is not None and self.patience < 0:
            raise UncorkError(f"patience must not be negative, and is {self.patience}")
        check_time_limit(self.time_limit)


def check_time_limit(seconds: float | None) -> None:
    """Raise unless there is no limit, or some time."""
    if seconds is not None and not seconds > 0:
        raise UncorkError(f"the time limit must be positive, and is {seconds}")


def audit(
    head: Head,
    *,
    domain: Domain | None = None,
    classes: Sequence[int] | np.ndarray | None = None,
    approximate: bool = False,
    patience: int | None = None,
    algorithm: str = "fast",
    device: str = "auto",
    jobs: int | None = None,
    time_limit: float | None = None,
    low_precision: bool = False,
    progress: bool | Progress = False,
    resume: Audit | None = None,
) -> Audit:
    """Decide for every class of the head whether some input of the domain makes it the argmax.

    Every verdict in the result has passed the certifier. `classes` asks for some only;
    `approximate` stops after screening; `time_limit` (seconds of search) and Ctrl-C leave the rest
    undecided, the latter by raising `Interrupted` with the audit so far; `resume` continues an
    earlier one, whose proofs are checked again first, in time that does not count;
    `low_precision` also counts how the witnesses fare with logits computed in the head's own type.
    """
    options = Options(approximate, patience, algorithm, time_limit, low_precision)
    backend = choose_backend(device, jobs)
    domain = domain or head.domain
    view = domain.affine(head.features)
    with np.errstate(all="ignore"):
        unit = magnitude_unit(searched(head, view), backend)
    if backend.name == "cpu" and not 1e-9 < unit < 1e9:
        backend = Backend(jobs, np.float64)  # magnitudes whose squares float32 cannot hold
    if algorithm == "reference" and view.steps:
        raise UncorkError(
            f"the reference algorithms know boxes and the unbounded domain, not {domain}"
        )
    shown: Progress
    if isinstance(progress, Progress):
        shown = progress
    else:
        shown = ProgressBar() if progress else Progress()
    with shown:
        return _Run(head, domain, backend, options, classes, shown, resume).run()


class _Run:
    def __init__(
        self,
        head: Head,
        domain: Domain,
        backend: Backend,
        options: Options,
        classes: Sequence[int] | np.ndarray | None,
        progress: Progress,
        resume: Audit | None,
    ) -> None:
        self.started = self.searching_since = time.perf_counter()
        self.head, self.domain, self.backend, self.options = head, domain, backend, options
        domain.check(head.features)
        self.progress = progress
        self.asked = np.unique(class_ids(head.classes, classes))
        self.certifier = Certifier(head, domain, backend)
        self.recorder = Recorder(self.certifier, backend)
        self.resume = resume
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.interrupted = self.taken_over = False
        self.known = 0  # verdicts that an earlier audit brought

    def run(self) -> Audit:
        # Searching may overflow on the way to a proposal; a proposal that did is simply refused.
        with np.errstate(all="ignore"):
            return self._run()

    def _run(self) -> Audit:
        try:
            self._prepare()
            if self.options.algorithm == "reference":
                left = self._reference()
            else:
                left = self._screen()
                left = self._decide(left)
        except KeyboardInterrupt:
            self.interrupted = True
            if self.resume is not None and not self.taken_over:
                raise Interrupted(self.resume) from None  # nothing new, and nothing lost
            left = self._wanted()
            self.recorder.flush()
        self._explain(left)
        result = self._result()
        if not self.interrupted and self.options.low_precision:
            begun = time.perf_counter()
            try:
                result.low_precision = low_precision(
                    self.head, result.proofs, self.backend, self.domain
                )
            except KeyboardInterrupt:
                raise Interrupted(result) from None
            self.seconds["low precision"] = time.perf_counter() - begun
            self.seconds["total"] = time.perf_counter() - self.started
        if self.interrupted:
            raise Interrupted(result)
        return result

    # Stages

    def _prepare(self) -> None:
        begun = time.perf_counter()
        proofs = self.recorder.proofs
        proofs.groups = equal_classes(self.head)
        self.recorder.groups = {int(i): g for g in proofs.groups for i in g.tolist()}
        if self.resume is not None:
            self._take_over(self.resume)
        self.space = Space(self.head, self.domain, self.backend, proofs.groups)
        self.recorder.use_formula(self.space)
        if isinstance(self.space.head, Folded):
            self._propose_equals(equal_classes(self.space.head))
        self.seconds["prepare"] += time.perf_counter() - begun

    def _propose_equals(self, groups: list[np.ndarray]) -> None:
        """Classes that differ only where no input of the domain goes (a gain of zero, say) tie
        everywhere: each is the other's mixture."""
        wanted = set(self._wanted().tolist())
        proposals = []
        for group in groups:
            different = np.unique(self.space.representative[group]).tolist()
            for t, other in zip(different, different[1:] + different[:1], strict=True):
                if t != other and t in wanted:
                    proposals.append((t, Mixture(np.array([other], np.int32), np.ones(1))))
        self.recorder.propose_mixtures(proposals)

    def _take_over(self, earlier: Audit) -> None:
        if earlier.fingerprint != self.head.fingerprint:
            raise UncorkError("the audit to resume is of other weights: its fingerprint differs")
        if earlier.domain != self.domain:
            raise UncorkError(
                f"the audit to resume is for {earlier.domain}, this one for {self.domain}"
            )
        self.recorder.take_over(earlier.proofs)
        self.taken_over = True
        self.known = self._decided()
        # Else a run would check again what the last one proved, be late, and get no further.
        self.searching_since = time.perf_counter()

    def _decided(self) -> int:
        return int((self.recorder.proofs.verdicts != Verdict.UNDECIDED).sum())

    def _wanted(self) -> np.ndarray:
        """Classes asked for that are not decided yet, one of each group of equals."""
        wanted = np.zeros(self.head.classes, dtype=bool)
        wanted[self.asked] = True
        for group in self.recorder.proofs.groups:
            wanted[group[0]] |= bool(wanted[group].any())
            wanted[group[1:]] = False
        wanted &= self.recorder.proofs.verdicts == Verdict.UNDECIDED
        return np.flatnonzero(wanted)

    def _screen(self) -> np.ndarray:
        begun, certified = time.perf_counter(), self.recorder.seconds
        classes = self._wanted()
        self.progress.stage("screening", len(classes))
        patience = self.options.patience
        if patience is None and self.options.approximate:
            patience = 2500  # as in the paper
        self.hinted, self.hints = screen.screen(
            self.space, classes, self._propose, patience, self.progress.advance, self._late
        )
        self.recorder.flush()
        certified = self.recorder.seconds - certified
        self.seconds["screen"] += time.perf_counter() - begun - certified
        return self._wanted()

    def _propose(self, classes: np.ndarray, inputs: Any, formula: bool) -> None:
        self.recorder.propose(classes, self.space.proposed(inputs), formula)

    def _decide(self, left: np.ndarray) -> np.ndarray:
        if self.options.approximate or not len(left) or self._late():
            return left
        begun, certified = time.perf_counter(), self.recorder.seconds
        self.progress.stage("deciding", len(left))
        if self.space.width > _WIDE:
            deep = tilted_mixtures(self.space, left)
            self.progress.advance(self.recorder.propose_mixtures(deep))
            left = self._wanted()
        for factor in (1.0, 3.0):
            self._decide_in_batches(left, factor)
            left = self._wanted()
        for t in left.tolist():
            if self._late():
                break
            self._decide_alone(t)
            self.progress.advance(1)
        certified = self.recorder.seconds - certified
        self.seconds["decide"] += time.perf_counter() - begun - certified
        return self._wanted()

    def _decide_in_batches(self, left: np.ndarray, factor: float) -> None:
        def work(batch: tuple[np.ndarray, Any]) -> centre.Proposal | None:
            if self._late():
                return None
            return centre.decide_batch(self.space, *batch, factor, self._late)

        batches = centre.batches(self.space, left, self._hints_for(left), factor)
        with self.backend.threads() as over:
            for found in over(work, batches):
                if found is None:
                    continue
                self._propose(found.won, found.inputs, False)
                self.recorder.propose_mixtures(found.lost)
                self.progress.advance(len(found.won) + len(found.lost))
        self.recorder.flush()

    def _hints_for(self, classes: np.ndarray) -> Any:
        """Where screening left each class; its own point for one that screening thought it won."""
        index = self.backend.index
        hints = self.space.points[index(classes)]
        _, here, there = np.intersect1d(classes, self.hinted, return_indices=True)
        if len(here):
            hints[index(here)] = self.hints[index(there)]
        return hints

    def _decide_alone(self, t: int) -> None:
        """A linear programme, then exact arithmetic, for a class that nothing else settled."""
        try:
            x, mixture, rows = decide_by_rows(self.space, t)
        except ImportError:  # no HiGHS here: exact arithmetic finds its own rows
            x, mixture, rows = None, None, np.empty(0, dtype=np.int64)
        if x is not None and self.recorder.offer(t, self.space.proposed(x)):
            return
        if mixture is not None and self.recorder.propose_mixture(t, mixture):
            return
        limit = min(self.options.exact_seconds, self._seconds_left())
        try:
            found = decide_exactly(self.head, self.domain, t, rows, self.space.repeats, limit)
        except Limit as reached:
            if not self._late():
                why = str(reached) or f"exact arithmetic took more than {limit:g} s"
                self.recorder.proofs.reasons[t] = why
            return
        if isinstance(found, Mixture):
            self.recorder.propose_mixture(t, found)
        else:
            self.recorder.offer_exact(t, found)

    def _reference(self) -> np.ndarray:
        """The paper's pipeline, class by class. Its linear programme's word that a class is
        unargmaxable is a status, not a proof: the mixture that proves it is sought afterwards."""
        from uncork.auditing.search import reference

        begun, certified = time.perf_counter(), self.recorder.seconds
        classes = self._wanted()
        self.progress.stage("deciding", len(classes))
        patience = reference.PATIENCE if self.options.patience is None else self.options.patience
        head = self.head.replace(domain=self.domain)
        for t in classes.tolist():
            if self._late():
                break
            x, _ = reference.braid_reflect(head, t, patience)
            accepted = x is not None and self.recorder.offer(t, x)
            if not accepted and not self.options.approximate:
                radius, x = reference.chebyshev(head, t)
                accepted = radius > 0 and x is not None and self.recorder.offer(t, x)
                if not accepted:
                    self._decide_alone(t)
            self.progress.advance(1)
        certified = self.recorder.seconds - certified
        self.seconds["decide"] += time.perf_counter() - begun - certified
        return self._wanted()

    def _seconds_left(self) -> float:
        limit = self.options.time_limit
        return math.inf if limit is None else self.searching_since + limit - time.perf_counter()

    def _late(self) -> bool:
        limit = self.options.time_limit
        return limit is not None and time.perf_counter() - self.searching_since > limit

    # What came of it

    def _explain(self, left: Iterable[int]) -> None:
        """Say of every class left undecided why it is."""
        reasons = self.recorder.proofs.reasons
        if self.interrupted:
            why = "interrupted"
        elif self._late():
            why = f"the time limit of {self.options.time_limit:g} s was reached"
            if self._decided() == self.known:
                why += " before anything new was decided: it is too short for this head"
        elif self.options.approximate:
            why = "potentially unargmaxable: screening found no witness"
        else:
            why = "no proposal was accepted by the certifier"
        for t in left:
            reasons.setdefault(int(t), why)
        for t in np.flatnonzero(self.recorder.proofs.verdicts != Verdict.UNDECIDED).tolist():
            reasons.pop(t, None)

    def _result(self) -> Audit:
        head, proofs = self.head, self.recorder.proofs
        proofs.set_tied()
        self.seconds["certify"] = self.recorder.seconds
        self.seconds["total"] = time.perf_counter() - self.started
        everything = len(self.asked) == head.classes
        reading = head.reading
        if reading is not None and self.domain is not head.domain:
            reading = replace(reading, domain_from="given")
        return Audit(
            proofs,
            head.fingerprint,
            self.domain,
            head.features,
            head.dtype,
            head.bias is not None,
            labels=head.labels,
            source=head.source,
            head=head,
            asked=None if everything else self.asked,
            approximate=self.options.approximate,
            algorithm=self.options.algorithm,
            device=self.backend.name,
            seconds=self.seconds,
            proven=True,  # nothing enters the proofs unless it passed
            reading=reading,
        )
