"""What given inputs bring to the top: the classes that none of them has among its first k.

Counted in floats, as an index would. It proves nothing: it stands beside what is impossible.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uncork.core.head import Head

_BYTES = 64 << 20  # of scores at a time
_ROWS = 4096


def never_among_first(
    head: Head, inputs: np.ndarray, places: Sequence[int]
) -> dict[int, np.ndarray]:
    """For each k, the classes that are among the first k at none of the inputs (n, d)."""
    places = sorted({min(k, head.classes) for k in places})
    seen = {k: np.zeros(head.classes, dtype=bool) for k in places}
    step = max(1, _BYTES // (8 * head.classes))
    for start in range(0, len(inputs), step):
        x = np.asarray(inputs[start : start + step], dtype=np.float64)
        parts = [x @ block.T for _, block in head.blocks(_ROWS)]
        scores = np.concatenate(parts, axis=1) + head.offsets
        most = places[-1]
        best = np.argpartition(-scores, most - 1, axis=1)[:, :most]
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, axis=1)
        for k in places:
            seen[k][best[:, :k]] = True
    return {k: np.flatnonzero(~found) for k, found in seen.items()}
