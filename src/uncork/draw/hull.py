"""The rows of a head of two or three features, and their convex hull."""

from __future__ import annotations

from typing import Any

import numpy as np

from uncork.draw.cells import rows_of
from uncork.draw.regions import frame_plane, frame_space
from uncork.draw.style import INK, LABELLED, LOST, colour, faces, mixed, names, text
from uncork.head import Head

_HULL = "#4a5a6a"


def draw_hull(axes: Any, head: Head, lost: np.ndarray) -> None:
    """Draw into plain axes for two features, into 3-D axes for three."""
    (_plane if head.features == 2 else _space)(axes, head, lost)


def _plane(axes: Any, head: Head, lost: np.ndarray) -> None:
    points, _ = rows_of(head)
    label, few = names(head), head.classes <= LABELLED
    hull = convex_hull(points)
    if hull is not None:
        corners = points[hull.vertices]
        axes.fill(*corners.T, facecolor=(*mixed(_HULL, "#ffffff", 0.88), 0.9), edgecolor=_HULL,
                  linewidth=0.9, zorder=1)  # fmt: skip
    half = 1.22 * (float(np.abs(points).max()) or 1.0)
    if few:
        axes.plot(0, 0, ".", color=INK, markersize=4, zorder=3)
    for t in np.argsort(~lost):  # what can win lies on top
        shade = LOST if lost[t] else mixed(colour(t), "#000000", 0.08)
        if few:
            axes.annotate(
                "", points[t], (0, 0), zorder=4,
                arrowprops={
                    "arrowstyle": "-|>,head_width=0.22,head_length=0.45", "color": shade, "lw": 1.6,
                    "shrinkA": 0, "shrinkB": 0, "linestyle": (0, (1.2, 1.2)) if lost[t] else "-",
                },
            )  # fmt: skip
            _name(axes, points[t], label[t], bool(lost[t]), shade, half)
        else:
            marker, size = ("X", 4) if lost[t] else ("o", 5)
            axes.plot(*points[t], marker, color=shade, markersize=size, markeredgecolor="white",
                      markeredgewidth=0.4, zorder=4)  # fmt: skip
    frame_plane(axes, np.zeros(2), half, "w")
    for line in (axes.axhline, axes.axvline):
        line(0, color="#d8d8d8", linewidth=0.7, zorder=0)


def _name(axes: Any, point: np.ndarray, label: str, lost: bool, shade: Any, half: float) -> None:
    length = float(np.linalg.norm(point))
    away = point / length if length > 0.02 * half else np.array([0.7, 0.7])
    offset = (8 + 2.2 * len(label) * abs(away[0])) * away
    ink = LOST if lost else mixed(shade_text(shade), "#000000", 0.25)
    text(axes, point, label, xytext=offset, fontsize=11, fontweight="bold", zorder=6, color=ink,
         halo=2.5)  # fmt: skip


def shade_text(shade: Any) -> str:
    """A colour as text."""
    from matplotlib.colors import to_hex

    return str(to_hex(shade))


def _space(axes: Any, head: Head, lost: np.ndarray) -> None:
    points, _ = rows_of(head)
    label, few = names(head), head.classes <= LABELLED
    hull = convex_hull(points)
    if hull is not None:
        light = np.array([0.4, -0.5, 0.75])
        lit = 0.5 * (1 + hull.equations[:, :3] @ (light / np.linalg.norm(light)))
        shades = [(*mixed(_HULL, "#ffffff", 0.45 + 0.45 * float(v)), 0.30) for v in lit]
        edges = (*mixed(_HULL, "#ffffff", 0.3), 0.8)
        corners = points[hull.simplices]
        faces(axes, corners, facecolors=shades, edgecolors=edges, linewidths=0.5, zorder=1)
    for t in np.argsort(~lost):
        shade = LOST if lost[t] else mixed(colour(t), "#000000", 0.08) if few else "#0072B2"
        marker, size = ("X", 34) if lost[t] else ("o", 26)
        axes.scatter(*points[t], marker=marker, s=size, zorder=4, color=[shade],
                     edgecolors="white", linewidths=0.5, depthshade=False)  # fmt: skip
        if few and not lost[t]:
            middle = points.mean(axis=0)
            away = points[t] - middle
            where = points[t] + 0.17 * np.abs(points).max() * away / (np.linalg.norm(away) or 1.0)
            ink = mixed(shade_text(shade), "#000000", 0.25)
            text(axes, where, label[t], fontsize=9, fontweight="bold", zorder=6, color=ink,
                 halo=2.5)  # fmt: skip
    low, high = points.min(axis=0), points.max(axis=0)
    frame_space(axes, (low + high) / 2, 1.05 * (float((high - low).max()) / 2 or 1.0), "w")


def convex_hull(points: np.ndarray) -> Any:
    """Qhull's hull, or None where the points are too few or lie on one line or plane."""
    from scipy.spatial import ConvexHull, QhullError

    try:
        return ConvexHull(points)
    except (QhullError, ValueError):
        return None
