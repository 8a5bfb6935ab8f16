"""Which class wins in every direction of three features: a globe, as flat drawing.

Half of the globe is a plane: inputs view + p·e₁ + q·e₂ meet every direction that faces the viewer
once, and straight lines there are great circles. So the regions are those of a head of two
features, rows (w·e₁, w·e₂) and bias w·view, bent back onto the globe.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from uncork.core.head import Head
from uncork.draw.cells import across, ranked, region, rows_of, square
from uncork.draw.style import INK, LABELLED, colour, ink, shared_names, text

VIEW = np.array([0.5, -0.72, 0.48]) / np.linalg.norm([0.5, -0.72, 0.48])
_HORIZON = 400.0  # how far the plane is drawn: within 0.15 degrees of the globe's edge
_MOST_WALLS = 15  # lines between every two of 6 classes; more would hide the regions
_STEPS = 40  # along an angle of one radian
_PLANE = square(np.full(2, -_HORIZON), np.full(2, _HORIZON))


def draw_globe(axes: Any, head: Head, won: list[int], shades: list[int], view: np.ndarray) -> None:
    """Draw the half of the globe that faces `view` into plain axes, each class where it wins."""
    flat, height = _seen(head, view)
    label, few = shared_names(head), head.classes <= LABELLED
    rim = _rim(axes)
    for t in won:
        bent = _paint(axes, rim, region(flat, height, t, _PLANE), colour(shades[t]))
        if bent is not None:
            _name(axes, bent, label[t], ink(shades[t]), *((13.0, 0.035) if few else (7.5, 0.07)))
    if head.classes * (head.classes - 1) // 2 <= _MOST_WALLS:
        for i, j in itertools.combinations(range(head.classes), 2):
            _wall(axes, flat[i] - flat[j], float(height[i] - height[j]), 0.5)
    _axes(axes, *_across(view), view)
    _frame(axes)


def globe_neighbours(head: Head, t: int) -> set[int]:
    """The classes whose regions share a border with that of t, on both sides of the globe."""
    found: set[int] = set()
    for view in (VIEW, -VIEW):
        flat, height = _seen(head, view)
        polygon = region(flat, height, t, _PLANE)
        if len(polygon) >= 3:
            found |= across(flat, height, t, (polygon + np.roll(polygon, -1, axis=0)) / 2)
    return found


def _seen(head: Head, view: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The head of two features that half of the globe is: rows (C, 2) and bias (C,)."""
    weight, _ = rows_of(head)
    return weight @ np.column_stack(_across(view)), weight @ view


def draw_rankings_globe(
    axes: Any,
    rows: np.ndarray,
    label: list[str],
    orders: dict[tuple[int, ...], Any],
    view: np.ndarray,
) -> None:
    """The same for the rankings of rows (C, 3): order → colour."""
    right, up = _across(view)
    flat, height = rows @ np.column_stack([right, up]), rows @ view
    rim = _rim(axes)
    for order, shade in orders.items():
        bent = _paint(axes, rim, ranked(flat, height, order, _PLANE), shade)
        if bent is not None:
            short = all(len(name) == 1 for name in label)
            name = ("" if short else " > ").join(label[i] for i in order)
            _name(axes, bent, name, INK, most=8.0, least=0.1)
    for i, j in itertools.combinations(range(len(rows)), 2):
        _wall(axes, flat[i] - flat[j], float(height[i] - height[j]), 0.9)
    _frame(axes)


