"""Adding a check: one file in `check/checks/`, and its name in one list."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from uncork.check import checks, conditions, run
from uncork.cli import app

MODULE = '''
# [docs: begin]
"""Biases that are far larger than what the rows can add up to."""

import numpy as np

from uncork.check.protocol import MOST, Check, Concerned, Condition, Finding, not_applicable
from uncork.check.subject import Subject


def find_bias_large(subject: Subject, condition: Condition) -> Finding:
    head = subject.head
    if head.bias is None:
        return not_applicable("there is no bias")
    large = np.flatnonzero(np.abs(head.offsets) > condition["largest"])
    ids = condition.left(head, large.tolist())  # without those that the user allows
    return Finding(
        f"{len(ids)} biases are larger than {condition['largest']:g}",
        tuple(Concerned(t, f"bias {head.offsets[t]:g}") for t in ids),
    )


BIAS_LARGE = Check(
    "bias-large",
    "No bias is very large.",
    "Look at how these classes were initialised.",
    find_bias_large,
    limits={MOST: 0, "largest": 100},  # what a user can set in uncork.toml
)
# [docs: end]
'''


def test_a_check_is_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bias_large.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(tmp_path)])
    added = importlib.import_module("uncork.check.checks.bias_large")
    every = (*checks.CHECKS, added.BIAS_LARGE)
    # The list is read where its name is bound, which in the package is one place.
    monkeypatch.setattr(run.run_checks, "__defaults__", (None, every))
    monkeypatch.setattr(conditions.read_suite, "__defaults__", (None, every))
    monkeypatch.chdir(tmp_path)
    square = np.array([[1.0, 0], [0, 1], [-1, -1]])
    np.savez("m.npz", weight=square, bias=np.array([0.0, 0, 101]))

    def checked(*arguments: str) -> str:
        given = ["check", "m.npz", "--quiet", "--jobs", "1", *arguments]
        return CliRunner().invoke(app, given, prog_name="uncork").stdout

    assert "warn  bias-large      1 biases are larger than 100" in checked()
    assert '"name": "bias-large"' in checked("--format", "json")
    Path("uncork.toml").write_text("[check.bias-large]\nlargest = 200\n")
    assert "pass  bias-large" in checked()
    Path("uncork.toml").write_text("[check.bias-large]\nallow = [2]\n")
    assert "pass  bias-large" in checked()
    del sys.modules["uncork.check.checks.bias_large"]
