"""Classes asked for by number, checked once for everybody."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uncork.core.errors import UncorkError


def class_ids(classes: int, asked: Sequence[int] | np.ndarray | None) -> np.ndarray:
    """The ids asked for (n,), as given; all of the head's `classes` where none are named."""
    if asked is None:
        return np.arange(classes)
    given = np.asarray(asked)
    if given.dtype == bool:
        raise UncorkError("classes are numbers, not a mask: give np.flatnonzero(mask)")
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iuf"):
        raise UncorkError("classes must be whole numbers, a list or an array of them")
    if not len(given):
        raise UncorkError("no classes were asked for")
    wrong = given[~((given >= 0) & (given < classes) & (given == np.rint(given)))]
    if len(wrong):
        raise UncorkError(f"class {wrong[0]} does not exist: the head has {classes} classes")
    return given.astype(np.int64)
