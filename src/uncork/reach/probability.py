"""The highest probability that any input can give a class, bounded from both sides.

One for a class that is argmaxable with room to spare, below a half for an unargmaxable one: the
stolen probability, measured. `newton` proposes an input; `bounds.probability` proves from it both
what it reaches and what no input can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uncork.auditing.backend import Backend, choose_backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.result import Audit
from uncork.core.class_ids import class_ids
from uncork.core.head import Head
from uncork.core.progress import Progress, progress_bar
from uncork.domain import Domain
from uncork.reach.bounds.probability import ProbabilityBounds, probability_bounds
from uncork.reach.limits import check_bounds
from uncork.reach.newton import NewtonBatch, Steps
from uncork.reach.searched_head import SearchedHead

_BATCH = 32
_BATCH_BYTES = 64 << 20
_RECENT = 8  # batches that the next one may begin from
BULK = (1e-9, 1e-7, 1e-5)  # shares of a mixture spread over all classes, tried in turn


@dataclass(frozen=True)
class HighestProbability(ProbabilityBounds):
    """For each class, proven: lower ≤ sup P(t | x) ≤ upper, both from one input, or from two close
    by where the domain is infinite.

    `inputs` (n, latent) are in float64; where the domain is an image x = F(u) they are u.
    """

    inputs: np.ndarray  # (n, latent)
    mixture_inputs: np.ndarray  # (n, latent) whose softmax proves the upper bound; mostly the same
    bulk: np.ndarray  # (n,) the share of each proof's mixture that is spread over all classes
    temperature: float


def highest_probability(
    head: Head,
    classes: Sequence[int] | np.ndarray | None = None,
    *,
    domain: Domain | None = None,
    temperature: float = 1.0,
    gap: float = 1e-6,
    audit: Audit | None = None,
    device: str = "auto",
    jobs: int | None = None,
    progress: bool | Progress = False,
) -> HighestProbability:
    """Bounds on the highest softmax probability of each class over the domain.

    Searches until the bounds agree to `gap`, relative. They may not where the supremum is not
    attained (it may lie at infinity) or where rounding is in the way; what is returned is proven
    either way. An `audit` of the head saves work: the search begins at its witnesses.
    """
    check_bounds(head, temperature, gap)
    asked = class_ids(head.classes, classes)
    domain = head.domain if domain is None else domain
    backend = choose_backend(device, jobs)
    with progress_bar(progress) as bar, np.errstate(all="ignore"):
        return _Search(head, domain, backend, float(temperature), gap).run(asked, audit, bar)


class _Search:
    def __init__(
        self, head: Head, domain: Domain, backend: Backend, temperature: float, gap: float
    ) -> None:
        self.searched = SearchedHead(head, domain, backend)
        self.certifier = Certifier(head, domain, backend)
        self.backend, self.temperature, self.gap = backend, temperature, gap
        self.recent: list[tuple[np.ndarray, np.ndarray]] = []  # rows and inputs of past batches
        prepare(self.searched, self.certifier)

    def run(self, asked: np.ndarray, audit: Audit | None, bar: Progress) -> HighestProbability:
        count, latent = len(asked), self.searched.width
        found = HighestProbability(
            asked, np.zeros(count), np.ones(count), np.zeros((count, latent)),
            np.zeros((count, latent)), np.zeros(count), self.temperature,
        )  # fmt: skip
        size = int(np.clip(_BATCH_BYTES // (24 * self.searched.classes), 1, _BATCH))
        # Neighbours have much the same optimum: similar classes end their steps together.
        order = np.argsort(self._rows(asked) @ self._principal())
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        bar.stage("probability", count)

        def work(part: np.ndarray) -> None:
            self._prove(found, part, self._maximise(asked[part], audit))
            bar.advance(len(part))

        with self.backend.threads() as over:
            list(over(work, parts))
        return found

    def _maximise(self, classes: np.ndarray, audit: Audit | None) -> np.ndarray:
        """Inputs (n, m) near the maximum of each class's probability."""
        rows = self._rows(classes)
        starts = self.searched.witnesses(audit, classes) + _nearest(rows, self.recent[-_RECENT:])
        u = self._newton(classes, self.gap / 5, np.array(starts))
        self.recent.append((rows, u))
        if self.searched.is_infinite:  # where t wins, farther out it wins by more
            farther = np.array([u * factor for factor in self.searched.farther])
            u = self._newton(classes, self.gap / 5, farther)
        return u

    def _newton(
        self, classes: np.ndarray, gap: float, starts: np.ndarray, lean: float = 0.0
    ) -> np.ndarray:
        steps = Steps(1 / self.temperature, gap, lean)
        return NewtonBatch(self.searched, classes, starts, steps).run()

    def _prove(self, found: HighestProbability, part: np.ndarray, u: np.ndarray) -> None:
        """Bounds from u; where an infinite domain sees what rounding leaves of the balance, the
        upper one from an input whose softmax balances together with a share of the mean row."""
        classes = found.classes[part]
        low, high = probability_bounds(self.certifier, classes, u, self.temperature)
        bulk, mixed = np.zeros(len(classes)), u.copy()
        for share in BULK if self.searched.is_infinite else ():
            left = np.flatnonzero(~(high - low <= self.gap * low))
            if not len(left):
                break
            some = classes[left]
            leaning = self._newton(some, 1e-11, u[left][None], lean=share)
            better = probability_bounds(self.certifier, some, leaning, self.temperature, share)[1]
            taken = better < high[left]
            high[left[taken]], bulk[left[taken]] = better[taken], share
            mixed[left[taken]] = leaning[taken]
        found.lower[part], found.upper[part] = low, high
        found.inputs[part], found.mixture_inputs[part], found.bulk[part] = u, mixed, bulk

    def _rows(self, classes: np.ndarray) -> np.ndarray:
        return np.asarray(self.backend.get(self.searched.rows[self.backend.index(classes)]))

    def _principal(self) -> np.ndarray:
        """The direction in which the rows vary most: (m,)."""
        covariance = self.backend.get(self.searched.rows.T @ self.searched.rows)
        return np.linalg.eigh(covariance)[1][:, -1]


def prepare(searched: SearchedHead, certifier: Certifier) -> None:
    """Make what threads would otherwise make several times over."""
    _ = searched.whitened, certifier.products.norms, certifier.products.centre
    if searched.is_infinite:
        _ = certifier.bulk


def _nearest(rows: np.ndarray, solved: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Where the nearest class among those solved lately ended: near classes end near by."""
    if not solved:
        return []
    known = np.concatenate([other for other, _ in solved])
    ended = np.concatenate([u for _, u in solved])
    apart = (known * known).sum(axis=1) - 2 * rows @ known.T
    return [ended[np.argmin(apart, axis=1)]]
