"""Items as a metric scores them: z_i = a_i·x + c_i, every number with a bound on its error.

    inner       a = w            c = b, or 0
    euclidean   a = w            c = −½‖w‖²      (‖x‖² is the same for all)
    cosine      a = w / ‖w‖      c = 0           (‖x‖ is the same for all; a row of zeros scores 0)

Trusted code: a proof about documents is a proof about these numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.items import Items
from uncork.core.rigour import TINY, gamma, integers, row_norms, up

_ROWS = 4096


@dataclass(frozen=True)
class Rows:
    """Some items: a (n, d), c (n,), and how far each number may be off."""

    values: np.ndarray
    error: np.ndarray  # (n, d)
    constants: np.ndarray
    slack: np.ndarray  # (n,)


class Scored:
    """The rows and constants of items under their metric."""

    def __init__(self, items: Items) -> None:
        self.items = items
        self.count, self.features = len(items), items.features
        # a is w itself but for cosine, where dividing by a computed length errs by so much of it
        self.share = gamma(self.features + 12) if items.metric == "cosine" else 0.0

    @cached_property
    def constants(self) -> np.ndarray:
        """c_i in floats: (n,)."""
        if self.items.metric == "euclidean":
            parts = [np.einsum("ij,ij->i", block, block) for _, block in self.items.blocks(_ROWS)]
            halves: np.ndarray = np.concatenate(parts) * -0.5
            if not np.isfinite(4 * halves).all():
                raise UncorkError("the vectors are too long for Euclidean distances in float64")
            return halves
        if self.items.bias is None:
            return np.zeros(self.count)
        return np.asarray(self.items.bias, dtype=np.float64)

    @cached_property
    def slack(self) -> np.ndarray:
        """How far c_i may be off: (n,)."""
        if self.items.metric != "euclidean":
            return np.zeros(self.count)
        off = gamma(self.features + 4) * np.abs(self.constants) + self.features * TINY
        return np.where(self.constants == 0, np.where(self.norms == 0, 0.0, off), off)

    @cached_property
    def norms(self) -> np.ndarray:
        """Upper bounds on ‖a_i‖, as computed: (n,)."""
        return np.concatenate([row_norms(block) for _, block in self.blocks(_ROWS)])

    @property
    def is_exact(self) -> bool:
        """Whether a and c are fractions, so that exact arithmetic can have the last word."""
        return self.items.metric != "cosine"

    def blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        """Every a_i in order, `rows` at a time: (first item, block)."""
        for start, block in self.items.blocks(rows):
            yield start, self._scaled(block)

    def take(self, ids: np.ndarray) -> Rows:
        rows = self.items.take(ids)
        values = self._scaled(rows)
        error = np.zeros_like(values)
        if self.share:  # where w is not zero: w / ‖w‖ may have rounded to it
            error = up(self.share * np.abs(values) + TINY, 2) * (rows != 0)
        return Rows(values, error, self.constants[ids], self.slack[ids])

    def exactly(self, i: int) -> list[Fraction]:
        """(a_i, c_i) in fractions; not for cosine."""
        whole, scale = integers(self.items.rows(i, i + 1)[0])
        if self.items.metric == "euclidean":
            constant = Fraction(-sum(v * v for v in whole), 2 * scale * scale)
        else:
            constant = Fraction(float(self.constants[i]))
        return [*(Fraction(v, scale) for v in whole), constant]

    def same_direction(self, i: int, j: int) -> bool:
        """Whether w_j = s·w_i for some s > 0, exactly."""
        (a, _), (b, _) = (integers(self.items.rows(k, k + 1)[0]) for k in (i, j))
        at = next((k for k, v in enumerate(a) if v), None)
        if at is None or a[at] * b[at] <= 0:
            return not any(a) and not any(b)
        return all(p * b[at] == q * a[at] for p, q in zip(a, b, strict=True))

    def _scaled(self, block: np.ndarray) -> np.ndarray:
        if self.items.metric != "cosine":
            return block
        largest = np.abs(block).max(axis=1, initial=0.0, keepdims=True)
        whole = block / np.where(largest > 0, largest, 1.0)
        lengths = np.sqrt(np.einsum("ij,ij->i", whole, whole))[:, None]
        return np.asarray(whole / np.where(lengths > 0, lengths, 1.0))
