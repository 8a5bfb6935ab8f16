"""TEXMEX's .fvecs, .ivecs and .bvecs: rows that each begin with their number of values; mapped."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.contents import Contents
from uncork.loading.vectors.found import Vectors, vectors_of

_VALUES = {".fvecs": "<f4", ".ivecs": "<i4", ".bvecs": "u1"}
_BLOCK = 1 << 20


def read_xvecs(path: Path) -> Contents:
    """The rows of one file; all must have as many values as the first."""
    kind = np.dtype(_VALUES[path.suffix.lower()])
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(4)
    features = struct.unpack("<i", start)[0] if len(start) == 4 else 0
    each = 4 + features * kind.itemsize
    if features < 1 or size % each:
        raise UncorkError(
            f"{path} begins with a row of {features} values, and its {size} bytes are not a whole "
            "number of such rows: truncated or damaged"
        )
    count = size // each
    raw = np.memmap(path, np.uint8, "r", 0, (count, each))
    for first in range(0, count, _BLOCK):
        widths = raw[first : first + _BLOCK, :4].copy().view("<i4").reshape(-1)
        wrong = np.flatnonzero(widths != features)
        if len(wrong):
            raise UncorkError(
                f"{path}: row {first + int(wrong[0])} has {int(widths[wrong[0]])} values and the "
                f"first has {features}: damaged"
            )

    def read() -> np.ndarray:
        return np.ndarray((count, features), kind, raw, 4, (each, kind.itemsize))

    found = Vectors(
        (count, features), kind.name, read, None, f"the rows of a {path.suffix.lower()} file"
    )
    return vectors_of(path, "xvecs", found)
