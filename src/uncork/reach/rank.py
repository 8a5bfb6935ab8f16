"""The best rank of a class, bounded from both sides.

rank(x) = 1 + the number of classes at or above t at x; classes equal to t do not count. The best
rank is one for argmaxable classes; for others it is their halfspace depth among the rows. From
above it is bounded by an input, counted rigorously; from below by pairwise disjoint mixtures: k of
them prove that at every input k classes are at or above t, so that t is never in the top k: no
beam search of that width and no top-k sampling can ever pick it.

Inputs are sought by descent on a smoothed count over directions, sharpened as it goes, many classes
at once.

Disjoint mixtures are sought by dealing the classes into groups, those that beat t at its best input
first, so that every group gets its share of them; whether t lies in the hull of a group is found
for all groups at once (Gordan's alternative, as in `auditing.search.centre`, with the whole group
as the working set). Classes that beat t at its best input are scarce, so of a group's mixtures a
vertex that uses as few of them as possible is taken (a small linear programme). What is left is
dealt again.

What is still open is a question about hitting sets (`hitting`): which few classes must be left out
for t to be first? Those with the largest weights in mixtures are, one after another, until an input
puts t before all others; and mixtures that may share classes, weighted as a fractional packing and
told apart by cases, prove that fewer will not do. On heads of up to a dozen features or so that
closes the gap for classes of small rank; on wide ones it mostly finds better inputs.

Heads of two to four features whose classes are not too many are decided exactly, by going through
all planes on which classes tie (`bounds.planes`). Where only some places are asked about, that is
done for the classes that mixtures leave open. Planes, questions and the time of one call have a
limit; what it leaves as bounds is said in the result's notes.

Only what the certifier accepts is counted (`bounds.rank`, `bounds.packing`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from uncork.auditing.backend import Backend, choose_backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.duplicates import equal_classes
from uncork.auditing.proofs.verdict import Mixture, Verdict
from uncork.auditing.result import Audit
from uncork.auditing.run import check_time_limit
from uncork.auditing.search.exact import Limit, decide_exactly
from uncork.auditing.search.mixtures import balanced
from uncork.auditing.search.space import Space
from uncork.core.class_ids import class_ids
from uncork.core.head import Head
from uncork.core.progress import Progress, progress_bar
from uncork.domain import Domain
from uncork.reach.bounds.packing import Tree, count_of
from uncork.reach.bounds.planes import can_enumerate, depth, work_of
from uncork.reach.bounds.rank import Cases, holds, own_head, rank_at
from uncork.reach.hitting.branching import Hitting
from uncork.reach.hitting.cores import Cores, Rivals
from uncork.reach.limits import check_sizes
from uncork.reach.searched_head import SearchedHead
from uncork.reach.surface import Programme, Surface

# The search for inputs
_STEPS = 150
_SHARP = (30.0, 1000.0)  # of the smoothed count, at the first and last step
_MOVE = (0.3, 0.003)  # radians a step
_SHARES = (1.0, 0.2)  # of the domain's extent, where lengths matter
_BATCH_BYTES = 96 << 20
# Dealing
_GROUP = 12  # widths in a group of the first deal
_SHALLOW = 8  # classes above t at its input for each group: more mixtures than that are unlikely
_GORDAN_STEPS = 40
_RIDGE = 1e-12
_LARGEST = 12  # widths in a group at most
_SMALL = 200  # classes that a group may always have
_FEWER = (0.5, 0.7, 0.7, 0.8, 0.9)  # shares of a mixture's classes that stay, tried in turn
_COLUMNS = 5  # widths: classes of a group that its vertex is chosen from
_ROOM = 1e-8  # weight of the height in a vertex: what the proof has to spare for rounding
_CHEAP = 1e-3  # what a class costs a vertex, where a scarce one costs 1
_GROUP_BYTES = 64 << 20  # rows of groups solved in one go
# Hitting sets
_FEW_FEATURES = 4  # width of heads that going through all planes is for
_RUNS = (24, 1 << 18, 4096)  # linear programmes for one class: at least, over width², at most
_ALL_WORK = 1 << 37  # of all classes of a call
_RUN = 1 << 20  # what a small programme takes, beside classes × features
_DROPPED = 40  # classes left out at most where no place is asked about
_DEEP = 100  # rank beyond which a wide head's class is asked about last, and only for a place
_NARROW = 16
# Planes
_ALL_PLANES = 1 << 38  # of all classes of a call × classes of the head: some minutes
# Proving
_BULK = 1e-3  # the share of a mixture that is spread over its classes
_EXACT = 4000  # numbers in the rows of a mixture that is also sought exactly
_SECONDS = 2.0


@dataclass(frozen=True)
class BestRank:
    """For each class, proven: lower ≤ best rank ≤ upper, and what proves it."""

    classes: np.ndarray  # (n,)
    lower: np.ndarray  # (n,) int
    upper: np.ndarray  # (n,) int
    inputs: np.ndarray  # (n, latent): the rank there is `upper`
    mixtures: list[list[Mixture]] = field(default_factory=list)  # disjoint, or those of a tree
    cases: list[Cases | None] = field(default_factory=list)  # where these prove `lower` instead
    planes: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))  # or all planes do
    trees: list[Tree | None] = field(default_factory=list)  # or shares of the mixtures, by cases
    notes: tuple[str, ...] = ()  # why bounds differ, where a limit is the reason

    def by_planes(self, k: int) -> bool:
        """Whether the lower bound of the k-th class rests on going through all planes."""
        return bool(len(self.planes) and self.planes[k])

    def tree(self, k: int) -> Tree | None:
        """The tree that the lower bound of the k-th class rests on, if any."""
        return self.trees[k] if self.trees else None

    def never_in_top(self, k: int) -> np.ndarray:
        """The classes proven never to be among the first k at any input."""
        return self.classes[self.lower > k]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while ranks are sought; `found` holds what was proven until then."""

    def __init__(self, found: BestRank) -> None:
        super().__init__("interrupted")
        self.found = found


