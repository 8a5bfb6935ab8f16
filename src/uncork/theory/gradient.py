"""The bottleneck on the way back: how much of a loss's gradient a head lets through.

Logits are z = W h + b with W (V, d), and g = ∂L/∂z is a vector of V numbers. Back goes Wᵀg, so a
step of the hidden state moves the logits only within the column space of W. With P the projection
onto it, ‖P g‖/‖g‖ is the share of the gradient that passes; the rest is lost, whatever comes
before the head. With W = U S Xᵀ, ‖P g‖ = ‖S⁻¹ Xᵀ (Wᵀ g)‖: d × d matrices and one product with W.

For softmax and cross-entropy, and for α-entmax and α-ReLU with their Fenchel-Young losses, g is
p − e_y. Facts of such shares are functions below, and each has a test.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from uncork.auditing.backend import Backend, choose_backend
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress, progress_bar

OUTPUTS = ("softmax", "sparsemax", "entmax", "alpha-relu")
IGNORED = -100  # a target that counts for nothing, as in torch
_BYTES = 64 << 20  # of logits held at a time
_HELD = 1 << 30  # of rows in float64
_HALVINGS = 60
_SETTLED = 1e-15
_NOTHING = 1e-12  # p − 1 of a class that has all the probability is rounding
_RANKED = 512  # tokens whose gradients' effective rank is taken
_DEPENDENT = 1e-12  # a singular value this small beside the largest is rounding


@dataclass(frozen=True)
class Output:
    """From logits to the p of g = p − e_y: softmax, or [(α − 1) z − t]₊^(1/(α − 1)) with t from
    Σp = 1 (sparsemax, entmax) or fixed (α-ReLU)."""

    name: str = "softmax"
    alpha: float = 1.5
    tau: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in OUTPUTS:
            raise UncorkError(f"output {self.name!r}: expected one of {', '.join(OUTPUTS)}")
        if self.name != "softmax" and not (1 < self.alpha < math.inf):
            raise UncorkError(f"alpha {self.alpha:g}: expected a number above 1")
        if not math.isfinite(self.tau):
            raise UncorkError(f"tau {self.tau:g}: expected a number")
        if self.name == "sparsemax":
            object.__setattr__(self, "alpha", 2.0)

    @property
    def is_sparse(self) -> bool:
        return self.name != "softmax"

    def threshold(self, z: Any, xp: Any) -> Any:
        """What p needs to know of a whole row: (n, V) → (n,)."""
        top = xp.max(z, axis=1)
        if self.name == "softmax":
            return top + xp.log(xp.sum(xp.exp(z - top[:, None]), axis=1))
        if self.name == "alpha-relu":
            return xp.zeros_like(top) + self.tau
        return self._normalising(z, top, xp)

    def _normalising(self, z: Any, top: Any, xp: Any) -> Any:
        """t with Σp = 1. Σp falls as t grows; it is at least one where the largest p is one, and at
        most one where that is 1/V. For α ≤ 2 it is convex in t, so that Newton's steps from the
        lower end never pass the root; else the range is halved."""
        scale = self.alpha - 1
        low = scale * top - 1
        if self.alpha <= 2:
            for _ in range(_HALVINGS):
                p = self.p(z, low, xp)
                slope = xp.sum(xp.where(p > 0, p ** (2 - self.alpha), xp.zeros_like(p)), axis=1)
                step = scale * (xp.sum(p, axis=1) - 1) / slope
                low = low + step
                if float(xp.max(step)) < _SETTLED:
                    break
            return low
        high = scale * top - (1 / z.shape[1]) ** scale
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            above = xp.sum(self.p(z, middle, xp), axis=1) >= 1
            low, high = xp.where(above, middle, low), xp.where(above, high, middle)
        return (low + high) / 2

    def p(self, z: Any, threshold: Any, xp: Any) -> Any:
        """The output, class for class, of rows with these thresholds: (n, any), (n,)."""
        if self.name == "softmax":
            return xp.exp(z - threshold[:, None])
        positive = xp.clip((self.alpha - 1) * z - threshold[:, None], 0.0, None)
        return positive if self.alpha == 2 else positive ** (1 / (self.alpha - 1))


@dataclass(frozen=True)
class Passage:
    """What W lets through: an orthonormal view of its column space by d × d matrices."""

    root: np.ndarray  # (rank, d): ‖root Wᵀ g‖ = ‖P g‖
    gram: np.ndarray  # (d, d): WᵀW

    @classmethod
    def of(cls, head: Head, backend: Backend | None = None) -> Passage:
        """By QR of blocks of rows, where the backend computes: no Gram matrix, whose condition
        would be squared."""
        made = backend or Backend()
        triangle: Any = None
        gram: Any = 0.0
        for _, block in head.blocks(max(4 * head.features, 4096)):
            rows = made.put(block)
            stacked = rows if triangle is None else made.xp.concat([triangle, rows], axis=0)
            triangle = made.triangle(stacked)
            gram = gram + rows.T @ rows
        _, values, right = np.linalg.svd(made.get(triangle), full_matrices=False)
        kept = values > _DEPENDENT * values.max(initial=0.0)
        return cls(right[kept] / values[kept, None], made.get(gram))

    @property
    def rank(self) -> int:
        return len(self.root)

    def passed(self, back: Any) -> Any:
        """‖P g‖ from Wᵀg: (n, d) → (n,)."""
        return np.linalg.norm(back @ self.root.T, axis=1)


@dataclass(frozen=True)
class GradientShare:
    """Measured token for token: (n,) each. Tokens that were ignored are left out; of one without a
    gradient nothing is lost, and its shares are 1."""

    targets: np.ndarray
    norm: np.ndarray  # ‖g‖
    share: np.ndarray  # ‖P g‖/‖g‖: what passes at best
    step: np.ndarray  # cosine between −g and the logits' move W Wᵀ(−g) under a step of h
    both: np.ndarray  # that cosine where W takes its own step too, at the same rate
    target: np.ndarray  # rise of the target's logit under that step, beside the free one's; NaN: a
    # mixture has no one logit of it
    support: np.ndarray  # classes with a gradient
    support_share: np.ndarray  # the same share of g where only these classes count; NaN: not asked
    rank: int  # of W
    classes: int
    features: int
    effective_rank: float  # of the gradients of the first few hundred tokens; NaN: not asked
    # No other W of this rank passes a larger share of those gradients' energy: its root.
    best: float

    @property
    def lost(self) -> np.ndarray:
        """‖g − P g‖/‖g‖ of each token."""
        return np.sqrt(np.clip(1 - self.share**2, 0.0, 1.0))

    @property
    def total(self) -> float:
        """√(Σ‖P g‖²/Σ‖g‖²): the share of all gradients together."""
        squares = self.norm**2
        return float(np.sqrt((self.share**2 * squares).sum() / max(squares.sum(), 1e-300)))

    def by_frequency(self, counts: np.ndarray | None = None, bins: int = 5) -> list[dict[str, Any]]:
        """Mean shares of tokens, rarest targets first: in bins of about as many tokens each, with
        equally frequent ones together.

        `counts` (V,) says how often each class occurs; without it, how often among these."""
        if counts is None:
            counts = np.bincount(self.targets, minlength=self.classes)
        often = np.asarray(counts)[self.targets]
        order = np.argsort(often, kind="stable")
        rows = []
        ranked = often[order]
        cuts = np.arange(1, bins) * len(order) // bins
        cuts = np.unique(np.searchsorted(ranked, ranked[cuts[cuts < len(order)]]))
        for part in np.split(order, cuts[cuts > 0]):
            if len(part):
                rows.append(
                    {
                        "tokens": len(part), "from": int(often[part].min()),
                        "to": int(often[part].max()), "share": float(self.share[part].mean()),
                        "lost": float(self.lost[part].mean()),
                        "step": float(self.step[part].mean()),
                        "both": _number(self.both[part].mean()),
                        "target": _number(self.target[part].mean()),
                    }
                )  # fmt: skip
        return rows

    def to_dict(self) -> dict[str, Any]:
        expected = expected_share(self.classes, self.rank)
        means = {
            name: _number(getattr(self, name).mean())
            for name in ("norm", "share", "lost", "step", "both", "target", "support")
        }
        asked = np.isfinite(self.support_share)
        return {
            "tokens": len(self.targets), "classes": self.classes, "features": self.features,
            "rank": self.rank, **means, "all_together": self.total,
            "support_share": float(self.support_share[asked].mean()) if asked.any() else None,
            "expected_share_of_a_random_gradient": expected,
            "effective_rank": _number(self.effective_rank),
            "best_share_at_this_rank": _number(self.best),
            "by_frequency": self.by_frequency(),
        }  # fmt: skip


def _number(value: Any) -> float | None:
    """None for what was not asked for: JSON has no NaN."""
    return float(value) if math.isfinite(value) else None


def measure_gradient(
    head: Head,
    hidden: np.ndarray,
    targets: np.ndarray,
    *,
    output: Output | None = None,
    on_support: bool | None = None,
    device: str = "auto",
    progress: bool | Progress = False,
) -> GradientShare:
    """Measure the share of ∂L/∂z that passes through the head, at hidden states with targets.

    `hidden` (N, d), `targets` (N,) class ids, −100 where a token counts for nothing. Logits are
    made a few rows at a time: (N, V) never exists. `on_support` asks too what share of g could be
    followed if only classes with a gradient counted; by default for sparse outputs.
    """
    hidden, targets = _checked(head, hidden, targets)
    run = _Run(head, hidden, targets, output or Output(), choose_backend(device))
    wanted = run.output.is_sparse if on_support is None else on_support
    with progress_bar(progress) as bar:
        return run.measured(wanted, bar)


def _checked(head: Head, hidden: Any, targets: Any) -> tuple[np.ndarray, np.ndarray]:
    states, wanted = np.asarray(hidden), np.asarray(targets)
    if states.ndim != 2 or states.shape[1] != head.features:
        raise UncorkError(
            f"hidden states of shape {states.shape}: expected (tokens, {head.features}), one "
            "column for each feature of the head"
        )
    if wanted.shape != (len(states),) or wanted.dtype.kind not in "iu":
        raise UncorkError(
            f"targets of shape {wanted.shape} and type {wanted.dtype}: expected one class id for "
            f"each of {len(states):,} hidden states"
        )
    counted = wanted != IGNORED
    wrong = counted & ((wanted < 0) | (wanted >= head.classes))
    if wrong.any():
        raise UncorkError(
            f"target {int(wanted[wrong][0])} is not a class: the head has {head.classes:,}, 0 to "
            f"{head.classes - 1} ({IGNORED} is ignored)"
        )
    if not counted.any():
        raise UncorkError("there is no token with a target")
    states = states[counted].astype(np.float64)
    if not np.isfinite(states).all():
        raise UncorkError("hidden states hold values that are not finite")
    return states, wanted[counted].astype(np.int64)


class _Run:
    """One head, its tokens, and the device; everything in float64."""

    def __init__(
        self, head: Head, hidden: np.ndarray, targets: np.ndarray, output: Output, backend: Backend
    ) -> None:
        self.head, self.hidden, self.targets, self.output = head, hidden, targets, output
        self.backend, self.xp = backend, backend.xp
        self.passage = Passage.of(head, backend)
        self.rows = max(1, _BYTES // (8 * head.classes))

    @cached_property
    def _held(self) -> list[tuple[int, Any]] | None:
        """The rows in float64, once for all, where they take little room."""
        if self.head.classes * self.head.features * 8 > _HELD:
            return None
        return list(self.backend.blocks(self.head))

    @property
    def weight(self) -> Iterable[tuple[int, Any]]:
        return self.backend.blocks(self.head) if self._held is None else self._held

    def measured(self, on_support: bool, progress: Progress) -> GradientShare:
        count = len(self.targets)
        columns = {name: np.full(count, np.nan) for name in (
            "norm", "share", "step", "both", "target", "support", "support_share",
        )}  # fmt: skip
        thresholds = np.empty(count)
        progress.stage("tokens", count)
        for start in range(0, count, self.rows):
            part = slice(start, min(start + self.rows, count))
            thresholds[part] = self._some(part, columns, on_support)
            progress.advance(part.stop - part.start)
        effective, best = self._spectrum(thresholds[:_RANKED])
        return GradientShare(
            targets=self.targets, rank=self.passage.rank, classes=self.head.classes,
            features=self.head.features, effective_rank=effective, best=best, **columns,
        )  # fmt: skip

    def _some(self, part: slice, columns: dict[str, np.ndarray], on_support: bool) -> np.ndarray:
        """Measure some tokens; their thresholds."""
        xp, get = self.xp, self.backend.get
        states = self.backend.put(self.hidden[part])
        offsets = self.backend.put(self.head.offsets)
        z = xp.concat([states @ block.T for _, block in self.weight], axis=1) + offsets
        threshold = self.output.threshold(z, xp)
        g = self._less_target(self.output.p(z, threshold, xp), self.targets[part], 0)
        back: Any = 0.0
        for start, block in self.weight:
            back = back + g[:, start : start + block.shape[0]] @ block
        norm, wg = get(xp.sqrt(xp.sum(g * g, axis=1))), get(back)
        there = norm > _NOTHING
        norm = np.where(there, norm, 0.0)
        safe = np.where(there, norm, 1.0)
        along = np.einsum("ij,ij->i", wg, wg)  # g·WWᵀg
        moved = np.sqrt(np.einsum("ij,jk,ik->i", wg, self.passage.gram, wg))  # ‖WWᵀg‖
        moved = np.where(moved > 0, moved, 1.0)
        own = np.einsum("ij,ij->i", self.head.take(self.targets[part]), wg)  # (WWᵀg)_y
        at = get(g)[np.arange(len(norm)), self.targets[part]]
        free = np.where(at == 0, 1.0, at) / safe
        columns["norm"][part] = norm
        size = np.square(self.hidden[part]).sum(axis=1)
        shares = {
            "share": np.minimum(self.passage.passed(wg) / safe, 1.0),
            "step": along / (moved * safe), "target": own / moved / free,
            "both": joint_cosine(size, norm, along, moved),
        }  # fmt: skip
        for name, values in shares.items():
            columns[name][part] = np.where(there, values, 1.0)  # of nothing, nothing is lost
        counted = xp.abs(g) > _NOTHING
        columns["support"][part] = get(xp.sum(xp.astype(counted, xp.float64), axis=1))
        if on_support:
            columns["support_share"][part] = [self._on_support(row) for row in get(g)]
        return get(threshold)

    def _less_target(self, p: Any, targets: np.ndarray, first: int) -> Any:
        """p − e_y for a block of classes that begins with `first`."""
        inside = np.flatnonzero((targets >= first) & (targets < first + p.shape[1]))
        one = np.zeros((len(targets), p.shape[1]))
        one[inside, targets[inside] - first] = 1.0
        return p - self.backend.put(one)

    def _on_support(self, g: np.ndarray) -> float:
        used = np.flatnonzero(np.abs(g) > _NOTHING)
        return share_on_support(self.head.take(used), g[used]) if len(used) else float("nan")

    def _spectrum(self, thresholds: np.ndarray) -> tuple[float, float]:
        """The effective rank of some tokens' gradients, and the most that a head of this rank could
        pass of them: from their Gram matrix, a block of classes at a time."""
        count, get = len(thresholds), self.backend.get
        states, at = self.backend.put(self.hidden[:count]), self.backend.put(thresholds)
        gram = np.zeros((count, count))
        for start, block in self.weight:
            z = states @ block.T + self.backend.put(
                self.head.offsets[start : start + block.shape[0]]
            )
            g = self._less_target(self.output.p(z, at, self.xp), self.targets[:count], start)
            gram += get(g @ g.T)
        values = np.clip(np.linalg.eigvalsh(gram)[::-1], 0.0, None)
        total = values.sum()
        if not total > 0:
            return 0.0, 1.0
        sigma = np.sqrt(values)
        weights = sigma[sigma > 0] / sigma.sum()
        effective = float(np.exp(-(weights * np.log(weights)).sum()))
        return effective, float(np.sqrt(values[: self.passage.rank].sum() / total))


# Facts


def expected_share(classes: int, rank: int) -> float:
    """E ‖P g‖/‖g‖ of a gradient in a random direction: the mean of √Beta(r/2, (V − r)/2), near
    √(r/V). Its square has mean r/V exactly."""
    if not 0 <= rank <= classes or classes < 1:
        raise UncorkError(f"rank {rank} of {classes} classes: expected 0 to {classes}")
    if rank in (0, classes):
        return float(rank == classes)
    parts = ((rank + 1) / 2, classes / 2, -rank / 2, -(classes + 1) / 2)
    return math.exp(sum(math.copysign(math.lgamma(abs(a)), a) for a in parts))


def best_share(gradients: np.ndarray, rank: int) -> float:
    """The most that a head of this rank can pass of given gradients (n, V), all together: by
    Eckart and Young, √(Σ_{i≤r} σ_i² / Σ σ_i²), reached by their first right singular vectors."""
    values = np.linalg.svd(np.asarray(gradients, dtype=np.float64), compute_uv=False) ** 2
    total = values.sum()
    return 1.0 if not total > 0 else float(np.sqrt(values[:rank].sum() / total))


def joint_cosine(
    size: np.ndarray, norm: np.ndarray, along: np.ndarray, moved: np.ndarray
) -> np.ndarray:
    """The cosine between −g and the logits' move where h and W both take a step at one rate.

    W receives g hᵀ, and its step moves the logits of the token by −‖h‖² g: of the gradient nothing
    is lost on the way to the head's own rows. With that of h, −W Wᵀg, the move is
    −(‖h‖² g + W Wᵀg). `size` is ‖h‖², `norm` ‖g‖, `along` ‖Wᵀg‖², `moved` ‖W Wᵀg‖: (n,) each."""
    length = np.sqrt(size**2 * norm**2 + 2 * size * along + moved**2) * norm
    return np.asarray((size * norm**2 + along) / np.where(length > 0, length, 1.0))


def leverages(head: Head) -> np.ndarray:
    """‖P e_i‖² of every class: (V,). They sum to the rank, so their mean is r/V.

    While a model predicts nothing in particular, g is near −e_y, and the share that passes is the
    square root of the target's leverage."""
    root = Passage.of(head).root
    return np.concatenate([np.square(rows @ root.T).sum(axis=1) for _, rows in head.blocks(4096)])


