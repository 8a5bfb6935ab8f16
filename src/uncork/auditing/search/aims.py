"""First inputs for classes, of several kinds: which of them win is tried on a sample.

In whitened coordinates a class's own row is where its input is sought. Straight ahead, that is an
input x = s·Kᵀv_t, as long as fits. Where there is a bias and a box, the length matters, and so does
the corner that a long input is pressed into. Then an input is also sought at

    o + ℓ·Kᵀv_t,   o being where b + W x varies least,

and moved to the nearest of the box, as logits go. Lengths ℓ are in units of what still varies at o,
so it does not matter where a box has its zero: [0, 1] is [−½, ½] with another bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing.search.space import Space

_SHARES = (0.25, 0.0625)  # of the largest length that fits, where lengths matter
_LENGTHS = (3.0, 1.0, 10.0, 100.0)  # in units of the bias
_ROUNDS = 4  # towards the input nearest to such a guess


def first_inputs(space: Space, classes: np.ndarray, share: float = 1.0) -> Any:
    """The first guess for each class, inside the domain: (n, d) on the device."""
    return space.with_fixed(space.enter(_rows(space, classes) @ space.to_input_device, share))


def _rows(space: Space, classes: np.ndarray) -> Any:
    """The whitened rows of some classes: (n, k)."""
    return space.points[space.backend.index(classes)][:, : len(space.to_input)]


@dataclass(frozen=True)
class Aim:
    """One kind of first input."""

    space: Space
    length: float  # a share of the longest where straight, else in units of the bias
    straight: bool = True

    @property
    def by_formula(self) -> bool:
        return self.straight and self.length == 1.0

    def inputs(self, classes: np.ndarray) -> Any:
        """An input of the domain for each class: (n, d) on the device."""
        space = self.space
        if self.straight:
            return first_inputs(space, classes, self.length)
        even, deviation = space.most_even
        y = even + _rows(space, classes) * (self.length * deviation)
        return space.projected((y @ space.to_input_device) * space.bias_scale, _ROUNDS)


def aims(space: Space) -> list[Aim]:
    """All kinds for this space, cheap ones first."""
    straight, nearest = [Aim(space, 1.0)], []
    if space.lifted:
        straight += [Aim(space, share) for share in _SHARES]
    boxed = space.lifted and space.outline.is_box and space.outline.has_sides
    # The nearest input is sought with a square of the features: not where classes are far fewer.
    if (space.has_walls or boxed) and space.features <= 2 * len(space.to_input):
        lengths = _LENGTHS if space.lifted else _LENGTHS[:1]
        nearest = [Aim(space, length, straight=False) for length in lengths]
    return straight + nearest
