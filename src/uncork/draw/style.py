"""What the pictures of heads share: colours, labels that are only text, the file they go to."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.text import visible
from uncork.report.drawing import INK, LOST, check_figure

# Fills that stay apart, by 15 and more in CIEDE2000, for every kind of colour blindness, and from
# white; found by search, and held to it by a test. Orange-red is kept for what can never win.
PALETTE = (
    "#7979ff", "#ffec2d", "#66b266", "#c68c9f", "#8c668c", "#c6ecc6", "#667953", "#c6b2ec",
)  # fmt: skip
LABELLED = 30  # with more classes than this, only regions with much room are named
_LONGEST_LABEL = 14
_FONTS = (
    "DejaVu Sans", "Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei",
    "Source Han Sans SC", "Droid Sans Fallback", "Arial Unicode MS", "Microsoft YaHei",
    "Hiragino Sans",
)  # fmt: skip

__all__ = [
    "INK", "LOST", "PALETTE", "colour", "faces", "figure_to", "ink", "line", "mixed", "names",
    "text",
]  # fmt: skip


def colour(k: int) -> str:
    """The fill in that place of the palette."""
    return PALETTE[k % len(PALETTE)]


def line(k: int) -> tuple[float, float, float]:
    """The same dark enough for a line on white."""
    return mixed(colour(k), "#000000", 0.3)


def ink(k: int) -> tuple[float, float, float]:
    """The same dark enough for a name."""
    return mixed(colour(k), "#000000", 0.6)


def mixed(colour: str, other: str, share: float) -> tuple[float, float, float]:
    """A colour moved towards another one: 0 leaves it, 1 is the other."""
    from matplotlib.colors import to_rgb

    r, g, b = (
        (1 - share) * a + share * o for a, o in zip(to_rgb(colour), to_rgb(other), strict=True)
    )
    return r, g, b


def names(head: Head) -> list[str]:
    """What each class is called in the picture: its label, or a letter, or its number."""
    if head.labels is not None:
        return [visible(label, _LONGEST_LABEL) for label in head.labels]
    if head.classes <= 26:
        return [chr(ord("A") + t) for t in range(head.classes)]
    return [str(t) for t in range(head.classes)]


def shared_names(head: Head) -> list[str]:
    """The same, equal classes under the names of all: they win only together."""
    label = names(head)
    rows = np.column_stack([head.rows(0, head.classes), head.offsets])
    _, group = np.unique(rows, axis=0, return_inverse=True)
    together: dict[int, list[str]] = {}
    for t, g in enumerate(group.ravel().tolist()):
        together.setdefault(g, []).append(label[t])
    return [_joined(together[g]) for g in group.ravel().tolist()]


def _joined(label: list[str]) -> str:
    rest = f" = … ({len(label)})" if len(label) > 4 else ""
    return " = ".join(label[: 4 if not rest else 2]) + rest


def text(axes: Any, where: Any, label: str, *, halo: float = 2.0, **style: Any) -> None:
    """Put a name there as it is: a dollar sign in a label starts no formula.

    A white edge keeps it readable on lines and colours. It is drawn as an outline of its own
    below the name, which so stays text in SVG and PDF.
    """
    from matplotlib.patheffects import withStroke

    settings = {"ha": "center", "va": "center", "color": INK, "parse_math": False, **style}
    place = tuple(float(v) for v in where)
    stroke = withStroke(linewidth=halo, foreground="white")
    edge = {**settings, "color": "white", "path_effects": [stroke]}
    for drawn in (edge, settings):
        if "xytext" in drawn:
            axes.annotate(label, place, textcoords="offset points", annotation_clip=False, **drawn)
        else:
            axes.text(*place, label, **drawn)


def faces(axes: Any, polygons: Any, **style: Any) -> None:
    """Add polygons (n, 3) to 3-D axes whose limits are set by hand."""
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    # Repeating corners makes all equally long: matplotlib pads shorter ones with memory that nobody
    # wrote to, and then looks for the axes' limits in it.
    longest = max(map(len, polygons), default=0)
    even = [np.vstack([p, np.repeat(p[-1:], longest - len(p), axis=0)]) for p in polygons]
    axes.add_collection3d(Poly3DCollection(even, **style))


@contextmanager
def figure_to(path: str | os.PathLike[str], inches: tuple[float, float]) -> Iterator[Any]:
    """A figure that is written when the block ends; text in SVG and PDF stays text.

    The same head gives the same bytes: no dates, no random names inside.
    """
    check_figure(path)
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    settings: dict[Any, Any] = {
        "svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "uncork", "font.size": 9,
        "font.family": [name for name in _FONTS if name in installed] or ["sans-serif"],
        "mathtext.fontset": "dejavusans", "axes.unicode_minus": True, "axes.edgecolor": "#9a9a9a",
        "axes.linewidth": 0.8, "xtick.color": "#9a9a9a", "ytick.color": "#9a9a9a",
        "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.labelcolor": INK,
    }  # fmt: skip
    kind = str(path).rpartition(".")[2].lower()
    undated: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context(settings), warnings.catch_warnings(), _quiet_fonts():
        # A label in a script that no installed font has is drawn as boxes; that is no news.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=inches, dpi=300)
        yield figure
        try:
            figure.savefig(path, metadata=undated.get(kind))
        except OSError as error:
            raise UncorkError(f"{path} cannot be written: {error.strerror or error}") from error


@contextmanager
def _quiet_fonts() -> Iterator[None]:
    """Without what matplotlib logs of fonts that have no bold."""
    logger = logging.getLogger("matplotlib.font_manager")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
