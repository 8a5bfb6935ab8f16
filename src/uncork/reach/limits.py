"""What reach, repair and prevent refuse to begin with: sizes whose squares float64 does not hold,
or bounds asked to be closer than it tells apart."""

from __future__ import annotations

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head

LARGEST = 1e140  # squares of larger numbers, summed over a row, overflow
SMALLEST = 1e-140  # squares of smaller numbers are rounded to nothing
_BLOCK = 8192


def check_sizes(head: Head, *, small: bool = True, biases: bool = True) -> None:
    """Raise if weights, or `biases`, are too large to be squared, or weights too small (`small`).

    Weights that are all zero are allowed.
    """
    weight = max(float(np.abs(block).max(initial=0.0)) for _, block in head.blocks(_BLOCK))
    if weight >= LARGEST or (small and 0 < weight <= SMALLEST):
        raise UncorkError(
            f"the weight's largest value is {weight:g}, and float64 does not hold its square "
            "with room to spare: scale the weights first"
        )
    bias = float(np.abs(head.offsets).max(initial=0.0))
    if biases and bias >= LARGEST:
        raise UncorkError(
            f"the bias's largest value is {bias:g}, and float64 does not hold its square with "
            "room to spare: bring it nearer to 0, or scale weights and bias first"
        )


def check_temperature(temperature: float, alpha: float = 2.0) -> None:
    """Raise unless logits over the temperature (for entmax, times α − 1) can be squared."""
    if not (temperature > 0 and np.isfinite(temperature)):
        raise UncorkError(f"temperature must be a positive number, not {temperature}")
    if temperature <= SMALLEST:
        raise UncorkError(
            f"temperature {temperature:g} is too small: float64 does not hold the square of what "
            f"it makes of the logits; give one above {SMALLEST:g}"
        )
    if (alpha - 1) / temperature >= LARGEST:
        raise UncorkError(
            f"alpha {alpha:g} is too large at temperature {temperature:g}: float64 does not hold "
            f"the square of what it makes of the logits; give one below {LARGEST * temperature:g}"
        )


def check_bounds(head: Head, temperature: float, gap: float, alpha: float = 2.0) -> None:
    """Raise unless probabilities of this head at this temperature can be bounded so closely."""
    check_temperature(temperature, alpha)
    check_sizes(head, small=False)
    if not 1e-12 < gap < 1:
        raise UncorkError(f"gap must lie between 1e-12 and 1, and is {gap}")
