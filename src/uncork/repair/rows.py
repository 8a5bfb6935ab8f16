"""Moving single rows, as little as is found, until their classes are argmaxable.

Class t, with everything else as it is, wins at x once its row has moved by Δ with

    Δ·x  >  max_i z_i(x) − z_t(x),     so     ‖Δ‖  ≥  (max_i z_i(x) − z_t(x))/‖x‖,

with equality for Δ along x. The least over x of the right-hand side is the distance to a polytope's
boundary as seen from inside, which is not convex, and hard in general: a good x is sought. The
search begins where classes touch the surface when their bias is raised (`reach.surface`), on small
heads also where the surface is left in directions drawn at random, and goes downhill: with
n = x/‖x‖ fixed, min over x of max_i z_i − (w_t + θ n)·x − b_t is one more such programme, and where
it is negative, its x is better.

Rows that crowd would crowd again where they end. So each is also moved a tenth as far in a
direction of its own, square to x, and wins a little off x in that direction. Moves are proposed for
all classes below the surface at once and taken one by one, shortest first, where none taken before
is buried and few classes lose the input they won at; the others are tried again, with what was
taken in place.

Together. A row moved by e·x/‖x‖² gains e at x, and at all inputs with the same x·u: on that plane H
the move is a raise of the bias. So what `margin` does for biases holds for rows on H. All classes
below are given one height at x, less a strictly convex g of their rows, plus κ to clear what is
there:

    e_t = top(x) − z_t(x) − g_t + κ,     g_t = (η/2)·|P(w_t − a)|²,     u_t = x + η P(w_t − a),

P the projection along H. At u_t class t leads every other such class s by (η/2)·|P(w_s − w_t)|²,
whatever they are and however many. Rows that crowd are first moved apart, each a little in a
direction of its own square to x, so that this is more than the rounding of the rows. One x for all
need not be the best for each: the longest move is short, not every move.

How far at least. Nothing smaller than δ_t/max ‖x‖ does: a weak bound, but proven. On small heads
there is a better one. The moves Δ after which class t is still nowhere strictly first form a convex
set:

    B  =  { Δ :  (w_t + Δ)·x + b_t  ≤  max_i z_i(x)  for every x of the domain },

one half-space for each x. So if the 2d points ±θ_j q_j lie in B, q an orthonormal basis, their hull
does, and with it the ball of radius 1/√(Σ 1/θ_j²) around 0. One q is the direction of the move that
was found, along which B is narrow; if it is wide along the others, the radius is nearly θ_1. Along
each direction the way out of B is a few linear programmes. That the points lie in B is audited:
they are classes of a head, beside those that stay where they are, and none is argmaxable. That is
enough: were one of them above all that stay somewhere, there would be such places all around, and
two different planes meet on a thin set only, so one point would be strictly first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uncork.auditing import Audit, Verdict
from uncork.auditing import audit as make_audit
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.reach.limits import SMALLEST
from uncork.reach.searched_head import SearchedHead
from uncork.reach.surface import Programme, Surface, depths
from uncork.repair.bias import certified_depths
from uncork.repair.job import Repair, RepairJob
from uncork.repair.margin import allowance
from uncork.repair.proven import come_first

_GAP = 0.01
_SHRUNK = 1e-3
_STARTS = 12  # classes from which better inputs are sought
_STEPS = 12
_TRIED = 500  # classes below times features times directions drawn to begin in
_DIRECTIONS = 16
_APART = 0.1  # of the move: in a direction of its own
# Of the parting above: one row hardly needs any, of many those that stand out stay clear of others.
_FACTORS = ((0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), (1.0, 0.1, 3.0, 0.01, 10.0))
_QUICK = 2000  # classes below times features: better inputs are sought at every attempt
_STUCK = 12
_FAINT = 6  # attempts at which nothing could be moved, after which any lead will do
_TOGETHER = (1, 4, 8)  # attempts after which few are moved together as well
_BURIED = 0.01  # of the classes that win may have to win elsewhere: the proof tells whether they do
_DRAWN = 16  # inputs drawn at random where nothing else is left
_AGAIN = 40
_DEEPEST = 16
_BLOCK = 512
# Together
_PARTINGS = (0.05, 0.1, 0.2, 0.5, 1.0, 3.0)  # of the longest move that is needed
_CURVED = (4.0, 16.0, 64.0, 256.0)  # how many roundings the least lead is
_SCALES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_COMMON_STEPS = 8
_PARTS = (1.0, 0.7, 0.5, 0.3, 0.1, 0.03)  # of the way to what is best for the deepest class
# How far at least
_SMALL = 100_000  # classes times features: beyond that, two ways out a feature take too long
_CLASSES = 3  # that moved farthest, for which the bound is looked for
_WIDE = 4.0  # times √d and the move that was found: beyond that, width adds nothing
_WITHIN = 1 - 1e-3  # of the way out
_WAY_STEPS = 20
_SECONDS = 10.0


def move_rows(job: RepairJob) -> Repair:
    """The repair by rows: `job` knows the head, its audit and what is asked for."""
    head = job.head
    if _longest_input(SearchedHead(head, head.domain, job.backend)) <= SMALLEST:
        raise UncorkError(
            f"inputs of {head.domain} are so short that float64 does not hold their squares, by "
            "which rows are moved: repair the bias, or scale the domain"
        )
    was = come_first(job.before)
    asked = int((job.wanted & ~was).sum())
    ways = _FACTORS if asked > 1 and asked * head.features <= _QUICK else _FACTORS[:1]
    best: _Moved | None = None
    for factors in ways:
        made = _moved_by(job, was, factors)
        best = made if best is None or made.key < best.key else best
    assert best is not None
    job.inputs, job.faint = best.inputs, best.faint
    return job.result(best.head, best.proven, max(best.needed, _shortest_move(job, best.head)))


@dataclass
class _Moved:
    """One way through: the head, its proof, and what the job came to know on the way."""

    head: Head
    proven: Audit | None
    needed: float
    left: int
    longest: float
    inputs: np.ndarray
    faint: np.ndarray

    @property
    def key(self) -> tuple[int, int, float]:
        return self.left, int(self.faint.sum()), self.longest


def _moved_by(job: RepairJob, was: np.ndarray, factors: tuple[float, ...]) -> _Moved:
    """Moves taken until every class asked for is proven, or nothing can be moved."""
    head, current, needed = job.head, job.head, 0.0
    good, inputs = was.copy(), job.inputs.copy()
    job.faint[:] = False
    proven, stuck = None, 0
    for attempt in range(_AGAIN):
        below = np.flatnonzero(job.wanted & ~good)
        if not len(below):
            break
        weight, taken, bound = _moved(
            job, current, np.flatnonzero(good), below, attempt, stuck, factors
        )
        needed = bound if attempt == 0 else needed
        current, proven = head.replace(weight=weight), None
        good[taken] = True
        stuck = 0 if len(taken) else stuck + 1
        if not (job.wanted & ~good).any() or stuck > _STUCK:
            proven = job.prove(current)
            good = come_first(proven.proofs.verdicts)
            if stuck > _STUCK:
                break
    every = np.arange(head.classes)
    moves = np.linalg.norm(current.take(every) - head.take(every), axis=1)
    found, job.inputs = job.inputs, inputs
    left = int((job.wanted & ~good).sum())
    return _Moved(current, proven, needed, left, float(moves.max()), found, job.faint.copy())


def _moved(
    job: RepairJob,
    head: Head,
    carriers: np.ndarray,
    below: np.ndarray,
    attempt: int,
    stuck: int,
    factors: tuple[float, ...],
) -> tuple[np.ndarray, np.ndarray, float]:
    """The weight with some rows moved, which, and a lower bound on the longest move.

    After so many attempts at which nothing could be moved (`stuck`), the next best inputs.
    """
    searched = SearchedHead(head, head.domain, job.backend)
    surface = Surface(searched, carriers, shrunk=_SHRUNK)
    job.progress.stage("repair", len(below))
    found = depths(surface, below, job.backend.jobs, job.progress, gap=_GAP)
    deepest = np.argsort(-np.where(found.exact, found.depth, -np.inf))[:_DEEPEST]
    needed = 0.0
    if not attempt:
        lower = certified_depths(head, surface, found, deepest, job.backend)
        needed = float(lower.max(initial=0.0)) / _longest_input(searched)
    affine = head.domain.affine(head.features)
    # Far out moves are shorter, and get in each other's way the more: not for many at once.
    downhill = len(below) * searched.width <= _QUICK
    pool = _pool(surface, found.depth, found.inputs, below, downhill, not attempt)
    # One by one they may get in each other's way; together they do not.
    if (not downhill and not stuck) or (downhill and stuck in _TOGETHER):
        together = _together(job, head, surface, below, pool, attempt)
        if together is not None:
            return *together, needed
    if stuck:
        drawn = (
            np.random.default_rng(attempt).standard_normal((_DRAWN, searched.width)) * surface.room
        )
        pool = np.concatenate([pool, [surface.inside(u) for u in drawn]])
    x = affine.image(pool) if affine.steps else pool
    lengths = np.linalg.norm(x, axis=1)
    tops = np.array([surface.heights(u).max() for u in pool])
    own = surface.all_rows[below] @ pool.T + surface.all_bias[below][:, None]
    missing = np.maximum(tops - own, 0.0)  # (n, pool)
    which = np.argsort(missing / lengths, axis=1)[:, min(stuck, len(pool) - 1)]
    u, x, lengths = pool[which], x[which], lengths[which]
    missing = missing[np.arange(len(below)), which]
    turned = _own_directions(u, attempt)
    side = affine.linear(turned) if affine.steps else turned
    length = float(np.median(np.linalg.norm(surface.rows, axis=1))) or 1.0
    # Where nothing is missing (no bias, at 0) a move is as long as one thousandth of a row.
    little = np.maximum(missing, 1e-3 * length * lengths)
    reach = _reach(surface, below)
    asked = allowance(head, head.offsets, below, x, job.options.margin if stuck < _FAINT else 0.0)
    best: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    for factor in factors:
        # How far witnesses part: of many, all as far, so that a crowd rises to one height.
        parting = little if downhill else np.full(len(below), np.median(little))
        apart = _APART * factor * parting / reach
        away = _APART * factor * little / lengths  # and rows
        inputs = searched.inside(u + apart[:, None] * turned)
        # All others gain at most apart · reach on the way; half as much again to be certain.
        more = missing + 1.5 * apart * reach + 1.1 * asked
        rows = head.take(below) + (more / lengths**2)[:, None] * x + away[:, None] * side
        rows = rows.astype(head.weight.dtype).astype(np.float64)
        seen = affine.image(inputs) if affine.steps else inputs
        order = np.argsort(np.linalg.norm(rows - head.take(below), axis=1), kind="stable")
        taken = _compatible(job, head, below, rows, seen, carriers, order, asked)
        if best is None or len(taken) > len(best[0]):
            best = taken, rows, inputs
        if len(taken) == len(below):
            break
    assert best is not None
    taken, rows, inputs = best
    job.faint[below[taken]] = stuck >= _FAINT
    weight = np.array(head.weight)
    weight[below[taken]] = rows[taken].astype(weight.dtype)
    job.inputs[below[taken]] = inputs[taken]
    return weight, below[taken], needed


def _together(
    job: RepairJob, head: Head, surface: Surface, below: np.ndarray, pool: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """The weight with all rows moved at one input that could be, and which; None if few could."""
    u = _common_input(surface, below, pool)
    if u is None:
        return None
    rows, inputs, leads = _moved_together(head, surface, below, u, seed, job.options.margin)
    taken = np.flatnonzero(leads > 0)
    if 2 * len(taken) < len(below):
        return None
    weight = np.array(head.weight)
    weight[below[taken]] = rows[taken].astype(weight.dtype)
    job.inputs[below[taken]] = inputs[taken]
    return weight, below[taken]


def _own_directions(u: np.ndarray, seed: int) -> np.ndarray:
    """A unit vector for each input, square to it where there is room for that: (n, m)."""
    turned = np.random.default_rng(seed).standard_normal(u.shape)
    if u.shape[1] > 1:
        turned -= ((turned * u).sum(axis=1) / (u * u).sum(axis=1).clip(1e-300))[:, None] * u
    return np.asarray(turned / np.linalg.norm(turned, axis=1, keepdims=True))


def _compatible(
    job: RepairJob, head: Head, below: np.ndarray, rows: np.ndarray, x: np.ndarray,
    carriers: np.ndarray, order: np.ndarray, asked: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Which of the moves go together, taken in that order: places in `below`. Each is to lead by
    more than is `asked` (n,) at its input x."""
    bias = head.offsets[below]
    mine = (rows * x).sum(axis=1) + bias - asked
    affine = head.domain.affine(head.features)
    known = carriers[np.isfinite(job.inputs[carriers]).all(axis=1)]
    theirs = affine.image(job.inputs[known]) if affine.steps else job.inputs[known]
    held = np.concatenate(
        [(head.take(known[k : k + _BLOCK]) * theirs[k : k + _BLOCK]).sum(axis=1)
         for k in range(0, len(known), _BLOCK)] or [np.empty(0)]
    ) + head.offsets[known]  # fmt: skip
    others = head.take(carriers)
    top = np.concatenate(
        [(x[k : k + _BLOCK] @ others.T + head.offsets[carriers]).max(axis=1)
         for k in range(0, len(x), _BLOCK)]
    )  # fmt: skip
    taken: list[int] = []
    most, buried = int(_BURIED * len(known)), np.zeros(len(known), dtype=bool)
    ahead = np.full(len(below), -np.inf)  # the highest of those taken, at each input
    for k in order.tolist():
        if not mine[k] > max(top[k], ahead[k]) or not np.isfinite(rows[k]).all():
            continue
        at = theirs @ rows[k] + bias[k]
        here = x @ rows[k] + bias[k]
        under = buried | (at >= held)
        if under.sum() > most or (here[taken] >= mine[taken]).any():
            continue
        buried = under
        others_here = np.where(np.arange(len(below)) == k, -np.inf, here)
        ahead = np.maximum(ahead, others_here)
        taken.append(k)
    return np.array(sorted(taken), dtype=np.int64)


