"""Colours that every reader tells apart, and faces that matplotlib does not misread."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from colour_vision import VISIONS, apart, seen

from uncork.draw.style import LOST, PALETTE


def test_faces_are_equally_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib pads others with unwritten memory and takes the axes' limits from it."""
    from mpl_toolkits.mplot3d import art3d

    from uncork.draw.style import faces

    given: list[list[np.ndarray]] = []
    monkeypatch.setattr(art3d, "Poly3DCollection", given.append)
    square_face, triangle = np.ones((4, 3)), np.zeros((3, 3))
    faces(SimpleNamespace(add_collection3d=lambda _: None), [square_face, triangle])
    assert [polygon.shape for polygon in given[0]] == [(4, 3), (4, 3)]


@pytest.mark.parametrize("vision", VISIONS)
def test_fills_are_told_apart_by_every_reader(vision: str) -> None:
    from matplotlib.colors import to_rgb

    lab = seen(np.array([to_rgb(c) for c in (*PALETTE, "#ffffff", LOST)]), vision)
    least = min(apart(one, other) for one, other in itertools.combinations(lab[:-1], 2))
    assert least > 11  # white among them
    assert min(apart(*pair) for pair in itertools.combinations(lab[: len(PALETTE)], 2)) > 15
    assert min(apart(lab[-1], one) for one in lab[:-1]) > 12