def share_on_support(rows: np.ndarray, g: np.ndarray) -> float:
    """The share of a gradient that a step of h can follow where only the classes with one count:
    rows (s, d) of W, g (s,). It is 1 wherever these rows are linearly independent, so for most
    supports of at most d classes: what is lost elsewhere moves logits that have no gradient."""
    left, values, _ = np.linalg.svd(np.asarray(rows, dtype=np.float64), full_matrices=False)
    kept = left[:, values > _DEPENDENT * values.max(initial=0.0)]
    size = float(np.linalg.norm(g))
    return min(1.0, float(np.linalg.norm(kept.T @ g)) / size) if size > 0 else float("nan")


def through(head: Head, before: np.ndarray) -> Head:
    """The head that a linear layer A (D, d) before it makes: W A. Its column space lies within that
    of W, so what passes to h is never more than what passes to A h: a wider layer before the head
    helps only as far as something that is not linear stands between."""
    weight = np.concatenate([rows @ np.asarray(before) for _, rows in head.blocks(4096)])
    return Head(weight, head.bias, domain=head.domain)


def mixture_rank(features: int, components: int) -> int:
    """The most directions, up to a shift, in which a mixture's log-probabilities can move at one
    token: d for each component and K − 1 for their weights."""
    return features * components + components - 1


