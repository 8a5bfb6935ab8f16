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

from uncork.auditing.backend import Backend
from uncork.auditing.folded import Folded
from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.search.proposer import Mixtures, Proposal, Proposer, Search
from uncork.auditing.search.space import Space

_RIVALS = 48  # rows tried as parts of a mixture, each time
_PURSUITS = 4
_FAR = 3.5  # a tilt that moves the mean further than this leaves too few classes to be gentle
_BULK = 0.1  # share of the tilted mixture kept uniform, to absorb rounding
_ROUNDS = 60
_CLOSE = 1e-5
_TOGETHER = 2048  # classes whose parts are sought at once
_PIVOTS = 40  # rounds of non-negative least squares
_CHANCES = 3  # of these that may make things worse
_WIDE = 256  # beyond this many features a working set costs more than products over all classes


def propose(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    """All mixtures at once: the certifier's products over all classes are then shared."""
    if space.width > _WIDE:
        yield Mixtures(tilted_mixtures(space, classes))


def _steps(classes: np.ndarray, space: Space) -> int:
    return len(classes) if space.width > _WIDE else 0


PROPOSER = Proposer("tilt", "decide", propose, "deep inside", _steps)


def tilted_mixtures(space: Space, classes: np.ndarray) -> list[tuple[int, Mixture]]:
    """Mixtures for those of the classes that lie deep inside; the rest are left out."""
    found: list[tuple[int, Mixture]] = []
    for start in range(0, len(classes), _TOGETHER):
        found.extend(_tilted(space, classes[start : start + _TOGETHER]))
    return found


def _parts(space: Space, count: int) -> Iterator[slice]:
    """Of so many classes, as many at a time as there is room for scores of all classes."""
    row = 4 * space.head.classes * space.points.itemsize
    size = int(max(1, space.backend.block_bytes * space.backend.jobs // row))
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _tilted(space: Space, classes: np.ndarray) -> list[tuple[int, Mixture]]:
    backend = space.backend
    members, weights, residuals = _sparse_parts(space, classes)
    # v_t = Σ λ_i v_i + (1 − Σ λ)(1 − bulk) · tilted mean
    rest = 1 - weights.sum(axis=1)
    targets = residuals / backend.put(rest * (1 - _BULK))[:, None]
    lengths = backend.get(backend.xp.sqrt(backend.xp.sum(targets * targets, axis=1)))
    near = np.flatnonzero(lengths < _FAR)
    if not len(near):
        return []
    targets = backend.xp.astype(targets[backend.index(near)], backend.dtype)
    tilts = [_tilt(space, targets[part]) for part in _parts(space, len(near))]
    y, peaks, gaps = (np.concatenate(arrays) for arrays in zip(*tilts, strict=True))
    close = gaps < 50 * _CLOSE
    y, peaks, near = y[close], peaks[close], near[close]
    inputs, middles = _inputs(space, y)
    # exp(w_i·x − peak) sums to the tilt's share of the weight.
    peaks = peaks + middles - np.log(rest[near] * (1 - _BULK))
    found = []
    for k, tilt, peak in zip(near.tolist(), inputs, peaks.tolist(), strict=True):
        at = np.flatnonzero(weights[k])
        ids, shares = members[k, at].astype(np.int32), weights[k, at]
        bulk = float(rest[k] * _BULK)
        found.append((int(classes[k]), Mixture(ids, shares, bulk=bulk, tilt=tilt, peak=peak)))
    return found


def _inputs(space: Space, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`Space.tilt` of many directions: inputs (n, d) in float32, and (n,) at the mean row."""
    directions = y @ space.to_input
    if isinstance(space.head, Folded):
        return space.head.unfold(directions).astype(np.float32), directions @ space.centre
    tilts = directions.astype(np.float32)
    return tilts, tilts.astype(np.float64) @ space.centre


def _sparse_parts(space: Space, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
    """For each class a few others and weights, Σ < 1, that come near it, and what they leave.

    Matching pursuit: rows along the residual join, and non-negative least squares weighs all again.
    Classes (n, m) and weights (n, m), zero for those of no use, and residuals (n, width) in float64
    on the device.
    """
    backend, index, xp = space.backend, space.backend.index, space.backend.xp
    inner = len(space.to_input)
    own = xp.astype(space.precise(classes)[:, :inner], xp.float64)
    residuals = own
    members = np.zeros((len(classes), 0), dtype=np.int64)
    weights = np.zeros((len(classes), 0))
    count = min(_RIVALS, space.head.classes - len(space.repeats) - 1)
    for _ in range(_PURSUITS):
        found = []
        for part in _parts(space, len(classes)):
            scores = xp.astype(residuals[part], backend.dtype) @ space.points[:, :inner].T
            scores[index(np.arange(scores.shape[0])), index(classes[part])] = -np.inf
            if len(space.repeats):
                scores[:, index(space.repeats)] = -np.inf
            found.append(backend.get(backend.largest(scores, count)))
            del scores
        rivals = np.concatenate(found)
        # Those that were of use come first, the others make room.
        order = np.argsort(-weights, axis=1, kind="stable")
        order = order[:, : int((weights > 0).sum(axis=1).max(initial=0))]
        members = np.take_along_axis(members, order, axis=1)
        used = np.take_along_axis(weights, order, axis=1) > 0
        known = ((rivals[:, :, None] == members[:, None, :]) & used[:, None, :]).any(axis=2)
        members = np.concatenate([members, rivals], axis=1)
        used = np.concatenate([used, ~known], axis=1)
        weights, residuals = _weighed(space, own, members, used)
    return members, weights, residuals


def _weighed(
    space: Space, own: Any, members: np.ndarray, used: np.ndarray
) -> tuple[np.ndarray, Any]:
    """Weights ≥ 0 of the members in use that come nearest to each class, and what they leave:
    (n, m), (n, width)."""
    backend, index, xp = space.backend, space.backend.index, space.backend.xp
    inner = own.shape[1]
    row = 8 * members.shape[1] * (2 * inner + 6 * members.shape[1])
    step = max(1, int(backend.solve_bytes // max(1, row)))
    weights, left = np.zeros(members.shape), []
    for start in range(0, len(members), step):
        part = slice(start, start + step)
        ids = members[part]
        points = space.points[index(ids.reshape(-1))][:, :inner]
        points = xp.astype(points, xp.float64).reshape(*ids.shape, inner)
        points = points * backend.put(used[part].astype(np.float64))[:, :, None]
        target = own[part]
        gram, right = points @ points.swapaxes(1, 2), (points @ target[:, :, None])[:, :, 0]
        found = nonnegative_least_squares(backend, gram, right)
        # Without room left for the tilt, a face or nearly one: then nothing is taken out.
        fine = xp.all(xp.isfinite(found), axis=1) & (xp.sum(found, axis=1) <= 0.95)
        found = xp.where(fine[:, None], found, xp.zeros_like(found))
        left.append(target - (found[:, None, :] @ points)[:, 0])
        weights[part] = np.where(used[part], backend.get(found), 0.0)
    return weights, xp.concat(left, axis=0)


def nonnegative_least_squares(backend: Backend, gram: Any, right: Any) -> Any:
    """λ ≥ 0 with the least ½ λᵀGλ − cᵀλ for many G (n, m, m) and c (n, m) at once: (n, m).

    Block principal pivoting (Júdice and Pires 1994, Kim and Park 2011): all variables on the wrong
    side change sides together, and one at a time where that stops helping. A row of zeros in G is
    a variable of no use. What has not settled after many rounds, where rows depend on one another,
    is solved one by one.
    """
    xp, index = backend.xp, backend.index
    size = right.shape[1]
    unit = backend.put(np.eye(size))
    spread = xp.sum(gram * unit, axis=2)
    useless = ~(spread > 0)
    scale = 1 / xp.sqrt(xp.where(useless, xp.ones_like(spread), spread))
    # Every variable in its own unit; a diagonal a hair above one keeps repeated rows apart.
    gram = gram * scale[:, :, None] * scale[:, None, :] * (1 - unit) + (1 + 1e-10) * unit
    right = xp.where(useless, -xp.ones_like(right), right * scale)
    slack = 1e-11 * xp.max(xp.abs(right), axis=1, keepdims=True)
    result = xp.zeros_like(right)
    live = np.arange(right.shape[0])
    passive = np.zeros(tuple(right.shape), dtype=bool)  # may be positive; the others are zero
    x, y = xp.zeros_like(right), -right
    fewest, chances = np.full(len(live), size + 1), np.full(len(live), _CHANCES)
    for _ in range(_PIVOTS):
        wrong = backend.get(xp.where(backend.put(passive), x, y) < -slack)
        count = wrong.sum(axis=1)
        if not count.all():
            settled, left = np.flatnonzero(count == 0), np.flatnonzero(count)
            result[index(live[settled])] = x[index(settled)]
            live, count, fewest, chances = live[left], count[left], fewest[left], chances[left]
            wrong, passive, at = wrong[left], passive[left], index(left)
            gram, right, slack = gram[at], right[at], slack[at]
        if not len(live):
            break
        chances = np.where(count < fewest, _CHANCES, chances - 1)
        fewest = np.minimum(fewest, count)
        stuck = np.flatnonzero(chances < 0)  # Murty: the last alone, which never cycles
        last = size - 1 - np.argmax(wrong[stuck, ::-1], axis=1)
        wrong[stuck] = np.arange(size) == last[:, None]
        passive ^= wrong
        x = _where_passive(backend, gram, right, passive)
        y = (gram @ x[:, :, None])[:, :, 0] - right
    else:
        pairs = zip(backend.get(gram), backend.get(right), strict=True)
        result[index(live)] = backend.put(np.array([one_least_squares(*pair) for pair in pairs]))
    return xp.where(result > 0, result * scale, xp.zeros_like(result))


def _where_passive(backend: Backend, gram: Any, right: Any, passive: np.ndarray) -> Any:
    """x with (G x − c)_i = 0 where passive, and zero elsewhere: (n, m)."""
    xp, index = backend.xp, backend.index
    most = max(1, int(passive.sum(axis=1).max()))
    order = np.argsort(~passive, axis=1, kind="stable")[:, :most]  # those first: the rest is small
    held = backend.put(np.take_along_axis(passive, order, axis=1).astype(np.float64))
    at, rows = index(order), index(np.arange(len(order)))
    some = gram[rows[:, None, None], at[:, :, None], at[:, None, :]]
    some = some * held[:, :, None] * held[:, None, :]
    some = some + backend.put(np.eye(most)) * (1 - held)[:, :, None]
    x = xp.zeros_like(right)
    x[rows[:, None], at] = backend.solve(some, right[rows[:, None], at] * held)
    return x


def one_least_squares(gram: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The same for one G (m, m) and c (m,), by SciPy; zeros where that fails."""
    from scipy.optimize import nnls  # half of the time that starting the program takes

    try:
        factor = np.linalg.cholesky(gram)
        return np.asarray(nnls(factor.T, np.linalg.solve(factor, right))[0])
    except (np.linalg.LinAlgError, RuntimeError, ValueError):  # dependent rows, or no convergence
        return np.zeros(len(right))


def _tilt(space: Space, targets: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Directions y with Σ softmax(V y)_i v_i = target, their log-sum-exp, and what is missing."""
    backend, xp = space.backend, space.backend.xp
    points = space.points[:, : len(space.to_input)]
    live = np.arange(len(targets))
    best = np.zeros(tuple(targets.shape)), np.full(len(live), np.inf), np.full(len(live), np.inf)

    def keep(some: np.ndarray) -> None:
        for held, now in zip(best, (best_y, best_peak, best_gap), strict=True):
            held[live[some]] = backend.get(now[backend.index(some)])

    y = best_y = targets
    best_peak = best_gap = xp.full_like(targets[:, 0], np.inf)
    last_y = last_missing = None
    for _ in range(_ROUNDS):
        scores = y @ points.T  # (n, C)
        top = xp.max(scores, axis=1, keepdims=True)
        weights = xp.exp(scores - top)
        del scores
        mass = xp.sum(weights, axis=1, keepdims=True)
        missing = targets - (weights @ points) / mass
        del weights
        gap = xp.sqrt(xp.sum(missing * missing, axis=1))
        better = gap < best_gap
        best_y = xp.where(better[:, None], y, best_y)
        best_peak = xp.where(better, (top + xp.log(mass))[:, 0], best_peak)
        best_gap = xp.where(better, gap, best_gap)
        found = backend.get(best_gap) < _CLOSE
        if found.all():
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
        if 2 * found.sum() > len(found):  # those that are there need no more products
            keep(np.flatnonzero(found))
            at = backend.index(np.flatnonzero(~found))
            live = live[~found]
            y, targets, last_y, last_missing = y[at], targets[at], last_y[at], last_missing[at]
            best_y, best_peak, best_gap = best_y[at], best_peak[at], best_gap[at]
    keep(np.arange(len(live)))
    return best
