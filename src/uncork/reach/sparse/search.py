"""How far a class comes where the output is sparsemax or α-entmax instead of softmax.

There a class can be left out altogether, or be all that is left. So three questions: the largest
probability that any input gives it, from both sides; whether any input has it in the support; and
whether any makes it the whole support. `sparse_newton` proposes inputs, `sparse_bounds` proves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing import audit as run_audit
from uncork.auditing.backend import Backend, choose_backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Mixture, Verdict
from uncork.auditing.result import Audit
from uncork.core.class_ids import class_ids
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress, ProgressBar
from uncork.domain import Domain
from uncork.reach.limits import check_sizes, check_temperature
from uncork.reach.probability.search import is_infinite, witnesses
from uncork.reach.searched_head import View
from uncork.reach.sparse.bounds import sparse_bounds
from uncork.reach.sparse.kinks import solve
from uncork.reach.sparse.newton import SparseBatch

_BATCH = 32
_BATCH_BYTES = 64 << 20
_FIRST, _LAST, _SHRINK = 0.05, 1e-12, 0.1  # widths of the smoothing, and from one to the next
_SMOOTH = 1.6  # α above: kinks too sharp to shrink the smoothing so fast, or so far
_SLOWLY, _KINKS, _EDGES = 0.3, 1e-7, 3e-3
_BULK = (1e-9, 1e-7, 1e-5)
_LEAST = 1.001  # α below is softmax for all that floats can tell
_ASKED = 50  # classes whose whole support is asked of the audit
_SHARES = (1.0, 0.1, 0.01, 1e-3, 1e-4)


@dataclass(frozen=True)
class SparseProbability:
    """For each class, proven: lower ≤ sup p_t ≤ upper, and what that says of the support.

    `support` and `whole` are 1 (some input has t in the support; has nothing else in it), 0 (none
    has) or −1 (not proven either way). For α above 2 the bounds need not meet.
    """

    classes: np.ndarray  # (n,)
    lower: np.ndarray  # (n,)
    upper: np.ndarray  # (n,)
    support: np.ndarray  # (n,) int
    whole: np.ndarray  # (n,) int
    inputs: np.ndarray  # (n, latent)
    mixture_inputs: np.ndarray  # (n, latent)
    epsilon: np.ndarray  # (n,) how the proof's weights are made from its input
    bulk: np.ndarray  # (n,)
    weights: list[Mixture | None]  # of the proof, where it is not made from its input
    alpha: float
    temperature: float

    @property
    def gap(self) -> np.ndarray:
        """(upper − lower)/lower, zero where both are: (n,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.upper > 0, (self.upper - self.lower) / self.lower, 0.0)


def sparse_probability(
    head: Head,
    classes: Sequence[int] | np.ndarray | None = None,
    alpha: float = 1.5,
    *,
    domain: Domain | None = None,
    temperature: float = 1.0,
    gap: float = 1e-6,
    audit: Audit | None = None,
    device: str = "auto",
    jobs: int | None = None,
    progress: bool | Progress = False,
) -> SparseProbability:
    """Bounds on the largest α-entmax probability of each class over the domain (2: sparsemax).

    Searches until the bounds agree to `gap`, relative; what is returned is proven either way.
    """
    if not (_LEAST <= alpha < np.inf):
        raise UncorkError(f"alpha must be {_LEAST} or more (2 is sparsemax), not {alpha}")
    check_temperature(temperature, alpha)
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
        search = _Search(head, domain, backend, float(alpha), temperature, gap)
        found = search.run(asked, audit, bar)
        search.settle_whole(found)
    return found


