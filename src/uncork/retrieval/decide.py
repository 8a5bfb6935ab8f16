"""Deciding a benchmark: for every query, can its relevant items be on top, and how many in k?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from uncork.auditing.run import check_time_limit
from uncork.core.errors import UncorkError
from uncork.core.items import Items
from uncork.core.progress import Progress, progress_bar
from uncork.domain import Domain, Unbounded
from uncork.retrieval.certify import Seen, SetCertifier
from uncork.retrieval.judgements import Judgements
from uncork.retrieval.places import Places, PlaceSearch
from uncork.retrieval.questions import Decision, Question, Questions
from uncork.retrieval.result import Own, Retrieval, SetProof, TopSet
from uncork.retrieval.verify import verify_retrieval

_CHUNK = 256
_EVERY = 30.0  # seconds between checkpoints, at least
_SHARE = 20  # and so many times what one takes
_NOT_REACHED = "it was interrupted before anything was proven"


def retrieve(
    items: Items,
    judgements: Judgements,
    *,
    k: int = 10,
    domain: Domain | None = None,
    queries: np.ndarray | None = None,
    jobs: int | None = None,
    time_limit: float | None = None,
    progress: bool | Progress = False,
    resume: Retrieval | None = None,
    checkpoint: Callable[[Retrieval], None] | None = None,
) -> Retrieval:
    """Decide for every query whether some vector of the domain (any vector, unless given) ranks its
    relevant items before all others, and bound how many of them can be among the first k.

    `queries` (queries, d) are the vectors that an encoder gives them, to be compared with what is
    possible. Every verdict and bound has passed the certifier. `time_limit` (seconds of search)
    leaves the rest undecided, and Ctrl-C raises `Interrupted` with what was decided; `resume`
    continues an earlier retrieval of the same items, domain and k, whose proofs are checked first.
    `checkpoint` is handed what is decided so far, every half minute or so.
    """
    check_time_limit(time_limit)
    if k < 1:
        raise UncorkError(f"k = {k}: expected one or more")
    judgements.check(len(items))
    for name, ids in zip(judgements.queries, judgements.relevant, strict=True):
        if len(ids) == len(items):
            raise UncorkError(f"query {name}: every item is relevant, so there is nothing to ask")
    domain = Unbounded() if domain is None else domain
    domain.check(items.features)
    if queries is not None and queries.shape != (len(judgements), items.features):
        raise UncorkError(
            f"the query vectors have shape {queries.shape}: expected ({len(judgements)}, "
            f"{items.features}), one for each query"
        )
    with progress_bar(progress) as bar, threadpool_limits(limits=jobs):
        run = _Run(items, judgements, k, domain, queries, time_limit, bar, checkpoint)
        if resume is not None:
            run.take_over(resume)
        return run.run()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of a retrieval; `retrieval` holds what was proven until then."""

    def __init__(self, retrieval: Retrieval) -> None:
        super().__init__("interrupted")
        self.retrieval = retrieval


