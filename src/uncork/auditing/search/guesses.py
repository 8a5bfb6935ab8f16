"""First guesses: where rows are round, a class's own row is the input that puts it first.

What is proposed here is a formula for the inputs of all classes, and the coordinates in which the
certifier proves them all with one half of one product (`certify.guesses`). Where many of them lose
in the coordinates of the space, rows are weighted by how far out they lie, u_i ← u_i‖v_i‖²/k, and
whitened again with their weighted mean: a step or two of Khachiyan's towards the smallest ellipsoid
around them (in Titterington's form), after which the rows on the hull are of nearly even length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing.certify.guesses import Coordinates
from uncork.auditing.folded import Folded
from uncork.auditing.proofs.formula import Formula
from uncork.auditing.search.aims import aims
from uncork.auditing.search.proposer import FirstGuesses, Proposal, Proposer, Search
from uncork.auditing.search.screen import winners
from uncork.auditing.search.space import Space

_SAMPLE = 512  # classes whose first guess is tried, to see how many win
_TRIED = 64  # classes on which other first inputs are tried too
_PAYS = 0.5  # times as many classes as these win for, the formula is worth it
_ROUNDS = 2
_WORTH_IT = 0.01  # a share of guesses that lose, below which they are left to reflecting
_FEW = 4  # the same for a number of guesses, as a multiple of the features
_PANEL = 8192  # classes after which the audit looks at its clock
_ASKED = 4  # all guesses are made for the sake of this share of the classes


def propose(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    """All first guesses, where there is a formula for them."""
    if not search.formula or _ASKED * len(classes) < space.head.classes:
        return
    classes = np.sort(classes)
    starts = np.arange(_PANEL, space.head.classes, _PANEL)
    for k, part in enumerate(np.split(classes, np.searchsorted(classes, starts))):
        yield FirstGuesses(part, len(starts) + 1 - k)
        if search.late():
            return


def _tiles(classes: np.ndarray, space: Space) -> int:
    """Of one half of the product, its diagonal with it."""
    panels = -(-space.head.classes // _PANEL)
    return panels * (panels + 1) // 2


PROPOSER = Proposer("guesses", "screen", propose, "first guesses", _tiles)


@dataclass(frozen=True)
class Guess:
    """The inputs K ᵀK(g_t − centre) as u sees rows g, and the points that prove them."""

    to_input: np.ndarray  # (k, latent) K
    coordinates: Coordinates
    weighted: bool  # whether this is another guess than that of the space's own points


def first_guess(space: Space) -> Guess | None:
    """The space's own points, or weighted ones where those win for more classes. None where other
    first inputs win for far more."""
    guess = _rounder(space)
    return guess if _pays(space, guess) else None


def _pays(space: Space, guess: Guess) -> bool:
    """Whether the inputs by formula win about as often as others would, on a sample."""
    kinds = [aim for aim in aims(space) if not aim.straight]
    if not kinds:
        return True
    classes = np.flatnonzero(space.representative == np.arange(space.head.classes))
    sample = np.random.default_rng(0).permutation(classes)[:_TRIED]

    def won(inputs: Any) -> int:
        return int((winners(space, space.directions(inputs)) == sample).sum())

    points = guess.coordinates.points[space.backend.index(sample)][:, : len(guess.to_input)]
    inputs = space.enter(points @ space.backend.asarray(guess.to_input))
    enough = won(inputs) / _PAYS
    return enough >= len(sample) or enough >= max(won(aim.inputs(sample)) for aim in kinds)


def _rounder(space: Space) -> Guess:
    seen = space.width - space.lifted - space.unseen
    unit = space.head.unit if isinstance(space.head, Folded) else 1.0
    to_input, back = space.to_input, space.from_input[:, :seen] / unit
    own = Guess(to_input, Coordinates(back, space.centre / unit, space.points), False)
    if space.unseen:
        return own
    lost = _lost(space, space.points)
    if lost < _WORTH_IT or lost * space.head.classes < _FEW * seen:
        return own
    if space.head.classes * seen * space.points.itemsize > space.backend.again_bytes:
        return own
    found = weighted(space, seen)
    if found is None:
        return own
    factor, inverse, middle = found
    points = space.backend.hold((space.head.classes, seen))
    m, turn = space.backend.put(middle), space.backend.put(inverse.T.copy())
    for start, v in _blocks(space, seen):
        points[start : start + len(v)] = space.backend.cast((v - m) @ turn, points.dtype)
    if _lost(space, points) >= lost:
        return own
    centre = (space.centre + space.from_input[:, :seen] @ middle) / unit
    to_input, back = (space.backend.matmul(*pair) for pair in ((inverse, to_input), (back, factor)))
    return Guess(to_input, Coordinates(back, centre, points), True)


def _blocks(space: Space, seen: int) -> Iterator[tuple[int, Any]]:
    xp, rows = space.backend.xp, space.backend.rows
    for start in range(0, space.head.classes, rows):
        yield start, xp.astype(space.points[start : start + rows, :seen], xp.float64)


def weighted(space: Space, seen: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """L, L⁻¹ and the mean of the points, weighted: L⁻¹(v − m) are rounder. None: they span less."""
    backend, xp = space.backend, space.backend.xp
    factor: np.ndarray = np.eye(seen)
    inverse, middle = factor, np.zeros(seen)
    weights: list[Any] = [1.0] * -(-space.head.classes // backend.rows)
    for _ in range(_ROUNDS):
        mass, total, square = 0.0, 0.0, 0.0
        m, turn = backend.put(middle), backend.put(inverse.T.copy())
        for k, (_, v) in enumerate(_blocks(space, seen)):
            length = xp.sum(((v - m) @ turn) ** 2, axis=1, keepdims=True)
            weights[k] = weights[k] * length / seen
            heavy = v * weights[k]
            mass = mass + xp.sum(weights[k])
            total, square = total + xp.sum(heavy, axis=0), square + heavy.T @ v
        mean = backend.get(total) / float(mass)
        covariance = backend.get(square) / float(mass) - np.outer(mean, mean)
        try:
            factor, inverse = backend.factor(covariance)
            middle = mean
        except np.linalg.LinAlgError:
            return None
    return (factor, inverse, middle) if np.isfinite(inverse).all() else None


def _lost(space: Space, points: Any) -> float:
    """The share of a sample of first guesses that lose."""
    backend, xp = space.backend, space.backend.xp
    inner = space.width - space.lifted
    classes = np.flatnonzero(space.representative == np.arange(space.head.classes))
    sample = np.random.default_rng(0).permutation(classes)[:_SAMPLE]
    guesses = points[backend.index(sample)][:, :inner]
    own = xp.sum(guesses * guesses, axis=1)
    best = own
    for start in range(0, space.head.classes, 4 * backend.rows):
        scores = guesses @ points[start : start + 4 * backend.rows, :inner].T
        best = xp.maximum(best, xp.max(scores, axis=1))
    return float(np.mean(backend.get(best) > backend.get(own) * (1 + 1e-5)))


def formula(space: Space, guess: Guess, centre: np.ndarray) -> Formula | None:
    """The guess as a formula from stored rows, less `centre`, to inputs; None where P overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        transform = space.backend.matmul(guess.to_input.T, guess.to_input)
        if isinstance(space.head, Folded):
            transform = space.head.unfold(transform).T  # (d, latent)
        transform = np.ascontiguousarray(transform, dtype=np.float32)
    return Formula(transform, centre) if np.isfinite(transform).all() else None
