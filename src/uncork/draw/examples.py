"""Heads after figures of the paper (Grivas, Bogoychev and Lopez, ACL 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.domain import Unbounded


@dataclass(frozen=True)
class Example:
    """Rows (w, b) and what is drawn of them; the bias is left out unless asked for."""

    rows: tuple[tuple[float, ...], ...]
    what: str
    about: str


EXAMPLES = {
    1: Example(
        ((-2, -2, 0.2), (1, 2, 0.1), (1.75, -0.75, -0.2), (0.875, 0.25, 0.9)),
        "both",
        "a class inside the hull of the others can never win",
    ),
    2: Example(
        ((-2, -1, 0), (-0.75, 1.75, 0.3), (1.5, 1.25, -0.2), (1.25, -1.75, 0.1)),
        "both",
        "four classes that all win",
    ),
    3: Example(
        ((1.5, 0.4), (0.25, 0.7), (-1.5, -0.5)),
        "braid",
        "three classes and one feature: a line through the braid arrangement",
    ),
    7: Example(
        ((1.5, 0.75, 0.5), (-1.5, 1, -0.75), (0.25, -1.75, 1)),
        "braid",
        "three classes and two features: every ranking",
    ),
    8: Example(
        ((-2, -1.5, 0), (0.25, 2, 0.25), (2, -0.75, -0.25), (0.125, 0.125, 1)),
        "braid",
        "four classes and two features: a plane through the braid arrangement",
    ),
}


def example(figure: int, *, bias: bool = False) -> Head:
    """The head of a figure, with its bias or without."""
    if figure not in EXAMPLES:
        known = ", ".join(map(str, EXAMPLES))
        raise UncorkError(f"there is no example after Figure {figure}: there are {known}")
    rows = np.array(EXAMPLES[figure].rows, dtype=np.float64)
    offsets = rows[:, -1] if bias else None
    return Head(rows[:, :-1], offsets, domain=Unbounded(), source=f"figure:{figure}")
