"""The documentation site builds without a warning, holds every page, and stands on its own."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from browsers import comes_true, shown
from uncork.cli import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@dataclass
class Site:
    folder: Path
    messages: str  # what the build had to say
    status: int


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Site:
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet",
         "-d", str(folder / "doctrees"), str(DOCS), str(folder / "html")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return Site(folder / "html", ran.stderr, ran.returncode)


@pytest.fixture(scope="module")
def site(built: Site) -> Path:
    assert (built.folder / "index.html").exists(), built.messages
    return built.folder


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page opened from disk; nothing that it asks for may lie elsewhere."""
    asked: list[str] = []
    opened = chromium.new_page()
    opened.set_default_timeout(30_000)
    opened.on("request", lambda request: asked.append(request.url))
    yield opened
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


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


def test_it_builds_without_a_warning(built: Site) -> None:
    """So every link to a page, a heading or a file leads somewhere."""
    assert built.messages == ""
    assert built.status == 0


def test_every_document_has_a_page_in_the_navigation(site: Path) -> None:
    index = (site / "index.html").read_text(encoding="utf-8")
    for document in DOCS.rglob("*.md"):
        name = document.relative_to(DOCS).with_suffix(".html").as_posix()
        assert (site / name).exists()
        assert name == "index.html" or f'href="{name}"' in index, f"{name} is not listed"


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for reference in fetched(page):
            assert not reference.startswith(("http:", "https:", "//")), f"{page}: {reference}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8"))


def test_formulas_are_drawn(site: Path, page: Any) -> None:
    page.goto((site / "explanation" / "mathematics.html").as_uri())
    comes_true(page, "document.querySelectorAll('mjx-container svg').length > 20")
    shown(page, "[data-mjx-error], mjx-merror", 0)


def test_no_formula_is_wrong(site: Path, page: Any) -> None:
    for document in site.rglob("*.html"):
        if 'class="math' in document.read_text(encoding="utf-8"):
            page.goto(document.as_uri())
            every = "[...document.querySelectorAll('.math')]"
            comes_true(page, f"{every}.every(one => one.querySelector('mjx-container svg'))")
            wrong = page.locator("[data-mml-node=merror]")
            assert wrong.count() == 0, f"{document.name}: {wrong.all_inner_texts()}"


def test_search_finds_a_word_without_a_server(site: Path, page: Any) -> None:
    page.goto((site / "index.html").as_uri())
    page.locator(".sidebar-search").fill("mixture")
    page.keyboard.press("Enter")
    glossary = page.locator("#search-results li a", has_text="Glossary")  # results come one by one
    glossary.first.wait_for()


def test_no_code_is_cut_off(site: Path, page: Any) -> None:
    """What is wider than its box scrolls."""
    page.set_viewport_size({"width": 700, "height": 900})
    for name in ("reference/cli.html", "how-to/repair.html", "tutorials/audit.html"):
        page.goto((site / name).as_uri())
        hidden = page.evaluate(
            """() => [...document.querySelectorAll("pre")].filter(box =>
                 box.scrollWidth > box.clientWidth + 1 &&
                 !["auto", "scroll"].includes(getComputedStyle(box).overflowX)).length"""
        )
        assert hidden == 0, name
        assert page.evaluate("document.documentElement.scrollWidth") <= 700, name


def test_the_reference_holds_the_public_names(site: Path) -> None:
    page = (site / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    for name in ("load", "audit", "verify", "Head", "Audit.witness"):
        assert f'id="uncork.{name}"' in page
    functions = (site / "reference" / "api" / "nn.html").read_text(encoding="utf-8")
    assert 'id="uncork.nn.functional.entmax_loss"' in functions
    assert "Fenchel-Young" in functions


def test_no_sentence_of_an_attribute_is_taken_for_its_type(site: Path) -> None:
    for page in (site / "reference/api").glob("*.html"):
        assert ">Type<" not in page.read_text(encoding="utf-8"), page


def test_the_playground_is_part_of_the_site(site: Path) -> None:
    assert "uncorkGeometry" in (site / "playground.html").read_text(encoding="utf-8")
    linked = (site / "tutorials" / "audit.html").read_text(encoding="utf-8")
    assert 'href="../playground.html"' in linked


def test_names_of_this_machine_do_not_leak(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert str(ROOT) not in text
        assert str(Path.home()) + "/" not in text


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
