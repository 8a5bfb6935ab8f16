"""`uncork count`: numbers, tables and enumerations in every format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from running import Run


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        (("-C", 4, "-d", 2), "12"),
        (("-C", 4, "-d", 2, "--bias"), "18"),
        (("-C", 10, "-d", 5), "128,288"),
        (("-C", 10, "-d", 5, "--bias"), "342,964"),
    ],
)
def test_the_papers_examples(run: Run, arguments: tuple[object, ...], number: str) -> None:
    ran = run("count", *arguments)
    assert ran.status == 0
    assert f"feasible rankings  {number}\n" in ran.out


def test_json_has_every_kind_of_region(run: Run) -> None:
    found = run("count", "-C", 10, "-d", 5, "--bias", "--format", "json").json()
    assert (found["rankings"], found["bounded"], found["unbounded"]) == (342964, 214676, 128288)
    assert found["share"] == pytest.approx(342964 / 3628800)


def test_bounded_regions_come_first_when_asked_for(run: Run) -> None:
    lines = run("count", "-C", 4, "-d", 2, "--bias", "--bounded").out.splitlines()
    assert lines[1].split() == ["bounded", "regions", "6"]


def test_both_tables_of_the_paper(run: Run) -> None:
    text = run("count", "--table").out
    assert "Table 2: feasible rankings, no bias" in text
    assert "2  90  1,742  18,990  128,288  557,640  1,575,648  2,903,040  3,628,800" in text
    assert "46  916  10,366  73,639  342,964  1,066,644  2,239,344  3,265,920  3,628,800" in text
    rows = list(csv.reader(io.StringIO(run("count", "--table", "--format", "csv").out)))
    assert rows[0] == ["bias", "classes", *map(str, range(1, 11))]
    assert len(rows) == 21
    assert rows[20][:7] == ["1", "10", "46", "916", "10366", "73639", "342964"]
    latex = run("count", "--table", "--bias", "--format", "latex").out
    assert latex.count(r"\\") == 12
    assert r"4 & 7 & 18 & 24 &" in latex
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 1
    described = json.loads(run("count", "--table", "--format", "json").out)
    assert described["tables"][0]["rows"][3][1] == 12


def test_large_sizes_give_a_logarithm_and_say_how_sure_it_is(run: Run) -> None:
    text = run("count", "-C", 50_000, "-d", 300).out
    assert "feasible rankings     10^" in text
    assert "--exact gives every digit" in text
    every_digit = run("count", "-C", 2000, "-d", 700, "--bias", "--format", "csv").out
    assert len(every_digit.splitlines()[1].split(",")[3]) > 2500


def test_a_small_head_is_enumerated_and_explained(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "square.npz"
    np.savez(path, weight=np.array([[0.0, 0], [1, 0], [0, 1], [1, 1]]), bias=[0.0, 0, 0, 1])
    text = run("count", path).out
    assert "16 feasible rankings, 4 in bounded regions; 20 pairs of regions share a facet" in text
    assert "parallel walls: 0 = 1, 2 = 3 never hold together" in text
    assert "0 > 1 > 2 > 3   at x = " in text
    found = run("count", path, "--format", "json").json()
    assert len(found["feasible"]) == found["rankings"] == 16
    assert found["in_general_position"] == 18
    assert len(found["adjacent"]) == 20
    rows = list(csv.reader(io.StringIO(run("count", path, "--format", "csv").out)))
    assert rows[0] == ["ranking", "bounded", "x0", "x1"]
    assert len(rows) == 17


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give -C and -d, or --table"),
        (("-C", 5), "give -C and -d, or --table"),
        (("-C", 0, "-d", 1), "0 classes"),
        (("-C", 3, "-d", 0), "0 features"),
        (("--table", "-C", 1000, "-d", 1000), "1 to 10,000 entries"),
        (("--table", "-C", 0), "a table of 0 × 10"),
        (("--table", "-d", 0), "a table of 10 × 0"),
        (("some.npz", "-C", 3), "do not go with it"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    run: Run, arguments: tuple[object, ...], message: str
) -> None:
    assert message in run("count", *arguments).error


def test_json_asked_for_twice_is_one_document(run: Run) -> None:
    assert (
        run("count", "-C", 4, "-d", 2, "--format", "json", "--json", "-").json()["rankings"] == 12
    )


def test_the_head_is_not_overwritten(run: Run, square: Path) -> None:
    before = square.read_bytes()
    assert "would overwrite the model" in run("count", square, "--json", square).error
    assert square.read_bytes() == before
