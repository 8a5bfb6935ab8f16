"""Where each class wins, as polygons of the plane and as solids: in floats, for pictures only."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head

_MARGIN = 1.35
_FLAT = 1e-9
_LARGEST = 1e100  # what may be drawn: areas and products of larger numbers overflow


@dataclass(frozen=True)
class View:
    """The part of the inputs that is drawn: middle (d,) and half-width, and the domain's bounds."""

    middle: np.ndarray
    half: float
    lower: np.ndarray
    upper: np.ndarray

    @property
    def whole(self) -> bool:
        """Whether the domain's edge is out of sight."""
        return bool(
            (self.lower <= self.middle - self.half).all()
            and (self.upper >= self.middle + self.half).all()
        )

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """What is both seen and in the domain."""
        return (
            np.maximum(self.lower, self.middle - self.half),
            np.minimum(self.upper, self.middle + self.half),
        )


def rows_of(head: Head) -> tuple[np.ndarray, np.ndarray]:
    """Weight (C, d) and bias (C,) in float64, refused where squares would overflow."""
    weight, bias = head.rows(0, head.classes), head.offsets
    size = max(float(np.abs(weight).max()), float(np.abs(bias).max()))
    if size > _LARGEST or (0 < float(np.abs(weight).max()) < 1 / _LARGEST):
        raise UncorkError(f"weights of size {size:g} cannot be drawn: scale them first")
    return weight, np.asarray(bias, dtype=np.float64)


def domain_bounds(head: Head) -> tuple[np.ndarray, np.ndarray]:
    """The sides of the domain, infinite where there are none."""
    outline = head.domain.outline(head.features)
    if outline.is_box:
        lower, upper = outline.lower, outline.upper
        sides = np.abs(np.concatenate([lower, upper]))
        farthest = float(sides.max(where=np.isfinite(sides), initial=0.0))
        if farthest > _LARGEST:
            raise UncorkError(
                f"a domain with a side at {farthest:g} cannot be drawn: use one within "
                f"±{_LARGEST:g}, or unbounded"
            )
        if (lower < upper).all():
            return lower, upper
    raise UncorkError(
        f"regions are drawn over a box with an inside or over all inputs, not over {head.domain}"
    )


def view_of(head: Head, extent: float | None = None, *, walls: bool = False) -> View:
    """What to show: all corners of the argmax regions (or of all walls) with some room around,
    or ±extent."""
    lower, upper = domain_bounds(head)
    weight, bias = rows_of(head)
    middle = np.zeros(head.features)
    if extent is not None:
        if not (np.isfinite(extent) and extent > 0):
            raise UncorkError(f"extent {extent}: expected a positive number")
        if not 1 / _LARGEST <= extent <= _LARGEST:
            raise UncorkError(
                f"extent {extent:g} cannot be drawn: expected {1 / _LARGEST:g} to {_LARGEST:g}"
            )
        return View(middle, extent, lower, upper)
    size = float(np.ptp(bias)) / (float(np.abs(weight - weight.mean(axis=0)).max()) or 1.0)
    if size == 0:
        half = 1.0
    else:
        corners = _corners(weight, bias, walls)
        half = size
        if len(corners):
            low, high = corners.min(axis=0), corners.max(axis=0)
            middle = (low + high) / 2
            room = 1.2 * _MARGIN if walls else _MARGIN
            half = max(room * float((high - low).max()) / 2, size / 2)
    if np.isfinite(lower).all() and np.isfinite(upper).all():
        # A small box is shown whole; a large one is no reason to look from afar.
        width = float((upper - lower).max()) / 2
        around = bool(((lower < middle - half) & (upper > middle + half)).all())
        if width < 1.5 * half or (size == 0 and not around):
            middle, half = (lower + upper) / 2, 1.12 * width
    return View(middle, half, lower, upper)


def _corners(weight: np.ndarray, bias: np.ndarray, walls: bool) -> np.ndarray:
    """Inputs at which d + 1 classes share first place, without outliers: (n, d)."""
    features = weight.shape[1]
    most = 60 if features == 2 else 24
    order = np.argsort(-np.linalg.norm(weight - weight.mean(axis=0), axis=1))[:most]
    if len(order) < features + 1:
        return np.zeros((0, features))
    chosen = np.array(list(itertools.combinations(order.tolist(), features + 1)))
    rows = weight[chosen[:, 1:]] - weight[chosen[:, :1]]  # (n, d, d)
    sides = bias[chosen[:, 0]][:, None] - bias[chosen[:, 1:]]
    sound = np.abs(np.linalg.det(rows)) > _FLAT * np.abs(rows).max(axis=(1, 2)) ** features
    points = np.linalg.solve(rows[sound], sides[sound][..., None])[..., 0]
    if walls:
        return np.vstack([points, _crossings(weight, bias)])
    logits = points @ weight.T + bias
    own = np.take_along_axis(logits, chosen[sound][:, :1], axis=1)[:, 0]
    size = np.abs(logits).max(axis=1) + np.abs(bias).max()
    points = points[own >= logits.max(axis=1) - 1e-7 * size]
    if len(points) > 4:  # corners far away from the others would leave the rest too small to see
        far = np.abs(points - np.median(points, axis=0)).max(axis=1)
        points = points[far <= 5 * np.median(far)]
    return points


