"""How far a class comes where the output is sparsemax or α-entmax instead of softmax.

There a class can be left out altogether, or be all that is left. So three questions: the largest
probability that any input gives it, from both sides; whether any input has it in the support; and
whether any makes it the whole support. What follows proposes inputs and weights, `bounds.sparse`
proves.

With a = α − 1, k = 1/a ≥ 1 and s_i = β(z_i − z_t), p_t = θᵏ where θ solves

    Σ_i φ(a s_i + θ) = 1,    φ(v) = [v]₊ᵏ,

and θ is concave in the input, since φ is convex (for θ ≤ 0, p_t = 0: how far outside the support).
φ has kinks (for sparsemax it is all kink), so [v]₊ is replaced by ε log(1 + exp(v/ε)), ε shrinking
from level to level, and θ is maximised by Newton steps (`newton`). The derivatives
c_i = φ'(a s_i + θ) prove the upper bound, whatever ε is: rounding and smoothing only cost
tightness.

For sparsemax θ is piecewise linear in the input, and smoothing wears out before its kinks do. It is
finished by a linear programme over few classes,

    max θ   s.t.   Σ over sure classes of (s_i + θ) + Σ ξ_i ≤ 1,   ξ_i ≥ s_i + θ,   ξ_i ≥ 0:

sure classes are certainly in the support, those with a ξ_i of their own may be on its edge, all
others are out. Where the solution shows a class to be misplaced it gets a ξ_i. The duals are the
weights that prove the upper bound.
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
from uncork.core.progress import Progress, progress_bar
from uncork.domain import Domain
from uncork.reach.bounds.probability import ProbabilityBounds
from uncork.reach.bounds.sparse import derivative, softplus, sparse_bounds, threshold
from uncork.reach.limits import check_bounds
from uncork.reach.newton import NewtonBatch, Steps
from uncork.reach.probability import BULK, prepare
from uncork.reach.searched_head import SearchedHead

_BATCH = 32
_BATCH_BYTES = 64 << 20
_FIRST, _LAST, _SHRINK = 0.05, 1e-12, 0.1  # widths of the smoothing, and from one to the next
_SMOOTH = 1.6  # α above: kinks too sharp to shrink the smoothing so fast, or so far
_SLOWLY, _KINKS, _EDGES = 0.3, 1e-7, 3e-3
_SMALLEST_ALPHA = 1.001  # α below is softmax for all that floats can tell
_ASKED = 50  # classes whose whole support is asked of the audit
_SHARES = (1.0, 0.1, 0.01, 1e-3, 1e-4)
# Newton steps
_STRAIGHT = 1e-3
_FLAT = 1e-9  # of the largest second derivative: what bends less is left out of a Hessian
# Sparsemax's linear programme
_ROUNDS = 30
_BAND = 3  # widths: classes near the edge that get a ξ_i from the start
_CLEAR = 1e-9  # how far on the wrong side a class may be


@dataclass(frozen=True)
class SparseProbability(ProbabilityBounds):
    """For each class, proven: lower ≤ sup p_t ≤ upper, and what that says of the support.

    `support` and `whole` are 1 (some input has t in the support; has nothing else in it), 0 (none
    has) or −1 (not proven either way). For α above 2 the bounds need not meet.
    """

    support: np.ndarray  # (n,) int
    whole: np.ndarray  # (n,) int
    inputs: np.ndarray  # (n, latent)
    mixture_inputs: np.ndarray  # (n, latent)
    epsilon: np.ndarray  # (n,) how the proof's weights are made from its input
    bulk: np.ndarray  # (n,)
    weights: list[Mixture | None]  # of the proof, where it is not made from its input
    alpha: float
    temperature: float


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
    if not (_SMALLEST_ALPHA <= alpha < np.inf):
        raise UncorkError(f"alpha must be {_SMALLEST_ALPHA} or more (2 is sparsemax), not {alpha}")
    check_bounds(head, temperature, gap, alpha)
    asked = class_ids(head.classes, classes)
    domain = head.domain if domain is None else domain
    backend = choose_backend(device, jobs)
    with progress_bar(progress) as bar, np.errstate(all="ignore"):
        search = _Search(head, domain, backend, float(alpha), temperature, gap)
        found = search.run(asked, audit, bar)
        search.settle_whole(found)
    return found


class _Search:
    def __init__(
        self, head: Head, domain: Domain, backend: Backend, alpha: float, temperature: float,
        gap: float,
    ) -> None:  # fmt: skip
        self.searched = SearchedHead(head, domain, backend)
        self.certifier = Certifier(head, domain, backend)
        self.backend, self.alpha, self.temperature, self.gap = backend, alpha, temperature, gap
        # For α > 2 what is maximised is sparsemax's θ for logits α − 1 times as large.
        self.searched_alpha = min(alpha, 2.0)
        self.beta = max(alpha - 1, 1.0) / temperature
        prepare(self.searched, self.certifier)

    def run(self, asked: np.ndarray, audit: Audit | None, bar: Progress) -> SparseProbability:
        count = len(asked)
        found = SparseProbability(
            asked, np.zeros(count), np.ones(count), np.full(count, -1), np.full(count, -1),
            self.searched.anywhere(count), self.searched.anywhere(count), np.full(count, _LAST),
            np.zeros(count), [None] * count, self.alpha, self.temperature,
        )  # fmt: skip
        size = int(np.clip(_BATCH_BYTES // (48 * self.searched.classes), 1, _BATCH))
        parts = [np.arange(s, min(s + size, count)) for s in range(0, count, size)]
        bar.stage("sparse", count)

        def work(part: np.ndarray) -> None:
            self._bound(found, part, self.searched.witnesses(audit, asked[part]))
            bar.advance(len(part))

        with self.backend.threads() as over:
            list(over(work, parts))
        return found

    def _bound(self, found: SparseProbability, part: np.ndarray, starts: list[np.ndarray]) -> None:
        """Both bounds for some of the classes, level by level of the smoothing."""
        begin: Any = np.array(starts) if starts else None
        epsilon, shrink = _FIRST, _SHRINK if self.searched_alpha <= _SMOOTH else _SLOWLY
        linear = self.searched_alpha == 2 and not np.isfinite(self.searched.radius)
        last = _EDGES if linear else _LAST if self.searched_alpha <= _SMOOTH else _KINKS
        left = part
        while len(left) and epsilon >= last:
            steps = Steps(self.beta, epsilon / 10, anew=epsilon == _FIRST)
            u = self._newton(found.classes[left], begin, steps, epsilon)
            self._take(found, left, u, epsilon, 0.0)
            if self.searched.is_infinite:
                self._lean(found, left, u, epsilon)
            open_ = self._open(found, left)
            left, begin = left[open_], u[open_][None]
            epsilon *= shrink
        if linear and len(left):
            for k, start in zip(left.tolist(), begin[0], strict=True):
                self._exactly(found, k, start, epsilon / shrink)

    def _newton(
        self, classes: np.ndarray, starts: np.ndarray | None, steps: Steps, epsilon: float
    ) -> np.ndarray:
        return SparseBatch(
            self.searched, classes, starts, steps, self.searched_alpha, epsilon
        ).run()

    def _exactly(self, found: SparseProbability, k: int, start: np.ndarray, epsilon: float) -> None:
        """Sparsemax's kinks by a linear programme; its duals are the weights of the proof."""
        t = int(found.classes[k])
        for share in BULK if self.searched.is_infinite else (0.0,):
            solved = _solve_kinks(self.searched, t, self.beta, start, epsilon, share / (1 - share))
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
        # Taken also where the bound is the trivial one: some input has to stand in the file.
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
        for share in BULK:
            rows = np.flatnonzero(self._open(found, at))
            if not len(rows):
                return
            steps = Steps(self.beta, 1e-11, share, anew=False)
            leaning = self._newton(found.classes[at[rows]], u[rows][None], steps, epsilon)
            self._take(found, at[rows], leaning, epsilon, share)

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


