"""How far a row has to move at least, proven.

The moves Δ after which class t is still nowhere strictly first form a convex set:

    B  =  { Δ :  (w_t + Δ)·x + b_t  ≤  max_i z_i(x)  for every x of the domain },

one half-space for each x. So if the 2d points ±θ_j q_j lie in B, q an orthonormal basis, their hull
does, and with it the ball of radius 1/√(Σ 1/θ_j²) around 0. One q is the direction of the move that
was found, along which B is narrow; if it is wide along the others, the radius is nearly θ_1. Along
each direction the way out of B is a few linear programmes (`surface`). That the points lie in B is
audited: they are classes of a head, beside those that stay where they are, and none is argmaxable.
That is enough: were one of them above all that stay somewhere, there would be such places all
around, and two different planes meet on a thin set only, so one point would be strictly first.
"""

from __future__ import annotations

import numpy as np

from uncork.auditing import Verdict
from uncork.auditing import audit as make_audit
from uncork.core.head import Head
from uncork.reach.searched_head import View
from uncork.repair.repair import Repairing
from uncork.repair.surface import Programme, Surface

_SMALL = 100_000  # classes times features: beyond that, two ways out a feature take too long
_CLASSES = 3  # that moved farthest, for which the bound is looked for
_WIDE = 4.0  # times √d and the move that was found: beyond that, width adds nothing
_WITHIN = 1 - 1e-3  # of the way out
_STEPS = 20
_SECONDS = 10.0


def is_small(head: Head) -> bool:
    """Whether a programme for each of many directions is a matter of seconds."""
    return head.classes * head.features <= _SMALL


def shortest_move(job: Repairing, moved: Head) -> float:
    """A proven lower bound on the longest move, from the classes that moved farthest; 0 where there
    is none. Classes that were argmaxable and did not move are what they have to rise above."""
    head = job.head
    if moved.weight is head.weight or not is_small(head) or not _solid(head):
        return 0.0
    every = np.arange(head.classes)
    away = moved.take(every) - head.take(every)
    far = np.linalg.norm(away, axis=1)
    was = (job.before == Verdict.ARGMAXABLE) | (job.before == Verdict.TIED)
    lost = np.flatnonzero((job.before == Verdict.UNARGMAXABLE) & (far > 0))
    stays = np.flatnonzero(was & (far == 0))
    if not len(stays):
        return 0.0
    farthest = lost[np.argsort(-far[lost], kind="stable")][:_CLASSES]
    return max((_least_move(job, stays, t, away[t]) for t in farthest.tolist()), default=0.0)


def _least_move(job: Repairing, stays: np.ndarray, t: int, away: np.ndarray) -> float:
    """The radius of a ball in B, proven; 0 where it is not."""
    head = job.head
    corners, widths = _corners(job, stays, t, away)
    rows = np.concatenate([head.take(stays), head.take(np.array([t])) + corners])
    bias = None
    if head.bias is not None:
        bias = np.append(head.offsets[stays], np.full(len(corners), head.offsets[t]))
    points = np.arange(len(stays), len(rows))
    if not widths.all() or len(np.unique(rows[points], axis=0)) < len(points):
        return 0.0  # too small for float64 to tell apart
    proven = make_audit(
        Head(rows, bias, domain=head.domain), classes=points, device="cpu", jobs=job.backend.jobs,
        time_limit=min(_SECONDS, job.time_limit or _SECONDS),
    )  # fmt: skip
    if not (proven.proofs.verdicts[points] == Verdict.UNARGMAXABLE).all():
        return 0.0
    # A basis of floats is orthonormal, and its corners are where they should be, to within 1e-12.
    return float((1 - 1e-6) / np.sqrt((1 / widths**2).sum()))


def _solid(head: Head) -> bool:
    """Whether the domain has an inside, and x is chosen from it directly."""
    if head.domain.affine(head.features).steps:
        return False
    outline = head.domain.outline(head.features)
    return outline.exact and bool((outline.lower < outline.upper).all())


def _corners(
    job: Repairing, stays: np.ndarray, t: int, away: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Points ±θ_j q_j (2d, d) that should lie in B, and θ (d,); q_1 along the move `away`."""
    surface = Surface(View(job.head, job.head.domain, job.backend), stays)
    programme = Programme(surface)
    basis = _basis(away)
    most = _WIDE * np.sqrt(len(away)) * float(np.linalg.norm(away))
    row, bias = surface.all_rows[t], float(surface.all_bias[t])
    widths = np.array(
        [min(_way_out(programme, row, bias, sign * q, most) for sign in (1, -1)) for q in basis]
    )
    scaled = widths[:, None] * basis
    return np.concatenate([scaled, -scaled]), widths


def _way_out(
    programme: Programme, row: np.ndarray, bias: float, way: np.ndarray, most: float
) -> float:
    """How far a row can go that way, at most so far, and its class is nowhere first: the least of
    f(u)/(way·u), f what the class lacks at u, from above (Dinkelbach's steps)."""
    surface, theta = programme.surface, most
    for _ in range(_STEPS):
        u = programme.solve(row + theta * way, bias).input
        gain = float(way @ u)
        lacks = float(surface.heights(u).max()) - float(row @ u) - bias
        if not gain > 0 or not lacks / gain < theta * (1 - 1e-9):
            break
        theta = max(lacks, 0.0) / gain
    return theta * _WITHIN


def _basis(first: np.ndarray) -> np.ndarray:
    """Orthonormal rows (d, d), the first of them along a vector."""
    unit = first / np.linalg.norm(first)
    square, _ = np.linalg.qr(np.column_stack([unit, np.eye(len(unit))]))
    return np.asarray(square.T[: len(unit)])
