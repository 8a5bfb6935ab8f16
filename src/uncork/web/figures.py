"""The dots of a report's figures: of many classes those that can be told apart on a screen.

Dots of one verdict that fall on one spot of the figure look like one. Of such a spot one class is
sent, with how many there are; histograms count with that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from uncork.report.data import packed

_ALL = 4000  # as many classes are sent one by one
_ACROSS, _UP = 160, 80  # spots of a figure


def dots(
    ids: np.ndarray,
    verdicts: np.ndarray,
    margins: np.ndarray,
    across: np.ndarray,
    ranks: np.ndarray | None = None,
) -> dict[str, Any]:
    """Classes (n,) drawn at `across` and their margin, or their rank where ranks are given, as
    packed columns of the dots to draw."""
    up = margins if ranks is None else ranks
    chosen: np.ndarray = np.arange(len(ids))
    counts: np.ndarray = np.ones(len(ids), dtype=np.int64)
    if len(ids) > _ALL:
        spot = (_binned(across, _ACROSS) * (_UP + 1) + _binned(_squeezed(up), _UP)) * 4
        _, chosen, counts = np.unique(spot + verdicts, return_index=True, return_counts=True)
    return {
        "size": len(ids),
        "ids": packed(ids[chosen], "<i4"),
        "verdicts": packed(verdicts[chosen], "u1"),
        "margins": packed(margins[chosen], "<f4"),
        "ranks": None if ranks is None else packed(ranks[chosen], "<f4"),
        "across": packed(across[chosen], "<f4"),
        "counts": packed(counts, "<i4"),
    }


def _binned(values: np.ndarray, bins: int) -> np.ndarray:
    """In which of so many equal bins each value falls; those that are not a number in the last."""
    known = np.isfinite(values)
    low = float(values.min(where=known, initial=np.inf))
    span = float(values.max(where=known, initial=-np.inf)) - low
    if not known.any() or not np.isfinite(span):
        return np.where(known, 0, bins)
    shares = (np.where(known, values, low) - low) / (span or 1.0)
    return np.where(known, np.minimum((shares * bins).astype(np.int64), bins - 1), bins)


def _squeezed(margins: np.ndarray) -> np.ndarray:
    """Margins as the figures' axis has them: logarithmic on both sides of zero."""
    sizes = np.abs(margins[np.isfinite(margins) & (margins != 0)])
    if not len(sizes):
        return margins
    least = max(float(np.quantile(sizes, 0.002)), 1e-8 * float(sizes.max()), 1e-300)
    with np.errstate(invalid="ignore"):
        return np.sign(margins) * np.log1p(np.abs(margins) / least)