class SparseBatch(NewtonBatch):
    """Minimises (1 − θ)/a, which is zero where t is the whole support; 1 < α ≤ 2."""

    def __init__(
        self,
        searched: SearchedHead,
        classes: np.ndarray,
        starts: np.ndarray | None,
        steps: Steps,
        alpha: float,
        epsilon: float,
    ) -> None:
        self.a, self.epsilon = alpha - 1, epsilon
        super().__init__(searched, classes, starts, steps)
        if not steps.anew:  # near its end already
            self.damping = self.damping * 1e-5

    def _weigh(self, z: Any, own: Any) -> tuple[Any, Any]:
        v = self.a * (z - own[:, None])
        theta = threshold(self.xp, v, 1 / self.a, self.epsilon)
        slope = derivative(self.xp, v + theta[:, None], 1 / self.a, self.epsilon)
        slope /= self.xp.sum(slope, axis=1)[:, None]
        return (1 - theta) / self.a, slope

    def _straight(self) -> Any:
        # Where one class outweighs all others nothing bends: what there is to gain, over the way
        # that there is to go, bounds the step.
        far = np.minimum(self.searched.upper - self.searched.lower, 100.0)
        far = self.backend.put(np.maximum(np.minimum(far, 2 * self.searched.radius), 1e-9))
        return _STRAIGHT * self.xp.max(self.xp.abs(self.gradient), axis=1)[:, None] / far

    def _bend(self, row: int) -> tuple[Any, Any, Any]:
        xp, k, epsilon = self.xp, 1 / self.a, self.epsilon
        z = self.searched.logits(self.u[row : row + 1])[0] * self.beta
        value = self.value[row]
        if self.lean:
            value = value + self.lean * self.beta * xp.sum(self.u[row] * self.own[row])
            value = value / (1 - self.lean)
        v = self.a * (z - z[int(self.classes[row])]) + (1 - self.a * value)
        curve = self.a * _second(xp, v, k, epsilon)
        curve = curve / xp.sum(derivative(xp, v, k, epsilon))
        return self.searched.rows, curve > _FLAT * xp.max(curve), curve


