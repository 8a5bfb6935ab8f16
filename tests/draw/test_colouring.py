"""Colours of classes: neighbours never share one."""

from __future__ import annotations

import numpy as np

import uncork
from uncork.draw.colouring import coloured
from uncork.draw.regions import touching
from uncork.draw.style import PALETTE
from uncork.theory.random_heads import random_head


def test_regions_that_touch_have_different_colours() -> None:
    for features, bias, seed in ((2, True, 1), (3, False, 0), (3, True, 0)):
        head = random_head(60, features, bias=bias, seed=seed).replace(domain=uncork.Unbounded())
        lost = np.zeros(60, dtype=bool)
        lost[uncork.audit(head, jobs=1).unargmaxable] = True
        pairs = list(touching(head, lost))
        shades = coloured(60, pairs)
        assert len(pairs) > 20
        assert all(shades[i] != shades[j] for i, j in pairs)
        if features == 2:  # in space slivers are left out
            assert all((j, i) in pairs for i, j in pairs)
    assert coloured(8, []) == list(range(8))


def test_regions_of_the_plane_need_no_more_than_the_palette() -> None:
    """A triangular grid, where every inner region has six neighbours, has no two alike beside."""
    side = 9
    grid = np.arange(side * side).reshape(side, side)
    pairs = [
        (int(grid[i, j]), int(grid[i + di, j + dj]))
        for i in range(side)
        for j in range(side)
        for di, dj in ((0, 1), (1, 0), (1, 1))
        if i + di < side and j + dj < side
    ]
    shades = coloured(side * side, pairs)
    assert all(shades[i] != shades[j] for i, j in pairs)
    assert set(shades) == set(range(len(PALETTE)))  # all of them are seen
