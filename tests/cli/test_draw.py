"""uncork draw: figures that are what they claim, and clear words where a head cannot be drawn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from running import Run

from svg import words
from uncork.draw import example
from uncork.theory.braid import rankings

STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF-1"}


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_each_format_is_written(run: Run, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"figure{suffix}"
    ran = run("draw", "--figure", 1, "-o", path)
    assert (ran.status, ran.out) == (0, f"drawn to {path}\n")
    assert path.read_bytes().startswith(STARTS[suffix])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [  # and every picture of the gallery: tests/docs/test_site.py
        (["--figure", 2, "--what", "regions"], "4 classes, and each of them can win"),
        (["--figure", 7], "6 of 6 rankings, without a bias"),
        (["--figure", 8, "--with-bias", "--domain", "box:0.05"], "2 of 24 rankings, with a bias"),
        (["--random", "-C", 4, "-d", 1, "--what", "braid"], "2 of 24 rankings, without a bias"),
        (["--random", "-C", 60, "-d", 3, "--what", "hull"], "39 of 60 classes can never win"),
    ],
)
def test_pictures_say_what_is_true_of_the_head(
    run: Run, tmp_path: Path, arguments: list[object], said: str
) -> None:
    path = tmp_path / "figure.svg"
    assert run("draw", *arguments, "-o", path).status == 0
    assert said in words(path)


def test_every_feasible_ranking_is_named(run: Run, tmp_path: Path) -> None:
    run("draw", "--figure", 8, "--with-bias", "--extent", 2.2, "-o", tmp_path / "figure.svg")
    named = set(re.findall(r"^[A-D]{4}$", words(tmp_path / "figure.svg"), re.MULTILINE))
    truth = {"".join("ABCD"[i] for i in r.order) for r in rankings(example(8, bias=True))}
    assert named <= truth
    assert len(named) >= 16  # slivers at the edge have no room for a name


def test_the_same_command_writes_the_same_bytes(run: Run, tmp_path: Path) -> None:
    for suffix in (".svg", ".pdf"):
        paths = [tmp_path / f"{k}{suffix}" for k in "ab"]
        for path in paths:
            run("draw", "--figure", 1, "--what", "hull", "-o", path)
        assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "give one of SOURCE, --random or --figure"),
        (["--random", "--figure", 1], "give one of SOURCE, --random or --figure"),
        (
            ["--random", "-C", 5, "-d", 8],
            "regions and hull can be drawn of 2 or 3 features, not of",
        ),
        (["--random", "-C", 5, "-d", 2, "--what", "braid"], "3 or 4 classes and up to 3 features"),
        (["--random", "-C", 5000, "-d", 2], "at most 1,000 can be drawn"),
        (["--random", "-C", 5], "give -C and -d"),
        (["--figure", 4], "there is no example after Figure 4"),
        (["--figure", 1, "-C", 3], "-C and -d go with --random"),
        (["--figure", 1, "--labels", "x"], "go with a SOURCE"),
        (["--figure", 1, "--domain", "ball:2"], "not over ball:2"),
        (["--figure", 1, "--extent", -1], "expected a positive number"),
        (["missing.npz"], "missing.npz"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_line(
    run: Run, tmp_path: Path, arguments: list[object], what: str
) -> None:
    path = tmp_path / "figure.png"
    assert what in run("draw", *arguments, "-o", path).error
    assert not path.exists()


def test_other_file_names_are_refused(run: Run, tmp_path: Path) -> None:
    assert "ends in .png" in run("draw", "--figure", 1, "-o", tmp_path / "figure.txt").error
    assert "no folder" in run("draw", "--figure", 1, "-o", tmp_path / "no" / "f.png").error


def test_a_file_of_ones_own_is_drawn(run: Run, square: Path, labels: Path, tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    assert run("draw", square, "--labels", labels, "-o", path).status == 0
    assert "1 of 6 classes can never win" in words(path)
    assert "γάμμα" in words(path)
    before = square.read_bytes()
    assert run("draw", square, "-o", square).status == 2
    assert square.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--extent", "1e308"], "extent 1e+308 cannot be drawn: expected 1e-100 to 1e+100"),
        (["--extent", "1e200"], "extent 1e+200 cannot be drawn"),
        (["--extent", "1e-320"], "cannot be drawn: expected 1e-100 to 1e+100"),
        (["--domain", "box:1e308"], "a domain with a side at 1e+308 cannot be drawn"),
        (["--domain", "box:-1e200,1"], "a domain with a side at 1e+200 cannot be drawn"),
    ],
)
@pytest.mark.parametrize("what", ["both", "braid"])
def test_sizes_that_cannot_be_drawn_are_refused(
    run: Run, tmp_path: Path, what: str, arguments: list[str], message: str
) -> None:
    path = tmp_path / "figure.svg"
    asked = ("draw", "--random", "-C", 4, "-d", 2, "--what", what, "-o", path)
    assert message in run(*asked, *arguments).error
    assert not path.exists()
