"""Pictures of heads: labels stay text, degenerate heads are drawn, ties are said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import uncork
from svg import words
from uncork.draw import draw, example

HOSTILE = [
    "$x^{$",
    "<script>alert(1)</script>",
    "a\nb\x00",
    "漢字",
    "\u202eabc",
    "x" * 5000,
    "",
    " ",
]


@pytest.mark.parametrize(
    ("what", "features"), [("both", 2), ("hull", 3), ("regions", 3)], ids=["plane", "hull", "space"]
)
def test_labels_are_only_text(tmp_path: Path, what: str, features: int) -> None:
    angle = np.linspace(0, 6, len(HOSTILE))
    weight = np.column_stack([np.cos(angle), np.sin(angle), angle % 1.3])[:, :features]
    bias = None if what == "hull" else np.zeros(len(HOSTILE))  # solids with a legend
    head = uncork.Head(weight, bias, labels=HOSTILE, domain=uncork.Box(1))
    draw(head, tmp_path / "figure.svg", what)
    said = words(tmp_path / "figure.svg")
    assert "$x^{$" in said
    assert "<script>alert" in said  # as text: the file is sound XML, and this was read from it
    assert "x" * 20 not in said
    draw(head, tmp_path / "figure.pdf", what)


def test_labels_of_rankings_are_only_text(tmp_path: Path) -> None:
    for rows, labels in (((0, 1, 2), HOSTILE[:3]), ((0, 1, 2, 3), HOSTILE[:4])):
        chosen = example(8, bias=True)
        assert chosen.bias is not None
        head = uncork.Head(
            chosen.weight[list(rows)], chosen.bias[list(rows)], labels, uncork.Unbounded()
        )
        draw(head, tmp_path / "figure.svg", "braid")
        assert "$x^{$" in words(tmp_path / "figure.svg")


@pytest.mark.parametrize(
    "weight",
    [
        np.zeros((3, 2)),
        np.ones((3, 3)),
        np.array([[0.0, 0], [1, 1], [2, 2], [3, 3]]),
        np.array([[1.0, 0], [1, 0], [0, 1]]),
        np.array([[0.0, 0, 1], [0, 0, 2]]),
        np.array([[1e-90, 0], [0, 1e-90], [0, 0]]),
    ],
    ids=["zero", "equal", "on a line", "a pair of equals", "two classes", "tiny"],
)
def test_degenerate_heads_are_drawn(tmp_path: Path, weight: np.ndarray) -> None:
    for bias in (None, np.arange(len(weight), dtype=float)):
        head = uncork.Head(weight, bias, domain=uncork.Unbounded())
        draw(head, tmp_path / "figure.svg", "both" if bias is None else "regions")
        assert words(tmp_path / "figure.svg")


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        ([[1.0, 2]] * 4, "4 classes, all equal: they can only tie"),
        ([[1.0, 0], [1, 0], [0, 1], [-1, -1]], "4 classes, 2 can only tie, the others can win"),
        ([[1.0, 0], [1, 0], [-1, 0], [-1, 0]], "4 classes, 4 can only tie"),
        ([[2.0, 0], [2, 0], [-1, 0], [0, 0]], "1 of 4 classes can never win, 2 can only tie"),
    ],
)
def test_classes_that_tie_are_not_said_to_win(
    tmp_path: Path, weight: list[list[float]], said: str
) -> None:
    draw(uncork.Head(np.array(weight), domain=uncork.Unbounded()), tmp_path / "figure.svg")
    assert said in words(tmp_path / "figure.svg")
    assert "A = B" in words(tmp_path / "figure.svg")
