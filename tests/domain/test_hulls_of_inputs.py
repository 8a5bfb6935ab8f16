"""The simplex, and hulls of given inputs as images of it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from uncork import Head, UncorkError, audit, verify
from uncork.auditing.certify.latent import Latent
from uncork.domain import Box, Hull, Image, Simplex, Unbounded, parse_domain
from uncork.domain.file import read_domain, write_domain
from uncork.domain.hull import MOST_POINTS, Rest, domain_of_queries
from uncork.domain.simplex import nearest_shares


def test_the_support_is_that_of_the_best_corner_and_never_too_small() -> None:
    rng = np.random.default_rng(0)
    simplex = Simplex()
    for _ in range(50):
        r, error = rng.normal(size=4), np.abs(rng.normal(size=4)) * 1e-3
        exact = simplex.support_exactly([Fraction(v) for v in r.tolist()])
        assert exact == max(0, *(Fraction(v) for v in r.tolist()))
        assert simplex.support(r, error).value >= float(exact)
        corners = np.vstack([np.zeros(4), np.eye(4)])
        assert simplex.support(r, error).value >= (corners @ (r + error)).max() - 1e-15


def test_members_are_shares_and_nothing_outside_is_one() -> None:
    simplex = Simplex()
    inside = np.array([[0, 0, 0], [1, 0, 0], [0.5, 0.25, 0.25], [0.1, 0.2, 0.3]])
    assert simplex.contains(inside).all()
    step = np.nextafter(0.5, 1)
    outside = np.array([[0.5, step, 0], [-1e-300, 0, 0], [np.nan, 0, 0], [np.inf, 0, 0]])
    assert not simplex.contains(outside).any()
    # 0.1 ten times is a little more than one, in exact numbers.
    assert not simplex.contains(np.full(10, 0.1))
    assert simplex.contains(np.full(10, 0.1), 1e-9)


def test_the_nearest_shares_are_nearest() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 5))
    found = nearest_shares(x)
    assert (found >= 0).all()
    assert (found.sum(axis=1) <= 1 + 1e-12).all()
    others = rng.dirichlet(np.ones(6), size=200)[:, :5]
    best = ((others[None] - x[:, None]) ** 2).sum(axis=2).min(axis=1)
    assert (((found - x) ** 2).sum(axis=1) <= best + 1e-12).all()
    assert Simplex().contains(Simplex().pulled_in(x)).all()


def test_the_steps_of_a_hull_are_what_fractions_say() -> None:
    rng = np.random.default_rng(2)
    points = rng.normal(size=(5, 3))
    latent = Latent(Hull(points), 3)
    u, r = rng.dirichlet(np.ones(5), size=3)[:, 1:], rng.normal(size=(3, 3))
    x, off = latent.forward(u)
    rows, error, shift, slack = latent.back(r, np.zeros_like(r))
    for k in range(3):
        exact = latent.forward_exactly([Fraction(v) for v in u[k].tolist()])
        assert all(
            abs(Fraction(a) - b) <= Fraction(e)
            for a, b, e in zip(x[k].tolist(), exact, off[k].tolist(), strict=True)
        )
        g, s = latent.back_exactly([Fraction(v) for v in r[k].tolist()])
        assert all(
            abs(Fraction(a) - b) <= Fraction(e)
            for a, b, e in zip(rows[k].tolist(), g, error[k].tolist(), strict=True)
        )
        assert abs(Fraction(float(shift[k])) - s) <= Fraction(float(slack[k]))
    assert np.allclose(Hull(points).affine(3).image(u), np.c_[1 - u.sum(axis=1), u] @ points)
    assert Rest().rank(4) == 4


def margins(head: Head, points: np.ndarray) -> np.ndarray:
    """By how much each class can lead at most, by SciPy over the shares."""
    best = []
    for t in range(head.classes):
        others = np.arange(head.classes) != t
        rows = (head.rows(0, head.classes)[others] - head.rows(t, t + 1)) @ points.T
        solved = linprog(
            np.append(np.zeros(len(points)), -1.0),
            A_ub=np.column_stack([rows, np.ones(len(rows))]),
            b_ub=head.offsets[t] - head.offsets[others],
            A_eq=[np.append(np.ones(len(points)), 0.0)], b_eq=[1.0],
            bounds=[(0, None)] * len(points) + [(None, 1)],
        )  # fmt: skip
        best.append(-solved.fun)
    return np.array(best)


@pytest.mark.parametrize("bias", [True, False])
def test_every_class_is_decided_over_a_hull_as_scipy_says(bias: bool) -> None:
    rng = np.random.default_rng(3)
    points = rng.normal(size=(8, 3)) + 0.5
    weight = rng.normal(size=(40, 3)).astype(np.float32)
    head = Head(weight, rng.normal(size=40) if bias else None, domain=Hull(points))
    found = audit(head, device="cpu", jobs=1)
    assert not len(found.undecided)
    assert found.argmaxable.tolist() == np.flatnonzero(margins(head, points) > 1e-9).tolist()
    assert verify(found, head).ok
    x = np.array([found.witness(int(t)) for t in found.argmaxable])
    assert Hull(points).contains(x, 1e-9).all()


def test_queries_stand_for_their_span_their_box_or_their_hull() -> None:
    rng = np.random.default_rng(4)
    queries = rng.normal(size=(6, 3)).astype(np.float32)
    assert domain_of_queries(queries, "span") == Unbounded()
    box = domain_of_queries(queries, "box")
    assert isinstance(box, Box)
    assert box.contains(queries.astype(np.float64)).all()
    hull = domain_of_queries(np.vstack([queries, queries]), "hull")
    assert isinstance(hull, Hull)
    assert len(hull.points) == 6
    flat = domain_of_queries(queries[:2], "span")
    assert isinstance(flat, Image)
    assert flat.contains(queries[:2].sum(axis=0, keepdims=True)).all()
    assert not flat.contains(np.cross(queries[0], queries[1])[None]).any()
    one = domain_of_queries(queries[:1], "hull")
    assert one == Box(queries[0], queries[0])


def test_both_are_read_back_from_files(tmp_path: Path) -> None:
    assert parse_domain("simplex") == Simplex()
    hull = Hull(np.arange(6.0).reshape(3, 2))
    write_domain(tmp_path / "d.npz", hull)
    assert read_domain(tmp_path / "d.npz")[0] == hull
    assert "mixture of 3 given inputs" in hull.in_words(2)
    with pytest.raises(UncorkError):
        parse_domain("simplex:3")


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (np.ones((1, 3)), "two points or more"),
        (np.ones(3), "two points or more"),
        (np.full((2, 2), np.nan), "finite"),
        (np.zeros((MOST_POINTS + 1, 1)), "at most"),
        (np.array([["a"]]), "expected floats"),
    ],
)
def test_what_is_no_hull_is_refused(points: np.ndarray, words: str) -> None:
    with pytest.raises(UncorkError, match=words):
        Hull(points)
