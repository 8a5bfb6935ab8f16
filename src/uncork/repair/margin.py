"""From touching the surface to leading by a margin: a little more, told apart from class to class.

The margin is how far a class has to lead for the model's own arithmetic to see it. A logit that is
summed in float32 over d features is off by about √d·2⁻²⁴·Σ|w_j x_j|, the usual estimate (Higham and
Mary 2019; the bound that holds without exception has d for √d). Logits that are stored in 16 bits
are rounded once more, and so are their inputs. A lead beyond what both classes may be off by
survives. Float64 gets the bound without exception: it is what proofs in floats need. A margin that
the user sets, in logits, takes the place of all this; 0 asks for none.

Leading. Classes raised until they touch the surface share first place there. Each of them is given
a little more, κ − g(w_t), with g strictly convex around an apex a:

    g(w) = ε ρ₀ (|w − a|/ρ₀)^p,   ρ₀ the largest |w − a|,   p = 5/4.

At u_t + ∇g(w_t), with u_t where class t touched, t leads every other raised class s by at least
g(w_s) − g(w_t) − ∇g(w_t)·(w_s − w_t) > 0, and every class that carries the surface by κ, less what
these gain on the way: κ is chosen to cover that. Where the sum of all changes is to be small and
the raised are many, κ is 0, and those that carry the surface are lowered instead. So distinct rows
end up strictly first, each at its own input, and ε is as small as the margin allows. A power near
one serves rows that crowd as well as those far out: a square would see only the latter.

Rounding. Biases are stored in the head's own type, and floats are finest around 0. A constant
added to all biases changes nothing, so where rounding spoils the order the apex is put at 0.

Parting. Rows of a crowd (untrained ones, a unit in the last place apart) lead one another by ε
times their distance: no bias of any use tells them apart in the model's own type. `parted` moves
each of them a little, square to the input where it touches, so that it touches there still.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.reach.surface import Surface
from uncork.repair.proven import bias_type

_SUMMED = 2.0**-24  # float32, in which accelerators sum
_BLOCK = 512
_POWER = 1.25
_SHARE = 0.01  # of the largest raise: the little more, to begin with
FACTORS = (1.0, 2.0, 4.0, 10.0, 30.0, 100.0, 1000.0)
MODEST = FACTORS[:5]  # what a margin is worth where moving rows a little would do
_STEP = 1e-3  # how far a witness moves where nothing else gives a scale
_CARRIERS = 3  # for each feature: how many classes are about the surface where others touch it


def check_margin(margin: float | None) -> None:
    """Raise unless it is None or a finite number that is not below 0."""
    if margin is not None and not (margin >= 0 and np.isfinite(margin)):
        raise UncorkError(f"margin must be a number of logits, 0 or more, not {margin}")


def allowance(
    head: Head, bias: np.ndarray, classes: np.ndarray, x: np.ndarray, margin: float | None
) -> np.ndarray:
    """What the lead of each class has to exceed at its input x (n, d), with biases (C,) of that
    size: (n,), in logits. None stands for what the type of the head's weights takes.
    """
    if margin is not None:
        return np.full(len(classes), margin)
    every = head.take(np.arange(head.classes))
    sizes = np.abs(every)
    needed = np.empty(len(classes))
    for start in range(0, len(classes), _BLOCK):
        some, at = classes[start : start + _BLOCK], x[start : start + _BLOCK]
        z = at @ every.T + bias
        off = _errors(head, z, np.abs(at) @ sizes.T + np.abs(bias), every, at)
        here = np.arange(len(some))
        own = off[here, some]
        z[here, some] = -np.inf
        needed[start : start + len(some)] = own + (z + off).max(axis=1) - z.max(axis=1)
    return needed


def _errors(
    head: Head, z: np.ndarray, sizes: np.ndarray, rows: np.ndarray, x: np.ndarray
) -> np.ndarray:
    """What each logit may be off by: (n, C)."""
    kind, features = head.weight.dtype, head.features
    if kind == np.float64:
        return np.asarray((features + 2) * 2.0**-53 * sizes)
    summed = np.sqrt(features) * _SUMMED * sizes
    grain = _grain(kind)
    if grain <= _SUMMED:
        return np.asarray(summed)
    return np.asarray(summed + grain * (np.abs(z) + 2 * np.sqrt((x * x) @ (rows * rows).T)))


def _grain(kind: np.dtype) -> float:
    """Half of what a type's numbers around 1 are apart by; whole numbers are computed with in
    float32."""
    if kind.kind in "iub":
        return _SUMMED
    return float(ml_dtypes.finfo(kind).eps) / 2


@dataclass(frozen=True)
class Touching:
    """Classes (n,) that touch the surface at `inputs` (n, latent) once biases are `base` (C,)."""

    classes: np.ndarray
    inputs: np.ndarray
    base: np.ndarray
    total: float | None = None  # the sum of all changes, if that is to be small

    def at(self, base: np.ndarray) -> Touching:
        """The same with other biases."""
        return replace(self, base=base)


@dataclass(frozen=True)
class Leading:
    """Biases (C,) as stored, in float64; inputs (n, latent) for the raised classes; who leads."""

    bias: np.ndarray
    inputs: np.ndarray
    leads: np.ndarray  # (n,) of the raised classes at their inputs, in floats
    clear: np.ndarray  # (n,) of bool: whether the lead exceeds the margin
    head: Head  # with the rows that this was computed for

    def better(self, other: Leading | None) -> bool:
        """Whether more classes lead clearly, or as many do and more lead at all."""
        return other is None or self._counts() > other._counts()

    def _counts(self) -> tuple[int, int]:
        return int(self.clear.sum()), int((self.leads > 0).sum())


def make_lead(
    surface: Surface,
    touching: Touching,
    equals: np.ndarray,
    largest: float,
    margin: float | None = 0.0,
    factors: Sequence[float] = FACTORS,
) -> Leading:
    """Biases at which each class that touches leads by more than the margin, as they are stored.

    equals    (C,) one number for classes with equal rows, which nothing tells apart
    largest   the largest raise, which sets the scale (unless the sum of all changes does)
    margin    in logits; None for what the model's own type takes
    factors   how much more than the least is tried, in turn
    """
    head, classes, inputs, base = (
        surface.searched.head, touching.classes, touching.inputs, touching.base,
    )  # fmt: skip
    offset = head.offsets - surface.all_bias  # of an image: w·x₀ too
    affine = head.domain.affine(head.features)
    rows = surface.all_rows
    own = rows[classes]
    apex = own[np.argmin(((own - np.median(own, axis=0)) ** 2).sum(axis=1))]
    carried = surface.rows if len(surface.rows) else rows  # the raised may be most, and crowd
    length = float(np.median(np.linalg.norm(carried - apex, axis=1))) or 1.0
    seen = affine.image(inputs) if affine.steps else inputs
    asked = float(np.nanmax(allowance(head, base + offset, classes, seen, margin), initial=0.0))
    room = float(surface.room[surface.room > 0].min(initial=np.inf))
    smallest = _STEP * min(1.0, room) if largest <= surface.close else _SHARE * largest / length
    if touching.total:
        smallest = (
            _SHARE * touching.total / (min(len(classes), _CARRIERS * (rows.shape[1] + 1)) * length)
        )
    if surface.shrunk:  # so that no witness leaves the domain on its way
        smallest = min(smallest, 0.5 * surface.shrunk * room)
    best: Leading | None = None
    for factor in factors:
        epsilon = min(smallest * factor, 0.1 * room)
        g, slope = _bowl(own - apex, epsilon)
        moved = np.array([surface.searched.inside(u[None])[0] for u in inputs + slope])
        for shifted in (False, True):
            wanted = base.copy()
            wanted[classes] -= g
            others, above = _above(surface, classes, moved, wanted, apex)
            little = 0.1 * epsilon * length
            over = little + 1.1 * asked
            more = max(float(above.max(initial=0.0)), 0.0) * 1.1 + over
            lower = np.where(above > -over, np.maximum(above, 0.0) * 1.1 + over, 0.0)
            if touching.total and float(lower.sum()) < len(classes) * more:
                wanted[others] -= lower
            else:
                wanted[classes] += more
            lowest = classes[np.argmin(g)]
            shift = -float(wanted[lowest] + offset[lowest]) if shifted else 0.0
            same = wanted == surface.all_bias
            same[classes] = False
            bias = np.where(same, head.offsets + shift, wanted + (offset + shift))
            bias = bias.astype(bias_type(head)).astype(np.float64)
            leads = leads_at(surface, classes, moved, bias - (offset + shift), apex, equals)
            seen = affine.image(moved) if affine.steps else moved
            clear = leads > allowance(head, bias, classes, seen, margin)
            made = Leading(bias, moved, leads, clear, head)
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
    others = np.setdiff1d(np.arange(surface.searched.classes), touching)
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
