"""`uncork show` and what other commands print and write: no input overwritten, no escapes."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import Run


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("show", ["MODEL", "--json", "MODEL"], "would overwrite the model"),
        ("show", ["MODEL", "--labels", "LABELS", "--json", "LABELS"], "overwrite the labels"),
        ("show", ["MODEL", "--domain", "@LABELS", "--json", "LABELS"], "overwrite the domain"),
        ("draw", ["MODEL", "--labels", "x.png", "-o", "x.png"], "would overwrite the labels"),
        ("draw", ["MODEL", "--domain", "@x.png", "-o", "x.png"], "would overwrite the domain"),
        ("playground", ["MODEL", "--domain", "@x", "-o", "x"], "would overwrite the domain"),
    ],
)
def test_inputs_are_not_overwritten(
    run: Run,
    square: Path,
    labels: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(square.parent)
    before = {path: path.read_bytes() for path in square.parent.iterdir()}
    given = [a.replace("MODEL", str(square)).replace("LABELS", str(labels)) for a in arguments]
    assert message in run(command, *given).error
    assert {path: path.read_bytes() for path in square.parent.iterdir()} == before


ESCAPE = "\x1b[31m"


def test_a_source_cannot_steer_the_terminal(run: Run, square: Path) -> None:
    source = square.rename(square.with_name(f"a{ESCAPE}.npz"))
    ran = run("show", source)
    assert ran.status == 0
    assert "\x1b" not in ran.out
    assert "a\\x1b[31m.npz" in ran.out


@pytest.mark.parametrize(
    ("arguments", "suffix"),
    [
        (["draw", "--figure", 1, "-o"], ".svg"),
        (["lost", "-C", 4, "-d", 1, "--heads", 1, "--quiet", "--plot"], ".svg"),
        (["random", "-C", 8, "-d", 2, "--plot"], ".svg"),
        (["playground", "-o"], ".html"),
    ],
)
def test_the_name_of_an_output_cannot_either(
    run: Run, tmp_path: Path, arguments: list[object], suffix: str
) -> None:
    path = tmp_path / f"a{ESCAPE}{suffix}"
    ran = run(*arguments, path)
    assert ran.status == 0
    assert path.exists()
    assert "\x1b" not in ran.out
    assert f"a\\x1b[31m{suffix}" in ran.out
