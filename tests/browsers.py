"""A real Chromium, for the tests of what is looked at in one, and ways to wait for what it shows.

A page answers a click when it next draws: what is read at once may be what was there before.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_SECONDS = 30  # that a busy machine may take


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """For a file and no longer: while it is open, nothing else here can run an event loop."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        assert not os.environ.get("UNCORK_NEEDS_CHROMIUM"), "Chromium was not installed"
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=1000 * _SECONDS)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def shows(page: Any, selector: str, text: str) -> None:
    """Wait until that text is there, perhaps among other."""
    _expect(page.locator(selector)).to_contain_text(text)


def reads(page: Any, selector: str, text: str) -> None:
    """Wait until that text is there and no other."""
    _expect(page.locator(selector)).to_have_text(text)


def shown(page: Any, selector: str, count: int) -> None:
    """Wait until there are so many."""
    _expect(page.locator(selector)).to_have_count(count)


def lists(page: Any, selector: str, texts: list[str]) -> None:
    """Wait until these texts are there, one an element, and no others."""
    _expect(page.locator(selector)).to_have_text(texts, use_inner_text=True)


def comes_true(page: Any, expression: str, given: Any = None) -> None:
    """Wait until something holds on the page: an expression, or a function of `given`.

    Asked again from here: a page's policy may forbid what `wait_for_function` does there.
    """
    end = time.monotonic() + _SECONDS
    while not page.evaluate(expression, given):
        assert time.monotonic() < end, f"{expression} did not come true"
        page.wait_for_timeout(50)


def _expect(located: Any) -> Any:
    from playwright.sync_api import expect

    return expect(located)
