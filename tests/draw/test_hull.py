"""The hull of the rows, whatever their dimension."""

from __future__ import annotations

import numpy as np
import pytest

from uncork.draw.hull import hull_faces

RNG = np.random.default_rng(0)


def test_rows_in_a_plane_or_on_a_line_have_their_hull() -> None:
    turn = np.linalg.qr(RNG.normal(size=(3, 3)))[0]
    corners = np.array([[0.0, 0, 0], [2, 0, 0], [2, 1, 0], [0, 1, 0]]) @ turn
    (face,) = hull_faces(np.vstack([corners, corners.mean(axis=0)]) + 5)
    assert sorted(map(tuple, face.round(9))) == sorted(map(tuple, (corners + 5).round(9)))
    (segment,) = hull_faces(np.outer([3.0, -1, 2], turn[0]) + 7)
    assert np.linalg.norm(segment[1] - segment[0]) == pytest.approx(4)
    assert len(hull_faces(np.vstack([corners, [0, 0, 9]]))) >= 5
    assert hull_faces(np.ones((4, 3))) == []
    (side,) = hull_faces(np.array([[0.0, 0], [1, 1], [3, 3]]))
    assert side.tolist() == [[0, 0], [3, 3]] or side.tolist() == [[3, 3], [0, 0]]
