"""A domain as x = F(u): a plain set of u, and exact steps from u to x.

The steps are kept apart, because their product would have to be rounded: every number in them is
exact, and so is what they say together.

A step brings itself and its transpose three times over: in plain floats for searching, in floats
with a componentwise error bound, and in fractions. The last two are what proofs rest on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from uncork.core.rigour import TINY, UNIT, add_up, gamma, integers, mul_up, up, whole_bits
from uncork.domain.protocol import Domain


class Constants:
    """A device, and the arrays of steps that were put there, each once."""

    def __init__(self, device: Any) -> None:
        self.device, self.xp = device, device.xp
        self._held: dict[int, tuple[np.ndarray, Any]] = {}

    def put(self, array: np.ndarray) -> Any:
        if id(array) not in self._held:
            self._held[id(array)] = array, self.device.put(np.asarray(array, dtype=np.float64))
        return self._held[id(array)][1]


class Pulled(NamedTuple):
    """r·x as a function of what x was made from, g·u + s, and how far each may be off."""

    rows: Any  # g (n, width)
    error: Any
    shift: Any  # s (n,)
    slack: Any


class Step:
    """One step of x = F(u). `on` says where the arrays are that it is given."""

    is_shift = False  # the others are linear

    @property
    def moves_zero(self) -> bool:
        """Whether it makes anything of zero."""
        return False

    def apply(self, u: np.ndarray) -> np.ndarray:
        """In plain floats: (…, width) → (…, width after the step)."""
        raise NotImplementedError

    def fold(self, rows: Any, on: Constants) -> Any:
        """The transpose of its linear part in plain floats: rows (n, width after) → (n, width)."""
        raise NotImplementedError

    def forward(self, values: Any, error: Any, on: Constants) -> tuple[Any, Any]:
        """As `apply`, for values known up to `error`; with what the result may be off by."""
        raise NotImplementedError

    def back(self, pulled: Pulled, on: Constants) -> Pulled:
        """r·x, known as a function of what leaves the step, as one of what enters it."""
        raise NotImplementedError

    def forward_exactly(self, values: list[Fraction]) -> list[Fraction]:
        raise NotImplementedError

    def back_exactly(self, r: list[Fraction], s: Fraction) -> tuple[list[Fraction], Fraction]:
        raise NotImplementedError

    def rank(self, width: int) -> int:
        """An upper bound on its rank, where `width` numbers enter it."""
        return width

    @property
    def growth(self) -> float:
        """How many times as large `fold` may make the largest number of a row."""
        return 1.0

    def bits(self, width: int) -> int:
        """By how many bits `back_exactly` may lengthen whole numbers."""
        raise NotImplementedError


@dataclass(frozen=True)
class Centre(Step):
    """u ↦ u − mean(u): what LayerNorm does first. One dimension is lost. Only ever the first step;
    its own transpose."""

    def apply(self, u: np.ndarray) -> np.ndarray:
        found: np.ndarray = u - u.mean(axis=-1, keepdims=True)
        return found

    def fold(self, rows: Any, on: Constants) -> Any:
        return rows - on.xp.mean(rows, axis=1, keepdims=True)

    def forward(self, values: Any, error: Any, on: Constants) -> tuple[Any, Any]:
        xp, count = on.xp, values.shape[1] + 8
        mean = xp.sum(values, axis=1, keepdims=True) / values.shape[1]
        # The mean errs by the rounding of its sum, and by the mean of the entries' errors.
        size = xp.abs(values)
        off = xp.sum(gamma(count) * size + error, axis=1, keepdims=True) / values.shape[1]
        result = values - mean
        wrong = error + off + 2 * UNIT * (xp.abs(result) + xp.abs(mean))
        return result, up(wrong, count)

    def back(self, pulled: Pulled, on: Constants) -> Pulled:
        return Pulled(*self.forward(pulled.rows, pulled.error, on), pulled.shift, pulled.slack)

    def forward_exactly(self, values: list[Fraction]) -> list[Fraction]:
        mean = sum(values, Fraction(0)) / len(values)
        return [v - mean for v in values]

    def back_exactly(self, r: list[Fraction], s: Fraction) -> tuple[list[Fraction], Fraction]:
        return self.forward_exactly(r), s

    def rank(self, width: int) -> int:
        return width - 1

    def bits(self, width: int) -> int:
        return 2 * width.bit_length()


@dataclass(frozen=True, eq=False)
class Scale(Step):
    """u ↦ gain ⊙ u: its own transpose."""

    gain: np.ndarray  # (d,)

    def apply(self, u: np.ndarray) -> np.ndarray:
        found: np.ndarray = u * self.gain
        return found

    def fold(self, rows: Any, on: Constants) -> Any:
        return rows * on.put(self.gain)

    def forward(self, values: Any, error: Any, on: Constants) -> tuple[Any, Any]:
        xp, gain = on.xp, on.put(self.gain)
        result = values * gain
        # A gain of zero is exact; every other product may round or underflow.
        wrong = mul_up(error, xp.abs(gain), xp)
        rounding = 2 * UNIT * xp.abs(result) + TINY * xp.astype(gain != 0, xp.float64)
        return result, add_up(wrong, rounding)

    def back(self, pulled: Pulled, on: Constants) -> Pulled:
        return Pulled(*self.forward(pulled.rows, pulled.error, on), pulled.shift, pulled.slack)

    def forward_exactly(self, values: list[Fraction]) -> list[Fraction]:
        return [v * Fraction(g) for v, g in zip(values, self.gain.tolist(), strict=True)]

    def back_exactly(self, r: list[Fraction], s: Fraction) -> tuple[list[Fraction], Fraction]:
        return self.forward_exactly(r), s

    def rank(self, width: int) -> int:
        return int(np.count_nonzero(self.gain))

    @property
    def growth(self) -> float:
        return float(np.abs(self.gain).max())

    def bits(self, width: int) -> int:
        return whole_bits([self.gain])


@dataclass(frozen=True, eq=False)
class Matrix(Step):
    """u ↦ A u."""

    matrix: np.ndarray  # (rows, columns)

    def apply(self, u: np.ndarray) -> np.ndarray:
        found: np.ndarray = u @ self.matrix.T
        return found

    def fold(self, rows: Any, on: Constants) -> Any:
        return rows @ on.put(self.matrix)

    def forward(self, values: Any, error: Any, on: Constants) -> tuple[Any, Any]:
        return _product(values, error, on.put(self.matrix).T, on)

    def back(self, pulled: Pulled, on: Constants) -> Pulled:
        rows, error = _product(pulled.rows, pulled.error, on.put(self.matrix), on)
        return Pulled(rows, error, pulled.shift, pulled.slack)

    def forward_exactly(self, values: list[Fraction]) -> list[Fraction]:
        return [dot(values, row) for row in self.matrix]

    def back_exactly(self, r: list[Fraction], s: Fraction) -> tuple[list[Fraction], Fraction]:
        return [dot(r, column) for column in self.matrix.T], s

    def rank(self, width: int) -> int:
        return min(int(self.matrix.any(axis=axis).sum()) for axis in (0, 1))

    @property
    def growth(self) -> float:
        return float(np.abs(self.matrix).sum(axis=0).max())

    def bits(self, width: int) -> int:
        return whole_bits([self.matrix])


@dataclass(frozen=True, eq=False)
class Shift(Step):
    """u ↦ u + offset."""

    offset: np.ndarray  # (d,)

    is_shift = True

    @property
    def moves_zero(self) -> bool:
        return bool(self.offset.any())

    def apply(self, u: np.ndarray) -> np.ndarray:
        found: np.ndarray = u + self.offset
        return found

    def fold(self, rows: Any, on: Constants) -> Any:
        return rows

    def forward(self, values: Any, error: Any, on: Constants) -> tuple[Any, Any]:
        values = values + on.put(self.offset)
        return values, up(error + 2 * UNIT * on.xp.abs(values), 3)

    def back(self, pulled: Pulled, on: Constants) -> Pulled:
        xp, offset = on.xp, on.put(self.offset)
        rows, error, shift, slack = pulled
        size, count = xp.abs(offset), len(self.offset) + 16
        moved = rows @ offset
        slack = slack + error @ size + gamma(count) * (xp.abs(rows) @ size)
        shift = shift + moved
        slack = up(slack + 2 * UNIT * xp.abs(shift), count)
        return Pulled(rows, error, shift, slack)

    def forward_exactly(self, values: list[Fraction]) -> list[Fraction]:
        return [v + Fraction(c) for v, c in zip(values, self.offset.tolist(), strict=True)]

    def back_exactly(self, r: list[Fraction], s: Fraction) -> tuple[list[Fraction], Fraction]:
        return r, s + dot(r, self.offset)

    def bits(self, width: int) -> int:
        return whole_bits([self.offset])


def _product(values: Any, error: Any, matrix: Any, on: Constants) -> tuple[Any, Any]:
    """values @ matrix, and what it may be off by."""
    xp, count = on.xp, values.shape[1] + 8
    # γ comes last: γ|u| may be nothing, and |A| make it something again.
    wrong = gamma(count) * ((error / gamma(count) + xp.abs(values)) @ xp.abs(matrix))
    return values @ matrix, up(wrong, count)


def dot(a: Sequence[Fraction], b: np.ndarray) -> Fraction:
    """a·b, exactly, by way of whole numbers."""
    scale = math.lcm(*(v.denominator for v in a)) if len(a) else 1
    whole = [v.numerator * (scale // v.denominator) for v in a]
    row, row_scale = integers(b)
    return Fraction(sum(p * q for p, q in zip(whole, row, strict=True)), scale * row_scale)


@dataclass(frozen=True)
class Affine:
    """x = steps(u) with u in a plain domain; without steps x is u itself."""

    base: Domain  # a plain set
    steps: tuple[Step, ...]  # in the order in which they are applied to u
    latent: int  # how many numbers u has
    features: int  # how many x has

    @property
    def rank(self) -> int:
        """An upper bound on the dimension of the domain."""
        ranks = (step.rank(self.latent) for step in self.steps)
        return min(self.latent, self.features, *ranks)

    @property
    def is_point(self) -> bool:
        """Whether only one x can arrive."""
        outline = self.base.outline(self.latent)
        return bool((outline.lower == outline.upper).all()) or self.rank == 0

    def image(self, u: np.ndarray) -> np.ndarray:
        """x for each u, in floats: (…, latent) → (…, d)."""
        x = np.asarray(u, dtype=np.float64)
        for step in self.steps:
            x = step.apply(x)
        return x

    @property
    def linear_part(self) -> Affine:
        """u ↦ M u, where x = M u + c."""
        linear = tuple(step for step in self.steps if not step.is_shift)
        return Affine(self.base, linear, self.latent, self.features)

    def linear(self, u: np.ndarray) -> np.ndarray:
        """M u for each u, where x = M u + c: (…, latent) → (…, d)."""
        return self.linear_part.image(u)

    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        """M (d, latent) and c (d,) with x = M u + c, in floats."""
        return self.linear(np.eye(self.latent)).T, self.image(np.zeros(self.latent))
