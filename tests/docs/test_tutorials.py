"""The tutorials are run as they stand, and what they print is what they say."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from uncork.cli import app

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Block:
    language: str
    options: str
    body: str


def blocks(page: Path) -> list[Block]:
    return [Block(*match.groups()) for match in FENCE.finditer(page.read_text(encoding="utf-8"))]


def fits(expected: str, found: str) -> bool:
    """Whether the text is what is promised; … stands for anything."""
    pattern = ".*".join(re.escape(part.rstrip()) for part in expected.rstrip().split("…"))
    found = "\n".join(line.rstrip() for line in found.rstrip().splitlines())
    return re.fullmatch(pattern, found, re.DOTALL) is not None


def commands(body: str) -> Iterator[tuple[list[str], str]]:
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        program, *arguments = shlex.split(command)
        assert program == "uncork"
        yield arguments, output


def run(page: Path) -> dict[str, Any]:
    """Run a page's blocks in order; a text block is what the Python before it prints."""
    names: dict[str, Any] = {"__name__": page.stem}
    printed = ""
    for block in blocks(page):
        if block.language == "python":
            stream = io.StringIO()
            with contextlib.redirect_stdout(stream):
                exec(compile(block.body, str(page), "exec"), names)
            printed = stream.getvalue()
        elif block.language == "text" and not block.options.strip():
            assert fits(block.body, printed), f"{page.name} promises:\n{block.body}\n{printed}"
        elif block.language == "console":
            for arguments, promised in commands(block.body):
                ran = CliRunner().invoke(app, arguments, prog_name="uncork", catch_exceptions=False)
                assert ran.exit_code == 0, ran.stderr
                assert fits(promised, ran.stdout), f"promised:\n{promised}\ncame:\n{ran.stdout}"
    return names


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_auditing_a_model() -> None:
    names = run(DOCS / "tutorials" / "audit.md")
    assert names["audit"].counts["unargmaxable"] == 2
    assert Path("digits.svg").exists()


def test_training_with_a_sparse_loss() -> None:
    pytest.importorskip("torch")
    names = run(DOCS / "tutorials" / "sparse.md")
    assert (names["p_dense"] > 0).all()
    assert (names["p_sparse"] > 0).float().mean() < 0.25
    assert names["right"].float().mean() > 0.85
    assert names["listed"].float().mean() > 0.9
    assert names["certain_when_right"] > 0.6
    assert names["certain_when_wrong"] < 0.25


def test_measuring_the_bottleneck() -> None:
    names = run(DOCS / "tutorials" / "bottleneck.md")
    assert names["spectrum"].rank == 17


def test_deciding_label_sets() -> None:
    pytest.importorskip("torch")
    names = run(DOCS / "tutorials" / "label-sets.md")
    assert not len(names["found"].undecided)


def test_finding_what_no_query_finds() -> None:
    names = run(DOCS / "tutorials" / "retrieval.md")
    assert len(names["lost"]) == 60
    assert Path("even.npy").exists()


def test_seeing_what_training_loses() -> None:
    pytest.importorskip("torch")
    names = run(DOCS / "tutorials" / "gradient.md")
    assert names["right"] == 1
    assert names["counts"]["gradient_lost"] > 0.98


def test_no_tutorial_is_left_out() -> None:
    pages = {page.name for page in (DOCS / "tutorials").glob("*.md")}
    assert pages == {
        "audit.md", "sparse.md", "bottleneck.md", "gradient.md", "label-sets.md", "retrieval.md",
    }  # fmt: skip