def _second(xp: Any, v: Any, k: float, epsilon: float) -> Any:
    """φ'' of the smoothed φ."""
    positive, share = softplus(xp, v, epsilon)
    bent = k * positive ** (k - 1) * share * (1 - share) / epsilon
    if k > 1:
        safe = xp.maximum(positive, xp.full_like(positive, 1e-300))
        bent = bent + k * (k - 1) * safe ** (k - 2) * share * share
    return bent


def _solve_kinks(
    searched: SearchedHead,
    t: int,
    beta: float,
    start: np.ndarray,
    epsilon: float,
    bulk: float = 0.0,
) -> tuple[np.ndarray, Mixture] | None:
    """Sparsemax's optimum, nearly: an input (m,) and weights on classes; None where it fails.

    `start` is what smoothing by `epsilon` ended with; `bulk` is the weight, for each unit of the
    mixture's, that a proof will add on all classes: the mixture leans against it.
    """
    if np.isfinite(searched.radius):
        return None
    rows = searched.backend.get(searched.rows)
    bias = searched.backend.get(searched.bias)
    away, offsets = beta * (rows - rows[t]), beta * (bias - bias[t])
    v = away @ start + offsets
    theta = float(threshold(np, v[None], 1.0, epsilon)[0])
    share = derivative(np, v + theta, 1.0, epsilon)
    near = np.argsort(np.abs(v + theta))[: _BAND * searched.width]
    edge = np.union1d(near, np.flatnonzero((share > 0.001) & (share < 0.999)))
    sure = np.setdiff1d(np.flatnonzero(share >= 0.999), edge)
    for _ in range(_ROUNDS):
        solved = _programme(searched, away, offsets, sure, edge)
        if solved is None:
            return None
        u, theta, weights = solved
        v = away @ u + offsets + theta
        fallen = sure[v[sure] < -_CLEAR]
        known = np.union1d(sure, edge)
        risen = np.setdiff1d(np.flatnonzero(v > _CLEAR), known)
        if not len(fallen) and not len(risen):
            c = np.zeros(len(rows))
            c[sure], c[edge] = 1.0, weights
            return u, _balanced(searched, away, c, u, bulk)
        risen = risen[np.argsort(-v[risen])[: _BAND * searched.width]]
        sure = np.setdiff1d(sure, fallen)
        edge = np.concatenate([edge, fallen, risen])
    return None


def _programme(
    searched: SearchedHead,
    away: np.ndarray,
    offsets: np.ndarray,
    sure: np.ndarray,
    edge: np.ndarray,
) -> tuple[np.ndarray, float, np.ndarray] | None:
    """u, θ and the weights of the edge."""
    from scipy.optimize import linprog

    width, count = searched.width, len(edge)
    total = np.concatenate([away[sure].sum(axis=0), [len(sure)], np.ones(count)])
    limits = np.column_stack([away[edge], np.ones(count), -np.eye(count)])
    sides = [(low, high) for low, high in zip(searched.lower, searched.upper, strict=True)]
    solved = linprog(
        np.concatenate([np.zeros(width), [-1.0], np.zeros(count)]),
        A_ub=np.concatenate([total[None], limits]),
        b_ub=np.concatenate([[1 - offsets[sure].sum()], -offsets[edge]]),
        bounds=[*sides, (None, 1.0), *[(0, None)] * count], method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )  # fmt: skip
    if solved.status != 0:
        return None
    duals = np.maximum(-solved.ineqlin.marginals, 0.0)
    if not duals[0] > 0:
        return None
    u = np.clip(solved.x[:width], searched.lower, searched.upper)
    return u, float(solved.x[width]), np.clip(duals[1:] / duals[0], 0.0, 1.0)


def _balanced(
    searched: SearchedHead, away: np.ndarray, c: np.ndarray, u: np.ndarray, bulk: float
) -> Mixture:
    """The weights moved a little, so that no input is seen along a side that u does not touch."""
    free = (u > searched.lower) & (u < searched.upper)
    part = np.flatnonzero((c > 1e-7) & (c < 1 - 1e-7))
    for _ in range(2):
        left = c @ away[:, free] + bulk * c.sum() * away[:, free].mean(axis=0)
        if len(part) and free.any():
            moved = np.linalg.lstsq(away[part][:, free].T, left, rcond=None)[0]
            c[part] = np.clip(c[part] - moved, 0.0, 1.0)
    ids = np.flatnonzero(c > 0)
    return Mixture(ids, c[ids])
