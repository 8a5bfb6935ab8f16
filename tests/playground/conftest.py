"""A real Chromium with the playground open, watched: what it logs, and where it wants to go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from uncork.web.playground import standalone


@dataclass
class Watched:
    """A page, with everything it complained of and asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, path: Path, fragment: str = "") -> Watched:
        self.page.goto(path.as_uri() + fragment)
        self.page.wait_for_selector("html[data-ready=yes]")
        return self


@pytest.fixture(scope="module")
def playground_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("playground") / "playground.html"
    path.write_text(standalone(), encoding="utf-8")
    return path


@pytest.fixture
def watch(chromium: Any) -> Iterator[Any]:
    """Open pages; at the end none may have logged anything or asked for more than itself."""
    opened: list[Watched] = []
    contexts: list[Any] = []

    def watching(**settings: Any) -> Watched:
        context = chromium.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        watched = Watched(page)
        page.on("console", lambda message: watched.complaints.append(message.text))
        page.on("dialog", lambda dialog: watched.complaints.append(dialog.message))
        page.on("pageerror", lambda error: watched.complaints.append(str(error)))
        page.on("request", lambda request: watched.requests.append(request.url))
        opened.append(watched)
        return watched

    yield watching
    for context in contexts:
        context.close()
    for watched in opened:
        assert watched.complaints == []
        assert all(url.startswith(("file:", "data:")) for url in watched.requests)
