"""The highest probability that any input can give a class, bounded from both sides.

One for a class that is argmaxable with room to spare, below a half for an unargmaxable one: the
stolen probability, measured. `newton` proposes an input, `bounds` proves from it both what it
reaches and what no input can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing.backend import Backend, choose_backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Verdict
from uncork.auditing.result import Audit
from uncork.core.class_ids import class_ids
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress, ProgressBar
from uncork.domain import Domain
from uncork.reach.limits import check_sizes, check_temperature
from uncork.reach.probability.bounds import probability_bounds
from uncork.reach.probability.newton import maximise
from uncork.reach.searched_head import View

_BATCH = 32
_BATCH_BYTES = 64 << 20
_RECENT = 8  # batches that the next one may begin from
_BULK = (1e-9, 1e-7, 1e-5)  # shares of the mixture spread over all, tried in turn
_FARTHER = (1.0, 5.0, 30.0, 1000.0)  # how far out a witness is tried where the domain is infinite


@dataclass(frozen=True)
class HighestProbability:
    """For each class, proven: lower ≤ sup P(t | x) ≤ upper, both from one input, or from two close
    by where the domain is infinite.

    `inputs` (n, latent) are in float64; where the domain is an image x = F(u) they are u.
    """

    classes: np.ndarray  # (n,)
    lower: np.ndarray  # (n,)
    upper: np.ndarray  # (n,)
    inputs: np.ndarray  # (n, latent)
    mixture_inputs: np.ndarray  # (n, latent) whose softmax proves the upper bound; mostly the same
    bulk: np.ndarray  # (n,) the share of each proof's mixture that is spread over all classes
    temperature: float

    @property
    def gap(self) -> np.ndarray:
        """(upper − lower)/lower, infinite where only the lower one is zero: (n,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.upper > 0, (self.upper - self.lower) / self.lower, 0.0)


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

    Searches until the bounds agree to `gap`, relative. Where the supremum is not attained (it may
    lie at infinity) or rounding is in the way they may not; what is returned is proven either way.
    An `audit` of the head saves work on argmaxable classes: their witnesses are where to begin.
    """
    check_temperature(temperature)
    if not 1e-12 < gap < 1:
        raise UncorkError(f"gap must lie between 1e-12 and 1, and is {gap}")
    asked = class_ids(head.classes, classes)
    check_sizes(head, small=False)
    domain = head.domain if domain is None else domain
    backend = choose_backend(device, jobs)
    bar: Progress = progress if isinstance(progress, Progress) else (
        ProgressBar() if progress else Progress()
    )  # fmt: skip
    with bar, np.errstate(all="ignore"):
        return _search(head, domain, asked, temperature, gap, audit, backend, bar)


def _search(
    head: Head,
    domain: Domain,
    asked: np.ndarray,
    temperature: float,
    gap: float,
    audit: Audit | None,
    backend: Backend,
    bar: Progress,
) -> HighestProbability:
    view = View(head, domain, backend)
    certifier = Certifier(head, domain, backend)
    whitened = view.whitened()
    infinite = is_infinite(view)
    size = int(np.clip(_BATCH_BYTES // (24 * head.classes), 1, _BATCH))
    # Neighbours have much the same optimum: similar classes end their steps together.
    order = np.argsort(backend.get(view.rows[backend.index(asked)]) @ _principal(view))
    parts = [order[start : start + size] for start in range(0, len(order), size)]
    bar.stage("probability", len(asked))
    if certifier.products.norms.size:  # made once, before threads ask for it
        _ = certifier.products.centre
    if infinite:
        _ = certifier.bulk

    recent: list[tuple[np.ndarray, np.ndarray]] = []  # rows and inputs of the last batches

    def work(part: np.ndarray) -> tuple[np.ndarray, Any]:
        some = asked[part]
        rows = backend.get(view.rows[backend.index(some)])
        starts = witnesses(view, audit, some, infinite) + _nearest(rows, recent[-_RECENT:])
        u = maximise(view, some, 1 / temperature, gap / 5, np.array(starts), whitened)
        recent.append((rows, u))
        if infinite:  # where t wins, farther out it wins by more
            farther = np.array([u * s for s in _FARTHER])
            u = maximise(view, some, 1 / temperature, gap / 5, farther, whitened)
        return part, _prove(view, certifier, some, u, temperature, gap, infinite, whitened)

    latent = view.width
    result = HighestProbability(
        asked, np.zeros(len(asked)), np.ones(len(asked)), np.zeros((len(asked), latent)),
        np.zeros((len(asked), latent)), np.zeros(len(asked)), float(temperature),
    )  # fmt: skip
    with backend.threads() as over:
        for part, (low, high, u, mixed, bulk) in over(work, parts):
            result.lower[part], result.upper[part] = low, high
            result.inputs[part], result.mixture_inputs[part], result.bulk[part] = u, mixed, bulk
            bar.advance(len(part))
    return result


def is_infinite(view: View) -> bool:
    """Whether u may be as large as you like."""
    sides = np.isfinite([view.lower, view.upper]).all()
    return not (sides or np.isfinite(view.radius))


def _principal(view: View) -> np.ndarray:
    """The direction in which the rows vary most: (m,)."""
    covariance = view.backend.get(view.rows.T @ view.rows)
    return np.linalg.eigh(covariance)[1][:, -1]


def witnesses(
    view: View, audit: Audit | None, classes: np.ndarray, infinite: bool
) -> list[np.ndarray]:
    """Witnesses of the argmaxable classes, each (n, m), NaN where there is none."""
    if audit is None or audit.domain != view.domain:
        return []
    if audit.fingerprint != view.head.fingerprint:
        return []
    starts = np.full((len(classes), view.width), np.nan)
    for k, t in enumerate(classes.tolist()):
        if audit.proofs.verdicts[t] in (Verdict.ARGMAXABLE, Verdict.TIED):
            witness = audit.latent_witness(t)
            if witness is not None:
                starts[k] = witness
    return [starts * s for s in (_FARTHER if infinite else (1.0,))]


def _nearest(rows: np.ndarray, solved: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Where the nearest class among those solved lately ended: near classes end near by."""
    if not solved:
        return []
    known = np.concatenate([other for other, _ in solved])
    ended = np.concatenate([u for _, u in solved])
    apart = (known * known).sum(axis=1) - 2 * rows @ known.T
    return [ended[np.argmin(apart, axis=1)]]


def _prove(
    view: View,
    certifier: Certifier,
    classes: np.ndarray,
    u: np.ndarray,
    temperature: float,
    gap: float,
    infinite: bool,
    whitened: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Bounds from u; where an infinite domain sees what rounding leaves of the balance, the upper
    one from an input whose softmax balances together with a share of the mean row."""
    low, high = probability_bounds(certifier, classes, u, temperature)
    bulk, mixed = np.zeros(len(classes)), u.copy()
    for share in _BULK if infinite else ():
        left = np.flatnonzero(~(high - low <= gap * low))
        if not len(left):
            break
        some = classes[left]
        leaning = maximise(view, some, 1 / temperature, 1e-11, u[left][None], whitened, lean=share)
        better = probability_bounds(certifier, some, leaning, temperature, share)[1]
        taken = better < high[left]
        high[left[taken]], bulk[left[taken]] = better[taken], share
        mixed[left[taken]] = leaning[taken]
    return low, high, u, mixed, bulk
