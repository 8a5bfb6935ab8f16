"""The braid arrangement of three or four classes, cut by what a head can reach.

Logits that differ by a constant rank the classes alike, so C logits are drawn in the C − 1
dimensions across (1, …, 1). There the walls z_i = z_j meet in the middle and divide space into C!
cones, one for each ranking. A head reaches an affine part of it, the image of all its inputs: the
cones it crosses are its rankings.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from uncork.core.head import Head
from uncork.draw.cells import inside, ranked, rows_of, view_of
from uncork.draw.globe import draw_rankings_globe
from uncork.draw.regions import crossing, frame_plane
from uncork.draw.style import INK, colour, faces, mixed, names, text

Order = tuple[int, ...]
_PALE = 0.86  # how far rankings that a head lacks are moved towards white
_ABOVE, _AROUND = 24, -62  # degrees: from where four classes are seen
_VIEW = np.array(
    [
        np.cos(np.radians(_ABOVE)) * np.cos(np.radians(_AROUND)),
        np.cos(np.radians(_ABOVE)) * np.sin(np.radians(_AROUND)),
        np.sin(np.radians(_ABOVE)),
    ]
)


def across(classes: int) -> np.ndarray:
    """An orthonormal basis (C − 1, C) of what lies across (1, …, 1)."""
    rows = []
    for k in range(1, classes):
        row = np.zeros(classes)
        row[:k], row[k] = 1.0, -float(k)
        rows.append(row / np.linalg.norm(row))
    return np.array(rows)


def tint(order: Order, feasible: bool = True) -> tuple[float, float, float]:
    """The colour of a ranking: its first class's, lighter or darker by its second."""
    lighter = 0.30 + 0.10 * (order[1] - (order[1] > order[0]))
    return mixed(colour(order[0]), "#ffffff", lighter if feasible else _PALE)


def draw_three(axes: Any, head: Head, orders: set[Order]) -> None:
    """Three classes: six sectors of the plane, and the point, line or plane that a head reaches."""
    label, basis = names(head), across(3)
    for order in itertools.permutations(range(3)):
        middle, edges = _sector(basis, order)
        spread = np.vstack([[0, 0], *(2.2 * edge for edge in edges)])
        axes.fill(*spread.T, facecolor=tint(order, order in orders), edgecolor="none", zorder=1)
        text(
            axes, 0.82 * middle, " > ".join(label[i] for i in order), fontsize=8.5, zorder=5,
            color=INK if order in orders else "#8a8a8a", halo=2,
        )  # fmt: skip
    for i, j in itertools.combinations(range(3), 2):
        along = _wall_direction(basis, i, j)
        axes.plot(*np.array([-2.2 * along, 2.2 * along]).T, color=INK, linewidth=0.9, zorder=2)
        side = along if along[1] > 1e-9 or (abs(along[1]) < 1e-9 and along[0] > 0) else -along
        beside = 1.17 * side + 0.075 * np.array([-side[1], side[0]])
        text(axes, beside, f"{label[i]} = {label[j]}", fontsize=8, style="italic", zorder=5,
             halo=2.5, rotation=_upright(side))  # fmt: skip
    weight, bias = rows_of(head)
    image, offset = basis @ weight, basis @ bias
    offset = offset - _along(image, offset)
    rank = int(np.linalg.matrix_rank(image))
    if rank < 2:
        size = float(np.linalg.norm(offset))
        offset = 0.42 * offset / size if size > 0 else offset
        if rank == 1:
            along = np.linalg.svd(image)[0][:, 0]
            axes.plot(*np.array([offset - 3 * along, offset + 3 * along]).T, color="black",
                      linewidth=2.2, zorder=4)  # fmt: skip
        else:
            axes.plot(*offset, "o", color="black", markersize=6, zorder=4)
    axes.set_xlim(-1.35, 1.35)
    axes.set_ylim(-1.35, 1.35)
    axes.set_aspect("equal")
    axes.set_axis_off()


def _upright(direction: np.ndarray) -> float:
    angle = float(np.degrees(np.arctan2(direction[1], direction[0])))
    return angle - 180 if angle > 90 else angle + 180 if angle < -90 else angle


def _sector(basis: np.ndarray, order: Order) -> tuple[np.ndarray, list[np.ndarray]]:
    """The middle direction of a ranking's sector, and its two edges."""
    edges = []
    for k in (1, 2):
        top = np.zeros(3)
        top[list(order[:k])] = 1.0
        edges.append(_unit(basis @ top))
    return _unit(edges[0] + edges[1]), edges


def _wall_direction(basis: np.ndarray, i: int, j: int) -> np.ndarray:
    equal = np.zeros(3)
    equal[[i, j]] = 1.0
    return _unit(basis @ equal)


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / (float(np.linalg.norm(vector)) or 1.0)


