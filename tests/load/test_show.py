"""`uncork show` prints what was found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from models import MAGIKA, MAGIKA_CONFIG, PP_OCR_V4
from uncork import UncorkError
from uncork.cli.show import show

app = typer.Typer()
app.command()(show)


def run(*arguments: object) -> str:
    """The command's output; its errors arrive as they are raised."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_a_recogniser_is_shown_with_its_labels_and_domain() -> None:
    text = run(PP_OCR_V4)
    assert "6,625 classes × 120 features, float32" in text
    assert "120 × 6,625  float32  weight" in text
    assert "metadata 'character', blank first, space last" in text
    assert "box:-100,100 (assumed" in text
    assert "--all" in text


def test_labels_and_domain_can_be_given() -> None:
    text = run(MAGIKA, "--labels", MAGIKA_CONFIG, "--domain", "ball:3")
    assert "ball:3 (given)" in text
    assert "214 from" in text


def test_json_on_stdout_is_nothing_but_json() -> None:
    shown = json.loads(run(PP_OCR_V4, "--json", "-"))
    assert (shown["classes"], shown["features"], shown["weight"]) == (6625, 120, "linear_85.w_0")
    assert shown["odd"]["zero_rows"] == []


def test_json_in_a_file_comes_with_the_text(tmp_path: Path) -> None:
    assert "214 classes" in run(MAGIKA, "--json", tmp_path / "shown.json")
    assert json.loads((tmp_path / "shown.json").read_text(encoding="utf-8"))["classes"] == 214


def test_a_file_without_a_clear_head_is_shown_with_the_way_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", first=np.eye(3), second=np.ones((4, 2)))
    text = run(tmp_path / "m.npz")
    assert "first" in text
    assert "4 × 2" in text
    assert "name one with --weight" in text
    assert "3 classes × 3 features" in run(tmp_path / "m.npz", "--weight", "first")


def test_odd_rows_are_shown(tmp_path: Path) -> None:
    weight = np.array([[0.0, 7.0], [1.0, 7.0], [1.0, 7.0], [2.0, 7.0]])
    np.savez(tmp_path / "m.npz", weight=weight, bias=np.array([0.0, 1.0, 1.0, 0.0]))
    text = run(tmp_path / "m.npz")
    assert "2 in 1 groups: {1, 2}" in text
    assert "1: 1: no say in the argmax" in text
    np.save(tmp_path / "zero.npy", weight * [1, 0])
    assert "1: 0" in run(tmp_path / "zero.npy")


def test_names_from_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", **{"\x1b[31m[bold]red": np.eye(3)})
    text = run(tmp_path / "m.npz")
    assert "\x1b[31m" not in text
    assert "\\x1b[31m[bold]red" in text


def test_a_json_file_that_cannot_be_written_is_said_first(tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match="there is no folder"):
        run(PP_OCR_V4, "--json", tmp_path / "no" / "shown.json")
