"""What every figure shares: colours, the file it is drawn to, and what can go wrong with that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError

# Okabe and Ito's colours, which colour-blind readers can tell apart.
REACHED = "#0072B2"
LOST = "#D55E00"
MISSED = "#CC79A7"
INK = "#333333"


def check_figure(path: str | os.PathLike[str]) -> None:
    """Raise now if a figure could not be drawn to that file later on."""
    path = Path(path)
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise UncorkError("drawing needs matplotlib: pip install 'uncork[plot]'") from None
    if path.suffix.lstrip(".").lower() not in FigureCanvasBase.get_supported_filetypes():
        raise UncorkError(f"{path} cannot be written: a figure's name ends in .png, .pdf or .svg")
    if path.is_dir() or not path.parent.is_dir():
        what = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise UncorkError(f"{path} cannot be written: {what}")


@contextmanager
def drawn_to(path: str | os.PathLike[str], inches: tuple[float, float]) -> Iterator[Any]:
    """A figure that is written when the block ends; text in SVG and PDF stays text."""
    check_figure(path)
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "font.size": 10}):
        figure = Figure(figsize=inches, dpi=200)
        yield figure
        try:
            figure.savefig(path)
        except OSError as error:
            raise UncorkError(f"{path} cannot be written: {error.strerror or error}") from error
