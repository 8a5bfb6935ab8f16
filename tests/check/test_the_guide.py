"""What the guide prints of shipped models is what comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from models import MAGIKA, PP_OCR_V4
from uncork.cli import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "check.md"
RESULT = re.compile(r"^(?:pass|warn|fail|–   )  [\w-]+ .*$", re.M)


def printed(model: str) -> str:
    """What stands on the page under a command, up to the next command or the end of the block."""
    text = PAGE.read_text("utf-8")
    return re.split(r"\n\$ |\n```", text.partition(f"/{model} --quiet\n")[2])[0]


@pytest.mark.parametrize(
    ("model", "bad"), [(PP_OCR_V4, 1), (MAGIKA, 0)], ids=["PP-OCRv4", "magika"]
)
def test_the_page_prints_what_comes_out(
    model: Path, bad: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the mixtures that beat lost classes, whose last digits depend on the machine."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["check", str(model), "--quiet", "--jobs", "1"])
    assert done.exit_code == bad
    shown, found = printed(Path(model).name), done.stdout
    assert shown.strip().splitlines()[-1] == found.strip().splitlines()[-1]
    lines = [line for line in RESULT.findall(found) if bad or line[:4] in ("warn", "fail")]
    assert RESULT.findall(shown) == lines
