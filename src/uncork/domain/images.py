"""Domains that are affine images of a plain one: what leaves LayerNorm, RMSNorm, a linear map.

A norm divides by √(mean square + ε). With ε > 0 every length below √d can arrive, so the set of
u is the ball ‖u‖₂ ≤ √d, not its surface; with ε = 0 a ball is a superset, and a proof that no x of
it makes a class the argmax still holds.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.rigour import TINY, UNIT, row_norms
from uncork.domain.affine import Affine, Centre, Matrix, Scale, Shift, Step
from uncork.domain.ball import NormBall
from uncork.domain.members import Stored, Storing, digest_of
from uncork.domain.outline import Outline
from uncork.domain.protocol import Domain, register

_OUTWARDS = 2.0**-20  # far more than a few roundings
_LEAST_TOLERANCE = 1e-9  # whether x = A u has a solution is asked in floats


class ImageOf(Domain):
    """What images have in common. Text cannot hold them: they have arrays."""

    def _given(self) -> list[str]:
        """The names of the arrays that it has."""
        return [name for name in self.arrays if getattr(self, name) is not None]

    def outline(self, features: int) -> Outline:
        return Outline.of_everything(features, exact=False)  # searching looks at u, not at x

    @classmethod
    def parse(cls, text: str) -> Domain:
        raise ValueError(text)

    def check(self, features: int) -> None:
        if self.features is not None and self.features != features:
            raise UncorkError(
                f"{self} gives inputs of {self.features} features but the head has {features}"
            )

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what the domain is, in hexadecimal."""
        return digest_of(self)

    def spec(self) -> str:
        return f"{self}, sha256:{self.digest[:32]}"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<{self}>"


class _Norm(ImageOf):
    """x = gain ⊙ u + offset with ‖u‖₂ ≤ √d, and Σ u = 0 where the mean is taken out."""

    gain: np.ndarray | None
    offset: np.ndarray | None = None
    centred: bool
    title: str  # as people write it

    def __init__(self, gain: Any, offset: Any, features: int | None) -> None:
        self.gain = _vector(gain, f"the gain of {self.kind}")
        self.offset = _vector(offset, f"the offset of {self.kind}")
        sizes = {len(a) for a in (self.gain, self.offset) if a is not None}
        if features is not None:
            if int(features) != features or features < 1:
                raise UncorkError(f"{self.kind} over {features} features: expected one or more")
            sizes.add(int(features))
        if not sizes:
            raise UncorkError(f"{self.kind} without gain or offset: say how many features it has")
        if len(sizes) > 1:
            raise UncorkError(
                f"{self.kind}: gain, offset and features must agree, and have "
                + " and ".join(map(str, sorted(sizes)))
            )
        self._features = sizes.pop()

    @property
    def features(self) -> int:
        return self._features

    def members(self, storing: Storing) -> dict[str, Any]:
        return {"features": self.features, **super().members(storing)}

    @classmethod
    def from_members(cls, stored: Stored) -> Domain:
        arrays = {name: stored.array(name) for name in cls.arrays}
        return cls(**arrays, features=stored.parts.get("features"))

    def affine(self, features: int) -> Affine:
        self.check(features)
        steps: list[Step] = [Centre()] if self.centred else []
        if self.gain is not None:
            steps.append(Scale(self.gain))
        if self.offset is not None:
            steps.append(Shift(self.offset))
        return Affine(NormBall(features), tuple(steps), features, features)

    def contains(self, x: np.ndarray, tolerance: float = 0.0) -> np.ndarray:
        x = np.asarray(x, dtype=np.float64)
        if x.shape[-1] != self.features:
            raise UncorkError(f"inputs of {x.shape[-1]} features in {self}")
        rows = x.reshape(-1, self.features)
        gain = np.ones(self.features) if self.gain is None else self.gain
        offset = np.zeros(self.features) if self.offset is None else self.offset
        if tolerance:
            inside = self._nearly(rows, gain, offset, tolerance)
        else:
            inside = np.isfinite(rows).all(axis=1)
            # The exact answer is dear, and nearly always clear without it.
            inside &= self._nearly(rows, gain, offset, 1e-9)
            at = np.flatnonzero(inside & ~self._surely(rows, gain, offset))
            inside[at] = [self._exactly(rows[k], gain, offset) for k in at]
        return inside.reshape(x.shape[:-1])

    def _nearly(
        self, x: np.ndarray, gain: np.ndarray, offset: np.ndarray, tolerance: float
    ) -> np.ndarray:
        """Whether some point of the domain is near: each feature may be off by a share of its
        terms' size, where u counts as one at least."""
        free = gain != 0
        with np.errstate(all="ignore"):
            away = x - offset
            fixed = (np.abs(away) <= tolerance * np.abs(offset))[:, ~free].all(axis=1)
            u = away[:, free] / gain[free]
            room = tolerance * (1 + np.abs(u) + np.abs(offset[free] / gain[free]))
            least = np.maximum(np.abs(u) - room, 0.0)
            square = (least**2).sum(axis=1)
            if self.centred:
                rest = np.maximum(np.abs(u.sum(axis=1)) - room.sum(axis=1), 0.0)
                # Features of gain zero can hold what is missing to a sum of zero, at a price.
                unseen = int((~free).sum())
                square += rest**2 / unseen if unseen else np.where(rest > 0, np.inf, 0.0)
            found: np.ndarray = fixed & (square <= self.features * (1 + tolerance) ** 2)
            return found

    def _surely(self, x: np.ndarray, gain: np.ndarray, offset: np.ndarray) -> np.ndarray:
        """Whether floats are enough to say that each x (n, d) lies in the domain."""
        if self.centred:  # that u sums to zero is a question for fractions
            return np.zeros(len(x), dtype=bool)
        free = gain != 0
        with np.errstate(all="ignore"):
            away = np.abs(x - offset)
            fixed = (away[:, ~free] == 0).all(axis=1)
            # Two roundings, and one that may underflow; a norm rounded up.
            u = away[:, free] / np.abs(gain[free]) * (1 + 4 * UNIT) + TINY
            if not free.any():
                return np.asarray(fixed)
            return np.asarray(fixed & (row_norms(u) <= NormBall(self.features).radius))

    def _exactly(self, x: np.ndarray, gain: np.ndarray, offset: np.ndarray) -> bool:
        from fractions import Fraction

        total, square, unseen = Fraction(0), Fraction(0), 0
        for value, g, c in zip(x.tolist(), gain.tolist(), offset.tolist(), strict=True):
            away = Fraction(value) - Fraction(c)
            if g == 0:
                if away:
                    return False
                unseen += 1
                continue
            u = away / Fraction(g)
            total += u
            square += u * u
        if self.centred and total:
            if not unseen:
                return False
            square += total * total / unseen
        return square <= self.features

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self._given())}) of {self.features} features"

    def in_words(self, features: int) -> str:
        given = self._given()
        own = f" with the model's own {' and '.join(given)}" if given else ""
        return f"every input that can leave a {self.title} over {self.features:,} features{own}"


