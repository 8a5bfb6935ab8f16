"""The documentation site builds without a warning, holds every page, and stands on its own."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from uncork.cli import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


class References(HTMLParser):
    """What a page fetches by itself: scripts, styles, pictures, fonts."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "source"):
            self.fetched.append(given.get("src") or "")
        elif tag == "link" and given.get("rel") in (
            "stylesheet",
            "icon",
            "preload",
            "modulepreload",
        ):
            self.fetched.append(given.get("href") or "")


def fetched(page: Path) -> Iterator[str]:
    reader = References()
    reader.feed(page.read_text(encoding="utf-8"))
    return filter(None, reader.fetched)


def test_every_document_has_a_page_in_the_navigation(site: Path) -> None:
    index = (site / "index.html").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix(".html").as_posix()
        assert (site / name).exists()
        assert name == "index.html" or f'href="{name}"' in index, f"{name} is not listed"


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for reference in fetched(page):
            assert not reference.startswith(("http:", "https:", "//")), f"{page}: {reference}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8"))


def test_the_reference_holds_the_public_names(site: Path) -> None:
    page = (site / "api" / "index.html").read_text(encoding="utf-8")
    for name in ("load.load", "audit.run.audit", "Head", "Audit.witness", "audit.verify.verify"):
        assert f'id="uncork.{name}"' in page
    functions = (site / "api" / "nn.html").read_text(encoding="utf-8")
    assert 'id="uncork.nn.functional.entmax_loss"' in functions
    assert "Fenchel-Young" in functions


def test_the_playground_is_part_of_the_site(site: Path) -> None:
    assert "uncorkGeometry" in (site / "playground.html").read_text(encoding="utf-8")


def test_names_of_this_machine_do_not_leak(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert str(ROOT) not in page.read_text(encoding="utf-8")


COMMANDS = re.findall(r"^    uncork (draw .*)$", (DOCS / "gallery.md").read_text("utf-8"), re.M)


def test_the_gallery_has_commands() -> None:
    assert len(COMMANDS) >= 10


@pytest.mark.parametrize("command", COMMANDS)
def test_each_picture_is_drawn_by_its_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, shlex.split(command), prog_name="uncork", catch_exceptions=False)
    assert ran.exit_code == 0
    (drawn,) = tmp_path.iterdir()
    shown = DOCS / "gallery" / drawn.name
    assert shown.exists()
    # Fonts differ from machine to machine, what is said does not.
    texts = [re.findall(r">([^<>]*(?:classes|rankings)[^<>]*)<", path.read_text("utf-8"))
             for path in (drawn, shown)]  # fmt: skip
    assert texts[0] == texts[1] != []
