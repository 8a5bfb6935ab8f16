"""`uncork random`: what does not go together; precision and recall by independent code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from running import Run

ONE = ["-C", 8, "-d", 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*ONE, "--store", "x.db"], "--store goes with --sweep"),
        ([*ONE, "--resume"], "--resume goes with --sweep"),
        (["-d", 2], "the number of classes is missing"),
        (["-C", 8, "--sweep", "--approximate"], "do not go with --sweep"),
        ([*ONE, "--patience", -1], "patience must not be negative"),
        ([*ONE, "--plot", "z.png", "--json", "z.png"], "would overwrite what --"),
        ([*ONE, "--domain", "@z", "--json", "z"], "would overwrite the domain"),
        (["-C", 8, "--sweep", "--json", "uncork.db"], "would overwrite the store"),
        (["-C", 8, "--sweep", "--store", "x.db", "--json", "x.db"], "would overwrite the store"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[object],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in run("random", *arguments).error
    assert list(tmp_path.iterdir()) == []


def corners(points: np.ndarray) -> set[int]:
    """The vertices of a convex hull in the plane, by Andrew's monotone chain: no Qhull here."""
    order = sorted(range(len(points)), key=lambda i: tuple(points[i]))

    def chain(ids: list[int]) -> list[int]:
        kept: list[int] = []
        for i in ids:
            while len(kept) > 1:
                (ax, ay), (bx, by) = (
                    points[kept[-1]] - points[kept[-2]],
                    points[i] - points[kept[-2]],
                )
                if ax * by - ay * bx > 0:
                    break
                kept.pop()
            kept.append(i)
        return kept

    return {*chain(order), *chain(order[::-1])}


def won_by_reflecting(rows: np.ndarray, t: int, patience: int) -> bool:
    """Algorithm 2 of the paper without a bias: reflect x wherever another class is ahead of t."""
    x = rows[t]
    for _ in range(patience + 1):
        ahead = max((i for i in range(len(rows)) if i != t), key=lambda i: rows[i] @ x)
        if rows[t] @ x > rows[ahead] @ x:
            return True
        across = (rows[t] - rows[ahead]) / np.linalg.norm(rows[t] - rows[ahead])
        x = x - 2 * (across @ x) * across
    return False


@pytest.mark.parametrize("patience", [0, 1, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_precision_and_recall_of_the_papers_approximate_algorithm(
    run: Run, seed: int, patience: int
) -> None:
    rows = np.random.default_rng(seed).normal(size=(40, 2))
    left = {t for t in range(40) if not won_by_reflecting(rows, t, patience)}
    inside = set(range(40)) - corners(rows)
    search = ("--approximate", "--algorithm", "reference", "--patience", patience)
    ran = run("random", "-C", 40, "-d", 2, "--seed", seed, *search, "--json", "-")
    found = ran.json()
    assert found["undecided"] == sorted(left)
    assert found["qhull"]["found"] == len(left)
    assert found["qhull"]["precision"] == len(left & inside) / len(left)
    assert found["qhull"]["recall"] == len(left & inside) / len(inside) == 1


def test_a_screening_that_stops_early_costs_precision_and_never_recall(run: Run) -> None:
    # Of 60 classes 33 are vertices. The first guess alone finds 23 of them and leaves 37.
    ran = run("random", "-C", 60, "-d", 4, "--seed", 2, "--approximate", "--patience", 0)
    assert "potentially unargmaxable against Qhull: precision 73.0%, recall 100.0%" in ran.out
    assert "│ potentially unargmaxable │      37 │" in ran.out


def test_the_papers_exact_algorithm_agrees_with_qhull(run: Run) -> None:
    ran = run("random", "-C", 30, "-d", 3, "--algorithm", "reference")
    assert (ran.status, "precision 100.0%, recall 100.0%" in ran.out) == (0, True)
