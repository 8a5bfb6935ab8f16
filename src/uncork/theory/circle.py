"""Two features are enough: rows on a circle make every class argmaxable, however many there are.

What two features cannot do is rank them: C classes on a circle have at most C(C − 1) of the C!
rankings (see `counting`), a share that vanishes.
"""

from __future__ import annotations

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.domain import Domain

# Neighbours rise 2(π/C)² above the chord between theirs; rounded coordinates are off by 2⁻⁵³.
_MOST = 1_000_000


def circle_head(classes: int, domain: Domain | None = None) -> Head:
    """A head of two features whose rows are the corners of a regular polygon: (classes, 2)."""
    if not 2 <= classes <= _MOST:
        raise UncorkError(
            f"{classes} classes: a circle in float64 takes 2 to {_MOST:,}, as corners any closer "
            "are lost in rounding"
        )
    angle = 2 * np.pi * np.arange(classes) / classes
    weight = np.column_stack([np.cos(angle), np.sin(angle)])
    return Head(weight, domain=domain, source=f"circle:{classes}")
