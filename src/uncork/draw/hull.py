"""The rows of a head of two or three features, and their convex hull."""

from __future__ import annotations

from typing import Any

import numpy as np

from uncork.core.head import Head
from uncork.draw.cells import rows_of
from uncork.draw.regions import distinct, frame_plane, frame_space
from uncork.draw.style import INK, LABELLED, LOST, faces, ink, line, mixed, shared_names, text

_HULL = "#4a5a6a"
_FLAT = 1e-9  # points thinner than this, against their widest, lie in a plane or on a line


def draw_hull(axes: Any, head: Head, lost: np.ndarray, shades: list[int]) -> None:
    """Draw into plain axes for two features, into 3-D axes for three."""
    (_plane if head.features == 2 else _space)(axes, head, lost, shades)


def _plane(axes: Any, head: Head, lost: np.ndarray, shades: list[int]) -> None:
    points, _ = rows_of(head)
    label, few = shared_names(head), head.classes <= LABELLED
    for corners in hull_faces(points):
        axes.fill(*corners.T, facecolor=(*mixed(_HULL, "#ffffff", 0.88), 0.9), edgecolor=_HULL,
                  linewidth=0.9, zorder=1)  # fmt: skip
    half = 1.22 * (float(np.abs(points).max()) or 1.0)
    if few:
        axes.plot(0, 0, ".", color=INK, markersize=4, zorder=3)
    for t in _in_order(head, lost):
        shade = LOST if lost[t] else line(shades[t])
        if few:
            axes.annotate(
                "", points[t], (0, 0), zorder=4,
                arrowprops={
                    "arrowstyle": "-|>,head_width=0.22,head_length=0.45", "color": shade, "lw": 1.6,
                    "shrinkA": 0, "shrinkB": 0, "linestyle": (0, (1.2, 1.2)) if lost[t] else "-",
                },
            )  # fmt: skip
            own = LOST if lost[t] else ink(shades[t])
            _name(axes, points[t], label[t], own, half)
        else:
            marker, size = ("X", 4) if lost[t] else ("o", 5)
            axes.plot(*points[t], marker, color=shade, markersize=size, markeredgecolor="white",
                      markeredgewidth=0.4, zorder=4)  # fmt: skip
    frame_plane(axes, np.zeros(2), half, "w")
    for through in (axes.axhline, axes.axvline):
        through(0, color="#d8d8d8", linewidth=0.7, zorder=0)


def _in_order(head: Head, lost: np.ndarray) -> list[int]:
    """One class of every group of equal ones; what can win comes last, on top."""
    return sorted(distinct(head), key=lambda t: not lost[t])


def _name(axes: Any, point: np.ndarray, label: str, own: Any, half: float) -> None:
    length = float(np.linalg.norm(point))
    away = point / length if length > 0.02 * half else np.array([0.7, 0.7])
    offset = (8 + 2.2 * len(label) * abs(away[0])) * away
    text(axes, point, label, xytext=offset, fontsize=11, fontweight="bold", zorder=6, color=own,
         halo=2.5)  # fmt: skip


def _space(axes: Any, head: Head, lost: np.ndarray, shades: list[int]) -> None:
    points, _ = rows_of(head)
    label, few = shared_names(head), head.classes <= LABELLED
    light = np.array([0.4, -0.5, 0.75]) / np.linalg.norm([0.4, -0.5, 0.75])
    middle = points.mean(axis=0)
    drawn = hull_faces(points)
    if drawn:
        lit = [0.5 * (1 + float(_outward(corners, middle) @ light)) for corners in drawn]
        fills = [(*mixed(_HULL, "#ffffff", 0.45 + 0.45 * v), 0.30) for v in lit]
        edges = (*mixed(_HULL, "#ffffff", 0.3), 0.8)
        faces(axes, drawn, facecolors=fills, edgecolors=edges, linewidths=0.5, zorder=1)
    for t in _in_order(head, lost):
        shade = LOST if lost[t] else line(shades[t])
        marker, size = ("X", 34) if lost[t] else ("o", 26)
        axes.scatter(*points[t], marker=marker, s=size, zorder=4, color=[shade],
                     edgecolors="white", linewidths=0.5, depthshade=False)  # fmt: skip
        if few and not lost[t]:
            away = points[t] - middle
            where = points[t] + 0.17 * np.abs(points).max() * away / (np.linalg.norm(away) or 1.0)
            text(axes, where, label[t], fontsize=9, fontweight="bold", zorder=6,
                 color=ink(shades[t]), halo=2.5)  # fmt: skip
    low, high = points.min(axis=0), points.max(axis=0)
    frame_space(axes, (low + high) / 2, 1.05 * (float((high - low).max()) / 2 or 1.0), "w")


def hull_faces(points: np.ndarray) -> list[np.ndarray]:
    """The faces of the convex hull of points (n, d), each (k, d): triangles in space, one polygon
    of points in a plane, one segment of points on a line, nothing of one point."""
    from scipy.spatial import ConvexHull, QhullError

    middle = points.mean(axis=0)
    _, sizes, directions = np.linalg.svd(points - middle, full_matrices=False)
    rank = int((sizes > _FLAT * sizes[0]).sum()) if sizes[0] > 0 else 0
    if rank == 0:
        return []
    if rank == 1:
        along = (points - middle) @ directions[0]
        return [points[[int(along.argmin()), int(along.argmax())]]]
    flat = (points - middle) @ directions[:2].T
    try:
        if rank == 3:
            return list(points[ConvexHull(points).simplices])
        return [points[ConvexHull(flat).vertices]]
    except QhullError:  # flatter than Qhull can tell
        return [points[ConvexHull(flat, qhull_options="QJ").vertices]]


def _outward(corners: np.ndarray, middle: np.ndarray) -> np.ndarray:
    """The unit normal of a face that points away from the middle; zero of a segment."""
    if len(corners) < 3:
        return np.zeros(3)
    normal = np.cross(corners[1] - corners[0], corners[2] - corners[0])
    normal = normal / (float(np.linalg.norm(normal)) or 1.0)
    return -normal if normal @ (corners.mean(axis=0) - middle) < 0 else normal
