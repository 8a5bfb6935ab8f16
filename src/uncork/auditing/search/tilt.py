"""Deep inside the hull: a mixture of all classes at once, found and stored as one input.

Tilting the uniform mixture by an input x, λ_i ∝ exp(w_i·x), moves its mean. In whitened
coordinates, where the rows' covariance is the identity, a small tilt y moves it by about y, so

    y ← y + step · (target − Σ λ_i v_i)

converges in a few products for every class at once, whatever the width. A class that mixes a few
others besides has those as its strongest rivals in its own direction: matching pursuit with
non-negative least squares takes their share out first. Rows near the mean (untrained, reserved and
padding tokens) and rows that average others fall to this; classes near the hull's surface do not,
and go on to `centre`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.search.proposer import Mixtures, Proposal, Proposer, Search
from uncork.auditing.search.space import Space

_RIVALS = 48  # rows tried as parts of a mixture, each time
_PURSUITS = 4
_FAR = 3.5  # a tilt that moves the mean further than this leaves too few classes to be gentle
_BULK = 0.1  # share of the tilted mixture kept uniform, to absorb rounding
_ROUNDS = 60
_CLOSE = 1e-5
_WIDE = 256  # beyond this many features a working set costs more than products over all classes


def propose(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    """All mixtures at once: the certifier's products over all classes are then shared."""
    if space.width > _WIDE:
        yield Mixtures(tilted_mixtures(space, classes))


PROPOSER = Proposer("tilt", "decide", propose)


def tilted_mixtures(space: Space, classes: np.ndarray) -> list[tuple[int, Mixture]]:
    """Mixtures for those of the classes that lie deep inside; the rest are left out."""
    found: list[tuple[int, Mixture]] = []
    row = 4 * space.head.classes * space.points.itemsize
    size = int(max(1, space.backend.block_bytes * space.backend.jobs // row))
    for start in range(0, len(classes), size):
        found.extend(_tilted(space, classes[start : start + size]))
    return found


def _tilted(space: Space, classes: np.ndarray) -> list[tuple[int, Mixture]]:
    backend = space.backend
    parts, residuals = _sparse_parts(space, classes)
    # v_t = Σ λ_i v_i + (1 − Σ λ)(1 − bulk) · tilted mean
    shares = np.array([(1 - weights.sum()) * (1 - _BULK) for _, weights in parts])
    targets = residuals / shares[:, None]
    near = np.flatnonzero(np.linalg.norm(targets, axis=1) < _FAR)
    if not len(near):
        return []
    y, peaks, gaps = _tilt(space, backend.asarray(targets[near]))
    found = []
    for k, x, peak, gap in zip(near.tolist(), y, peaks, gaps, strict=True):
        if not gap < 50 * _CLOSE:
            continue
        ids, weights = parts[k]
        rest = 1 - weights.sum()
        tilt, middle = space.tilt(x)
        # exp(w_i·x − peak) sums to the tilt's share of the weight.
        peak = float(peak + middle - np.log(rest * (1 - _BULK)))
        mixture = Mixture(ids, weights, bulk=float(rest * _BULK), tilt=tilt, peak=peak)
        found.append((int(classes[k]), mixture))
    return found


def _sparse_parts(
    space: Space, classes: np.ndarray
) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """For each class a few others and weights, Σ < 1, that come near it, and what they leave.

    Matching pursuit: rows along the residual join, and non-negative least squares weighs all again.
    """
    backend, index = space.backend, space.backend.index
    inner = len(space.to_input)
    own = backend.get(space.precise(classes))[:, :inner].astype(np.float64)
    parts = [(np.empty(0, dtype=np.int32), np.empty(0)) for _ in classes]
    members = [np.empty(0, dtype=np.int64) for _ in classes]
    residuals = own.copy()
    count = min(_RIVALS, space.head.classes - len(space.repeats) - 1)
    for _ in range(_PURSUITS):
        scores = backend.asarray(residuals) @ space.points[:, :inner].T
        scores[index(np.arange(len(classes))), index(classes)] = -np.inf
        if len(space.repeats):
            scores[:, index(space.repeats)] = -np.inf
        rivals = backend.get(backend.largest(scores, count))
        del scores
        for k, new in enumerate(rivals):
            members[k] = np.union1d(members[k][parts[k][1] > 0] if len(members[k]) else [], new)
            ids = members[k].astype(np.int64)
            points = backend.get(space.precise(ids))[:, :inner].astype(np.float64)
            weights = _least_squares(points, own[k])
            if weights.sum() > 0.95:  # no room left for the tilt: a face, or nearly one
                weights[:] = 0
            members[k], parts[k] = ids, (ids.astype(np.int32), weights)
            residuals[k] = own[k] - weights @ points
    return [(ids[weights > 0], weights[weights > 0]) for ids, weights in parts], residuals


def _least_squares(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Weights ≥ 0 of the points (n, k) that come nearest to the target (k,): (n,)."""
    from scipy.optimize import nnls  # half of the time that starting the program takes

    gram = points @ points.T
    gram[np.diag_indices(len(gram))] *= 1 + 1e-10
    nothing = np.zeros(len(points))
    if not len(points) or not np.isfinite(gram).all():
        return nothing
    try:
        factor = np.linalg.cholesky(gram)
        weights = nnls(factor.T, np.linalg.solve(factor, points @ target))[0]
    except (np.linalg.LinAlgError, RuntimeError, ValueError):  # dependent rows, or no convergence
        return nothing
    return weights if np.isfinite(weights).all() else nothing


def _tilt(space: Space, targets: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Directions y with Σ softmax(V y)_i v_i = target, their log-sum-exp, and what is missing."""
    backend, xp = space.backend, space.backend.xp
    points = space.points[:, : len(space.to_input)]
    y = best_y = targets
    best_peak = best_gap = xp.full_like(targets[:, 0], np.inf)
    last_y = last_missing = None
    for _ in range(_ROUNDS):
        scores = y @ points.T  # (n, C)
        top = xp.max(scores, axis=1, keepdims=True)
        weights = xp.exp(scores - top)
        mass = xp.sum(weights, axis=1, keepdims=True)
        missing = targets - (weights @ points) / mass
        gap = xp.sqrt(xp.sum(missing * missing, axis=1))
        better = gap < best_gap
        best_y = xp.where(better[:, None], y, best_y)
        best_peak = xp.where(better, (top + xp.log(mass))[:, 0], best_peak)
        best_gap = xp.where(better, gap, best_gap)
        if bool(xp.max(best_gap) < _CLOSE):
            break
        # Barzilai and Borwein's step: the tilted covariance is only near the identity, the less
        # so the fewer classes carry the weight.
        length = xp.full_like(gap, 0.7)
        if last_y is not None:
            moved, turned = y - last_y, last_missing - missing
            curve = xp.sum(moved * turned, axis=1)
            size = xp.sum(moved * moved, axis=1)
            length = xp.clip(size / xp.where(curve > 0, curve, xp.ones_like(curve)), 0.1, 3.0)
        last_y, last_missing = y, missing
        y = y + length[:, None] * missing
    y, peak, gap = (backend.get(a).astype(np.float64) for a in (best_y, best_peak, best_gap))
    return y, peak, gap
