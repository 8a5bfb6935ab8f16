"""Moving single rows, as little as is found, until their classes are argmaxable.

Class t, with everything else as it is, wins at x once its row has moved by Δ with

    Δ·x  >  max_i z_i(x) − z_t(x),     so     ‖Δ‖  ≥  (max_i z_i(x) − z_t(x))/‖x‖,

with equality for Δ along x. The least over x of the right-hand side is the distance to a polytope's
boundary as seen from inside, which is not convex, and hard in general: a good x is sought. The
search begins where classes touch the surface when their bias is raised (`surface`), on small heads
also where the surface is left in directions drawn at random, and goes downhill: with n = x/‖x‖
fixed, min over x of max_i z_i − (w_t + θ n)·x − b_t is one more such programme, and where it is
negative, its x is better. Nothing smaller than δ_t/max ‖x‖ does: a weak bound, but proven. On small
heads there is a better one (`repair_row_bound`).

Rows that crowd would crowd again where they end. So each is also moved a tenth as far in a
direction of its own, square to x, and wins a little off x in that direction. Moves are proposed for
all lost classes at once and taken one by one, shortest first, where none taken before is buried and
few classes lose the input they won at; the others are tried again, with what was taken in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uncork.auditing import Audit, Verdict
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.reach.limits import SMALLEST
from uncork.reach.searched_head import View
from uncork.repair.bias_increases import certified_depths
from uncork.repair.margin import allowance
from uncork.repair.repair import Repair, Repairing
from uncork.repair.rows_bound import is_small, shortest_move
from uncork.repair.rows_together import common_input, moved_together
from uncork.repair.surface import Programme, Surface, depths

_GAP = 0.01
_SHRUNK = 1e-3
_STARTS = 12  # classes from which better inputs are sought
_STEPS = 12
_TRIED = 500  # lost classes times features times directions drawn to begin in
_DIRECTIONS = 16
_APART = 0.1  # of the move: in a direction of its own
# Of the parting above: one row hardly needs any, of many those that stand out stay clear of others.
_FACTORS = ((0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), (1.0, 0.1, 3.0, 0.01, 10.0))
_QUICK = 2000  # lost classes times features: better inputs are sought at every attempt
_STUCK = 12
_FAINT = 6  # attempts at which nothing could be moved, after which any lead will do
_TOGETHER = (1, 4, 8)  # attempts after which few are moved together as well
_BURIED = 0.01  # of the classes that win may have to win elsewhere: the proof tells whether they do
_DRAWN = 16  # inputs drawn at random where nothing else is left
_AGAIN = 40
_DEEPEST = 16
_BLOCK = 512


def move_rows(job: Repairing) -> Repair:
    """The repair by rows: `job` knows the head, its audit and what is asked for."""
    head = job.head
    if longest_input(View(head, head.domain, job.backend)) <= SMALLEST:
        raise UncorkError(
            f"inputs of {head.domain} are so short that float64 does not hold their squares, by "
            "which rows are moved: repair the bias, or scale the domain"
        )
    was = (job.before == Verdict.ARGMAXABLE) | (job.before == Verdict.TIED)
    asked = int((job.wanted & ~was).sum())
    ways = _FACTORS if asked > 1 and asked * head.features <= _QUICK else _FACTORS[:1]
    best: _Moved | None = None
    for factors in ways:
        made = _moved_by(job, was, factors)
        best = made if best is None or made.key < best.key else best
    assert best is not None
    job.inputs, job.faint = best.inputs, best.faint
    return job.result(best.head, best.proven, max(best.needed, shortest_move(job, best.head)))


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


def _moved_by(job: Repairing, was: np.ndarray, factors: tuple[float, ...]) -> _Moved:
    """Moves taken until every class asked for is proven, or nothing can be moved."""
    head, current, needed = job.head, job.head, 0.0
    good, inputs = was.copy(), job.inputs.copy()
    job.faint[:] = False
    proven, stuck = None, 0
    for attempt in range(_AGAIN):
        lost = np.flatnonzero(job.wanted & ~good)
        if not len(lost):
            break
        weight, taken, bound = _moved(
            job, current, np.flatnonzero(good), lost, attempt, stuck, factors
        )
        needed = bound if attempt == 0 else needed
        current, proven = head.replace(weight=weight), None
        good[taken] = True
        stuck = 0 if len(taken) else stuck + 1
        if not (job.wanted & ~good).any() or stuck > _STUCK:
            proven = job.prove(current)
            verdicts = proven.proofs.verdicts
            good = (verdicts == Verdict.ARGMAXABLE) | (verdicts == Verdict.TIED)
            if stuck > _STUCK:
                break
    every = np.arange(head.classes)
    moves = np.linalg.norm(current.take(every) - head.take(every), axis=1)
    found, job.inputs = job.inputs, inputs
    left = int((job.wanted & ~good).sum())
    return _Moved(current, proven, needed, left, float(moves.max()), found, job.faint.copy())


def _moved(
    job: Repairing,
    head: Head,
    carriers: np.ndarray,
    lost: np.ndarray,
    attempt: int,
    stuck: int,
    factors: tuple[float, ...],
) -> tuple[np.ndarray, np.ndarray, float]:
    """The weight with some lost rows moved, which, and a lower bound on the longest move.

    After so many attempts at which nothing could be moved (`stuck`), the next best inputs.
    """
    view = View(head, head.domain, job.backend)
    surface = Surface(view, carriers, shrunk=_SHRUNK)
    job.shown.stage("repair", len(lost))
    found = depths(surface, lost, job.backend.jobs, job.shown, gap=_GAP)
    deepest = np.argsort(-np.where(found.exact, found.raises, -np.inf))[:_DEEPEST]
    needed = 0.0
    if not attempt:
        lower = certified_depths(head, surface, found, deepest, job.backend)
        needed = float(lower.max(initial=0.0)) / longest_input(view)
    affine = head.domain.affine(head.features)
    # Far out moves are shorter, and get in each other's way the more: not for many at once.
    downhill = len(lost) * view.width <= _QUICK
    pool = _pool(surface, found.raises, found.inputs, lost, downhill, not attempt)
    # One by one they may get in each other's way; together they do not.
    if (not downhill and not stuck) or (downhill and stuck in _TOGETHER):
        together = _together(job, head, surface, lost, pool, attempt)
        if together is not None:
            return *together, needed
    if stuck:
        drawn = np.random.default_rng(attempt).standard_normal((_DRAWN, view.width)) * surface.room
        pool = np.concatenate([pool, [surface.inside(u) for u in drawn]])
    x = affine.image(pool) if affine.steps else pool
    lengths = np.linalg.norm(x, axis=1)
    tops = np.array([surface.heights(u).max() for u in pool])
    own = surface.all_rows[lost] @ pool.T + surface.all_bias[lost][:, None]
    missing = np.maximum(tops - own, 0.0)  # (n, pool)
    which = np.argsort(missing / lengths, axis=1)[:, min(stuck, len(pool) - 1)]
    u, x, lengths = pool[which], x[which], lengths[which]
    missing = missing[np.arange(len(lost)), which]
    turned = _own_directions(u, attempt)
    side = affine.linear(turned) if affine.steps else turned
    length = float(np.median(np.linalg.norm(surface.rows, axis=1))) or 1.0
    # Where nothing is missing (no bias, at 0) a move is as long as one thousandth of a row.
    little = np.maximum(missing, 1e-3 * length * lengths)
    reach = _reach(surface, lost)
    asked = allowance(head, head.offsets, lost, x, job.margin if stuck < _FAINT else 0.0)
    best: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    for factor in factors:
        # How far witnesses part: of many, all as far, so that a crowd rises to one height.
        parting = little if downhill else np.full(len(lost), np.median(little))
        apart = _APART * factor * parting / reach
        away = _APART * factor * little / lengths  # and rows
        inputs = view.inside(u + apart[:, None] * turned)
        # All others gain at most apart · reach on the way; half as much again to be certain.
        more = missing + 1.5 * apart * reach + 1.1 * asked
        rows = head.take(lost) + (more / lengths**2)[:, None] * x + away[:, None] * side
        rows = rows.astype(head.weight.dtype).astype(np.float64)
        seen = affine.image(inputs) if affine.steps else inputs
        order = np.argsort(np.linalg.norm(rows - head.take(lost), axis=1), kind="stable")
        taken = _compatible(job, head, lost, rows, seen, carriers, order, asked)
        if best is None or len(taken) > len(best[0]):
            best = taken, rows, inputs
        if len(taken) == len(lost):
            break
    assert best is not None
    taken, rows, inputs = best
    job.faint[lost[taken]] = stuck >= _FAINT
    weight = np.array(head.weight)
    weight[lost[taken]] = rows[taken].astype(weight.dtype)
    job.inputs[lost[taken]] = inputs[taken]
    return weight, lost[taken], needed


def _together(
    job: Repairing, head: Head, surface: Surface, lost: np.ndarray, pool: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """The weight with all rows moved at one input that could be, and which; None if few could."""
    u = common_input(surface, lost, pool)
    if u is None:
        return None
    rows, inputs, leads = moved_together(head, surface, lost, u, seed, job.margin)
    taken = np.flatnonzero(leads > 0)
    if 2 * len(taken) < len(lost):
        return None
    weight = np.array(head.weight)
    weight[lost[taken]] = rows[taken].astype(weight.dtype)
    job.inputs[lost[taken]] = inputs[taken]
    return weight, lost[taken]


def _own_directions(u: np.ndarray, seed: int) -> np.ndarray:
    """A unit vector for each input, square to it where there is room for that: (n, m)."""
    turned = np.random.default_rng(seed).standard_normal(u.shape)
    if u.shape[1] > 1:
        turned -= ((turned * u).sum(axis=1) / (u * u).sum(axis=1).clip(1e-300))[:, None] * u
    return np.asarray(turned / np.linalg.norm(turned, axis=1, keepdims=True))


def _compatible(
    job: Repairing, head: Head, lost: np.ndarray, rows: np.ndarray, x: np.ndarray,
    carriers: np.ndarray, order: np.ndarray, asked: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Which of the moves go together, taken in that order: places in `lost`. Each is to lead by
    more than is `asked` (n,) at its input x."""
    bias = head.offsets[lost]
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
    ahead = np.full(len(lost), -np.inf)  # the highest of those taken, at each input
    for k in order.tolist():
        if not mine[k] > max(top[k], ahead[k]) or not np.isfinite(rows[k]).all():
            continue
        at = theirs @ rows[k] + bias[k]
        here = x @ rows[k] + bias[k]
        under = buried | (at >= held)
        if under.sum() > most or (here[taken] >= mine[taken]).any():
            continue
        buried = under
        others_here = np.where(np.arange(len(lost)) == k, -np.inf, here)
        ahead = np.maximum(ahead, others_here)
        taken.append(k)
    return np.array(sorted(taken), dtype=np.int64)


