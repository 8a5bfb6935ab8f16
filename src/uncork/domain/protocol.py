"""What a domain is: the methods that proofs, searching, reports and files ask of a set of inputs.

A plain set needs two of them, `support_exactly` and `contains_exactly`. Everything else follows
from these, slowly and rigorously; a set overrides what it can say faster. A set that is an affine
image of another (what leaves a LayerNorm, say) brings `affine` instead, and no support of its own.

This is trusted code: a proof is only as good as the support of its domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.rigour import upper_float
from uncork.domain.outline import Outline

if TYPE_CHECKING:
    from uncork.domain.affine import Affine
    from uncork.domain.members import Stored, Storing

_INSIDE = 1 - 1e-6  # an input that is pulled in must not leave again by rounding to float32


class Support(NamedTuple):
    """max r·x over a set in floats: its sum before rounding is paid for, the size of what was
    summed, and whether some product may have been rounded among the subnormals."""

    value: float
    size: float
    underflows: bool


class Supports(NamedTuple):
    """`Support` of many residuals: arrays of NumPy's, one entry for each."""

    value: np.ndarray  # (n,)
    size: np.ndarray
    underflows: np.ndarray


class Domain:
    """A convex set of inputs x: `Unbounded`, `Box`, `Ball`, or an affine image of one of these
    (`LayerNorm`, `RMSNorm`, `Image`)."""

    kind: ClassVar[str]  # its name in files, and before the colon in text
    numbers: ClassVar[tuple[str, ...]] = ()  # attributes that files hold: floats
    arrays: ClassVar[tuple[str, ...]] = ()  # and arrays of floats, or None
    forms: ClassVar[tuple[str, ...]] = ()  # how it is written as text; none if text cannot hold it

    # What proofs rest on. Every answer here is rigorous.

    def support_exactly(self, r: Sequence[Fraction]) -> Fraction | None:
        """max over the set of r·x; None where it is infinite."""
        raise TypeError(f"{type(self).__name__} is not a concrete domain")

    def contains_exactly(self, x: Sequence[Fraction]) -> bool:
        """Whether a rational input lies in the set."""
        raise TypeError(f"{type(self).__name__} is not a concrete domain")

    @property
    def features(self) -> int | None:
        """How many features x has; None where the domain does not say."""
        return None

    def check(self, features: int) -> None:
        """Raise if this domain does not fit inputs of that many features."""

    def affine(self, features: int) -> Affine:
        """The domain as an affine image of a plain one, for inputs of that many features."""
        from uncork.domain.affine import Affine

        self.check(features)
        return Affine(self, (), features, features)

    def contains(self, x: np.ndarray, tolerance: float = 0.0) -> np.ndarray:
        """Whether each x (…, d) lies in the domain: exactly, or for inputs that were computed with
        rounding, up to a relative tolerance. Never true outside with a tolerance of zero."""
        x = np.asarray(x, dtype=np.float64)
        rows = x.reshape(-1, x.shape[-1])
        if tolerance:
            middle = self._middle(rows.shape[1])
            rows = middle + (rows - middle) / (1 + tolerance)
        inside = [
            bool(np.isfinite(row).all()) and self.contains_exactly([Fraction(v) for v in row])
            for row in rows
        ]
        return np.array(inside, dtype=bool).reshape(x.shape[:-1])

    def contains_on(self, device: Any, x: Any) -> np.ndarray:
        """As `contains`, for inputs (n, d) on a device."""
        return self.contains(device.get(x))

    def support(self, residual: np.ndarray, error: np.ndarray) -> Support:
        """max over the set of r·x, for every r within `error` of `residual`: never too small once
        rounding is paid for. +inf where it is infinite, NaN where something overflowed."""
        if not (np.isfinite(residual).all() and np.isfinite(error).all()):
            return Support(np.nan, 0.0, False)
        # r·x ≤ residual·x + Σ error_j |x_j|
        largest = self.support_exactly([Fraction(v) for v in residual.tolist()])
        for j in np.flatnonzero(error).tolist():
            low, high = extents(self, len(residual))[j]
            if largest is None or low is None or high is None:
                return Support(np.inf, 0.0, False)
            largest += Fraction(float(error[j])) * max(-low, high)
        value = np.inf if largest is None else upper_float(largest)
        return Support(value, abs(value), True)

    def supports(self, residuals: Any, errors: Any, device: Any) -> Supports:
        """`support` of many residuals (n, d) on a device."""
        pairs = zip(device.get(residuals), device.get(errors), strict=True)
        found = [self.support(residual, error) for residual, error in pairs]
        value, size, underflows = np.array(found, dtype=np.float64).reshape(-1, 3).T
        return Supports(value, size, underflows != 0)

    def upper_bound_exactly(self, r: Sequence[Fraction], s: Fraction) -> Fraction | None:
        """max over the set of r·x + s; None where it is infinite. Where it is irrational: zero if
        it is zero or less, else None."""
        largest = self.support_exactly(r)
        return None if largest is None else largest + s

    # What searching uses: its proposals are checked by the above.

    @property
    def is_cone(self) -> bool:
        """Whether x ∈ D implies s·x ∈ D for every s > 0."""
        return False

    @property
    def is_box(self) -> bool:
        """Whether it is all of what its `sides` allow."""
        return False

    def sides(self, features: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The least and the largest value of each feature, rounded outwards: (d,), (d,). None where
        the set has no quick answer."""
        return None

    @property
    def is_everything(self) -> bool:
        """Whether every input lies in the domain."""
        return False

    def outline(self, features: int) -> Outline:
        """The box or the ball that holds the set; the smallest box if nothing better is known."""
        self.check(features)
        lower, upper = np.full(features, -np.inf), np.full(features, np.inf)
        for j, (low, high) in enumerate(extents(self, features)):
            lower[j] = -np.inf if low is None else -upper_float(-low)
            upper[j] = np.inf if high is None else upper_float(high)
        return Outline(lower, upper, exact=False)

    def normal(self, x: np.ndarray) -> np.ndarray | None:
        """A direction in which x (d,), outside the set, lies beyond all of it: where the outline is
        not exact, searching cuts x off with it. By default the gradient of how far x is out, by
        differences; None where that finds none, and what depends on it stays undecided."""
        middle = self._middle(len(x))
        border = self.pulled_in(x) - middle
        size = np.abs(border).max()
        if not (size > 0 and self.contains(middle)):
            return None
        # At a point nearby: where sides meet there is no gradient.
        near = border + 1e-4 * size * np.random.default_rng(0).uniform(-1, 1, len(x))
        out = 1 / self._share(middle, np.vstack([near, near + 1e-4 * size * np.eye(len(x))]))[:, 0]
        slope = out[1:] - out[0]
        steepest = np.abs(slope).max()
        return np.round(slope / steepest, 9) if 0 < steepest < np.inf else None

    def pulled_in(self, x: np.ndarray) -> np.ndarray:
        """Inputs (…, d), those outside the set moved into it, towards its middle."""
        x = np.asarray(x, dtype=np.float64)
        rows = x.reshape(-1, x.shape[-1]).copy()
        middle = self._middle(rows.shape[1])
        outside = np.flatnonzero(np.isfinite(rows).all(axis=1) & ~self.contains(rows))
        if len(outside) and self.contains(middle):
            away = rows[outside] - middle
            rows[outside] = middle + self._share(middle, away) * _INSIDE * away
        found: np.ndarray = rows.reshape(x.shape)
        return found

    def _share(self, middle: np.ndarray, away: np.ndarray) -> np.ndarray:
        """How much of each way (n, d) from the middle, up to twice, lies in the set: (n, 1)."""
        low, high = np.zeros((len(away), 1)), np.full((len(away), 1), 2.0)
        for _ in range(50):
            share = (low + high) / 2
            inside = self.contains(middle + share * away)[:, None]
            low, high = np.where(inside, share, low), np.where(inside, high, share)
        return low

    def _middle(self, features: int) -> np.ndarray:
        """A point of the set, where it is found easily: 0, or the middle of its sides."""
        zero = np.zeros(features)
        if self.contains_exactly([Fraction(0)] * features):
            return zero
        outline = self.outline(features)
        middle = (outline.lower + outline.upper) / 2
        return np.where(np.isfinite(middle), middle, 0.0)

    # Words and files

    def spec(self) -> str:
        """Text that identifies the domain; `parse_domain` reads that of a plain one back."""
        return f"{self.kind}:" + ",".join(f"{getattr(self, name):.17g}" for name in self.numbers)

    @classmethod
    def parse(cls, text: str) -> Domain:
        """The domain behind what `spec` writes after the colon; `ValueError` if it is none."""
        values = [float(part) for part in text.split(",")]
        if not cls.forms or len(values) != len(cls.numbers):
            raise ValueError(text)
        return cls(*values)

    def __str__(self) -> str:
        return self.spec()

    def in_words(self, features: int) -> str:
        """The inputs of the domain, as a report names them."""
        return f"every input in {self}"

    def members(self, storing: Storing) -> dict[str, Any]:
        """What a file says of the domain besides its kind."""
        held: dict[str, Any] = {name: float(getattr(self, name)).hex() for name in self.numbers}
        for name in self.arrays:
            array = getattr(self, name)
            if array is not None:
                held[name] = storing.array(name, array)
        return held

    @classmethod
    def from_members(cls, stored: Stored) -> Domain:
        """The domain behind what `members` made, everything checked anew."""
        values = {name: stored.number(name) for name in cls.numbers}
        return cls(**values, **{name: stored.array(name) for name in cls.arrays})


@lru_cache(maxsize=64)
def extents(domain: Domain, features: int) -> tuple[tuple[Fraction | None, Fraction | None], ...]:
    """The least and the largest value of each feature, exactly; None where it is infinite."""

    def largest(j: int, sign: int) -> Fraction | None:
        return domain.support_exactly([Fraction(sign * (k == j)) for k in range(features)])

    found = []
    for j in range(features):
        below, above = largest(j, -1), largest(j, 1)
        found.append((None if below is None else -below, above))
    return tuple(found)


KINDS: dict[str, type[Domain]] = {}

_D = TypeVar("_D", bound=Domain)


def register(domain: type[_D]) -> type[_D]:
    """Make a domain known by its kind: to `parse_domain`, and to whoever reads files."""
    if KINDS.setdefault(domain.kind, domain) is not domain:
        raise UncorkError(f"there already is a domain of kind {domain.kind!r}")
    return domain
