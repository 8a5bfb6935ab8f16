"""Deep inside the hull: a mixture of all classes at once, found and stored as one input.

Tilting the uniform mixture by an input x, λ_i ∝ exp(w_i·x), moves its mean. In whitened
coordinates, where the rows' covariance is the identity, a small tilt y moves it by about y, so

    y ← y + (target − Σ λ_i v_i)

converges in a few products for every class at once, whatever the width. A class that mixes a few
others besides has those as its strongest rivals in its own direction: non-negative least squares
over the top few dozen takes their share out first. Rows near the mean (untrained, reserved and
padding tokens) and rows that average others fall to this; classes near the hull's surface do not,
and go on to `centre`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import nnls

from uncork.audit.space import Space
from uncork.audit.verdict import Mixture

_RIVALS = 64  # rows tried as parts of a mixture
_FAR = 3.5  # a tilt that moves the mean further than this leaves too few classes to be gentle
_BULK = 0.1  # share of the tilted mixture kept uniform, to absorb rounding
_ROUNDS = 60
_CLOSE = 1e-5


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
    inner = len(space.to_input)
    parts = _sparse_parts(space, classes)
    targets = np.zeros((len(classes), inner))
    for k, (t, (ids, weights)) in enumerate(zip(classes.tolist(), parts, strict=True)):
        points = backend.get(space.precise(np.append(ids, t)))[:, :inner]
        # v_t = Σ λ_i v_i + (1 − Σ λ)(1 − bulk) · tilted mean
        rest = (1 - weights.sum()) * (1 - _BULK)
        targets[k] = (points[-1] - weights @ points[:-1]) / rest
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
        tilt = (x @ space.to_input).astype(np.float32)
        # exp(w_i·x − peak) sums to the tilt's share of the weight.
        peak = float(peak + space.centre @ tilt.astype(np.float64) - np.log(rest * (1 - _BULK)))
        mixture = Mixture(ids, weights, bulk=float(rest * _BULK), tilt=tilt, peak=peak)
        found.append((int(classes[k]), mixture))
    return found


def _sparse_parts(space: Space, classes: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each class a few others and their weights whose mixture comes near it: Σ weights < 1."""
    backend = space.backend
    inner = len(space.to_input)
    index = backend.index
    own = space.points[index(classes)][:, :inner]
    scores = own @ space.points[:, :inner].T
    scores[index(np.arange(len(classes))), index(classes)] = -np.inf
    if len(space.repeats):
        scores[:, index(space.repeats)] = -np.inf
    count = min(_RIVALS, space.head.classes - len(space.repeats) - 1)
    rivals = np.sort(backend.get(backend.largest(scores, count)), axis=1)
    del scores
    parts = []
    for t, ids in zip(classes.tolist(), rivals, strict=True):
        points = backend.get(space.precise(np.append(ids, t)))[:, :inner]
        weights, _ = nnls(points[:-1].T, points[-1])
        kept = weights > 1e-3
        if weights[kept].sum() > 0.95:  # no room left for the tilt: a face, or nearly one
            kept[:] = False
        parts.append((ids[kept].astype(np.int32), weights[kept]))
    return parts


def _tilt(space: Space, targets: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Directions y with Σ softmax(V y)_i v_i = target, their log-sum-exp, and what is missing."""
    backend, xp = space.backend, space.backend.xp
    points = space.points[:, : len(space.to_input)]
    y = best_y = targets
    best_peak = best_gap = xp.full_like(targets[:, 0], np.inf)
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
        y = y + missing
    y, peak, gap = (backend.get(a).astype(np.float64) for a in (best_y, best_peak, best_gap))
    return y, peak, gap
