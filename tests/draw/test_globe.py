"""The globe: its borders are great circles."""

from __future__ import annotations

import numpy as np
import pytest

import uncork
from uncork.draw import globe
from uncork.draw.cells import region


@pytest.mark.parametrize(
    "weight",
    [
        [[1, 0.3, 0.2], [-1, 0.5, 0.1]],
        [[0, 0, 0], [1, 1, 0.5], [2, 2, 1], [3, 3, 1.5]],
        [[0.5, -0.72, 0.4801], [0.5, -0.72, 0.48], [-1, 0, 0]],
    ],
    ids=["two classes", "rows on a line", "rows far too near"],
)
def test_every_border_on_the_globe_is_a_great_circle(weight: list[list[float]]) -> None:
    head = uncork.Head(np.array(weight, dtype=float), domain=uncork.Unbounded())
    rows = head.rows(0, head.classes)
    for view in (globe.VIEW, -globe.VIEW):
        frame = np.column_stack([*globe._across(view), view])
        flat, height = globe._seen(head, view)
        for t in range(head.classes):
            polygon = region(flat, height, t, globe._PLANE)
            if len(polygon) < 3:
                continue
            bent = globe._bent(polygon)
            deep = np.sqrt(np.clip(1 - (bent**2).sum(axis=1), 0, None))
            on_globe = np.column_stack([bent, deep]) @ frame.T
            logits = on_globe @ rows.T
            inner = deep > 0.02  # the rest is the globe's own edge
            # A point of the border is one where t is first together with another.
            others = np.delete(logits, t, axis=1).max(axis=1)
            size = np.abs(rows).max()
            assert np.abs(logits[:, t] - others)[inner].max(initial=0) < 1e-6 * size
            steps = np.linalg.norm(np.diff(np.vstack([bent, bent[:1]]), axis=0), axis=1)
            assert steps.max() < 0.12