def _pool(
    surface: Surface, depth: np.ndarray, inputs: np.ndarray, below: np.ndarray, downhill: bool,
    widely: bool,
) -> np.ndarray:  # fmt: skip
    """Inputs at which rows may be brought to the surface: those that raised biases touch it at, and
    better ones downhill from them, or (`widely`) from where the surface is left at random."""
    pool = [row for row in np.unique(inputs, axis=0) if np.linalg.norm(row) > 0]
    programme = Programme(surface) if downhill else None
    order = np.argsort(-depth)
    if not pool:  # nothing but 0, where no move of a row helps: any other input will do to begin
        whitened = surface.searched.whitened
        pool = [surface.inside(surface.all_rows[t] @ whitened) for t in below[order[:_STARTS]]]
        pool = [row for row in pool if np.linalg.norm(row) > 0] or [surface.upper * 0.5]
    starts = _STARTS if downhill else 0
    # A ball's tangents pile up with every direction.
    widely = (
        widely and _is_small(surface.searched.head) and not np.isfinite(surface.searched.radius)
    )
    tries = min(_DIRECTIONS, _TRIED // max(1, len(below) * surface.searched.width)) if widely else 0
    for k in order[:: max(1, len(order) // _STARTS)][:starts].tolist():
        t = int(below[k])
        row, bias = surface.all_rows[t], float(surface.all_bias[t])

        def cost(u: np.ndarray, row: np.ndarray = row, bias: float = bias) -> float:
            missing = float(surface.heights(u).max()) - float(row @ u) - bias
            return max(missing, 0.0) / max(float(np.linalg.norm(u)), 1e-300)

        assert programme is not None
        u = min(pool, key=cost)
        starts_here = [u]
        for way in np.random.default_rng(0).standard_normal((tries, len(u))):
            beyond = row + 2 * cost(u) * way / np.linalg.norm(way)
            starts_here.append(programme.solve(beyond, bias).input)
        for u in starts_here:
            for _ in range(_STEPS):
                theta = cost(u)
                if not np.linalg.norm(u) > 0 or not np.isfinite(theta):
                    break
                pool.append(u)
                better = programme.solve(row + theta * u / np.linalg.norm(u), bias).input
                if not np.linalg.norm(better) > 0 or not cost(better) < theta * (1 - 1e-6):
                    break
                u = better
    return np.array(pool)


def _longest_input(searched: SearchedHead) -> float:
    """The largest ‖x‖ of the domain; infinite where there is none."""
    affine = searched.domain.affine(searched.head.features)
    shift = np.linalg.norm(affine.image(np.zeros(affine.latent))) if affine.steps else 0.0
    stretch = np.linalg.norm(affine.parts()[0], 2) if affine.steps else 1.0
    return float(stretch * searched.outline.longest + shift) * (1 + 1e-9)


def _reach(surface: Surface, below: np.ndarray) -> float:
    """How far any two rows are apart, at most twice over."""
    middle = surface.all_rows[below].mean(axis=0)
    return 2 * float(np.linalg.norm(surface.all_rows - middle, axis=1).max()) or 1.0


def _common_input(surface: Surface, below: np.ndarray, pool: np.ndarray) -> np.ndarray | None:
    """An input (m,) at which the longest of the moves that are needed is short; None if none helps.

    The search goes downhill from the best of the pool (n, m): with θ the longest move and n = x/‖x‖
    fixed, min over x of max_i z_i − (w_t + θ n)·x − b_t is below zero only where t needs less.
    """
    affine = surface.searched.domain.affine(surface.searched.head.features)
    rows, bias = surface.all_rows[below], surface.all_bias[below]

    def cost(u: np.ndarray) -> float:
        x = affine.image(u[None])[0] if affine.steps else u
        length = float(np.linalg.norm(x))
        if not length > 0:
            return np.inf
        return (float(surface.heights(u).max()) - float((rows @ u + bias).min())) / length

    scaled = [surface.inside(factor * u) for u in pool for factor in _SCALES]
    if not scaled:
        return None
    best = min(scaled, key=cost)
    value = cost(best)
    if not np.isfinite(value):
        return None
    programme = Programme(surface)
    for _ in range(_COMMON_STEPS):
        t = int(np.argmin(rows @ best + bias))
        way = best / float(np.linalg.norm(best))
        aim = programme.solve(rows[t] + value * way, float(bias[t])).input
        between = [surface.inside(best + part * (aim - best)) for part in _PARTS]
        found = min(between, key=cost)
        if not cost(found) < value * (1 - 1e-3):
            break
        best, value = found, cost(found)
    return best


def _moved_together(
    head: Head, surface: Surface, below: np.ndarray, u: np.ndarray, seed: int, margin: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (n, d) for the classes below as they would be stored, inputs (n, m) at which they should
    win, and how far beyond the margin they lead there in floats (n,). The shortest of some ways to
    do it."""
    affine = head.domain.affine(head.features)
    x = affine.image(u[None])[0] if affine.steps else u
    length = float(np.linalg.norm(x))
    fold = affine.parts()[0] if affine.steps else None  # x = fold @ u + …

    def folded(rows: np.ndarray) -> np.ndarray:
        return rows if fold is None else rows @ fold

    plain = head.take(below)
    seen = surface.all_rows[below]
    off = surface.all_bias[below]
    along = folded(x[None])[0]
    along = along / max(float(np.linalg.norm(along)), 1e-300)
    top = float(surface.heights(u).max())
    # One of NumPy's numbers: where its square overflows it is infinite, where Python's would raise.
    needed = (top - seen @ u - off).max() / length
    side = np.random.default_rng(seed).standard_normal(plain.shape)
    side -= np.outer(side @ x, x) / length**2
    side /= np.linalg.norm(side, axis=1, keepdims=True).clip(1e-300)
    sided = folded(side)
    kind = head.weight.dtype
    grain = float(np.finfo(kind).eps) if kind.kind == "f" else 2.0**-24
    here = np.repeat(x[None], len(below), axis=0)
    asked = float(np.nanmax(allowance(head, head.offsets, below, here, margin)))
    rounding = max(grain * float(np.abs(plain).max()) * length, asked / _CURVED[0])
    others = np.setdiff1d(np.arange(head.classes), below)
    best: tuple[tuple[int, float], np.ndarray, np.ndarray, np.ndarray] | None = None
    for apart in _PARTINGS:
        away = apart * max(needed, 1e-3 * np.linalg.norm(plain, axis=1).mean())
        parted = seen + away * sided
        level = parted - parted.mean(axis=0)
        level -= np.outer(level @ along, along)
        for curved in _CURVED:
            eta = curved * rounding / away**2
            inputs = surface.searched.inside(u + eta * level)
            g = 0.5 * eta * (level**2).sum(axis=1)
            gains = top - parted @ u - off - g
            here = (parted * inputs).sum(axis=1) + off + gains
            clear = max(
                float((_tops(surface, others, inputs[k : k + _BLOCK]) - here[k : k + _BLOCK]).max())
                for k in range(0, len(below), _BLOCK)
            )
            gains += max(clear, 0.0) * 1.02 + 4 * rounding + 1.1 * asked
            rows = plain + away * side + np.outer(gains / length**2, x)
            stored = rows.astype(kind).astype(np.float64)
            longest = float(np.linalg.norm(stored - plain, axis=1).max())
            if best is not None and best[0][0] == -len(below) and longest >= best[0][1]:
                continue
            leads = _leads(surface, below, seen + folded(stored - plain), inputs) - asked
            leads = np.where(np.isfinite(stored).all(axis=1), leads, -np.inf)
            key = (-int((leads > 0).sum()), longest)
            if best is None or key < best[0]:
                best = key, stored, inputs, leads
    assert best is not None
    return best[1], best[2], best[3]


def _tops(surface: Surface, classes: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """The largest z of these classes at each input: (n, m) → (n,)."""
    z = inputs @ surface.all_rows[classes].T + surface.all_bias[classes]
    return np.asarray(z.max(axis=1, initial=-np.inf))


def _leads(surface: Surface, below: np.ndarray, rows: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """z_t − max z_i over all i, at each such class's input, with its rows in place: (n,)."""
    every = surface.all_rows.copy()
    every[below] = rows
    leads = np.empty(len(below))
    for k in range(0, len(below), _BLOCK):
        some = below[k : k + _BLOCK]
        z = inputs[k : k + _BLOCK] @ every.T + surface.all_bias
        here = np.arange(len(some))
        own = z[here, some]
        z[here, some] = -np.inf
        leads[k : k + len(some)] = own - z.max(axis=1)
    return leads


def _is_small(head: Head) -> bool:
    """Whether a programme for each of many directions is a matter of seconds."""
    return head.classes * head.features <= _SMALL


def _shortest_move(job: RepairJob, moved: Head) -> float:
    """A proven lower bound on the longest move, from the classes that moved farthest; 0 where there
    is none. Classes that were argmaxable and did not move are what they have to rise above."""
    head = job.head
    if moved.weight is head.weight or not _is_small(head) or not _solid(head):
        return 0.0
    every = np.arange(head.classes)
    away = moved.take(every) - head.take(every)
    far = np.linalg.norm(away, axis=1)
    was = come_first(job.before)
    below = np.flatnonzero((job.before == Verdict.UNARGMAXABLE) & (far > 0))
    stays = np.flatnonzero(was & (far == 0))
    if not len(stays):
        return 0.0
    farthest = below[np.argsort(-far[below], kind="stable")][:_CLASSES]
    return max((_least_move(job, stays, t, away[t]) for t in farthest.tolist()), default=0.0)


def _least_move(job: RepairJob, stays: np.ndarray, t: int, away: np.ndarray) -> float:
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
        time_limit=min(_SECONDS, job.options.time_limit or _SECONDS),
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
    job: RepairJob, stays: np.ndarray, t: int, away: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Points ±θ_j q_j (2d, d) that should lie in B, and θ (d,); q_1 along the move `away`."""
    surface = Surface(SearchedHead(job.head, job.head.domain, job.backend), stays)
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
    for _ in range(_WAY_STEPS):
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
