"""Random heads and the hulls they are compared with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from uncork import Ball, Box, Head, Unbounded, UncorkError
from uncork.auditing.search.reference import decide_reference
from uncork.cli.files import guarded
from uncork.cli.random import compare, random
from uncork.report import plot_hull
from uncork.theory.random_heads import (
    exact_classes,
    hull_vertices,
    random_head,
    upper_hull_vertices,
)


def test_a_seed_gives_the_same_head_and_a_bias_leaves_the_weight_alone() -> None:
    first, second = random_head(20, 3, seed=5), random_head(20, 3, bias=True, seed=5)
    np.testing.assert_array_equal(first.weight, second.weight)
    assert second.bias is not None
    assert random_head(20, 3, seed=6).fingerprint != first.fingerprint


def test_uniform_is_between_minus_one_and_one() -> None:
    weight = random_head(500, 4, init="uniform").weight
    assert -1 <= weight.min() < -0.9
    assert 0.9 < weight.max() <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 1, "features": 3}, "at least two"),
        ({"classes": 3, "features": 0}, "at least one"),
        ({"classes": 3, "features": 2, "init": "xavier"}, "expected normal or uniform"),
        ({"classes": 3, "features": 2, "seed": -1}, "not negative"),
        ({"classes": 10**9, "features": 10**9}, "do not fit into memory"),
    ],
)
def test_what_cannot_be_drawn_is_named(arguments: dict, message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        random_head(**arguments)


def test_hull_of_a_square_with_its_centre() -> None:
    square = np.array([[0, 0], [2, 0], [1, 1], [2, 2], [0, 2]], dtype=float)
    assert hull_vertices(square).tolist() == [0, 1, 3, 4]


def test_hull_in_one_dimension_is_the_two_ends() -> None:
    assert hull_vertices(np.array([[3.0], [1.0], [2.0], [5.0]])).tolist() == [1, 3]
    assert hull_vertices(np.array([[1.0], [1.0], [5.0]])).tolist() == [2]  # a tied end is no vertex


def test_equal_rows_are_no_vertices() -> None:
    points = np.array([[0, 0], [2, 0], [0, 2], [0, 2], [2, 2]], dtype=float)
    assert hull_vertices(points).tolist() == [0, 1, 4]


def test_too_few_points_end_in_one_line() -> None:
    with pytest.raises(UncorkError, match="Qhull finds no hull of 3 points in 3 dimensions"):
        hull_vertices(np.eye(3))


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    features=st.integers(1, 3),
    init=st.sampled_from(["normal", "uniform"]),
)
def test_the_upper_hull_is_what_a_bias_makes_argmaxable(
    seed: int, features: int, init: str
) -> None:
    head = random_head(12, features, init, bias=True, seed=seed, domain=Unbounded())
    found = [t for t in range(12) if decide_reference(head, t, patience=100) == "argmaxable"]
    assert upper_hull_vertices(head.weight, head.offsets).tolist() == found


def test_qhull_is_asked_only_where_it_knows() -> None:
    free = random_head(20, 3, seed=1)
    assert exact_classes(free) is not None
    assert exact_classes(free.replace(domain=Ball(1))) is not None
    assert exact_classes(free.replace(domain=Box(0, 100))) is None  # half of the inputs are missing
    assert exact_classes(random_head(20, 3, bias=True)) is None  # a box matters with a bias
    assert exact_classes(random_head(20, 3, bias=True, domain=Unbounded())) is not None
    assert exact_classes(random_head(30, 10)) is None
    assert exact_classes(random_head(4, 5)) is None


@pytest.mark.parametrize("features", [2, 3])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_hull_is_drawn(tmp_path: Path, features: int, suffix: str) -> None:
    head = random_head(40, features)
    lost = np.setdiff1d(np.arange(40), hull_vertices(head.weight))
    path = tmp_path / f"hull.{suffix}"
    plot_hull(head, lost, path)
    data = path.read_bytes()
    if suffix == "png":
        assert data.startswith(b"\x89PNG")
    else:
        assert f"unargmaxable ({len(lost)})" in data.decode()


def test_points_on_a_line_are_drawn_without_a_hull(tmp_path: Path) -> None:
    head = Head(np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]))
    plot_hull(head, [1], tmp_path / "line.png")
    assert (tmp_path / "line.png").stat().st_size > 0


@pytest.mark.parametrize("name", ["hull.onnx", "hull", "no/hull.png"])
def test_a_plot_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UncorkError, match="cannot be written"):
        plot_hull(random_head(9, 2), [], tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_four_features_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match="2 or 3 features, not of 4"):
        plot_hull(random_head(9, 4), [], tmp_path / "hull.png")


def test_without_matplotlib_the_way_to_get_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UncorkError, match=r"pip install 'uncork\[plot\]'"):
        plot_hull(random_head(9, 2), [], tmp_path / "hull.png")


app = typer.Typer()
app.command()(guarded(random))


def run(*arguments: object) -> str:
    """The command's output; its errors arrive as they are raised."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_precision_and_recall_are_of_the_lost_classes() -> None:
    ids = np.array
    result = SimpleNamespace(
        argmaxable=ids([0, 1, 4]), unargmaxable=ids([2, 3]), tied=ids([], int), undecided=ids([5])
    )
    seen = compare(result, truth=np.array([0, 1, 2]), classes=6)  # really lost: 3, 4, 5
    assert seen["precision"] == 1 / 2
    assert seen["recall"] == 1 / 3
    assert seen["contradicted"] == [2, 4]  # 5 is undecided and contradicts nothing


@pytest.mark.parametrize("extra", [(), ("--init", "uniform"), ("--bias", "--domain", "unbounded")])
def test_the_audit_of_a_random_head_is_qhulls(extra: tuple[str, ...]) -> None:
    text = run("-C", 60, "-d", 4, "--seed", 2, *extra)
    assert "precision 100.0%, recall 100.0%" in text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("-C", 30, "-d", 12), "it is asked up to 9"),
        (("-C", 30, "-d", 3, "--bias"), "needs --domain unbounded"),
        (("-C", 4, "-d", 6), "span no hull"),
        (("-C", 30, "-d", 3, "--no-qhull"), "not asked to"),
        (("-C", 30, "-d", 3, "--domain", "box:0,1"), "does not surround 0"),
    ],
)
def test_where_qhull_cannot_be_asked_the_reason_is_said(arguments: tuple, why: str) -> None:
    assert why in run(*arguments)


def test_json_and_plot_of_a_random_head(tmp_path: Path) -> None:
    shown = json.loads(run("-C", 20, "-d", 2, "--plot", tmp_path / "hull.png", "--json", "-"))
    assert sum(shown["counts"].values()) == 20
    assert len(shown["unargmaxable"]) == shown["qhull"]["unargmaxable"]
    assert (shown["qhull"]["precision"], shown["qhull"]["recall"]) == (1.0, 1.0)
    assert (tmp_path / "hull.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-C", 20, "-d", 4, "--plot", "hull.png"), "2 or 3 features, not of 4"),
        (("-C", 20, "-d", 2, "--plot", "no/hull.png"), "there is no folder"),
        (("-C", 20, "-d", 2, "--json", "no/result.json"), "there is no folder"),
        (("-C", 20, "-d", 2, "--domain", "box:2,1"), "lower bound 2 is above"),
        (("-C", 1, "-d", 2), "at least two"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(
    arguments: tuple, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UncorkError, match=message):
        run(*arguments)
    assert not list(tmp_path.iterdir())
