"""Deciding label sets: proposals for many at once, then one by one, each certified."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from uncork.auditing.backend import Backend, choose_backend
from uncork.auditing.run import check_time_limit
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress, progress_bar
from uncork.domain import Domain
from uncork.labels.certify import LabelCertifier
from uncork.labels.newton import propose_one
from uncork.labels.one_set import OneSet, decide_one, decide_one_exactly
from uncork.labels.result import LabelAudit, Proof, SetVerdict
from uncork.labels.search import Asker, LabelSearch, Proposed
from uncork.labels.sets import LabelSets
from uncork.labels.thresholds import logit_thresholds

_EXACT_SECONDS = 60.0
_KEPT_BYTES = 2 << 30  # proofs kept in memory unless they are asked for


def decide_sets(
    head: Head,
    sets: LabelSets,
    *,
    thresholds: float | np.ndarray | None = None,
    domain: Domain | None = None,
    device: str = "auto",
    jobs: int | None = None,
    time_limit: float | None = None,
    progress: bool | Progress = False,
    keep: bool | None = None,
) -> LabelAudit:
    """Decide for every label set whether some input of the domain makes the head predict it.

    A label is predicted where its logit is above its threshold (`thresholds`, in logits; 0 unless
    given, which is a probability of one half). Every verdict has passed the certifier.
    `time_limit` (seconds of search) leaves the rest undecided. `keep` says whether proofs stay in
    the result; by default while they take no more than 2 GiB.
    """
    check_time_limit(time_limit)
    if sets.labels != head.classes:
        raise UncorkError(f"the sets are of {sets.labels} labels, and the head has {head.classes}")
    backend = choose_backend(device, jobs)
    domain = head.domain if domain is None else domain
    if keep is None:
        keep = len(sets) * domain.affine(head.features).latent * 4 <= _KEPT_BYTES
    chosen = logit_thresholds(head, thresholds)
    with progress_bar(progress) as bar, threadpool_limits(limits=jobs):
        plan = _Plan(head, sets, chosen, domain, backend, time_limit, bar, keep)
        return _Run(plan).run()


@dataclass(frozen=True)
class _Plan:
    """What is to be decided, where, and within which limits."""

    head: Head
    sets: LabelSets
    thresholds: np.ndarray
    domain: Domain
    backend: Backend
    time_limit: float | None
    progress: Progress
    keep: bool


class _Run:
    def __init__(self, plan: _Plan) -> None:
        self.started = time.perf_counter()
        self.plan = plan
        self.head, self.sets, self.domain = plan.head, plan.sets, plan.domain
        self.backend, self.progress = plan.backend, plan.progress
        self.certifier = LabelCertifier(plan.head, plan.thresholds, plan.domain, plan.backend)
        self.asker = Asker(self.sets.signs, self._settle, self._late)
        self.verdicts = np.zeros(len(plan.sets), dtype=np.int8)
        self.margins = np.full(len(plan.sets), np.nan)
        self.proofs: list[Proof | None] = [None] * len(plan.sets) if plan.keep else []
        self.reasons: dict[int, str] = {}
        self.seconds = dict.fromkeys(("prepare", "search", "alone", "certify", "total"), 0.0)

    def run(self) -> LabelAudit:
        with np.errstate(all="ignore"):  # what overflows on the way is refused
            self._many()
            self._alone()
        self.seconds["total"] = time.perf_counter() - self.started
        return LabelAudit(
            self.sets, self.verdicts, self.margins, self.head.fingerprint,
            self.certifier.thresholds, self.domain, self.head.features, self.proofs, self.reasons,
            self.head.labels, self.head.source, self.seconds, self.backend.name,
            self.head.reading, self.head,
        )  # fmt: skip

    def _many(self) -> None:
        begun = time.perf_counter()
        self.search = search = LabelSearch(
            self.head, self.certifier.thresholds, self.domain, self.backend
        )
        self.seconds["prepare"] = time.perf_counter() - begun
        self.progress.stage("searching", len(self.sets))
        begun = time.perf_counter()
        for settled in search.propose(np.arange(len(self.sets)), self.asker):
            self.progress.advance(settled)
        self.seconds["search"] = time.perf_counter() - begun - self.seconds["certify"]

    def _alone(self) -> None:
        left = np.flatnonzero(self.verdicts == SetVerdict.UNDECIDED)
        begun = time.perf_counter()
        if len(left):
            self.progress.stage("one by one", len(left))
        for k in left.tolist():
            if self._late():
                self.reasons[k] = f"the time limit of {self.plan.time_limit:g} s was reached"
                continue
            signs = self.sets.signs(np.array([k]))[0]
            if propose_one(self.search, k, self.asker):
                self.progress.advance(1)
                continue
            found = decide_one(
                self.head, self.certifier.offsets, signs, self.domain,
                device=self.backend.name, jobs=self.backend.jobs, seconds=self._seconds_left(),
            )  # fmt: skip
            if not self._take(k, signs, found):
                found = self._exactly(k, signs)
            if self.verdicts[k] == SetVerdict.UNDECIDED:
                self.reasons[k] = found.reason or "no proposal was accepted by the certifier"
            self.progress.advance(1)
        self.seconds["alone"] = time.perf_counter() - begun

    def _exactly(self, k: int, signs: np.ndarray) -> OneSet:
        """One set in exact arithmetic. Offsets b − θ that are not floats are rounded the way that
        makes the set easier to reach, and then the other way: what holds then holds for them."""
        offsets, errors = self.certifier.offsets, self.certifier.offset_errors
        found = OneSet()
        for way in (1, -1) if errors.any() else (0,):
            if self._late():
                break
            moved = np.where(errors > 0, np.nextafter(offsets, way * signs * np.inf), offsets)
            seconds = min(_EXACT_SECONDS, self._seconds_left() or math.inf)
            found = decide_one_exactly(
                self.head, np.where(signs == 0, offsets, moved), signs, self.domain, seconds
            )
            if self._take(k, signs, found):
                break
        return found

    def _seconds_left(self) -> float | None:
        if self.plan.time_limit is None:
            return None
        return max(1e-3, self.started + self.plan.time_limit - time.perf_counter())

    def _late(self) -> bool:
        limit = math.inf if self.plan.time_limit is None else self.plan.time_limit
        return time.perf_counter() - self.started > limit

    # Certifying

    def _settle(self, proposed: Proposed, signs: np.ndarray) -> np.ndarray:
        """Which proposals hold; those are written down."""
        begun = time.perf_counter()
        if proposed.targets is None:
            proven = self.certifier.witnesses(signs, proposed.u)
            accepted, verdict = proven > 0, SetVerdict.FEASIBLE
        else:
            proven = self.certifier.tilted(signs, proposed.u, proposed.targets)
            accepted, verdict = proven >= 0, SetVerdict.INFEASIBLE
        for row in np.flatnonzero(accepted).tolist():
            k = int(proposed.sets[row])
            self.verdicts[k], self.margins[k] = verdict, proven[row]
            if self.plan.keep:
                u = _narrow(proposed.u[row])
                target = 0.0 if proposed.targets is None else float(proposed.targets[row])
                self.proofs[k] = Proof(u=u, target=target)
        self.seconds["certify"] += time.perf_counter() - begun
        return np.asarray(accepted)

    def _take(self, k: int, signs: np.ndarray, found: OneSet) -> bool:
        """Have what was found for one set certified, and write it down if it holds."""
        proof: Proof | None = None
        margin = math.nan
        if found.u is not None:
            margin = float(self.certifier.witnesses(signs[None], found.u[None])[0])
            proof = Proof(u=found.u)
            if not margin > 0 and found.exact is not None:
                margin = self.certifier.exact_witness(signs, found.exact)
                proof = Proof(u=found.u, exact=found.exact)
            verdict, holds = SetVerdict.FEASIBLE, margin > 0
        elif found.labels is not None and found.weights is not None:
            margin = self.certifier.mixture(signs, found.labels, found.weights, found.whole)
            proof = Proof(labels=found.labels, weights=found.weights, whole=found.whole)
            verdict, holds = SetVerdict.INFEASIBLE, margin >= 0
        else:
            return False
        if holds:
            self.verdicts[k], self.margins[k] = verdict, margin
            if self.plan.keep:
                self.proofs[k] = proof
        return bool(holds)


def _narrow(u: np.ndarray) -> Any:
    """The same numbers in half the room, where float32 holds them."""
    with np.errstate(over="ignore"):
        narrow = u.astype(np.float32)
    return narrow if (narrow.astype(np.float64) == u).all() else u.copy()
