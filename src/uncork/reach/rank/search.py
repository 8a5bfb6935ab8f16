"""The best rank that any input can give a class, bounded from both sides.

rank(x) = 1 + the number of classes at or above t at x; classes equal to t do not count. The best
rank is one for argmaxable classes; for others it is their halfspace depth among the rows. From
above it is bounded by an input, counted rigorously; from below by pairwise disjoint mixtures: k of
them prove that at every input k classes are at or above t, so that t is never in the top k: no
beam search of that width and no top-k sampling can ever pick it.

Inputs are sought by descent on a smoothed count over directions, sharpened as it goes, many classes
at once; mixtures by dealing the classes into groups (`packing`); where few are left between the
bounds, by branching (`branching`). Only what the certifier accepts is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from uncork.auditing.backend import Backend, choose_backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.duplicates import equal_classes
from uncork.auditing.proofs.verdict import Mixture, Verdict
from uncork.auditing.result import Audit
from uncork.auditing.search.space import Space
from uncork.core.class_ids import class_ids
from uncork.core.head import Head
from uncork.core.progress import Progress, ProgressBar
from uncork.core.rigour import row_norms
from uncork.domain import Domain
from uncork.reach.limits import check_sizes
from uncork.reach.rank.branching import Branching, Cases, cases_bound
from uncork.reach.rank.own_classes import proven
from uncork.reach.rank.packing import Dealer
from uncork.reach.searched_head import View
from uncork.repair.surface import Programme, Surface

_STEPS = 150
_SHARP = (30.0, 1000.0)  # of the smoothed count, at the first and last step
_MOVE = (0.3, 0.003)  # radians a step
_SHARES = (1.0, 0.2)  # of the domain's extent, where lengths matter
_BATCH_BYTES = 96 << 20
_OPEN = 400  # pairs settled exactly at one input
_GROUP = 12  # widths in a group of the first deal
_SHALLOW = 8  # classes above t at its input for each group: of few, no more can come
_BRANCHED = 4  # widths: heads of so few features are also branched on


@dataclass(frozen=True)
class BestRank:
    """For each class, proven: lower ≤ best rank ≤ upper, and what proves it."""

    classes: np.ndarray  # (n,)
    lower: np.ndarray  # (n,) int
    upper: np.ndarray  # (n,) int
    inputs: np.ndarray  # (n, latent): the rank there is `upper`
    mixtures: list[list[Mixture]] = field(default_factory=list)  # disjoint, lower − 1 of them
    cases: list[Cases | None] = field(default_factory=list)  # where these prove `lower` instead

    def never_in_top(self, k: int) -> np.ndarray:
        """The classes proven never to be among the first k at any input."""
        return self.classes[self.lower > k]


def best_rank(
    head: Head,
    classes: Sequence[int] | np.ndarray | None = None,
    *,
    domain: Domain | None = None,
    top: int | None = None,
    hints: np.ndarray | None = None,
    audit: Audit | None = None,
    jobs: int | None = None,
    progress: bool | Progress = False,
) -> BestRank:
    """Bounds on the best rank of each class over the domain.

    `top` asks only whether classes are ever in the top k: the search for mixtures stops once that
    is known. `hints` (n, latent) are inputs to begin at, such as those of `highest_probability`; an
    `audit` gives witnesses of argmaxable classes.
    """
    asked = class_ids(head.classes, classes)
    check_sizes(head, small=False)
    domain = head.domain if domain is None else domain
    backend = Backend(choose_backend("cpu", jobs).jobs, np.float64)
    bar: Progress = progress if isinstance(progress, Progress) else (
        ProgressBar() if progress else Progress()
    )  # fmt: skip
    with bar, np.errstate(all="ignore"):
        return _Ranks(head, domain, backend, bar).run(asked, top, hints, audit)


def rank_at(certifier: Certifier, t: int, u: np.ndarray, equals: np.ndarray) -> int:
    """Proven: the rank of t at this input is no worse. The number of classes + 1 if outside."""
    worst = certifier.head.classes + 1
    device, products = certifier.device, certifier.products
    x, drift, inside = certifier.seen(device.put(np.asarray(u, dtype=np.float64)[None]))
    if not inside[0]:
        return worst
    point = device.get(x)[0]
    reach = float(row_norms(point[None])[0])
    z = np.concatenate([block @ point for _, block in certifier.head.blocks(4096)])
    z += certifier.offsets
    error = products.kappa * (reach * products.norms + np.abs(certifier.offsets)) + products.slop
    error = error + 1.04 * float(drift[0]) * products.norms
    room = (error + error[t]) * (1 + 2.0**-40) + 2.0**-50 * np.abs(z - z[t])
    lead = z - z[t]
    above = ~(lead < -room)
    above[equals] = False
    above[t] = False
    open_ = np.flatnonzero(above & ~(lead > room))
    if len(open_) <= _OPEN:
        exact = [Fraction(v) for v in np.asarray(u, dtype=np.float64).tolist()]
        for i in open_.tolist():
            above[i] = not certifier.exact_lead(t, exact, i) > 0
    return 1 + int(above.sum())


class _Ranks:
    def __init__(self, head: Head, domain: Domain, backend: Backend, bar: Progress) -> None:
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

    def run(
        self, asked: np.ndarray, top: int | None, hints: np.ndarray | None, audit: Audit | None
    ) -> BestRank:
        inputs = self._search(asked, hints)
        if audit is not None and audit.domain == self.domain:
            self.audit = audit
            for k, t in enumerate(asked.tolist()):
                witness = audit.latent_witness(t)
                inputs[k] = inputs[k] if witness is None else witness
        lower = np.ones(len(asked), dtype=np.int64)
        upper = np.empty(len(asked), dtype=np.int64)
        result = BestRank(asked, lower, upper, inputs, [[] for _ in asked], [None for _ in asked])
        self.bar.stage("best rank", len(asked))
        order = np.argsort(self.points[asked] @ _principal(self.points))
        parts = np.array_split(order, min(len(order), self.backend.jobs))

        def work(part: np.ndarray) -> None:
            for k in part.tolist():
                self._bound(result, k, top)
                self.bar.advance(1)

        with self.backend.threads() as over:
            list(over(work, parts))
        return result

    def _bound(self, result: BestRank, k: int, top: int | None) -> None:
        """Both bounds of one class."""
        t = int(result.classes[k])
        equals = self.equals.get(t, np.array([t]))
        result.upper[k] = rank_at(self.certifier, t, result.inputs[k], equals)
        most = int(result.upper[k]) - 1
        if top is not None:
            most = min(most, top)
        if most < 1:
            return
        dealer = Dealer(self.space, self.points, t, equals)
        y = self.space.directions((result.inputs[k] - self._origin())[None])[0]
        count = max(1, min(most // _SHALLOW, int(self.head.classes / (_GROUP * self.space.width))))
        best = self._certified(t, dealer.disjoint(y, most, count))
        if not best:
            best = self._certified(t, dealer.disjoint(y, 1, 1))
        if not best:
            best = self._certified(t, self._deepest(t))
        result.mixtures[k], result.lower[k] = best, 1 + len(best)
        if self.space.width <= _BRANCHED and len(best) < most:
            self._branch(result, k, dealer, equals, most)

    def _deepest(self, t: int) -> list[Mixture]:
        """For a class that the audit says is never first, the mixture that leads it by most."""
        if self.audit is None or self.audit.proofs.verdicts[t] != Verdict.UNARGMAXABLE:
            return []
        with self.lock:
            if self.programme is None:
                view = View(self.head, self.domain, self.backend)
                # An audit of some classes says nothing of the others: any of those may be first.
                carriers = np.flatnonzero(self.audit.proofs.verdicts != Verdict.UNARGMAXABLE)
                self.programme = Programme(Surface(view, carriers))
            surface = self.programme.surface
            found = self.programme.solve(surface.all_rows[t], float(surface.all_bias[t])).mixture
        if found is None or np.isin(self.equals.get(t, []), found.classes).any():
            return []
        return [found]

    def _branch(
        self, result: BestRank, k: int, dealer: Dealer, equals: np.ndarray, most: int
    ) -> None:
        """Bounds of a head of few features brought together by branching, as far as it goes."""
        t = int(result.classes[k])
        branching = Branching(dealer, self.certifier, self.points, t)
        while result.lower[k] < result.upper[k] and result.lower[k] <= most:
            wanted = int(result.lower[k])
            found = branching.prove(wanted)
            if isinstance(found, np.ndarray):
                x = self.space.sharp_inputs(found[None])
                x = x if self.space.lifted else self.backend.get(self.space.enter(x))
                x = self._inside(self.space.with_fixed(x))
                u = np.asarray(self.space.proposed(x), dtype=np.float64)[0]
                rank = rank_at(self.certifier, t, u, equals)
                if rank >= result.upper[k]:
                    return
                result.upper[k], result.inputs[k] = rank, u
            elif found is None or cases_bound(self.certifier, t, found) < wanted:
                return
            else:
                result.cases[k], result.lower[k] = found, wanted + 1
                result.mixtures[k] = []

    def _inside(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.backend.get(self.space.clip(x)), dtype=np.float64)

    def _origin(self) -> np.ndarray | float:
        return 0.0 if self.space.origin is None else self.space.origin

    def _certified(self, t: int, mixtures: list[Mixture]) -> list[Mixture]:
        checked = (proven(self.certifier, self.points, t, mixture) for mixture in mixtures)
        return [mixture for mixture in checked if mixture is not None]

    # Inputs

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
                for share in some:
                    search.run(start, share)
            if hints is not None:
                search.consider(hints[part] - self._origin())
            self.bar.advance(len(part))
            return search.inputs

        with self.backend.threads() as over:
            for part, found in zip(parts, over(work, parts), strict=True):
                inputs[part] = self.space.proposed(found)
        return inputs


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
