"""plot_spectrum: singular values of log-probabilities and of the head, with the bound between."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from uncork.report.drawing import INK, LOST, REACHED, drawn_to
from uncork.theory.spectrum import Spectrum


def plot_spectrum(
    spectra: Mapping[str, Spectrum],
    path: str | os.PathLike[str],
    *,
    bound: int | None = None,
    title: str = "",
) -> None:
    """A curve for each spectrum, on logarithmic axes, against its own largest value."""
    with drawn_to(path, (6.4, 4.0)) as figure:
        axes = figure.subplots()
        colours = [REACHED, LOST, INK]
        for (name, found), colour in zip(spectra.items(), colours, strict=False):
            values = found.values / found.values[0] if len(found.values) else found.values
            places = np.arange(1, len(values) + 1)
            shown = values > 0
            axes.plot(places[shown], values[shown], ".-", ms=3, lw=1, color=colour, label=name)
            if found.rank < len(values):  # what lies below is rounding
                floor = found.tolerance / found.values[0]
                axes.axhline(floor, color=colour, lw=0.8, ls=":")
                axes.annotate(
                    f"tolerance: rank {found.rank:,}", (1, floor), textcoords="offset points",
                    xytext=(2, 3), fontsize=7.5, color=colour,
                )  # fmt: skip
        if bound is not None:
            axes.axvline(bound, color=INK, lw=0.8, ls="--")
            axes.annotate(
                f"bound {bound:,}", (bound, 0.99), xycoords=("data", "axes fraction"),
                textcoords="offset points", xytext=(3, 0), ha="left", va="top", rotation=90,
                fontsize=8, color=INK,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("direction")
        axes.set_ylabel("singular value / largest")
        axes.set_title(title, fontsize=10.5, color=INK)
        axes.legend(frameon=False, fontsize=9, loc="best")
        axes.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()
