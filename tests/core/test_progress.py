"""The bars of the progress display: each stage is over when the next begins."""

from __future__ import annotations

import re

import pytest

from uncork.core import progress
from uncork.core.progress import ProgressBar


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 120 columns, whatever runs the tests."""
    import rich.console

    class Terminal(rich.console.Console):
        def __init__(self, **options: object) -> None:
            super().__init__(force_terminal=True, width=120, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(rich.console, "Console", Terminal)
    monkeypatch.setattr(progress, "_silent", False)


def shown(text: str) -> list[str]:
    """The lines as they stand at the end, without colours."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return [line.strip() for line in plain.replace("\r", "\n").splitlines() if line.strip()]


@pytest.mark.usefixtures("terminal")
def test_a_stage_that_ends_early_does_not_go_on_counting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ProgressBar() as bar:
        bar.stage("screening", 6625)
        bar.advance(6368)
        bar.stage("deciding", 257)
        bar.advance(100)
        screening, deciding = bar._bars.tasks
        assert screening.finished
        assert (screening.completed, screening.total) == (6368, 6368)
        assert not deciding.finished
        assert deciding.total == 257
    assert any("6368/6368" in line for line in shown(capsys.readouterr().err))


@pytest.mark.usefixtures("terminal")
def test_a_stage_of_unknown_length_shows_no_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar() as bar:
        bar.stage("reflecting", None)
        bar.advance(7)
        (task,) = bar._bars.tasks
        assert task.time_remaining is None
        bar._bars.refresh()
    assert any("7/?" in line for line in shown(capsys.readouterr().err))
