"""Verdicts, and the two kinds of proof behind them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction

import numpy as np


class Verdict(IntEnum):
    """What is known of a class. Every verdict but `UNDECIDED` rests on a proof that was checked."""

    UNDECIDED = 0
    ARGMAXABLE = 1
    UNARGMAXABLE = 2
    TIED = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Witness:
    """An input that puts its class strictly first: x (d,) floats, or x = numerators/denominator.

    Where the domain is an image x = F(u), it is u that a proof stores, and that stands here.
    """

    x: np.ndarray
    numerators: tuple[int, ...] | None = None
    denominator: int = 1

    @property
    def is_exact(self) -> bool:
        return self.numerators is not None

    def fractions(self) -> list[Fraction]:
        if self.numerators is None:
            return [Fraction(float(v)) for v in self.x]
        return [Fraction(n, self.denominator) for n in self.numerators]


@dataclass(frozen=True)
class Mixture:
    """Weights of other classes that together beat a class at every input.

    `weights` need not sum to one. `bulk` is a further weight spread evenly over *all* classes
    (the mean row); where an exact balance is needed, it is what absorbs the rounding. `tilt`, an
    input (d,), adds the weight exp(w_i·tilt − peak) to every class i: all of them at once, leaning
    one way. `integers`, where given, are the weights exactly and `weights` their float image.
    """

    classes: np.ndarray  # (n,) int
    weights: np.ndarray  # (n,) float
    bulk: float = 0.0
    integers: tuple[int, ...] | None = None
    tilt: np.ndarray | None = None
    peak: float = 0.0

    def top(self, n: int) -> list[tuple[int, float]]:
        """The n largest shares among the classes named one by one, largest first.

        A share is of all weight; what is missing to one is spread over all classes.
        """
        named = float(np.sum(self.weights, dtype=np.float64))
        total = max(named + self.bulk, 1.0 if self.tilt is not None else 0.0)
        order = np.argsort(-np.asarray(self.weights, dtype=np.float64), kind="stable")[:n]
        return [(int(self.classes[k]), float(self.weights[k]) / total) for k in order]
