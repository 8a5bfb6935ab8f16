"""Thresholds: above which logit a label is predicted."""

from __future__ import annotations

import math

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head


def logit_thresholds(head: Head, thresholds: float | np.ndarray | None) -> np.ndarray:
    """One logit for each label: (labels,) float64. 0 where none is given."""
    values = np.asarray(0.0 if thresholds is None else thresholds, dtype=np.float64)
    if values.ndim > 1 or (values.ndim == 1 and values.shape != (head.classes,)):
        raise UncorkError(
            f"thresholds of shape {values.shape}: expected one number, or one for each of "
            f"{head.classes} labels"
        )
    if not np.isfinite(values).all():
        raise UncorkError("a threshold is not finite")
    return np.broadcast_to(values, (head.classes,)).copy()


def logit(probability: float) -> float:
    """The logit whose sigmoid is a probability, as the float nearest to it: 0 for one half."""
    if not 0 < probability < 1:
        raise UncorkError(f"threshold {probability:g}: expected a probability between 0 and 1")
    if probability == 0.5:
        return 0.0
    return math.log(probability) - math.log1p(-probability)