@register
class LayerNorm(_Norm):
    """What leaves LayerNorm: x = gain ⊙ u + offset with Σ u = 0 and ‖u‖₂ ≤ √d.

    Without a gain it is one, without an offset zero; `features` is needed where both are missing.
    """

    kind = "layernorm"
    title = "LayerNorm"
    arrays = ("gain", "offset")
    centred = True

    def __init__(
        self, gain: Any = None, offset: Any = None, *, features: int | None = None
    ) -> None:
        super().__init__(gain, offset, features)

    def sides(self, features: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Numbers with the mean 0 and the mean square 1 or less lie within √(d − 1)."""
        gain = np.ones(features) if self.gain is None else np.asarray(self.gain)
        offset = np.zeros(features) if self.offset is None else np.asarray(self.offset)
        reach = np.abs(gain) * math.sqrt(features - 1) * (1 + _OUTWARDS)
        slack = _OUTWARDS * np.abs(offset) + TINY
        return offset - reach - slack, offset + reach + slack


@register
class RMSNorm(_Norm):
    """What leaves RMSNorm: x = gain ⊙ u with ‖u‖₂ ≤ √d.

    The gain is what the model multiplies with: where it stores w and uses 1 + w, give 1 + w.
    """

    kind = "rmsnorm"
    title = "RMSNorm"
    arrays = ("gain",)
    centred = False

    def __init__(self, gain: Any = None, *, features: int | None = None) -> None:
        super().__init__(gain, None, features)


@register
class Image(ImageOf):
    """x = matrix u + offset for u in another domain: what leaves a linear layer.

    Without a matrix x = u + offset.
    """

    kind = "image"
    arrays = ("matrix", "offset")

    def __init__(self, inner: Domain, matrix: Any = None, offset: Any = None) -> None:
        if not isinstance(inner, Domain):
            raise UncorkError(f"the inner domain of an image must be a domain, not {inner!r}")
        self.inner = inner
        self.offset = _vector(offset, "the offset of an image")
        self.matrix: np.ndarray | None = None
        if matrix is not None:
            self.matrix = exact_numbers(matrix, "the matrix of an image")
            if self.matrix.ndim != 2 or 0 in self.matrix.shape:
                raise UncorkError(
                    f"the matrix of an image has shape {self.matrix.shape}: expected two "
                    "dimensions, features × inner features"
                )
            inner.check(self.matrix.shape[1])
            if self.offset is not None and len(self.offset) != len(self.matrix):
                raise UncorkError(
                    f"an image with {len(self.matrix)} rows and an offset of {len(self.offset)}: "
                    "the counts must agree"
                )
        elif self.offset is not None:
            inner.check(len(self.offset))

    @property
    def features(self) -> int | None:
        if self.matrix is not None:
            return len(self.matrix)
        return self.inner.features if self.offset is None else len(self.offset)

    def members(self, storing: Storing) -> dict[str, Any]:
        return {**super().members(storing), "inner": storing.inner(self.inner)}

    @classmethod
    def from_members(cls, stored: Stored) -> Domain:
        return cls(stored.inner(), stored.array("matrix"), stored.array("offset"))

    def affine(self, features: int) -> Affine:
        self.check(features)
        inner = self.inner.affine(features if self.matrix is None else self.matrix.shape[1])
        steps = list(inner.steps)
        if self.matrix is not None:
            steps.append(Matrix(self.matrix))
        if self.offset is not None:
            steps.append(Shift(self.offset))
        return Affine(inner.base, tuple(steps), inner.latent, features)

    def contains(self, x: np.ndarray, tolerance: float = 0.0) -> np.ndarray:
        """As for every domain, but in floats: whether M u + c = x has a solution u is asked up to
        a tolerance of 1e-9 at least. (Proofs name u, and never ask.)"""
        x = np.asarray(x, dtype=np.float64)
        features = x.shape[-1]
        self.check(features)
        tolerance = max(tolerance, _LEAST_TOLERANCE)
        rows = x.reshape(-1, features)
        view = self.affine(features)
        matrix, offset = view.parts()
        u = view.base.outline(view.latent).nearest(matrix, rows - offset)
        with np.errstate(all="ignore"):
            off = np.abs(rows - u @ matrix.T - offset)
            size = np.abs(u) @ np.abs(matrix).T + np.abs(offset) + np.abs(rows)
            near = (off <= tolerance * size).all(axis=1) & view.base.contains(u, tolerance)
        found: np.ndarray = near.reshape(x.shape[:-1])
        return found

    def __str__(self) -> str:
        size = "" if self.features is None else f" of {self.features} features"
        return f"image({', '.join([*self._given(), f'of {self.inner}'])}){size}"

    def in_words(self, features: int) -> str:
        inner = self.inner.in_words(features if self.matrix is None else self.matrix.shape[1])
        made = "a linear map" if self.matrix is not None else "a constant shift"
        return f"the image under {made} of {inner}"


def _vector(values: Any, name: str) -> np.ndarray | None:
    if values is None:
        return None
    array = exact_numbers(values, name)
    if array.ndim != 1 or not len(array):
        raise UncorkError(f"{name} has shape {array.shape}: expected one number a feature")
    return array


def exact_numbers(values: Any, name: str) -> np.ndarray:
    """A copy in float64 that holds exactly the numbers given."""
    if hasattr(values, "detach"):  # a torch tensor, without importing torch
        values = values.detach().cpu().double().numpy()
    array = np.asarray(values)
    narrow = array.dtype.kind in "biu" or array.dtype.itemsize <= 8
    if array.dtype.kind not in "biufV" or not narrow:  # bfloat16 and alike are of kind V
        raise UncorkError(f"{name} holds {array.dtype} values: expected floats or integers")
    exact = np.array(array, dtype=np.float64)
    if not np.isfinite(exact).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(exact))[0])
        raise UncorkError(f"{name} is {exact[where]} at {', '.join(map(str, where))}: "
                          "every value must be finite")  # fmt: skip
    if array.dtype.kind in "iu" and np.abs(exact).max(initial=0.0) > 2.0**53:
        raise UncorkError(f"{name} holds integers beyond 2**53: not exact in float64")
    exact.setflags(write=False)
    return exact
