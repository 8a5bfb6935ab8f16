"""`uncork show` prints what was found."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from models import MAGIKA, MAGIKA_CONFIG, PP_OCR_V4
from uncork import Ball, Head, UncorkError
from uncork.cli.files import guarded
from uncork.cli.show import show
from uncork.loading.contents import FoundDomain
from uncork.loading.odd_rows import odd_rows
from uncork.loading.source import open_source

app = typer.Typer()
app.command()(guarded(show))


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


def test_rows_within_rounding_are_shown(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((50, 20))
    weight[7] = weight[30] * (1 + 2.0**-9)
    weight[8] = weight[31] * (1 + 2.0**-7)  # further apart than rounding explains
    np.save(tmp_path / "m.npy", weight)
    assert "2 in 1 groups: {7, 30} (2⁻⁸ of their length)" in run(tmp_path / "m.npy")
    assert odd_rows(Head(weight * 1e300)).near_rows == ((7, 30),)
    assert odd_rows(Head(weight * 1e-300)).near_rows == ((7, 30),)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(2, 60), st.sampled_from("df"))
def test_odd_rows_are_those_a_plain_comparison_finds(
    seed: int, features: int, classes: int, kind: str
) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((classes, features)).astype(kind)
    for _ in range(classes // 2):  # copies, scaled copies, zeros
        i, j = rng.integers(0, classes, 2)
        weight[i] = weight[j] * rng.choice([1.0, 0.0, 1 + 2.0**-10, 1 + 2.0**-6])
    odd = odd_rows(Head(weight))
    rows = weight.astype(float)
    apart = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    same = (rows[:, None] == rows[None]).all(axis=2)
    lengths = np.linalg.norm(rows, axis=1)
    assert odd.zero_rows == tuple(np.flatnonzero(lengths == 0).tolist())
    assert {k for group in odd.equal_rows for k in group} == set(
        np.flatnonzero(same.sum(axis=1) > 1).tolist()
    )
    for group in odd.near_rows:
        for k in group:
            others = [j for j in group if j != k]
            shorter = np.minimum(lengths[k], lengths[others])
            assert (apart[k, others] <= 2.0**-8 * shorter * (1 + 1e-12)).any()
    listed = {k for group in odd.near_rows for k in group} | {
        k for group in odd.equal_rows for k in group
    }
    shorter = np.minimum(lengths[:, None], lengths[None])
    near = (apart <= 2.0**-8 * shorter * (1 - 1e-12)) & ~np.eye(classes, dtype=bool)
    assert set(np.flatnonzero(near.any(axis=1)).tolist()) <= listed


def test_the_vocabulary_is_shown_with_its_kinds_of_rows(tmp_path: Path) -> None:
    tokens = ["<s>", "</s>", "[unused0]", "a", "b\x1b[31m"]
    (tmp_path / "vocab.json").write_text(
        json.dumps({token: k for k, token in enumerate(tokens)}), "utf-8"
    )
    np.save(tmp_path / "m.npy", np.random.default_rng(0).standard_normal((9, 3)))
    text = run(tmp_path / "m.npy", "--labels", tmp_path / "vocab.json")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "special rows 2: 0, 1 (<s> </s>)" in lines
    assert "unused rows 1: 2 ([unused0])" in lines
    assert "padding rows 4: 5–8" in lines
    assert "\x1b[31m" not in text
    shown = json.loads(run(tmp_path / "m.npy", "--labels", tmp_path / "vocab.json", "--json", "-"))
    assert shown["odd"]["special_rows"] == [0, 1]
    assert shown["odd"]["padding_rows"] == [5, 6, 7, 8]


def test_what_the_source_shows_of_the_domain_is_said_even_if_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    np.save(tmp_path / "m.npy", np.eye(3))
    seen = FoundDomain(
        Ball(2), "RMSNorm model.norm precedes the head", "no weights are added to it"
    )
    opened = dataclasses.replace(open_source(tmp_path / "m.npy"), domain=lambda choice: seen)
    module = sys.modules["uncork.loading.description"]  # `uncork.load` itself is the function
    monkeypatch.setattr(module, "open_source", lambda source, base=None: opened)
    text = " ".join(run(tmp_path / "m.npy").split())
    assert "domain box:-100,100 (assumed)" in text
    assert "--domain auto would use ball:2: RMSNorm model.norm precedes the head" in text
    assert "assumed for that, not seen: no weights are added to it" in text
    text = " ".join(run(tmp_path / "m.npy", "--domain", "auto").split())
    assert "domain ball:2 (RMSNorm model.norm precedes the head)" in text
    assert "would use" not in text


def test_names_from_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", **{"\x1b[31m[bold]red": np.eye(3)})
    text = run(tmp_path / "m.npz")
    assert "\x1b[31m" not in text
    assert "\\x1b[31m[bold]red" in text


def test_a_json_file_that_cannot_be_written_is_said_first(tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match="there is no folder"):
        run(PP_OCR_V4, "--json", tmp_path / "no" / "shown.json")
