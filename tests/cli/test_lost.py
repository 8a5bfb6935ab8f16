"""`uncork lost`: the simulation's table, its files and its figure."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from running import Run


def test_every_way_of_drawing_heads_is_simulated(run: Run, tmp_path: Path) -> None:
    plot = tmp_path / "lost.svg"
    ran = run("lost", "-C", "6,20", "-d", "1,2", "--heads", 3, "--plot", plot)
    assert ran.status == 0
    assert "normal, with bias" in plot.read_text()
    assert "closed form" in plot.read_text()
    assert ran.out.count("│ uniform │") == 8


def test_rows_as_csv_and_json_agree(run: Run) -> None:
    asked = ("lost", "-C", "12", "-d", "1,3", "--init", "normal", "--no-bias", "--heads", 4)
    rows = list(csv.DictReader(io.StringIO(run(*asked, "--csv", "-").out)))
    found = run(*asked, "--json", "-").json()["heads"]
    assert [float(row["lost"]) for row in rows] == [row["lost"] for row in found]
    assert found[0]["lost"] == found[0]["closed_form"] == pytest.approx(10)
    assert found[0]["standard_error"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-C", "few"), "expected numbers like"),
        (("-C", "1"), "at least two"),
        (("--heads", "0"), "at least one to average over"),
        (("--plot", "lost.txt"), "ends in .png"),
        (("--domain", "disc:3"), "disc:3"),
        (("--csv", "-", "--json", "-"), "would mix on stdout"),
        (("--csv", "z", "--json", "z"), "would overwrite what --csv writes"),
        (("--plot", "z.png", "--json", "z.png"), "would overwrite what --"),
        (("--csv", "z", "--domain", "@z"), "would overwrite the domain"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    run: Run,
    arguments: tuple[object, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in run("lost", "-C", "4", "-d", "1", *arguments).error
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_cannot_be_written_leaves_the_one_before(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str, **more: object) -> None:
        path.write_bytes(b"init,bias")
        raise OSError(28, "No space left on device")

    path = tmp_path / "lost.csv"
    path.write_text("earlier")
    monkeypatch.setattr(Path, "write_text", full)
    ran = run("lost", "-C", "4", "-d", "1", "--heads", 1, "--csv", path, "--quiet")
    assert ran.error == f"uncork: error: {path} cannot be written: No space left on device"
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]
