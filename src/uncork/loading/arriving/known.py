"""What is known of a value on its way to the head, for readers that follow layers one by one.

Either every number of it lies in one range, or its last axis lies in a domain (what a norm leaves).
Each layer's rule takes what is known of its input and gives what is known of its output, or raises
`Stopped` with the reason: then nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from uncork.domain import Ball, Box, Domain, LayerNorm, RMSNorm
from uncork.loading.arriving.activation_ranges import (
    MOST_TERMS,
    Sides,
    averaged,
    computed,
    fine_unit,
    rounded_outward,
    unit,
)
from uncork.loading.contents import FoundDomain, UnknownDomain

# A mean that is large beside the spread cancels: no bound on the rounding holds for every row.
LAYER_NORM_ASSUMED = (
    "the LayerNorm is computed without rounding (in floats, a row whose mean is far larger than "
    "its spread can leave this set)"
)
NORM_ASSUMED = "the norm is computed without rounding"
_LEAST_EPSILON = 2.0**-100  # below, squares that underflow would count


class Stopped(Exception):
    """A layer of which nothing is known; the text names it and says why."""


@dataclass(frozen=True)
class Known:
    """What a value can be: a range for all its numbers, or a domain for its last axis."""

    what: str  # what gives it: "ReLU 1"
    sides: Sides | None = None
    domain: Domain | None = None
    dtype: str = "float32"
    through: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    def passed(self, layer: str) -> Known:
        """The same after a layer that changes no number."""
        return replace(self, through=(*self.through, layer))

    def cast(self, layer: str, dtype: str) -> Known:
        """After a layer has taken it over in its own type."""
        if unit(dtype) <= unit(self.dtype):
            return self
        if self.domain is not None:
            raise Stopped(f"{layer} rounds what {self.what} gives to {dtype}")
        assert self.sides is not None
        return replace(self, sides=rounded_outward(self.sides, dtype), dtype=dtype)

    def rearranged(self, layer: str) -> Known:
        """After a layer that moves numbers between places, or hands on some of them."""
        self._range_for(layer, "may mix its features with places")
        return self.passed(layer)

    def with_zero(self, layer: str) -> Known:
        """After a layer that may put zeros in the place of numbers."""
        lower, upper = self._range_for(layer, "may put zeros among its features")
        return replace(self.passed(layer), sides=(min(lower, 0.0), max(upper, 0.0)))

    def dropped(self, layer: str, rate: float) -> Known:
        """After dropout in training mode: zero, or divided by 1 − rate."""
        if not 0 <= rate < 1:
            raise Stopped(f"{layer} drops a share of {rate}")
        lower, upper = self._range_for(layer, "is in training mode")
        sides = min(lower, 0.0) / (1 - rate), max(upper, 0.0) / (1 - rate)
        return replace(self.passed(f"{layer} in training mode"), sides=computed(sides, self.dtype))

    def averaged(self, layer: str, terms: int | None, features_kept: bool = False) -> Known:
        """After means over places: of `terms` numbers each, None where that is not known.

        A convex set holds the means of its points, but only if features stay apart.
        """
        if self.domain is not None:
            if not features_kept:
                raise Stopped(f"{layer} may average over the features of {self.what}")
            return self.passed(layer)
        assert self.sides is not None
        sides = averaged(self.sides, MOST_TERMS if terms is None else terms, self.dtype)
        assumed = self.assumed
        if terms is None and sides != self.sides:
            assumed = (*assumed, f"{layer} averages at most {MOST_TERMS:,} numbers each")
        return replace(self.passed(layer), sides=sides, assumed=assumed)

    def hull(self, other: Known, what: str) -> Known:
        """What either can be."""
        mine, theirs = self._range_for(what, "joins values"), other._range_for(what, "joins values")
        sides = min(mine[0], theirs[0]), max(mine[1], theirs[1])
        assumed = tuple(dict.fromkeys((*self.assumed, *other.assumed)))
        return replace(self, what=what, sides=sides, through=(), assumed=assumed)

    def _range_for(self, layer: str, reason: str) -> Sides:
        if self.sides is None:
            raise Stopped(f"{layer}, which follows {self.what}, {reason}")
        return self.sides

    def found(self) -> FoundDomain:
        domain = self.domain
        if domain is None:
            assert self.sides is not None
            if self.sides == (-math.inf, math.inf):
                raise Stopped(f"{self.what} gives any number")
            domain = Box(*self.sides)
        way = ", through " + " and ".join(dict.fromkeys(self.through)) if self.through else ""
        return FoundDomain(domain, f"{self.what} precedes the head{way}", "; ".join(self.assumed))


def found_by(walk: Callable[[], Known]) -> FoundDomain | UnknownDomain:
    """What a walk back from the head ends with."""
    try:
        return walk().found()
    except Stopped as stopped:
        return UnknownDomain(str(stopped))


def layer_norm(
    what: str, gain: np.ndarray | None, offset: np.ndarray | None, features: int, dtype: str
) -> Known:
    """What leaves a LayerNorm of the last axis; its rounding has no bound and is left out."""
    domain = LayerNorm(gain, offset, features=features)
    return Known(what, domain=domain, dtype=dtype, assumed=(LAYER_NORM_ASSUMED,))


def rms_norm(
    what: str, gain: np.ndarray | None, features: int, epsilon: float, dtype: str
) -> Known:
    """What leaves an RMSNorm of the last axis, its rounding included.

    All terms of the mean square are positive, so that it errs by a share of itself, the root by
    half of that, and every product by one unit: the ellipsoid grows by that share.
    """
    if not epsilon >= _LEAST_EPSILON:
        raise Stopped(f"{what} has the epsilon {epsilon:g}: rows that underflow are not normalised")
    scale = np.ones(features) if gain is None else np.asarray(gain, np.float64)
    domain = RMSNorm(scale * (1 + _norm_share(features, dtype)))
    return Known(what, domain=domain, dtype=dtype)


def unit_norm(what: str, features: int, dtype: str) -> Known:
    """What leaves a division of the last axis by its length, rounding included."""
    return Known(what, domain=Ball(1 + _norm_share(features, dtype)), dtype=dtype)


def _norm_share(features: int, dtype: str) -> float:
    coarse = 4 * unit(dtype) if unit(dtype) > fine_unit(dtype) else 0.0
    return (features / 2 + 16) * fine_unit(dtype) * (1 + 2.0**-8) + coarse
