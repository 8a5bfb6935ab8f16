"""`uncork random`: options that do not go together, and results that would overwrite others."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import Run

ONE = ["-C", 8, "-d", 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*ONE, "--store", "x.db"], "--store goes with --sweep"),
        ([*ONE, "--resume"], "--resume goes with --sweep"),
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
