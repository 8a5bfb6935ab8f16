"""Random heads, and what Qhull says of them: small cases where the truth is known another way."""

from __future__ import annotations

from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.domain import Domain

INITS = ("normal", "uniform")
MOST_HULL_DIMENSIONS = 9  # beyond this a hull of some hundred points no longer fits into memory


def random_head(
    classes: int,
    features: int,
    init: str = "normal",
    bias: bool = False,
    seed: int = 0,
    domain: Domain | None = None,
) -> Head:
    """A head drawn as layers are initialised: "normal" is N(0, 1), "uniform" is U(−1, 1).

    The same arguments give the same head, (classes, features) in float64. `bias` draws the bias
    from the same distribution, after the weight, so that the weight does not change with it.
    """
    if init not in INITS:
        raise UncorkError(f"init {init!r} is not known: expected {' or '.join(INITS)}")
    if classes < 2:
        raise UncorkError(f"{classes} classes: a head needs at least two")
    if features < 1:
        raise UncorkError(f"{features} features: a head needs at least one")
    if seed < 0:
        raise UncorkError(f"seed {seed}: a seed is not negative")
    generator = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        if init == "normal":
            return generator.normal(size=shape)
        return generator.uniform(-1, 1, size=shape)

    try:
        weight = draw(classes, features)
        offsets = draw(classes) if bias else None
    except (MemoryError, ValueError):
        raise UncorkError(f"{classes} × {features} numbers do not fit into memory") from None
    source = f"random:{init},{classes}x{features},seed={seed}" + (",bias" if bias else "")
    return Head(weight, offsets, domain=domain, source=source)


def hull_vertices(weight: np.ndarray) -> np.ndarray:
    """Rows of `weight` (C, d) that are vertices of the convex hull of all rows, ascending.

    Real Qhull, as the paper's check: without a bias and with x unbounded (or in any box around 0)
    these are exactly the argmaxable classes. Meant for points in general position, as random ones
    are: Qhull merges facets within rounding, so rows that lie on a face within 1e-13 or so are its
    to decide. Rows equal to one another are not vertices, as neither is ever strictly first.
    """
    points = _points(weight)
    features = points.shape[1]
    if features == 1:
        column = points[:, 0]
        ends = [np.flatnonzero(column == end) for end in (column.min(), column.max())]
        return np.unique(np.concatenate([end for end in ends if len(end) == 1 or len(column) == 1]))
    vertices = _hull(points).vertices
    return _without_duplicates(points, np.sort(np.asarray(vertices, dtype=np.int64)))


def upper_hull_vertices(weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Classes that are strictly first for some x ∈ ℝᵈ when there is a bias, ascending.

    z = W x + b is largest at a vertex of the upper hull of the points (w_i, b_i): one more
    dimension, and only the facets that look up, since the last coordinate is multiplied by 1 > 0.
    """
    weight = np.asarray(weight, dtype=np.float64)
    points = _points(np.column_stack([weight, bias]))
    hull = _hull(points)
    up = hull.equations[:, -2] > 0  # the outward normal's last coordinate
    vertices = np.unique(hull.simplices[up]).astype(np.int64)
    return _without_duplicates(points, vertices)


def exact_classes(head: Head) -> np.ndarray | None:
    """The argmaxable classes of a small head by Qhull; None where Qhull cannot say.

    With no bias a box or a ball around 0 changes nothing, as any winning x can be shrunk into it.
    With a bias only the unbounded domain is a matter of hulls.
    """
    dimensions = head.features + (head.bias is not None)
    if dimensions > MOST_HULL_DIMENSIONS or head.classes < dimensions + 1:
        return None
    if head.bias is not None:
        if not head.domain.is_everything:
            return None
        return upper_hull_vertices(head.rows(0, head.classes), head.offsets)
    # A neighbourhood of 0 is enough: its corners at a tiny scale must lie in the domain.
    corners = np.array([np.full(head.features, side) for side in (-1e-12, 1e-12)])
    if not head.domain.contains(corners).all():
        return None
    return hull_vertices(head.rows(0, head.classes))


def _points(weight: np.ndarray) -> np.ndarray:
    points = np.asarray(weight, dtype=np.float64)
    if points.ndim != 2 or not points.size:
        raise UncorkError(f"points have shape {points.shape}: expected classes × features")
    if points.shape[1] > MOST_HULL_DIMENSIONS:
        raise UncorkError(
            f"Qhull is asked for {points.shape[1]} dimensions: {MOST_HULL_DIMENSIONS} is the most"
        )
    return points


def _hull(points: np.ndarray) -> Any:
    from scipy.spatial import ConvexHull, QhullError

    try:
        return ConvexHull(points)
    except (QhullError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UncorkError(
            f"Qhull finds no hull of {points.shape[0]} points in {points.shape[1]} dimensions (too "
            f"few, or all on one plane?): {reason}"
        ) from error


def _without_duplicates(points: np.ndarray, vertices: np.ndarray) -> np.ndarray:
    _, first, counts = np.unique(points, axis=0, return_inverse=True, return_counts=True)
    return vertices[counts[np.ravel(first)[vertices]] == 1]