class _Search:
    def __init__(
        self, head: Head, domain: Domain, backend: Backend, alpha: float, temperature: float,
        gap: float,
    ) -> None:  # fmt: skip
        self.view = View(head, domain, backend)
        self.certifier = Certifier(head, domain, backend)
        self.backend, self.alpha, self.temperature, self.gap = backend, alpha, temperature, gap
        # For α > 2 what is maximised is sparsemax's θ for logits α − 1 times as large.
        self.searched = min(alpha, 2.0)
        self.beta = max(alpha - 1, 1.0) / temperature
        self.infinite = is_infinite(self.view)
        self.whitened = self.view.whitened()
        _ = self.certifier.products.norms, self.certifier.products.centre
        if self.infinite:  # made once, before threads ask for it
            _ = self.certifier.bulk

    def run(self, asked: np.ndarray, audit: Audit | None, bar: Progress) -> SparseProbability:
        count = len(asked)
        found = SparseProbability(
            asked, np.zeros(count), np.ones(count), np.full(count, -1), np.full(count, -1),
            self.view.somewhere(count), self.view.somewhere(count), np.full(count, _LAST),
            np.zeros(count), [None] * count, self.alpha, self.temperature,
        )  # fmt: skip
        size = int(np.clip(_BATCH_BYTES // (48 * self.view.classes), 1, _BATCH))
        parts = [np.arange(s, min(s + size, count)) for s in range(0, count, size)]
        bar.stage("sparse", count)

        def work(part: np.ndarray) -> None:
            self._bound(found, part, witnesses(self.view, audit, asked[part], self.infinite))
            bar.advance(len(part))

        with self.backend.threads() as over:
            list(over(work, parts))
        return found

    def _bound(self, found: SparseProbability, part: np.ndarray, starts: list[np.ndarray]) -> None:
        """Both bounds for some of the classes, level by level of the smoothing."""
        begin: Any = np.array(starts) if starts else None
        epsilon, shrink = _FIRST, _SHRINK if self.searched <= _SMOOTH else _SLOWLY
        linear = self.searched == 2 and not np.isfinite(self.view.radius)
        last = _EDGES if linear else _LAST if self.searched <= _SMOOTH else _KINKS
        left = part
        while len(left) and epsilon >= last:
            some = found.classes[left]
            batch = SparseBatch(
                self.view, some, self.searched, epsilon, self.beta, epsilon / 10, begin,
                self.whitened, shares=epsilon == _FIRST,
            )  # fmt: skip
            u = batch.run()
            self._take(found, left, u, epsilon, 0.0)
            if self.infinite:
                self._lean(found, left, u, epsilon)
            open_ = self._open(found, left)
            left, begin = left[open_], u[open_][None]
            epsilon *= shrink
        if linear and len(left):
            for k, start in zip(left.tolist(), begin[0], strict=True):
                self._exactly(found, k, start, epsilon / shrink)

    def _exactly(self, found: SparseProbability, k: int, start: np.ndarray, epsilon: float) -> None:
        """Sparsemax's kinks by a linear programme; its duals are the weights of the proof."""
        t = int(found.classes[k])
        for share in _BULK if self.infinite else (0.0,):
            solved = solve(self.view, t, self.beta, start, epsilon, share / (1 - share))
            if solved is None:
                return
            u, weights = solved
            self._take(found, np.array([k]), u[None], epsilon, share, weights)
            if not self._open(found, np.array([k]))[0]:
                return

    def _take(
        self,
        found: SparseProbability,
        at: np.ndarray,
        u: np.ndarray,
        epsilon: float,
        bulk: float,
        weights: Mixture | None = None,
    ) -> None:
        widths = np.full(len(at), epsilon)
        low, high, whole = sparse_bounds(
            self.certifier, found.classes[at], u, widths, self.alpha, self.temperature, bulk,
            None if weights is None else [weights] * len(at),
        )  # fmt: skip
        better = low > found.lower[at]
        found.lower[at[better]], found.inputs[at[better]] = low[better], u[better]
        # Kept also where the bound is the trivial one: some input has to stand in the file.
        lower = (high < found.upper[at]) | (found.upper[at] >= 1)
        some = at[lower]
        found.upper[some], found.mixture_inputs[some] = high[lower], u[lower]
        found.epsilon[some], found.bulk[some] = epsilon, bulk
        for k in some.tolist():
            found.weights[k] = weights
        found.whole[at[whole]] = 1
        found.whole[at[found.upper[at] < 1]] = 0
        found.support[at[found.lower[at] > 0]] = 1
        found.support[at[found.upper[at] <= 0]] = 0

    def _lean(
        self, found: SparseProbability, at: np.ndarray, u: np.ndarray, epsilon: float
    ) -> None:
        """Upper bounds where the weights must balance exactly: together with a share of all."""
        for share in _BULK:
            rows = np.flatnonzero(self._open(found, at))
            if not len(rows):
                return
            batch = SparseBatch(
                self.view, found.classes[at[rows]], self.searched, epsilon, self.beta, 1e-11,
                u[rows][None], self.whitened, lean=share, shares=False,
            )  # fmt: skip
            self._take(found, at[rows], batch.run(), epsilon, share)

    def _open(self, found: SparseProbability, at: np.ndarray) -> np.ndarray:
        """Where more search could say more: (n,) bool."""
        met = found.upper[at] - found.lower[at] <= self.gap * found.lower[at]
        told = found.whole[at] != -1
        return np.asarray(~(met & told | (found.upper[at] <= 0)))

    def settle_whole(self, found: SparseProbability) -> None:
        """Where the bounds alone do not tell whether t can be the whole support, ask the audit: can
        t be ahead of all others by 1/(α − 1)?"""
        head, domain = self.certifier.head, self.certifier.domain
        for k in np.flatnonzero(found.whole == -1)[:_ASKED].tolist():
            t, lead = int(found.classes[k]), found.temperature / (found.alpha - 1)
            offsets = head.offsets.copy()
            # A little more than needed, so that rounding cannot make it less.
            offsets[t] -= lead * (1 + 2.0**-40) + 2.0**-40 * abs(offsets[t])
            audited = run_audit(
                head.replace(bias=offsets, domain=domain), classes=np.array([t]), jobs=1
            )
            at, witness = np.array([k]), audited.latent_witness(t)
            if audited.proofs.verdicts[t] == Verdict.ARGMAXABLE and witness is not None:
                self._take(found, at, np.asarray(witness, dtype=np.float64)[None], _LAST, 0.0)
            mixture = audited.mixture(t)
            if mixture is None or mixture.tilt is not None:
                continue
            for share in _SHARES:  # of the mixture, the rest on t: h is flat at zero
                named = Mixture(
                    np.append(mixture.classes, t),
                    np.append(share * mixture.weights / mixture.weights.sum(), 1.0)
                    * max(1 / (found.alpha - 1), 1.0),
                )
                inputs = found.inputs[at]
                self._take(found, at, inputs, _LAST, float(found.bulk[k]), named)
                if found.whole[k] == 0:
                    break
