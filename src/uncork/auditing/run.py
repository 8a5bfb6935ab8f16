"""The audit: goes through the proposers, has what they propose certified, keeps time, resumes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from uncork.auditing.backend import Backend, choose_backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.duplicates import equal_classes
from uncork.auditing.folded import searched
from uncork.auditing.low_precision import low_precision
from uncork.auditing.own_rows import audit_items
from uncork.auditing.proofs.verdict import Verdict
from uncork.auditing.recorder import Recorder
from uncork.auditing.result import Audit
from uncork.auditing.search import ALGORITHMS, proposers, reference
from uncork.auditing.search.proposer import FirstGuesses, Proposer, Search
from uncork.auditing.search.space import Space, magnitude_unit
from uncork.core.class_ids import class_ids
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.items import Items
from uncork.core.progress import Progress, ProgressBar
from uncork.domain import Domain

STAGES = ("load", "prepare", "screen", "decide", "certify", "total")
_LONG_HASH = 256 << 20  # bytes of weights from which on they are hashed beside the search
_TITLES = {"screen": "screening", "decide": "deciding"}  # what progress calls proposers


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
    strict: bool = False

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            expected = " or ".join(ALGORITHMS)
            raise UncorkError(f"algorithm {self.algorithm!r}: expected {expected}")
        if self.patience is not None and self.patience < 0:
            raise UncorkError(f"patience must not be negative, and is {self.patience}")
        check_time_limit(self.time_limit)

    @property
    def reflections(self) -> int | None:
        """How many reflections are made; None: until they stop paying."""
        paper = self.approximate or self.algorithm == "reference"
        return reference.PATIENCE if paper and self.patience is None else self.patience


def check_time_limit(seconds: float | None) -> None:
    """Raise unless there is no limit, or a positive one."""
    if seconds is not None and not seconds > 0:
        raise UncorkError(f"the time limit must be positive, and is {seconds}")


def audit(
    head: Head | Items,
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
    strict: bool = False,
) -> Audit:
    """Decide for every class of the head whether some input of the domain makes it the argmax.

    Every verdict in the result has passed the certifier. `classes` asks for some only;
    `approximate` stops after screening; `time_limit` (seconds of search) and Ctrl-C leave the rest
    undecided, and Ctrl-C raises `Interrupted` with the audit so far; `resume` continues an earlier
    audit, whose proofs are checked again first, in time that does not count; `low_precision` also
    counts the witnesses that still win with logits computed in the head's own type; `strict`
    takes nothing for granted about a GPU's tensor cores (see `certify.arithmetic`). Items compared
    by cosine or Euclidean distance are decided by a theorem (`own_rows`), without a search.
    """
    if isinstance(head, Items):
        if head.metric != "inner":
            return audit_items(head, domain, classes, progress)
        head = head.head(domain)
    options = Options(approximate, patience, algorithm, time_limit, low_precision, strict=strict)
    backend = choose_backend(device, jobs)
    domain = domain or head.domain
    affine = domain.affine(head.features)
    with np.errstate(all="ignore"):
        unit = magnitude_unit(searched(head, affine, backend), backend)
    if backend.name == "cpu" and not 1e-9 < unit < 1e9:
        backend = Backend(jobs, np.float64)  # magnitudes whose squares float32 cannot hold
    if algorithm == "reference" and (affine.steps or not approximate):
        reference.check_domain(head.replace(domain=domain))
    if not isinstance(progress, Progress):
        progress = ProgressBar() if progress else Progress()
    with progress:
        return _Run(head, domain, backend, options, classes, progress, resume).run()


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
        self.recorder = Recorder(self.certifier, backend, options.strict)
        self.resume = resume
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.interrupted = self.taken_over = False
        self.was_late = False  # whether the time limit cut the search short
        self.known = 0  # verdicts that an earlier audit brought
        # Gigabytes take seconds to hash, and hashing needs none of what searching does.
        self.hashing = threading.Thread(target=lambda: head.fingerprint, daemon=True)
        if head.weight.nbytes >= _LONG_HASH:
            self.hashing.start()

    def run(self) -> Audit:
        # Searching may overflow on the way to a proposal; a proposal that did is simply refused.
        with np.errstate(all="ignore"):
            return self._run()

    def _run(self) -> Audit:
        try:
            self._prepare()
            self._search()
        except KeyboardInterrupt:
            self.interrupted = True
            if self.resume is not None and not self.taken_over:
                raise Interrupted(self.resume) from None  # nothing new, and nothing lost
            self.recorder.flush()
        self._explain(self._wanted())
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

    # Searching

    def _prepare(self) -> None:
        begun = time.perf_counter()
        self.progress.stage("preparing", None)
        if self.backend.name != "cpu":  # the processor has little to do: hashing takes seconds
            threading.Thread(target=lambda: self.head.fingerprint, daemon=True).start()
        proofs = self.recorder.proofs
        proofs.groups = equal_classes(self.head, self.backend)
        self.recorder.groups = {int(i): g for g in proofs.groups for i in g.tolist()}
        if self.resume is not None:
            self._take_over(self.resume)
        self.space = Space(self.head, self.domain, self.backend, proofs.groups)
        self.later: Space | None = None  # for what this one leaves undecided
        clearer = self.space.without_faint()
        if clearer is not None:
            self.later = self.space
            self.space = Space(self.head, clearer, self.backend, proofs.groups)
        self.recorder.use_formula(self.space)
        self.certifier.proposed_root = self.space.root
        self.seconds["prepare"] += time.perf_counter() - begun

    def _search(self) -> None:
        """Every proposer in turn, for the classes that those before it left undecided."""
        self.to_decide = self._asked_first()
        self.shown = ""
        everyone = proposers(self.options.algorithm, self.options.approximate)
        if self.later is not None:
            self._go_through([p for p in everyone if p.uses_space])
            self.space, self.later = self.later, None
        self._go_through(everyone)

    def _go_through(self, everyone: Iterable[Proposer]) -> None:
        search = Search(
            self.head, self.domain, self._late, self._seconds_left, self._still_undecided,
            self.options.reflections, self.options.exact_seconds,
            formula=self.recorder.guess is not None,
        )  # fmt: skip
        for proposer in everyone:
            classes = self._wanted()
            # Screening begins however late it is: a run that is resumed should get further.
            if not len(classes) or (proposer.stage == "decide" and self._late()):
                break
            # Who screens may have nothing to propose for this head, and then a promise of so many
            # steps would be false.
            if proposer.stage == "decide" or proposer.steps(classes, self.space) is None:
                self._show(proposer, classes)
            self._take_from(proposer, classes, search)

    def _show(self, proposer: Proposer, classes: np.ndarray) -> None:
        """A new stage of the display, unless the proposer belongs to the one that is shown."""
        title = proposer.title or _TITLES.get(proposer.stage, "")
        steps = proposer.steps(classes, self.space)
        if title in ("", self.shown) or steps == 0:
            return
        self.shown = title
        self.counted = np.zeros(self.head.classes, dtype=bool)  # as steps of the stage
        self.progress.stage(title, steps)

    def _take_from(self, proposer: Proposer, classes: np.ndarray, search: Search) -> None:
        """Have everything certified that one proposer proposes for some classes."""
        begun, certified = time.perf_counter(), self.recorder.seconds
        for proposal in proposer.propose(self.space, classes, search):
            self._show(proposer, classes)
            considered = np.unique(self.recorder.consider(proposal, self.to_decide))
            if isinstance(proposal, FirstGuesses):
                self.progress.advance(proposal.tiles)
            elif self.shown:
                new = considered[~self.counted[considered]]
                self.counted[new] = True
                self.progress.advance(len(new))
            del proposal  # its inputs may be large, and more are on their way
        self.recorder.flush()
        certified = self.recorder.seconds - certified
        self.seconds[proposer.stage] += time.perf_counter() - begun - certified

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
        # Checking again takes nothing from the search: else a resumed run might get no further.
        self.searching_since = time.perf_counter()

    def _decided(self) -> int:
        return int((self.recorder.proofs.verdicts != Verdict.UNDECIDED).sum())

    def _asked_first(self) -> np.ndarray:
        """Whether each class is to be decided: asked for, and the first of its equals. (C,)"""
        wanted = np.zeros(self.head.classes, dtype=bool)
        wanted[self.asked] = True
        for group in self.recorder.proofs.groups:
            wanted[group[0]] |= bool(wanted[group].any())
            wanted[group[1:]] = False
        return wanted

    def _wanted(self) -> np.ndarray:
        """Classes asked for that are not decided yet, one of each group of equals."""
        undecided = self.recorder.proofs.verdicts == Verdict.UNDECIDED
        return np.flatnonzero(self._asked_first() & undecided)

    def _still_undecided(self, classes: np.ndarray) -> np.ndarray:
        self.recorder.flush()
        undecided = self.recorder.proofs.verdicts[classes] == Verdict.UNDECIDED
        return np.asarray(classes[undecided])

    def _seconds_left(self) -> float:
        limit = self.options.time_limit
        return math.inf if limit is None else self.searching_since + limit - time.perf_counter()

    def _late(self) -> bool:
        late = self._seconds_left() < 0
        self.was_late |= late
        return late

    # What came of it

    def _explain(self, left: Iterable[int]) -> None:
        """Note the reason for every class that is left undecided."""
        reasons = self.recorder.proofs.reasons
        if self.interrupted:
            why = "interrupted"
        elif self.was_late:
            why = f"the time limit of {self.options.time_limit:g} s was reached"
            if self._decided() == self.known:
                why += " before anything new was decided: it is too short for this head"
        elif self.options.approximate:
            why = "potentially unargmaxable: screening found no witness"
        else:
            why = "no proposal was accepted by the certifier"
        for t in left:
            reasons.setdefault(int(t), why)
        verdicts = self.recorder.proofs.verdicts
        for t in [t for t in reasons if verdicts[t] != Verdict.UNDECIDED]:
            del reasons[t]

    def _result(self) -> Audit:
        head, proofs = self.head, self.recorder.proofs
        proofs.set_tied()
        if self.hashing.is_alive():
            self.hashing.join()
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
