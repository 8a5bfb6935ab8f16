"""plot_hull: the rows of a 2- or 3-feature head and their convex hull."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart; the markers differ too.
_VERTEX = "#0072B2"
_LOST = "#D55E00"
_HULL = "#56B4E9"
_FACE = (0.337, 0.706, 0.914, 0.13)  # the same, nearly transparent
_INK = "#333333"
_LABELLED = 25  # with more classes than this, numbers on the points hide the picture


def plot_hull(head: Head, unargmaxable_ids: Iterable[int], path: str | os.PathLike[str]) -> None:
    """Draw the classes as points, the argmaxable and the unargmaxable told apart, with the hull.

    For heads of 2 or 3 features. `path` ends in .png, .pdf, .svg or another format of matplotlib;
    text in SVG and PDF stays text. With a bias the picture is of the weights alone, and says so.
    """
    lost = np.zeros(head.classes, dtype=bool)
    lost[np.fromiter(unargmaxable_ids, dtype=np.int64)] = True
    check_plot(head.features, path)
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "font.size": 10}):
        figure = Figure(figsize=(6.4, 5.6) if head.features == 2 else (6.8, 6.2), dpi=200)
        points = head.rows(0, head.classes)
        draw = _draw_plane if head.features == 2 else _draw_space
        draw(figure, points, lost)
        _title(figure, head, lost)
        try:
            figure.savefig(path)
        except OSError as error:
            raise UncorkError(f"{path} cannot be written: {error.strerror or error}") from error


def check_plot(features: int, path: str | os.PathLike[str]) -> None:
    """Raise now if `plot_hull` could not draw that many features to that file later on."""
    path = Path(path)
    if features not in (2, 3):
        raise UncorkError(
            f"a hull can be drawn of 2 or 3 features, not of {features}: leave out --plot"
        )
    try:
        import matplotlib  # noqa: F401
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise UncorkError("plotting needs matplotlib: pip install 'uncork[plot]'") from None
    if path.suffix.lstrip(".").lower() not in FigureCanvasBase.get_supported_filetypes():
        raise UncorkError(f"{path} cannot be written: a plot's name ends in .png, .pdf or .svg")
    if path.is_dir() or not path.parent.is_dir():
        what = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise UncorkError(f"{path} cannot be written: {what}")


def _title(figure: Figure, head: Head, lost: np.ndarray) -> None:
    reached = int((~lost).sum())
    figure.suptitle(
        f"{head.classes} classes in {head.features} dimensions: "
        f"{reached} argmaxable, {int(lost.sum())} unargmaxable",
        fontsize=12, color=_INK, y=0.975,
    )  # fmt: skip
    if head.bias is not None:
        figure.text(
            0.5, 0.925, "hull of the weights alone; the bias decides too: a class inside can win",
            ha="center", fontsize=9, color=_INK, style="italic",
        )  # fmt: skip


def _series(points: np.ndarray, lost: np.ndarray) -> list[tuple[np.ndarray, dict[str, Any]]]:
    dense = len(points) > 300
    return [
        (
            points[lost],
            {
                "marker": "X", "s": 16 if dense else 34, "color": _LOST, "linewidths": 0.4,
                "edgecolors": "white", "label": f"unargmaxable ({int(lost.sum())})", "zorder": 3,
            },
        ),
        (
            points[~lost],
            {
                "marker": "o", "s": 26 if dense else 44, "color": _VERTEX, "linewidths": 0.6,
                "edgecolors": "white", "label": f"argmaxable ({int((~lost).sum())})", "zorder": 4,
            },
        ),
    ]  # fmt: skip


def _draw_plane(figure: Figure, points: np.ndarray, lost: np.ndarray) -> None:
    axes = figure.add_axes((0.125, 0.17, 0.835, 0.73))
    hull = _hull(points)
    if hull is not None:
        corners = points[hull.vertices]  # in order around the hull
        axes.fill(
            *corners.T,
            facecolor=_FACE,
            edgecolor=_HULL,
            linewidth=1.3,
            zorder=1,
            label="convex hull",
        )
    for group, style in _series(points, lost):
        if len(group):
            axes.scatter(*group.T, **style)
    if len(points) <= _LABELLED:
        middle = points.mean(axis=0)
        for k in np.flatnonzero(~lost):  # inside the hull numbers would cover one another
            point = points[k]
            away = point - middle
            away = away / (np.linalg.norm(away) or 1.0)
            axes.annotate(
                str(k), point, xytext=10 * away, textcoords="offset points", ha="center",
                va="center", fontsize=8, color=_INK, zorder=5,
            )  # fmt: skip
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.1)
    axes.set_xlabel("$w_1$")
    axes.set_ylabel("$w_2$")
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")
    axes.tick_params(color="#999999", labelcolor=_INK)
    _legend(figure, axes)


def _draw_space(figure: Figure, points: np.ndarray, lost: np.ndarray) -> None:
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    axes: Any = figure.add_axes((0.0, 0.09, 0.95, 0.85), projection="3d", computed_zorder=False)
    hull = _hull(points)
    if hull is not None:
        faces = Poly3DCollection(
            points[hull.simplices], facecolor=_FACE[:3], alpha=0.11, edgecolor=_HULL, linewidth=0.7,
            label="convex hull", zorder=1,
        )  # fmt: skip
        axes.add_collection3d(faces)
    for group, style in _series(points, lost):
        if len(group):
            axes.scatter(*group.T, depthshade=False, **style)
    low, high = points.min(axis=0), points.max(axis=0)
    centre, radius = (low + high) / 2, max(float((high - low).max()) / 2, 1e-12)
    for k, name in enumerate("xyz"):
        getattr(axes, f"set_{name}lim")(centre[k] - radius, centre[k] + radius)
        getattr(axes, f"set_{name}label")(f"$w_{k + 1}$")
        axis = getattr(axes, f"{name}axis")
        axis.set_pane_color((0.97, 0.97, 0.97, 1.0))
        axis._axinfo["grid"].update(color="#e0e0e0", linewidth=0.5)
        axis.set_tick_params(labelsize=8, labelcolor=_INK, pad=0)
        axis.line.set_color("#999999")
        axis.labelpad = 2
    axes.set_box_aspect((1, 1, 1), zoom=1.04)
    axes.view_init(elev=22, azim=-58)
    _legend(figure, axes)


def _legend(figure: Figure, axes: Any) -> None:
    found = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    labels = sorted(found, key=lambda label: (label == "convex hull", label))
    handles = [found[label] for label in labels]
    figure.legend(
        handles, labels, loc="lower center", ncols=len(handles), frameon=False, fontsize=10,
        handletextpad=0.4, columnspacing=1.8, bbox_to_anchor=(0.5, 0.01),
    )  # fmt: skip


def _hull(points: np.ndarray) -> Any:
    """Qhull's hull, or None where the points are too few or lie on one line or plane."""
    from scipy.spatial import ConvexHull, QhullError

    try:
        return ConvexHull(points)
    except (QhullError, ValueError):
        return None