def _pool(
    surface: Surface, raises: np.ndarray, inputs: np.ndarray, lost: np.ndarray, downhill: bool,
    widely: bool,
) -> np.ndarray:  # fmt: skip
    """Inputs at which rows may be brought to the surface: those that raised biases touch it at, and
    better ones downhill from them, or (`widely`) from where the surface is left at random."""
    pool = [row for row in np.unique(inputs, axis=0) if np.linalg.norm(row) > 0]
    programme = Programme(surface) if downhill else None
    order = np.argsort(-raises)
    if not pool:  # nothing but 0, where no move of a row helps: any other input will do to begin
        whitened = surface.view.whitened()
        pool = [surface.inside(surface.all_rows[t] @ whitened) for t in lost[order[:_STARTS]]]
        pool = [row for row in pool if np.linalg.norm(row) > 0] or [surface.upper * 0.5]
    starts = _STARTS if downhill else 0
    # A ball's tangents pile up with every direction.
    widely = widely and is_small(surface.view.head) and not np.isfinite(surface.view.radius)
    tries = min(_DIRECTIONS, _TRIED // max(1, len(lost) * surface.view.width)) if widely else 0
    for k in order[:: max(1, len(order) // _STARTS)][:starts].tolist():
        t = int(lost[k])
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


def longest_input(view: View) -> float:
    """The largest ‖x‖ of the domain; infinite where there is none."""
    affine = view.domain.affine(view.head.features)
    shift = np.linalg.norm(affine.image(np.zeros(affine.latent))) if affine.steps else 0.0
    stretch = np.linalg.norm(affine.parts()[0], 2) if affine.steps else 1.0
    return float(stretch * view.outline.longest + shift) * (1 + 1e-9)


def _reach(surface: Surface, lost: np.ndarray) -> float:
    """How far any two rows are apart, at most twice over."""
    middle = surface.all_rows[lost].mean(axis=0)
    return 2 * float(np.linalg.norm(surface.all_rows - middle, axis=1).max()) or 1.0