@dataclass(frozen=True)
class MixtureShare:
    """Of a mixture of softmaxes, token for token: (n,) each."""

    stacked: np.ndarray  # ‖P g‖/‖g‖ over the logits of all components
    tangent: np.ndarray  # the share of P − e_y that the mixture's own moves can follow


def measure_mixture(
    head: Head, hidden: np.ndarray, priors: np.ndarray, targets: np.ndarray
) -> MixtureShare:
    """A mixture of softmaxes P = Σ_k π_k softmax(W h_k + b) at `hidden` (n, K, d), `priors` (n, K).

    Its loss has the gradient r_k (p_k − e_y) in the logits of component k, with r_k the share of
    the target's probability that k gives. `tangent` asks what one softmax over V classes would
    want, P − e_y, up to a shift, and how much of it moves of all h_k and of the priors can follow;
    for K = 1 that is the share through W with its mean row taken away. It costs V (K d)² a token.
    """
    states, weights = np.asarray(hidden, dtype=np.float64), np.asarray(priors, dtype=np.float64)
    wanted = np.asarray(targets)
    if states.ndim != 3 or states.shape[2] != head.features or weights.shape != states.shape[:2]:
        raise UncorkError(
            f"hidden states {states.shape} and priors {weights.shape}: expected (n, K, "
            f"{head.features}) and (n, K)"
        )
    passage, w = Passage.of(head), np.concatenate([rows for _, rows in head.blocks(4096)])
    found: dict[str, list[float]] = {"stacked": [], "tangent": []}
    for h, prior, y in zip(states, weights, wanted.tolist(), strict=True):
        z = h @ w.T + head.offsets  # (K, V)
        z -= z.max(axis=1, keepdims=True)
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        mixed = prior @ p
        responsible = prior[:, None] * p / mixed  # (K, V)
        g = responsible[:, y, None] * (p - np.eye(1, len(w), y))
        found["stacked"].append(float(np.linalg.norm(passage.passed(g @ w)) / np.linalg.norm(g)))
        found["tangent"].append(_tangent(w, p, responsible, mixed - np.eye(1, len(w), y)[0]))
    return MixtureShare(np.array(found["stacked"]), np.array(found["tangent"]))


def _tangent(w: np.ndarray, p: np.ndarray, responsible: np.ndarray, g: np.ndarray) -> float:
    """‖Q g‖/‖g‖ for the projection Q onto the moves of log P, up to a shift."""
    moves = [r[:, None] * (w - own @ w) for r, own in zip(responsible, p, strict=True)]
    jacobian = np.concatenate([*moves, responsible.T], axis=1)  # (V, K d + K)
    jacobian -= jacobian.mean(axis=0)
    left, values, _ = np.linalg.svd(jacobian, full_matrices=False)
    kept = left[:, values > _DEPENDENT * values.max(initial=0.0)]
    return float(np.linalg.norm(kept.T @ g) / np.linalg.norm(g))
