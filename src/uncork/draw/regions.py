"""Argmax regions: which class wins where, in the plane of two features or the space of three."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from uncork.core.head import Head
from uncork.draw.cells import (
    View,
    across,
    cut,
    domain_bounds,
    inside,
    region,
    rows_of,
    solid,
    square,
    view_of,
)  # fmt: skip
from uncork.draw.globe import VIEW, draw_globe, globe_neighbours
from uncork.draw.style import INK, LABELLED, colour, faces, ink, mixed, shared_names, text

_MOST_WALLS = 28  # lines between every two of 8 classes; more would hide the regions
_APART = 0.3  # how far solids are moved from the middle, in half-widths
_LIGHT = np.array([0.35, -0.6, 0.72])


def seen_of(head: Head) -> tuple[str, ...]:
    """The panels that show where each class wins.

    Without a bias only the direction of an input matters: three features are a globe.
    """
    if head.features == 2:
        return ("plane",)
    small = (np.array(domain_bounds(head)) != 0).all()
    return ("front", "back") if head.bias is None and small else ("solids",)


def draw_regions(
    axes: Any,
    head: Head,
    lost: np.ndarray,
    shades: list[int],
    panel: str,
    extent: float | None = None,
) -> None:
    """Draw one of `seen_of`'s panels, each class in its place of the palette; "solids" wants 3-D
    axes, the others plain ones."""
    won = winners(head, lost)
    if panel in ("front", "back"):
        draw_globe(axes, head, won, shades, VIEW if panel == "front" else -VIEW)
        return
    view = view_of(head, extent)
    (_plane if panel == "plane" else _space)(axes, head, won, shades, view)


def touching(
    head: Head, lost: np.ndarray, extent: float | None = None
) -> Iterator[tuple[int, int]]:
    """Pairs of classes whose regions, as they are drawn, share a border."""
    won = winners(head, lost)
    if seen_of(head)[0] == "front":
        for t in won:
            yield from ((t, i) for i in globe_neighbours(head, t) & set(won))
        return
    weight, bias = rows_of(head)
    low, high = view_of(head, extent).bounds()
    for t in won:
        if head.features == 2:
            polygon = region(weight, bias, t, square(low, high))
            border = (polygon + np.roll(polygon, -1, axis=0)) / 2
        else:
            sides = solid(weight, bias, t, low, high)
            border = np.array([side.mean(axis=0) for side in sides]).reshape(-1, 3)
        if len(border) >= 3:
            yield from ((t, i) for i in across(weight, bias, t, border) & set(won))


def _plane(axes: Any, head: Head, won: list[int], shades: list[int], view: View) -> None:
    weight, bias = rows_of(head)
    low, high = view.bounds()
    edge = square(low, high)
    label, few = shared_names(head), head.classes <= LABELLED
    drawn = {t: region(weight, bias, t, edge) for t in won}
    drawn = {t: polygon for t, polygon in drawn.items() if len(polygon) >= 3}
    for t, polygon in drawn.items():
        face = colour(shades[t])
        axes.fill(*polygon.T, facecolor=face, edgecolor="white", linewidth=1.2, zorder=1)
    if head.classes * (head.classes - 1) // 2 <= _MOST_WALLS:
        draw_walls(axes, weight, bias, edge)
    for t, polygon in drawn.items():
        where, radius = inside(polygon)
        if radius > (0.035 if few else 0.06) * view.half:
            size = min(15.0, 9 + 30 * radius / view.half / max(len(label[t]), 1))
            text(
                axes, where, label[t], fontsize=size if few else 7.5, fontweight="bold",
                color=ink(shades[t]), halo=2.5, zorder=4,
            )  # fmt: skip
    if not view.whole:
        axes.plot(
            *np.vstack([edge, edge[:1]]).T, color=INK, linewidth=1.0, linestyle="--", zorder=3
        )
    frame_plane(axes, view.middle, view.half, "x")


def draw_walls(axes: Any, weight: np.ndarray, bias: np.ndarray, edge: np.ndarray) -> None:
    """The lines on which two classes are equal, as far as they lie within a polygon."""
    for i, j in itertools.combinations(range(len(weight)), 2):
        normal, offset = weight[i] - weight[j], float(bias[i] - bias[j])
        ends = crossing(edge, normal, offset)
        if ends is not None:
            axes.plot(*ends.T, color=INK, linewidth=0.6, alpha=0.75, zorder=2)


def crossing(edge: np.ndarray, normal: np.ndarray, offset: float) -> np.ndarray | None:
    """Where the line normal · p + offset = 0 enters and leaves a polygon: (2, 2)."""
    size = float(np.linalg.norm(normal))
    if size == 0:
        return None
    part = cut(edge, normal / size, offset / size)
    on = part[np.abs(part @ normal / size + offset / size) < 1e-9 * np.abs(edge).max()]
    if len(on) < 2:
        return None
    return on[[0, -1]]


def frame_plane(axes: Any, middle: np.ndarray, half: float, letter: str) -> None:
    """A square view with quiet axes."""
    axes.set_xlim(middle[0] - half, middle[0] + half)
    axes.set_ylim(middle[1] - half, middle[1] + half)
    axes.set_aspect("equal")
    axes.set_xlabel(f"${letter}_1$", labelpad=2)
    axes.set_ylabel(f"${letter}_2$", labelpad=0)
    axes.locator_params(nbins=5)
    axes.tick_params(labelsize=7.5, length=2.5, pad=2)


def winners(head: Head, lost: np.ndarray) -> list[int]:
    """The classes that have a region; of equal ones the first."""
    return [t for t in distinct(head) if not lost[t]]


def distinct(head: Head) -> list[int]:
    """One class of every group of equal ones, the first."""
    rows = np.column_stack([head.rows(0, head.classes), head.offsets])
    _, first = np.unique(rows, axis=0, return_index=True)
    return sorted(first.tolist())


def _space(axes: Any, head: Head, won: list[int], shades: list[int], view: View) -> None:
    """Each class's region as a solid within the view, moved a little apart from the others."""
    weight, bias = rows_of(head)
    low, high = view.bounds()
    label = shared_names(head)
    light = _LIGHT / np.linalg.norm(_LIGHT)
    polygons: list[np.ndarray] = []
    fills: list[tuple[float, ...]] = []
    shown = []
    for t in won:
        sides = solid(weight, bias, t, low, high)
        if not sides:
            continue
        middle = np.vstack(sides).mean(axis=0)
        away = middle - view.middle
        shift = _APART * view.half * away / (float(np.linalg.norm(away)) or 1.0)
        for side in sides:
            normal = np.cross(side[1] - side[0], side[2] - side[0])
            normal = normal / (float(np.linalg.norm(normal)) or 1.0)
            if normal @ (side.mean(axis=0) - middle) < 0:
                normal = -normal
            lit = 0.5 * (1 + float(normal @ light))
            polygons.append(side + shift)
            fills.append(mixed(colour(shades[t]), "#000000", 0.25 * (1 - lit)))
        shown.append(t)
    if polygons:
        faces(axes, polygons, facecolors=fills, edgecolors=[(0.2, 0.2, 0.2, 0.55)], linewidths=0.5)
    _legend(axes, [(shades[t], label[t]) for t in shown])
    frame_space(axes, view.middle, (1 + _APART) * view.half, "x")


