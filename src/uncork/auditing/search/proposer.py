"""What a proposer is: a name, and a function from a space and classes to proposals.

An audit goes through a list of proposers (`uncork.auditing.search`) and hands each the classes
that are still undecided. A proposer is a generator: every proposal it yields goes to the
certifier, so a wrong one costs time and never a false verdict. The audit keeps the time, shows
progress and survives Ctrl-C; a proposer that works long asks `search.late()` now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from uncork.auditing.proofs.verdict import Mixture, Witness
from uncork.auditing.search.space import Space
from uncork.core.head import Head
from uncork.domain import Domain

Stage = Literal["prepare", "screen", "decide"]  # where a proposer's seconds are counted


@dataclass(frozen=True)
class Witnesses:
    """An input for each of some classes that should put it first.

    `inputs` (n, d) are NumPy's or the device's, moved to where the certifier looks for them
    (`Space.proposed`). `formula`: they are the classes' own first guesses, which a certificate
    can store as a formula.
    """

    classes: np.ndarray  # (n,)
    inputs: Any
    formula: bool = False


@dataclass(frozen=True)
class FirstGuesses:
    """The first guesses of some classes, by the formula that the recorder has for them all."""

    classes: np.ndarray  # (n,)
    tiles: int = 1  # of the product of all guesses, that are made for them


@dataclass(frozen=True)
class ExactWitness:
    """An input in fractions that should put one class first."""

    class_id: int
    witness: Witness

    @property
    def classes(self) -> np.ndarray:
        return np.array([self.class_id])


@dataclass(frozen=True)
class Mixtures:
    """For each of some classes a mixture of others that should beat it everywhere."""

    pairs: list[tuple[int, Mixture]]

    @property
    def classes(self) -> np.ndarray:
        return np.array([t for t, _ in self.pairs], dtype=np.int64)


@dataclass(frozen=True)
class GaveUp:
    """Nothing for this class, and why: what the audit says of it if it stays undecided."""

    class_id: int
    why: str

    @property
    def classes(self) -> np.ndarray:
        return np.array([self.class_id])


Proposal = Witnesses | FirstGuesses | ExactWitness | Mixtures | GaveUp


@dataclass
class Search:
    """The audit as a proposer sees it: its limits, and the hints that proposers leave behind."""

    head: Head  # as it is, where the space may see it through an image domain
    domain: Domain
    late: Callable[[], bool]  # whether the time limit is reached
    seconds_left: Callable[[], float]
    # Certifies what is waiting, and returns those of the classes that are undecided then.
    undecided: Callable[[np.ndarray], np.ndarray]
    patience: int | None = None  # reflections, where their number is given
    exact_seconds: float = 60.0  # for one class in exact arithmetic
    formula: bool = False  # whether a formula for the first guesses of all classes is at hand
    # Hints: directions (n, width) at which some classes (n,) nearly won, and who else matters.
    nearly_won: tuple[np.ndarray, Any] | None = None
    rivals: dict[int, np.ndarray] = field(default_factory=dict)


def _one_a_class(classes: np.ndarray, space: Space) -> int | None:
    return len(classes)


@dataclass(frozen=True)
class Proposer:
    """A way to find proofs."""

    name: str
    stage: Stage
    propose: Callable[[Space, np.ndarray, Search], Iterator[Proposal]]
    title: str = ""  # what progress calls it, where it is a stage of its own there
    # Until it is done, if known; none where it has nothing to do.
    steps: Callable[[np.ndarray, Space], int | None] = _one_a_class
    uses_space: bool = True  # whether another space may lead it to more