def _along(image: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """The part of a vector that lies in the span of an image's columns."""
    solution, *_ = np.linalg.lstsq(image, vector, rcond=None)
    return image @ solution


def draw_four(axes: Any, head: Head, orders: set[Order]) -> None:
    """Four classes: six walls through the middle of a sphere, and the head's plane among them."""
    basis = across(4)
    weight, bias = rows_of(head)
    image, offset = basis @ weight, basis @ bias
    offset = offset - _along(image, offset)
    rank = int(np.linalg.matrix_rank(image))
    _great_circles(axes, basis, names(head))
    if rank == 2:
        plane = np.linalg.svd(image)[0][:, :2]  # (3, 2): a basis of the head's plane
        polygons, shades, rim = _disc(basis, plane, offset, orders)
        faces(axes, polygons, facecolors=shades, edgecolors="white", linewidths=0.8, zorder=3)
        axes.plot(*rim.T, color="black", linewidth=1.4, zorder=4)
    elif rank < 2:
        size = float(np.linalg.norm(offset))
        offset = 0.35 * offset / size if size > 0 else offset
        along = np.linalg.svd(image)[0][:, 0] if rank else np.zeros(3)
        reach = np.sqrt(max(1 - float(offset @ offset), 0.0))
        axes.plot(*np.array([offset - reach * along, offset + reach * along]).T, color="black",
                  linewidth=2.2, marker="o", markersize=3, zorder=4)  # fmt: skip
    for side in "xyz":
        getattr(axes, f"set_{side}lim")(-1, 1)
    axes.set_axis_off()
    axes.set_proj_type("ortho")
    axes.set_box_aspect((1, 1, 1), zoom=1.42)
    axes.view_init(elev=_ABOVE, azim=_AROUND)


def _disc(
    basis: np.ndarray, plane: np.ndarray, offset: np.ndarray, orders: set[Order]
) -> tuple[list[np.ndarray], list[Any], np.ndarray]:
    """The head's plane within the sphere, one polygon for each ranking, and its rim.

    A plane beside the middle is drawn at a set distance from it: shrinking all logits alike
    changes no ranking.
    """
    size = float(np.linalg.norm(offset))
    offset = 0.3 * offset / size if size > 0 else offset
    reach = float(np.sqrt(1 - offset @ offset))
    angle = np.linspace(0, 2 * np.pi, 121)[:-1]
    rim = reach * np.column_stack([np.cos(angle), np.sin(angle)])  # (n, 2)
    rows = basis.T @ plane  # (4, 2): logits of the points of the plane
    polygons, shades = [], []
    for order in orders:
        part = ranked(rows, basis.T @ offset, order, rim)
        if len(part) >= 3:
            polygons.append(part @ plane.T + offset)
            shades.append((*tint(order), 0.96))
    circle = np.vstack([rim, rim[:1]]) @ plane.T + offset
    return polygons, shades, circle


def _facing() -> tuple[np.ndarray, np.ndarray]:
    right = _unit(np.cross([0.0, 0.0, 1.0], _VIEW))
    return right, np.cross(_VIEW, right)


def _great_circles(axes: Any, basis: np.ndarray, label: list[str]) -> None:
    angle = np.linspace(0, 2 * np.pi, 145)
    right, up = _facing()
    horizon = np.outer(np.cos(angle), right) + np.outer(np.sin(angle), up)
    axes.plot(*horizon.T, color="#c9ced4", linewidth=0.9, zorder=2)
    for i, j in itertools.combinations(range(4), 2):
        normal = _unit(basis[:, i] - basis[:, j])
        first = _unit(np.cross(normal, _VIEW))
        second = np.cross(normal, first)
        circle = np.outer(np.cos(angle), first) + np.outer(np.sin(angle), second)
        faces(axes, [circle], facecolors=(0.35, 0.42, 0.5, 0.05), edgecolors="none", zorder=1)
        # `first` lies on the horizon, so half of the circle is seen and half is behind.
        halves = (circle[:73], circle[72:])
        front, back = halves if halves[0][36] @ _VIEW > 0 else halves[::-1]
        axes.plot(*back.T, color="#b9bec5", linewidth=0.6, zorder=2)
        axes.plot(*front.T, color="#4a5560", linewidth=1.0, zorder=5)
        where = circle[np.argmax(circle @ (_VIEW + np.array([0.0, 0.0, 0.9])))]
        if len(label[i]) + len(label[j]) <= 8:
            text(axes, 1.12 * where, f"{label[i]} = {label[j]}", fontsize=7.5, style="italic",
                 halo=2.5, zorder=6)  # fmt: skip


def draw_all_four(axes: Any, head: Head, orders: set[Order], view: np.ndarray) -> None:
    """Four classes and all of their space: a globe of 24 rankings, seen from one side."""
    shades = {order: tint(order, order in orders) for order in itertools.permutations(range(4))}
    draw_rankings_globe(axes, across(4).T, names(head), shades, view)


def draw_cut(axes: Any, head: Head, orders: set[Order], extent: float | None = None) -> None:
    """The inputs of a head of two features, each ranking's region named."""
    weight, bias = rows_of(head)
    view = view_of(head, extent, walls=True)
    low, high = view.bounds()
    edge = np.array([[low[0], low[1]], [high[0], low[1]], [high[0], high[1]], [low[0], high[1]]])
    label = names(head)
    for order in sorted(orders):
        polygon = ranked(weight, bias, order, edge)
        if len(polygon) < 3:
            continue
        axes.fill(*polygon.T, facecolor=tint(order), edgecolor="none", zorder=1)
        where, radius = inside(polygon)
        short = all(len(name) == 1 for name in label)
        name = ("" if short else " > ").join(label[i] for i in order)
        if radius > 0.016 * view.half * max(len(name), 3):
            text(axes, where, name, fontsize=7.5, halo=1.8, zorder=4)
    for i, j in itertools.combinations(range(head.classes), 2):
        ends = crossing(edge, weight[i] - weight[j], float(bias[i] - bias[j]))
        if ends is not None:
            axes.plot(*ends.T, color=INK, linewidth=0.9, zorder=2)
    frame_plane(axes, view.middle, view.half, "x")