def _legend(axes: Any, shown: list[tuple[int, str]]) -> None:
    from matplotlib.patches import Patch

    if len(shown) > LABELLED:
        return
    handles = [Patch(facecolor=colour(k), label=name) for k, name in shown]
    legend = axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=8,
        ncols=min(len(shown), 10), columnspacing=0.9, handletextpad=0.35,
        handlelength=1.0, handleheight=1.0, labelspacing=0.35,
    )  # fmt: skip
    for entry in legend.get_texts():
        entry.set_parse_math(False)


def frame_space(axes: Any, middle: np.ndarray, half: float, letter: str) -> None:
    """A cube with quiet walls, seen from above and the side."""
    for k, axis in enumerate("xyz"):
        getattr(axes, f"set_{axis}lim")(middle[k] - half, middle[k] + half)
        getattr(axes, f"set_{axis}label")(f"${letter}_{k + 1}$", labelpad=-4)
        drawn = getattr(axes, f"{axis}axis")
        drawn.set_pane_color((0.975, 0.975, 0.975, 1.0))
        drawn._axinfo["grid"].update(color="#e3e3e3", linewidth=0.4)
        drawn.set_tick_params(labelsize=7, labelcolor=INK, pad=-2)
        drawn.line.set_color("#b5b5b5")
    axes.locator_params(nbins=5)
    axes.set_proj_type("ortho")
    axes.set_box_aspect((1, 1, 1), zoom=1.03)
    axes.view_init(elev=21, azim=-56)
