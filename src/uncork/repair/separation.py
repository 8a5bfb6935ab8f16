"""From touching the surface to standing above it: a little more, told apart from class to class.

Classes raised until they touch the surface share first place there. Each of them is given a little
more, κ − g(w_t), with g strictly convex around an apex a:

    g(w) = ε ρ₀ (|w − a|/ρ₀)^p,   ρ₀ the largest |w − a|,   p = 5/4.

At u_t + ∇g(w_t), with u_t where class t touched, t leads every other raised class s by at least
g(w_s) − g(w_t) − ∇g(w_t)·(w_s − w_t) > 0, and every class that carries the surface by κ, less what
these gain on the way: κ is chosen to cover that. Where the sum of all changes is to be small and
the raised are many, κ is 0, and those that carry the surface are lowered instead. So distinct rows
end up strictly first, each at its own input, and ε is as small as the margin allows (`margin`). A
power near one serves rows that crowd as well as those far out: a square would see only the latter.

Rounding. Biases are stored in the head's own type, and floats are finest around 0. A constant
added to all biases changes nothing, so where rounding spoils the order the apex is put at 0.

Parting. Rows of a crowd (untrained ones, a unit in the last place apart) lead one another by ε
times their distance: no bias of any use tells them apart in the model's own type. `parted` moves
each of them a little, square to the input where it touches, so that it touches there still.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uncork.core.head import Head
from uncork.repair.margin import allowance
from uncork.repair.surface import Surface

_POWER = 1.25
_SHARE = 0.01  # of the largest raise: the little more, to begin with
FACTORS = (1.0, 2.0, 4.0, 10.0, 30.0, 100.0, 1000.0)
MODEST = FACTORS[:5]  # what a margin is worth where moving rows a little would do
_STEP = 1e-3  # how far a witness moves where nothing else gives a scale
_CARRIERS = 3  # for each feature: how many classes are about the surface where others touch it
_BLOCK = 512


@dataclass(frozen=True)
class Strict:
    """Biases (C,) as stored, in float64; inputs (n, latent) for the raised classes; who leads."""

    bias: np.ndarray
    inputs: np.ndarray
    leads: np.ndarray  # (n,) of the raised classes at their inputs, in floats
    clear: np.ndarray  # (n,) of bool: whether the lead exceeds the margin
    shift: float  # the constant that all biases were moved by
    head: Head  # with rows as they were looked at

    def better(self, other: Strict | None) -> bool:
        """Whether more classes lead clearly, or as many do and more lead at all."""
        return other is None or self._counts() > other._counts()

    def _counts(self) -> tuple[int, int]:
        return int(self.clear.sum()), int((self.leads > 0).sum())


def make_strict(
    surface: Surface,
    touching: np.ndarray,
    inputs: np.ndarray,
    base: np.ndarray,
    stored: np.ndarray,
    offset: np.ndarray,
    dtype: np.dtype,
    equals: np.ndarray,
    largest: float,
    total: float | None = None,
    margin: float | None = 0.0,
    factors: Sequence[float] = FACTORS,
) -> Strict:
    """Biases at which each class of `touching` leads by more than the margin, rounded to `dtype`.

    base      (C,) biases at which they touch the surface, each at its row of `inputs`
    stored    (C,) the file's biases, which stay as they are where `base` does, unless shifted
    offset    (C,) what the biases of the surface lack to be the file's
    equals    (C,) one number for classes with equal rows, which nothing tells apart
    largest   the largest raise, which sets the scale
    total     the sum of all changes, if that is to be small: then it sets the scale
    margin    in logits; None for what the model's own type takes
    factors   how much more than the least is tried, in turn
    """
    head = surface.view.head
    affine = head.domain.affine(head.features)
    rows = surface.all_rows
    own = rows[touching]
    apex = own[np.argmin(((own - np.median(own, axis=0)) ** 2).sum(axis=1))]
    carried = surface.rows if len(surface.rows) else rows  # the raised may be most, and crowd
    length = float(np.median(np.linalg.norm(carried - apex, axis=1))) or 1.0
    seen = affine.image(inputs) if affine.steps else inputs
    asked = float(np.nanmax(allowance(head, base + offset, touching, seen, margin), initial=0.0))
    room = float(surface.room[surface.room > 0].min(initial=np.inf))
    smallest = _STEP * min(1.0, room) if largest <= surface.close else _SHARE * largest / length
    if total:
        smallest = _SHARE * total / (min(len(touching), _CARRIERS * (rows.shape[1] + 1)) * length)
    if surface.shrunk:  # so that no witness leaves the domain on its way
        smallest = min(smallest, 0.5 * surface.shrunk * room)
    best: Strict | None = None
    for factor in factors:
        epsilon = min(smallest * factor, 0.1 * room)
        g, slope = _bowl(own - apex, epsilon)
        moved = np.array([surface.view.inside(u[None])[0] for u in inputs + slope])
        for shifted in (False, True):
            wanted = base.copy()
            wanted[touching] -= g
            others, above = _above(surface, touching, moved, wanted, apex)
            little = 0.1 * epsilon * length
            over = little + 1.1 * asked
            more = max(float(above.max(initial=0.0)), 0.0) * 1.1 + over
            lower = np.where(above > -over, np.maximum(above, 0.0) * 1.1 + over, 0.0)
            if total and float(lower.sum()) < len(touching) * more:
                wanted[others] -= lower
            else:
                wanted[touching] += more
            lowest = touching[np.argmin(g)]
            shift = -float(wanted[lowest] + offset[lowest]) if shifted else 0.0
            same = wanted == surface.all_bias
            same[touching] = False
            bias = _rounded(np.where(same, stored + shift, wanted + (offset + shift)), dtype)
            leads = leads_at(surface, touching, moved, bias - (offset + shift), apex, equals)
            seen = affine.image(moved) if affine.steps else moved
            clear = leads > allowance(head, bias, touching, seen, margin)
            made = Strict(bias, moved, leads, clear, shift, head)
            if made.better(best):
                best = made
            if clear.all():
                return made
    assert best is not None
    return best


def parted(
    head: Head, classes: np.ndarray, x: np.ndarray, far: np.ndarray, equals: np.ndarray
) -> Head:
    """The head with each row of `classes` moved as `far` (n,) in a direction of its own, square to
    its x (n, d) where there is room for that. Classes with one number in `equals` move alike."""
    side = np.random.default_rng(0).standard_normal(x.shape)
    if head.features > 1:
        side -= ((side * x).sum(axis=1) / (x * x).sum(axis=1).clip(1e-300))[:, None] * x
    side *= (far / np.linalg.norm(side, axis=1).clip(1e-300))[:, None]
    weight = np.array(head.weight)
    rows = (head.take(classes) + side).astype(weight.dtype)
    for t, row in zip(classes.tolist(), rows, strict=True):
        weight[equals == equals[t] if equals[t] >= 0 else t] = row
    return head.replace(weight=weight)


def _bowl(away: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """g and its gradient at rows minus the apex: (n, m) → (n,), (n, m)."""
    far = np.linalg.norm(away, axis=1)
    widest = float(far.max(initial=0.0))
    if widest == 0:
        return np.zeros(len(away)), np.zeros_like(away)
    share = far / widest
    g = epsilon * widest * share**_POWER
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = np.where(far[:, None] > 0, away / far[:, None], 0.0)
    return g, epsilon * _POWER * (share ** (_POWER - 1))[:, None] * unit


def _above(
    surface: Surface, touching: np.ndarray, inputs: np.ndarray, bias: np.ndarray, apex: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The classes that are not raised, and by how much each is above a raised one at its input, at
    most (below zero: it is above none)."""
    others = np.setdiff1d(np.arange(surface.view.classes), touching)
    rows, offsets = surface.all_rows[others] - apex, bias[others]
    above = np.full(len(others), -np.inf)
    for start in range(0, len(touching), _BLOCK):
        some, u = touching[start : start + _BLOCK], inputs[start : start + _BLOCK]
        own = ((surface.all_rows[some] - apex) * u).sum(axis=1) + bias[some]
        above = np.maximum(
            above, (u @ rows.T + offsets - own[:, None]).max(axis=0, initial=-np.inf)
        )
    return others, above


def leads_at(
    surface: Surface, classes: np.ndarray, inputs: np.ndarray, bias: np.ndarray, apex: np.ndarray,
    equals: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """z_t − max z_i over all i that do not equal t, at each class's input: (n,)."""
    rows = surface.all_rows - apex
    leads = np.empty(len(classes))
    for start in range(0, len(classes), _BLOCK):
        some, u = classes[start : start + _BLOCK], inputs[start : start + _BLOCK]
        z = u @ rows.T + bias
        here = np.arange(len(some))
        own = z[here, some]
        z[here, some] = -np.inf
        for k in np.flatnonzero(equals[some] >= 0).tolist():
            z[k, equals == equals[some[k]]] = -np.inf
        leads[start : start + len(some)] = own - z.max(axis=1)
    return leads


def _rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind in "iub":
        return values
    return values.astype(dtype).astype(np.float64)