def _across(view: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is right and what is up, seen from there."""
    right = np.cross([0.0, 0.0, 1.0], view)
    right /= np.linalg.norm(right)
    return right, np.cross(view, right)


def _rim(axes: Any) -> Any:
    from matplotlib.patches import Circle

    rim = Circle((0, 0), 1.0, facecolor="none", edgecolor=INK, linewidth=1.1, zorder=6)
    axes.add_patch(rim)
    return rim


def _paint(axes: Any, rim: Any, polygon: np.ndarray, shade: Any) -> np.ndarray | None:
    if len(polygon) < 3:
        return None
    bent = _bent(polygon)
    (drawn,) = axes.fill(*bent.T, facecolor=shade, edgecolor="white", linewidth=1.2, zorder=1)
    drawn.set_clip_path(rim)
    return bent


def _frame(axes: Any) -> None:
    axes.set_xlim(-1.12, 1.12)
    axes.set_ylim(-1.12, 1.12)
    axes.set_aspect("equal")
    axes.set_axis_off()


def _bent(polygon: np.ndarray) -> np.ndarray:
    """A polygon of the plane on the globe, its sides arcs of great circles in equal steps."""
    parts = []
    for p, q in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        a, b = (np.append(v, 1.0) / np.sqrt(1 + v @ v) for v in (p, q))
        # Steps of equal angles: of equal lengths along the chord, most would lie at its ends
        # where those are nearly opposite.
        angle = 2 * float(np.arctan2(np.linalg.norm(a - b), np.linalg.norm(a + b)))
        if angle < 1e-6:
            parts.append(a[None, :2])
            continue
        share = np.linspace(0, 1, max(2, int(_STEPS * angle)), endpoint=False)[:, None]
        arc = np.sin((1 - share) * angle) * a + np.sin(share * angle) * b
        parts.append((arc / np.linalg.norm(arc, axis=1, keepdims=True))[:, :2])
    return np.vstack(parts)


def _name(
    axes: Any, bent: np.ndarray, label: str, shade: Any, most: float, least: float = 0.035
) -> None:
    where, radius = _middle(bent)
    if radius > least:
        size = min(most, 8 + 25 * radius / max(len(label), 1))
        weight = "bold" if most > 10 else "normal"
        text(axes, where, label, fontsize=size, fontweight=weight, zorder=5, color=shade,
             halo=2.5)  # fmt: skip


def _middle(bent: np.ndarray) -> tuple[np.ndarray, float]:
    """About the middle of the largest circle inside a bent polygon, and its radius: crescents are
    not convex, so points of a grid are tried."""
    from matplotlib.path import Path

    low, high = bent.min(axis=0), bent.max(axis=0)
    grid = np.stack(np.meshgrid(*np.linspace(low, high, 40).T), axis=-1).reshape(-1, 2)
    grid = grid[Path(bent).contains_points(grid)]
    if not len(grid):
        return bent.mean(axis=0), 0.0
    away = np.linalg.norm(grid[:, None] - bent[None], axis=2).min(axis=1)
    return grid[int(away.argmax())], float(away.max())


def _wall(axes: Any, normal: np.ndarray, offset: float, width: float) -> None:
    """Where two classes are equal: half of a great circle."""
    pole = np.append(normal, offset)
    size = float(np.linalg.norm(pole))
    if size == 0:
        return
    pole = pole / size
    along = np.array([-pole[1], pole[0], 0.0])
    length = float(np.linalg.norm(along))
    if length < 1e-9:  # the horizon itself
        return
    along = along / length
    other = np.cross(pole, along)
    other = other if other[2] > 0 else -other
    angle = np.linspace(0, np.pi, 73)
    arc = np.outer(np.cos(angle), along) + np.outer(np.sin(angle), other)
    axes.plot(*arc[:, :2].T, color=INK, linewidth=width, alpha=0.8, zorder=2)


def _axes(axes: Any, right: np.ndarray, up: np.ndarray, view: np.ndarray) -> None:
    """Where the three axes leave the globe towards the viewer."""
    for k in range(3):
        for sign in (1, -1):
            direction = sign * np.eye(3)[k]
            if direction @ view <= 0.05:
                continue
            where = np.array([direction @ right, direction @ up])
            axes.plot(*where, "o", color=INK, markersize=2.6, zorder=7)
            name = f"${'+' if sign > 0 else '-'}x_{k + 1}$"
            text(axes, where, name, xytext=(9, 7), fontsize=8, parse_math=True, zorder=7)