def best_rank(
    head: Head,
    classes: Sequence[int] | np.ndarray | None = None,
    *,
    domain: Domain | None = None,
    top: int | Sequence[int] | None = None,
    hints: np.ndarray | None = None,
    audit: Audit | None = None,
    jobs: int | None = None,
    time_limit: float | None = None,
    progress: bool | Progress = False,
) -> BestRank:
    """Bounds on the best rank of each class over the domain.

    `top` asks only whether classes are ever in the top k, for one k or several: the search stops
    once that is known. Ctrl-C raises `Interrupted` with the bounds so far; after `time_limit`
    seconds they are what is returned, and the notes say so. `hints` (n, latent) are
    inputs to begin at, such as those of `highest_probability`; an `audit` gives witnesses of
    argmaxable classes.
    """
    asked = class_ids(head.classes, classes)
    check_sizes(head, small=False)
    domain = head.domain if domain is None else domain
    backend = Backend(choose_backend("cpu", jobs).jobs, np.float64)
    with progress_bar(progress) as bar, np.errstate(all="ignore"):
        places = () if top is None else (top,) if isinstance(top, int) else tuple(top)
        return _Ranks(head, domain, backend, bar, time_limit).run(asked, places, hints, audit)


class _Ranks:
    def __init__(
        self,
        head: Head,
        domain: Domain,
        backend: Backend,
        bar: Progress,
        time_limit: float | None = None,
    ) -> None:
        check_time_limit(time_limit)
        self.until = np.inf if time_limit is None else time.monotonic() + time_limit
        self.head, self.domain, self.backend, self.bar = head, domain, backend, bar
        groups = equal_classes(head)
        self.space = Space(head, domain, backend, groups)
        self.points = self.space.precise(np.arange(head.classes))
        self.certifier = Certifier(head, domain, backend)
        self.equals = {int(i): g for g in groups for i in g.tolist()}
        _ = self.certifier.products.norms, self.certifier.products.centre
        self.audit: Audit | None = None
        self.programme: Programme | None = None
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.planes_left, self.work_left = _ALL_PLANES, _ALL_WORK
        self.without_planes = self.without_cases = 0  # classes that came after a limit
        self.too_late = 0
        least, over, most = _RUNS
        self.runs = int(np.clip(over // max(1, self.space.width) ** 2, least, most))

    def run(
        self,
        asked: np.ndarray,
        places: tuple[int, ...],
        hints: np.ndarray | None,
        audit: Audit | None,
    ) -> BestRank:
        inputs = self._search(asked, hints)
        if audit is not None and audit.domain == self.domain:
            self.audit = audit
            for k, t in enumerate(asked.tolist()):
                witness = audit.latent_witness(t)
                inputs[k] = inputs[k] if witness is None else witness
        lower = np.ones(len(asked), dtype=np.int64)
        upper = np.full(len(asked), self.head.classes + 1, dtype=np.int64)
        result = BestRank(
            asked, lower, upper, inputs, [[] for _ in asked], [None for _ in asked],
            np.zeros(len(asked), dtype=bool), [None for _ in asked],
        )  # fmt: skip
        self.bar.stage("best rank", len(asked))
        order = np.argsort(self.points[asked] @ _principal(self.points))
        parts = np.array_split(order, min(len(order), self.backend.jobs))

        def work(part: np.ndarray) -> None:
            for k in part.tolist():
                if self.stopped.is_set():
                    return
                if self._late():
                    self._only_counted(result, k)
                    continue
                self._bound(result, k, places)
                self.bar.advance(1)

        try:
            with self.backend.threads() as over:
                list(over(work, parts))
        except KeyboardInterrupt:
            self.stopped.set()
            # A thread may still be at a class: what it proves later is not part of this.
            so_far = replace(result, lower=lower.copy(), upper=upper.copy())
            raise Interrupted(replace(so_far, notes=("interrupted", *self._notes()))) from None
        return replace(result, notes=self._notes())

    def _notes(self) -> tuple[str, ...]:
        found = []
        if can_enumerate(self.certifier) and self.without_planes:
            found.append(
                f"{self.without_planes:,} have bounds only: going through all planes takes "
                f"{work_of(self.certifier):,} products for each, and all of them more than the "
                f"limit of {_ALL_PLANES:,}"
            )
        elif self.space.width <= _FEW_FEATURES and self.without_planes:
            found.append(
                f"{self.without_planes:,} have bounds only: going through all planes takes more "
                "than the limit for one of them, or lengths matter"
            )
        if self.without_cases:
            found.append(
                f"of {self.without_cases:,} not all cases were tried: at most {self.runs:,} linear "
                "programmes are solved for each, and all classes of one call have a limit too"
            )
        if self.too_late:
            found.append(f"{self.too_late:,} came after the time limit")
        return tuple(found)

    def _bound(self, result: BestRank, k: int, places: tuple[int, ...]) -> None:
        """Both bounds of one class."""
        t = int(result.classes[k])
        equals = self.equals.get(t, np.array([t]))
        result.upper[k] = rank_at(self.certifier, t, result.inputs[k], equals)
        most = int(result.upper[k]) - 1
        if most < 1 or (not places and self._by_planes(result, k, equals, None)):
            return
        if places:
            most = min(most, max(places))
        if not _is_open(result, k, places):
            most = 1  # all that is asked is known: any proof that it is not first will do
        hitting = self._hitting(result, k, equals)
        if result.planes[k]:  # exact from below, and the input is not found yet
            hitting.descend(int(result.lower[k]) - 1, _DROPPED)
            self._take_input(result, k, hitting)
            return
        shallow = self.space.width <= _NARROW or int(result.upper[k]) <= _DEEP
        if _is_open(result, k, places) and shallow:
            self._descend(result, k, places, hitting)
            most = min(most, int(result.upper[k]) - 1)
            if not _is_open(result, k, places):
                most = 1
        if most < 1:
            return
        dealer = _Dealer(self.space, self.points, t, equals)
        y = self.space.directions((result.inputs[k] - self._origin())[None])[0]
        count = max(1, min(most // _SHALLOW, int(self.head.classes / (_GROUP * self.space.width))))
        best = self._certified(t, dealer.disjoint(y, most, count))
        if not best:
            best = self._certified(t, dealer.disjoint(y, 1, 1))
        if not best:
            best = self._certified(t, self._deepest(t))
        result.mixtures[k], result.lower[k] = best, 1 + len(best)
        narrow = bool(places) and self.space.width <= _FEW_FEATURES and _is_open(result, k, places)
        if narrow and self._by_planes(result, k, equals, max(places)):
            return
        if _is_open(result, k, places) and (shallow or places):
            if not shallow:  # mixtures were likelier to settle it
                self._descend(result, k, places, hitting)
            hitting.give(best)
            self._close(result, k, places, hitting)

    def _late(self) -> bool:
        return time.monotonic() > self.until

    def _only_counted(self, result: BestRank, k: int) -> None:
        """What is known of a class at once: its rank at the input that is known."""
        t = int(result.classes[k])
        equals = self.equals.get(t, np.array([t]))
        result.upper[k] = rank_at(self.certifier, t, result.inputs[k], equals)
        with self.lock:
            self.too_late += int(result.upper[k]) > 1

    def _by_planes(self, result: BestRank, k: int, equals: np.ndarray, enough: int | None) -> bool:
        """Both bounds exactly, where the features are few, or that so many are always at or above
        it; whether that is now known."""
        t = int(result.classes[k])
        work = work_of(self.certifier) if can_enumerate(self.certifier) else None
        with self.lock:
            if work is None or work > self.planes_left:
                self.without_planes += 1
                return False
            self.planes_left -= work
        found = depth(self.certifier, t, equals, self.stopped.is_set, enough)
        if found is None:
            return False
        result.lower[k], result.planes[k] = found.least + 1, True
        result.mixtures[k] = []
        if found.direction is None:
            return True
        x = found.direction[: self.head.features]
        if len(found.direction) > self.head.features:
            x = x / found.direction[-1]
        else:
            x = self._inside(x / max(float(np.abs(x).max()), 1e-300))
        for u in (x, self._inside(self.space.proposed(x[None]))[0]):
            rank = rank_at(self.certifier, t, u, equals)
            if rank < result.upper[k]:
                result.upper[k], result.inputs[k] = rank, u
        return bool(result.lower[k] == result.upper[k])

    def _deepest(self, t: int) -> list[Mixture]:
        """For a class that the audit says is never first, the mixture that leads it by most."""
        if self.audit is None or self.audit.proofs.verdicts[t] != Verdict.UNARGMAXABLE:
            return []
        with self.lock:
            if self.programme is None:
                searched = SearchedHead(self.head, self.domain, self.backend)
                # An audit of some classes says nothing of the others: any of those may be first.
                carriers = np.flatnonzero(self.audit.proofs.verdicts != Verdict.UNARGMAXABLE)
                self.programme = Programme(Surface(searched, carriers))
            surface = self.programme.surface
            found = self.programme.solve(surface.all_rows[t], float(surface.all_bias[t])).mixture
        if found is None or np.isin(self.equals.get(t, []), found.classes).any():
            return []
        return [found]

    def _hitting(self, result: BestRank, k: int, equals: np.ndarray) -> Hitting:
        t, start = int(result.classes[k]), result.inputs[k]
        rivals = Rivals(self.space, self.points, t, equals)
        work = _RUN + self.head.classes * self.space.width
        seen = 0

        def more(runs: int) -> bool:
            nonlocal seen
            with self.lock:
                self.work_left -= (runs - seen) * work
            seen = runs
            room = runs < self.runs and self.work_left > 0
            return room and not (self.stopped.is_set() or self._late())

        cores = Cores(rivals, np.argsort(-rivals.leads(start), kind="stable"))
        return Hitting(cores, lambda m: _proven(self.certifier, self.points, t, m), more, start)

    def _take_input(self, result: BestRank, k: int, hitting: Hitting) -> None:
        """The best input of that search, counted rigorously, where it is better."""
        t = int(result.classes[k])
        equals = self.equals.get(t, np.array([t]))
        rank = rank_at(self.certifier, t, hitting.input, equals)
        if rank < result.upper[k]:
            result.upper[k], result.inputs[k] = rank, hitting.input

    def _descend(self, result: BestRank, k: int, places: tuple[int, ...], hitting: Hitting) -> None:
        """A better input for one class: good enough for the places that are open, the first ones
        first."""
        if not places:
            hitting.descend(0, _DROPPED)
            self._take_input(result, k, hitting)
        for place in sorted(places):
            if result.lower[k] <= place < result.upper[k]:
                hitting.descend(place - 1, place + place // 2)
                self._take_input(result, k, hitting)

    def _close(self, result: BestRank, k: int, places: tuple[int, ...], hitting: Hitting) -> None:
        """Bounds of one class brought together by branching, as far as it goes."""
        while _is_open(result, k, places):
            wanted = int(result.lower[k])
            answer = hitting.run(wanted)
            self._take_tree(result, k, hitting)
            if answer is False:
                upper = int(result.upper[k])
                self._take_input(result, k, hitting)
                if result.upper[k] == upper:
                    return
            elif answer is None or result.lower[k] == wanted:
                with self.lock:
                    self.without_cases += _is_open(result, k, places)
                return

    def _take_tree(self, result: BestRank, k: int, hitting: Hitting) -> None:
        proof = hitting.proof()
        if proof is None or 1 + hitting.bound <= result.lower[k]:
            return
        mixtures, tree = proof  # every one of them is proven: what is left is counting
        sets = {j: set(m.classes.tolist()) for j, m in enumerate(mixtures)}
        least = count_of(tree, sets)
        if least is not None and 1 + least > result.lower[k]:
            result.mixtures[k], result.trees[k], result.lower[k] = mixtures, tree, 1 + least

    def _inside(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.backend.get(self.space.clip(x)), dtype=np.float64)

    def _origin(self) -> np.ndarray | float:
        return 0.0 if self.space.origin is None else self.space.origin

    def _certified(self, t: int, mixtures: list[Mixture]) -> list[Mixture]:
        checked = (_proven(self.certifier, self.points, t, mixture) for mixture in mixtures)
        return [mixture for mixture in checked if mixture is not None]

    def _search(self, asked: np.ndarray, hints: np.ndarray | None) -> np.ndarray:
        """An input for each class at which few others are at or above it: (n, latent)."""
        head = self.head
        size = int(np.clip(_BATCH_BYTES // (40 * head.classes), 1, 64))
        parts = [np.arange(s, min(s + size, len(asked))) for s in range(0, len(asked), size)]
        inputs = np.zeros((len(asked), self.space.features))
        self.bar.stage("searching", len(asked))
        shares = _SHARES if self.space.lifted else (1.0,)

        def work(part: np.ndarray) -> np.ndarray:
            search = _Descent(self.space, self.points, asked[part], self.equals)
            inner = len(self.space.to_input)
            starts = [self.points[asked[part]][:, :inner]]
            if hints is not None:
                away = self.space.directions(hints[part] - self._origin())[:, :inner]
                starts.append(
                    np.where(np.abs(away).max(axis=1, keepdims=True) > 0, away, starts[0])
                )
            for start, some in zip(starts[::-1], (shares, shares[:1]), strict=False):
                for share in some if not self._late() else ():
                    search.run(start, share)
            if hints is not None:
                search.consider(hints[part] - self._origin())
            self.bar.advance(len(part))
            return search.inputs

        with self.backend.threads() as over:
            for part, found in zip(parts, over(work, parts), strict=True):
                inputs[part] = self.space.proposed(found)
        return inputs


def _is_open(result: BestRank, k: int, places: tuple[int, ...]) -> bool:
    """Whether what is asked of one class is not known yet: its rank, or the places it can have."""
    lower, upper = int(result.lower[k]), int(result.upper[k])
    if not places:
        return lower < upper
    return any(lower <= place < upper for place in places)


class _Descent:
    """Directions of many classes, moved so that fewer and fewer others are at or above them."""

    def __init__(
        self, space: Space, points: np.ndarray, classes: np.ndarray, equals: dict[int, Any]
    ) -> None:
        self.space, self.points, self.classes = space, points, classes
        self.own = points[classes]
        self.here = np.arange(len(classes))
        self.lengths = np.array([np.linalg.norm(points - own, axis=1) for own in self.own])
        self.out = self.lengths == 0
        for k, t in enumerate(classes.tolist()):
            self.out[k, equals.get(t, [t])] = True
        self.lengths[self.lengths == 0] = 1.0
        self.best = np.full(len(classes), points.shape[0] + 1)
        self.inputs = np.zeros((len(classes), space.features))

    def consider(self, x: np.ndarray) -> np.ndarray:
        """Count at the inputs x (n, d), keep the best so far; returns (u_i − u_t)·y: (n, C)."""
        y = self.space.directions(x)
        scores = y @ self.points.T
        scores -= (y * self.own).sum(axis=1, keepdims=True)
        scores[self.out] = -np.inf
        count = (scores >= 0).sum(axis=1)
        better = count < self.best
        self.best[better], self.inputs[better] = count[better], x[better]
        return scores

    def run(self, y: np.ndarray, share: float) -> None:
        space, inner = self.space, len(self.space.to_input)
        y = y / np.maximum(np.linalg.norm(y, axis=1, keepdims=True), 1e-300)
        push = np.zeros_like(y)
        for step in range(_STEPS):
            done = step / (_STEPS - 1)
            sharp, move = (a * (b / a) ** done for a, b in (_SHARP, _MOVE))
            x = space.with_fixed(space.enter(y @ space.to_input, share))
            scores = self.consider(x)
            size = np.linalg.norm(space.directions(x)[:, :inner], axis=1, keepdims=True)
            scores *= sharp / (self.lengths * np.maximum(size, 1e-300))
            np.clip(scores, -30, 30, out=scores)
            slope = np.exp(-np.abs(scores))
            slope /= (1 + slope) ** 2 * self.lengths
            slope[self.out] = 0.0
            gradient = slope @ self.points[:, :inner]
            gradient -= slope.sum(axis=1, keepdims=True) * self.own[:, :inner]
            gradient -= (gradient * y).sum(axis=1, keepdims=True) * y
            norm = np.linalg.norm(gradient, axis=1, keepdims=True)
            push = 0.8 * push + 0.2 * gradient / np.maximum(norm, 1e-300)
            y = y - move / 0.8 * push
            y /= np.maximum(np.linalg.norm(y, axis=1, keepdims=True), 1e-300)


def _principal(points: np.ndarray) -> np.ndarray:
    return np.linalg.eigh(points.T @ points)[1][:, -1]


class _Dealer:
    """The classes other than t as seen from t, and the groups they are dealt into."""

    def __init__(self, space: Space, points: np.ndarray, t: int, equals: np.ndarray) -> None:
        self.space = space
        away = points - points[t]
        lengths = np.linalg.norm(away, axis=1)
        others = np.setdiff1d(np.arange(len(points)), equals)
        # Classes that look the same from every input tie everywhere.
        self.same = others[lengths[others] == 0]
        self.others = others[lengths[others] > 0]
        self.lengths = lengths[self.others]
        self.unit = away[self.others] / self.lengths[:, None]  # (n, width)
        self.sides = space.sides()
        extra = [self.sides]
        if space.lifted:
            height = np.zeros((1, space.width))
            height[0, -1] = -1.0
            extra.append(height)
        self.extra = np.concatenate(extra)
        self.scarce: np.ndarray = np.zeros(len(self.others), dtype=bool)

    def disjoint(self, y: np.ndarray, most: int, guess: int = 8) -> list[Mixture]:
        """Up to `most` mixtures of pairwise disjoint sets, as many as dealing finds.

        `y` (width,) is a direction at which few classes beat t; `guess` says how many groups to
        begin with.
        """
        found = [Mixture(np.array([i]), np.ones(1)) for i in self.same.tolist()]
        strength = self.unit @ y
        self.scarce = strength >= 0
        pool = np.argsort(-strength, kind="stable")  # positions among the others, strongest first
        count = max(1, guess)
        while len(found) < most and len(pool):
            count = min(count, most - len(found), max(1, int(len(pool) / self.space.width)))
            held = self._deal(pool, count)
            if held:
                found += held[: most - len(found)]
                used = np.concatenate([m.classes for m in found])
                pool = pool[~np.isin(self.others[pool], used)]
            elif count == 1:
                break
            count = max(1, len(held) or count // 3)
        return found

    def _deal(self, pool: np.ndarray, count: int) -> list[Mixture]:
        """Mixtures of those among `count` groups dealt from the pool that hold one."""
        size = min(-(-len(pool) // count), max(_LARGEST * self.space.width, _SMALL))
        dealt = pool
        if size * count < len(pool):  # the strongest blockers, and an even sample of the rest
            strong = size * count // 2
            rest = pool[strong:]
            picked = np.linspace(0, len(rest) - 1, size * count - strong).astype(np.int64)
            dealt = np.concatenate([pool[:strong], rest[np.unique(picked)]])
        groups = [dealt[k::count] for k in range(count)]
        return [mixture for mixture in self.solve(groups) if mixture is not None]

    def solve(self, groups: list[np.ndarray]) -> list[Mixture | None]:
        """A mixture for each group (positions among the others), or None where there is none."""
        result: list[Mixture | None] = []
        width = self.space.width
        longest = max((len(g) for g in groups), default=1) + len(self.extra)
        step = max(1, _GROUP_BYTES // (8 * longest * width))
        for start in range(0, len(groups), step):
            part = groups[start : start + step]
            count = max(len(g) for g in part)
            rows = np.zeros((len(part), count + len(self.extra), width))
            for k, group in enumerate(part):
                rows[k, : len(group)] = self.unit[group]
            rows[:, count:] = self.extra
            duals = _gordan(self.space, rows)
            good: np.ndarray = np.asarray(np.isfinite(duals).all(axis=1))
            duals = np.where(good[:, None], duals, 0.0)
            weights, fine = balanced(self.space.backend, rows, duals)
            for k, group in enumerate(part):
                usable = bool(good[k] and fine[k])
                vertex = self._vertex(group, rows[k], duals[k]) if usable else None
                if vertex is None and usable:
                    one = slice(k, k + 1)
                    shares = self._fewer(rows[one], weights[one], fine[one], count)[0]
                    vertex = self._mixture(group, shares)
                result.append(vertex)
        return result

    def _fewer(
        self, rows: np.ndarray, weights: np.ndarray, fine: np.ndarray, count: int
    ) -> np.ndarray:
        """The smallest weights dropped as far as the rest can balance without them: the classes
        they stood on are free for other mixtures."""
        for share in _FEWER:
            shares = np.sort(weights[:, :count], axis=1)[:, ::-1]
            held = (shares > 0).sum(axis=1)
            keep = np.minimum(held, np.maximum(self.space.width + 1, (share * held).astype(int)))
            limit = np.take_along_axis(shares, np.maximum(keep - 1, 0)[:, None], axis=1)
            fewer = weights.copy()
            fewer[:, :count][weights[:, :count] < limit] = 0.0
            fewer, good = balanced(self.space.backend, rows, fewer)
            weights = np.where((good & fine)[:, None], fewer, weights)
        return weights

    def _vertex(self, group: np.ndarray, rows: np.ndarray, duals: np.ndarray) -> Mixture | None:
        """A mixture of no more of the group's classes than it needs, few of them scarce."""
        from scipy.optimize import linprog

        width = self.space.width
        chosen = np.sort(np.argsort(-duals[: len(group)])[: _COLUMNS * width])
        cost = np.where(self.scarce[group[chosen]], 1.0, _CHEAP)
        at, named, least = chosen, np.ones(len(chosen)), np.zeros(len(chosen))
        if self.space.lifted:  # the height, with a little weight: room for rounding
            at, cost = np.append(chosen, len(rows) - 1), np.append(cost, 0.0)
            named, least = np.append(named, 0.0), np.append(least, _ROOM)
        solved = linprog(
            cost, A_eq=np.vstack([rows[at].T, named]), b_eq=np.append(np.zeros(width), 1.0),
            bounds=[(low, None) for low in least.tolist()], method="highs-ds",
        )  # fmt: skip
        if solved.status != 0:
            return None
        sparse = np.zeros(len(rows))
        sparse[at] = np.where(solved.x > 1e-12, solved.x, 0.0)
        moved, good = balanced(self.space.backend, rows[None], sparse[None])
        return self._mixture(group, moved[0]) if good[0] else None

    def _mixture(self, group: np.ndarray, weights: np.ndarray) -> Mixture | None:
        shares = weights[: len(group)] / self.lengths[group]
        total = shares.sum()
        if not (total > 0 and np.isfinite(total)):
            return None
        used = np.flatnonzero(shares > 0)
        used = used[np.argsort(self.others[group[used]])]
        return Mixture(self.others[group[used]].astype(np.int32), shares[used] / total)


def _gordan(space: Space, rows: np.ndarray) -> np.ndarray:
    """λ ≥ 0 with Σ λ_k a_k = 0 for each system of rows, NaN where a·y < 0 has a solution (or none
    was found in time): (B, n, m) → (B, n). Rows of zeros do not count."""
    result = np.full(rows.shape[:2], np.nan)
    live = np.arange(len(rows))
    present: np.ndarray = np.asarray(rows.any(axis=2))
    y = np.zeros((len(rows), rows.shape[2]))
    with np.errstate(all="ignore"):
        for _ in range(_GORDAN_STEPS):
            if not len(live):
                break
            part, here = rows[live], present[live]
            q = 1 / (1 - np.einsum("bnm,bm->bn", part, y[live]))
            scaled = part * q[:, :, None]
            hessian = scaled.swapaxes(1, 2) @ scaled
            hessian[:, range(hessian.shape[1]), range(hessian.shape[1])] += _RIDGE
            move = -space.backend.solve(hessian, scaled.sum(axis=1))
            change = np.einsum("bnm,bm->bn", part, move)
            relative = change * q
            balanced_now: np.ndarray = np.asarray(relative.min(axis=1) > -1)
            result[live[balanced_now]] = np.where(here, q * (1 + relative), 0.0)[balanced_now]
            y[live] += _step_length(relative)[:, None] * move
            ahead = np.einsum("bnm,bm->bn", part, y[live])
            separated = (np.where(here, ahead, -1).max(axis=1) < 0) | (
                np.where(here, change, -1).max(axis=1) < 0
            )
            live = live[~(balanced_now | separated | ~np.isfinite(move).all(axis=1))]
    return result


def _step_length(relative: np.ndarray) -> np.ndarray:
    """Step lengths near the minimum of −Σ log(1 − α·relative_k): (B,)."""
    largest = relative.max(axis=1)
    limit = 0.98 / np.maximum(largest, 1e-9)
    length = np.minimum(1.0, limit)
    for _ in range(6):
        ratio = relative / (1 - length[:, None] * relative)
        slope, curve = ratio.sum(axis=1), (ratio * ratio).sum(axis=1)
        wanted = np.maximum(length - slope / np.maximum(curve, 1e-300), 1e-3 * length)
        length = np.minimum(np.minimum(wanted, 8 * length), limit)
    return length


def _proven(certifier: Certifier, points: np.ndarray, t: int, mixture: Mixture) -> Mixture | None:
    """The mixture, or one of the same classes, that is proven; None where there is none.

    `points` (C, width) are the classes in whitened coordinates: where a mixture must balance
    exactly, it is balanced there with its mean row as one more.
    """
    if holds(certifier, t, mixture):
        return mixture
    spread = _spread(points, t, mixture)
    if spread is not None and holds(certifier, t, spread):
        return spread
    if len(mixture.classes) * certifier.head.features > _EXACT:
        return None
    part, members = own_head(certifier, t, mixture)
    last = len(members) - 1
    try:
        found = decide_exactly(
            part, certifier.domain, last, np.arange(last), np.empty(0, np.int64), _SECONDS
        )
    except Limit:
        return None
    if not isinstance(found, Mixture):
        return None
    found = replace(found, classes=members[found.classes])
    return found if holds(certifier, t, found) else None


def _spread(points: np.ndarray, t: int, mixture: Mixture) -> Mixture | None:
    members = np.append(np.setdiff1d(mixture.classes, [t]), t)
    away = points[mixture.classes] - points[t]
    mean = points[members].mean(axis=0) - points[t]
    rows = np.concatenate([away, mean[None]])
    lengths = np.linalg.norm(rows, axis=1)
    if not (lengths > 0).all():
        return None
    weights = np.append(mixture.weights / np.sum(mixture.weights), _BULK) * lengths
    unit = rows / lengths[:, None]
    moved, good = balanced(Backend(1, np.float64), unit[None], weights[None])
    shares = moved[0] / lengths
    if not good[0] or not np.isfinite(shares).all() or not shares[-1] > 0:
        return None
    return Mixture(mixture.classes, shares[:-1], float(shares[-1]))