class _Run:
    def __init__(
        self,
        items: Items,
        judgements: Judgements,
        k: int,
        domain: Domain,
        queries: np.ndarray | None,
        time_limit: float | None,
        bar: Progress,
        checkpoint: Callable[[Retrieval], None] | None,
    ) -> None:
        self.checkpoint, self.next = checkpoint, time.perf_counter() + _EVERY
        self.own: Own | None = None
        self.started = time.perf_counter()
        self.items, self.judgements, self.k, self.domain = items, judgements, k, domain
        self.queries, self.time_limit, self.bar = queries, time_limit, bar
        self.certifier = SetCertifier(items, domain)
        sets: dict[tuple[int, ...], list[int]] = {}
        for q, ids in enumerate(judgements.relevant):
            sets.setdefault(tuple(ids.tolist()), []).append(q)
        self.sets = list(sets)  # each asked about once
        self.members = list(sets.values())
        self.places = [Places(0, min(len(ids), k)) for ids in self.sets]
        self.decisions = [Decision(reason=_NOT_REACHED) for _ in self.sets]
        self.seconds = dict.fromkeys(("own", "search", "places", "total"), 0.0)

    def take_over(self, earlier: Retrieval) -> None:
        """Begin with what an earlier run proved of these sets, each proof checked again."""
        if (earlier.fingerprint, earlier.k) != (self.items.fingerprint, self.k):
            raise UncorkError("the earlier retrieval is of other items, or of another k")
        if earlier.domain != self.domain:
            raise UncorkError("the earlier retrieval is of other queries (its domain is another)")
        self.bar.stage("checking earlier proofs", len(earlier.judgements))
        failed = verify_retrieval(earlier, self.items, tick=self.bar.advance).failed
        known = {
            tuple(ids.tolist()): q
            for q, ids in enumerate(earlier.judgements.relevant)
            if q not in failed
        }
        for n, ids in enumerate(self.sets):
            q = known.get(ids)
            if q is None:
                continue
            self.places[n] = earlier.places[q]
            proof, verdict = earlier.proofs[q], earlier.verdicts[q]
            if proof is not None and verdict != TopSet.UNDECIDED:
                self.decisions[n] = Decision(
                    bool(verdict == TopSet.POSSIBLE), proof.u, proof.exact,
                    float(earlier.margins[q]), proof.mixtures,
                )  # fmt: skip

    def run(self) -> Retrieval:
        try:
            self.own = own = self._own()
            begun = time.perf_counter()
            self._decide(own)
            self.seconds["search"] = time.perf_counter() - begun
            begun = time.perf_counter()
            self._count()
            self.seconds["places"] = time.perf_counter() - begun
        except KeyboardInterrupt:
            self._settle()
            raise Interrupted(self._result(self.own)) from None
        self.seconds["total"] = time.perf_counter() - self.started
        return self._result(own)

    def _advance(self, count: int) -> None:
        """So many steps are done; what is known may be worth saving."""
        self.bar.advance(count)
        begun = time.perf_counter()
        if self.checkpoint is None or begun < self.next:
            return
        self._settle()
        self.checkpoint(self._result(self.own))
        now = time.perf_counter()
        self.next = now + max(_EVERY, _SHARE * (now - begun))

    def _late(self) -> bool:
        limit = math.inf if self.time_limit is None else self.time_limit
        return time.perf_counter() - self.started > limit

    def _own(self) -> Own | None:
        """What the query vectors at hand do; the domain has no say in that."""
        if self.queries is None:
            return None
        begun = time.perf_counter()
        certifier = SetCertifier(self.items, Unbounded())
        count = len(self.judgements)
        on_top, first = np.zeros(count, dtype=bool), np.zeros(count, dtype=np.int64)
        for start in range(0, count, _CHUNK):
            part = slice(start, start + _CHUNK)
            relevant = self.judgements.relevant[part]
            looked = certifier.look(self.queries[part], relevant, max(self.k, 8) + 1)
            for n, (ids, seen) in enumerate(zip(relevant, looked, strict=True)):
                if seen is None:
                    continue
                if not seen.margin > 0:
                    seen = certifier.settled(self.queries[start + n], ids, seen)
                on_top[start + n] = seen.margin > 0
                first[start + n] = seen.among_first(self.k)
        self.seconds["own"] = time.perf_counter() - begun
        return Own(self.queries, on_top, first)

    def _decide(self, own: Own | None) -> None:
        decisions = self.decisions
        left = [n for n, decision in enumerate(decisions) if decision.possible is None]
        asked = [Question(np.array(self.sets[n], dtype=np.int64)) for n in left]
        self.bar.stage("searching", len(asked))
        self.engine = Questions(self.certifier)
        found: list[Decision] = []

        def watch(at: int, u: np.ndarray, seen: Seen) -> None:
            self._watch(left[at], u, seen)

        def take(count: int) -> None:
            for n, decision in zip(left, found, strict=False):
                decisions[n] = decision
            self._advance(count)

        try:
            self.engine.ask(asked, self._late, take, watch, found)
        finally:
            for n, decision in zip(left, found, strict=False):
                decisions[n] = decision
        if own is not None and self.domain.is_everything and self.certifier.latent.is_identity:
            for n, queries in enumerate(self.members):
                winning = [q for q in queries if own.on_top[q]]
                if decisions[n].possible is None and winning:
                    decisions[n] = Decision(True, own.vectors[winning[0]], margin=0.0)

    def _watch(self, n: int, u: np.ndarray, seen: Seen) -> None:
        """Every query looked at may have the most relevant items among the first k so far."""
        here = seen.among_first(self.k)
        if here > self.places[n].lower:
            self.places[n].lower, self.places[n].u = here, u.copy()

    def _settle(self) -> None:
        """Where a set can be on top, nothing is left to be bounded."""
        for n, decision in enumerate(self.decisions):
            if decision.possible:
                most = min(len(self.sets[n]), self.k)
                self.places[n] = Places(most, most, decision.u, decision.exact)

    def _count(self) -> None:
        left = [n for n, d in enumerate(self.decisions) if d.possible is not True]
        self.bar.stage("first places", len(left))
        search = PlaceSearch(self.engine, self.k, self._late)
        self._settle()
        open_ = [n for n in left if self.places[n].lower < self.places[n].upper]
        sets = [(np.array(self.sets[n]), self.places[n], self.decisions[n].proof) for n in open_]
        search.bound(sets, self._advance)

    def _result(self, own: Own | None) -> Retrieval:
        count = len(self.judgements)
        verdicts = np.zeros(count, dtype=np.int8)
        margins = np.full(count, np.nan)
        proofs: list[SetProof | None] = [None] * count
        places: list[Places] = [Places(0, 0)] * count
        reasons: dict[int, str] = {}
        for n, decision in enumerate(self.decisions):
            for q in self.members[n]:
                places[q], margins[q] = self.places[n], decision.margin
                if decision.possible is None:
                    reasons[q] = decision.reason
                    continue
                verdicts[q] = TopSet.POSSIBLE if decision.possible else TopSet.IMPOSSIBLE
                proofs[q] = SetProof(decision.u, decision.exact, decision.proof)
        items = self.items
        return Retrieval(
            self.judgements, self.k, verdicts, margins, proofs, places, items.fingerprint,
            items.metric, self.domain, len(items), items.features, items.labels, items.source,
            own, reasons, self.seconds, items.reading,
        )  # fmt: skip