def _crossings(weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Where the walls of two pairs of four classes meet, in the plane: (n, 2)."""
    pairs = list(itertools.combinations(range(len(weight)), 2))
    met = []
    for (i, j), (k, m) in itertools.combinations(pairs, 2):
        rows = np.array([weight[i] - weight[j], weight[k] - weight[m]])
        if abs(np.linalg.det(rows)) > 0.02 * np.linalg.norm(rows[0]) * np.linalg.norm(rows[1]):
            met.append(np.linalg.solve(rows, [bias[j] - bias[i], bias[m] - bias[k]]))
    return np.array(met).reshape(-1, 2)


def square(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """The corners of a rectangle, in order: (4, 2)."""
    (x0, y0), (x1, y1) = lower, upper
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])


def cut(polygon: np.ndarray, normal: np.ndarray, offset: float) -> np.ndarray:
    """The part of a convex polygon (n, 2) where normal · p + offset ≥ 0."""
    if not len(polygon):
        return polygon
    value = polygon @ normal + offset
    kept: list[np.ndarray] = []
    for k in range(len(polygon)):
        after = (k + 1) % len(polygon)
        here, following = value[k], value[after]
        if here >= 0:
            kept.append(polygon[k])
        if (here >= 0) != (following >= 0):
            share = here / (here - following)
            kept.append(polygon[k] + share * (polygon[after] - polygon[k]))
    return np.array(kept).reshape(-1, 2)


def region(weight: np.ndarray, bias: np.ndarray, t: int, polygon: np.ndarray) -> np.ndarray:
    """The part of a polygon where class t is first: (n, 2)."""
    for i in range(len(weight)):
        if i != t and len(polygon):
            polygon = cut(polygon, weight[t] - weight[i], float(bias[t] - bias[i]))
    return polygon


def ranked(
    weight: np.ndarray, bias: np.ndarray, order: tuple[int, ...], polygon: np.ndarray
) -> np.ndarray:
    """The part of a polygon where the classes are in that order: (n, 2)."""
    for a, b in itertools.pairwise(order):
        polygon = cut(polygon, weight[a] - weight[b], float(bias[a] - bias[b]))
    return polygon


def across(weight: np.ndarray, bias: np.ndarray, t: int, points: np.ndarray) -> set[int]:
    """Classes as high as t at points of the border of its region: its neighbours there."""
    logits = points @ weight.T + bias
    own = logits[:, t : t + 1]
    size = np.abs(points).sum(axis=1, keepdims=True) * np.abs(weight).max() + np.abs(bias).max()
    return {int(i) for i in np.flatnonzero((own - logits <= 1e-9 * size).any(axis=0)) if i != t}


def inside(polygon: np.ndarray) -> tuple[np.ndarray, float]:
    """The middle of the largest circle inside a polygon, and its radius: where a name fits."""
    from scipy.optimize import linprog

    edges = np.roll(polygon, -1, axis=0) - polygon
    lengths = np.linalg.norm(edges, axis=1)
    sound = lengths > 1e-12 * max(float(np.abs(polygon).max()), 1e-300)
    inward = np.column_stack([-edges[:, 1], edges[:, 0]])[sound] / lengths[sound, None]
    if _area(polygon) < 0:
        inward = -inward
    offsets = -(inward * polygon[sound]).sum(axis=1)
    size = float(np.ptp(polygon, axis=0).max()) or 1.0
    found = linprog(
        [0, 0, -1], A_ub=np.column_stack([-inward, np.ones(len(inward))]), b_ub=offsets,
        bounds=[(None, None), (None, None), (0, size)],
    )  # fmt: skip
    if not found.success:
        return polygon.mean(axis=0), 0.0
    return found.x[:2], float(found.x[2])


def _area(polygon: np.ndarray) -> float:
    x, y = polygon.T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def solid(
    weight: np.ndarray, bias: np.ndarray, t: int, lower: np.ndarray, upper: np.ndarray
) -> list[np.ndarray]:
    """The faces of the polyhedron where class t is first within a box, each (n, 3) in order."""
    from scipy.optimize import linprog
    from scipy.spatial import HalfspaceIntersection, QhullError

    normals = np.delete(weight - weight[t], t, axis=0)
    offsets = np.delete(bias - bias[t], t)
    norms = np.linalg.norm(normals, axis=1)
    real = norms > 0
    planes = np.column_stack([normals[real] / norms[real, None], offsets[real] / norms[real]])
    box = np.vstack([np.column_stack([np.eye(3), -upper]), np.column_stack([-np.eye(3), lower])])
    planes = np.vstack([planes, box])  # a·x + c ≤ 0
    size = float((upper - lower).max())
    found = linprog(
        [0, 0, 0, -1], A_ub=np.column_stack([planes[:, :3], np.ones(len(planes))]),
        b_ub=-planes[:, 3], bounds=[(None, None)] * 3 + [(0, size)],
    )  # fmt: skip
    if not found.success or found.x[3] < 1e-6 * size:
        return []
    try:
        corners = HalfspaceIntersection(planes, found.x[:3]).intersections
    except QhullError:
        return []
    corners = np.unique(np.round(corners / size, 9), axis=0) * size
    faces = []
    for plane in planes:
        on = corners[np.abs(corners @ plane[:3] + plane[3]) < 1e-6 * size]
        if len(on) >= 3:
            faces.append(_in_order(on, plane[:3]))
    return faces


def _in_order(points: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Points of a plane in order around their middle."""
    middle = points.mean(axis=0)
    first = points[0] - middle
    second = np.cross(normal, first)
    angle = np.arctan2((points - middle) @ second, (points - middle) @ first)
    return points[np.argsort(angle)]
