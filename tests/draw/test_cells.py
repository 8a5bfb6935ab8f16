"""Where classes win, as polygons and solids: they cover everything once."""

from __future__ import annotations

import numpy as np
import pytest

from uncork.draw import example
from uncork.draw.cells import inside, ranked, region, solid, view_of
from uncork.draw.cells import square as square_of
from uncork.theory.braid import rankings

RNG = np.random.default_rng(0)


def test_regions_of_the_plane_cover_it_once() -> None:
    for _ in range(20):
        weight, bias = RNG.normal(size=(7, 2)), RNG.normal(size=7)
        edge = np.array([[-2.0, -2], [2, -2], [2, 2], [-2, 2]])
        polygons = [region(weight, bias, t, edge) for t in range(7)]
        areas = [area(polygon) for polygon in polygons if len(polygon)]
        assert sum(areas) == pytest.approx(16)
        for t, polygon in enumerate(polygons):
            if len(polygon) and area(polygon) > 1e-6:
                where, _ = inside(polygon)
                assert np.argmax(weight @ where + bias) == t


def test_solids_fill_the_box() -> None:
    from scipy.spatial import ConvexHull

    for _ in range(8):
        weight, bias = RNG.normal(size=(6, 3)), RNG.normal(size=6)
        low, high = np.full(3, -2.0), np.full(3, 2.0)
        solids = [solid(weight, bias, t, low, high) for t in range(6)]
        volumes = [ConvexHull(np.vstack(faces)).volume for faces in solids if faces]
        assert sum(volumes) == pytest.approx(64, rel=1e-4)


def test_the_view_holds_every_bounded_region() -> None:
    head = example(8, bias=True)
    assert head.bias is not None
    view = view_of(head, walls=True)
    low, high = view.bounds()
    edge = square_of(low, high)
    for ranking in rankings(head):
        if ranking.bounded:
            polygon = ranked(head.weight, head.bias, ranking.order, edge)
            assert (polygon > low + 1e-9).all()
            assert (polygon < high - 1e-9).all()


def area(polygon: np.ndarray) -> float:
    x, y = polygon.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2
