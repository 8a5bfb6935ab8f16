"""Items to try things on: LIMIT's number of them at random, and curves on which sets are possible.

LIMIT (Weller, Boratko, Naim and Lee 2025, "On the theoretical limitations of embedding-based
retrieval") asks for every pair of 46 documents. On the moment curve in 2k features every set of k
items or fewer can be before all others, however many items there are: with the polynomial
p(t) = Π (t − t_i)² over the set, −p is zero on the set and below it elsewhere, and it is a query.
"""

from __future__ import annotations

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.items import Items

LIMIT_ITEMS = 46


def random_items(count: int, features: int, seed: int = 0) -> Items:
    """Items on the unit sphere, each direction as likely as any other, in float32."""
    if features < 1:
        raise UncorkError(f"{features} features: expected one or more")
    if seed < 0:
        raise UncorkError(f"seed {seed}: a seed is not negative")
    drawn = np.random.default_rng(seed).standard_normal((count, features))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return Items(drawn.astype(np.float32), source=f"{count} random vectors (seed {seed})")


def moment_curve(count: int, features: int) -> Items:
    """Items (t, t², …, tᵈ) at evenly spaced t in [−1, 1], exact in float64 for few features."""
    points = np.linspace(-1, 1, count)
    rows = points[:, None] ** np.arange(1, features + 1)
    return Items(rows, source=f"{count} points of the moment curve")


def polygon(count: int) -> Items:
    """The corners of a regular polygon, in float64."""
    angles = 2 * np.pi * np.arange(count) / count
    return Items(np.column_stack([np.cos(angles), np.sin(angles)]), source=f"{count} corners")
