"""What the browser's tests share: labels nobody should trust, a watched page, accessibility."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from uncork.core.reading import Reading

HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<!--",
    "]]>",
    "\x00",
    "\u202etxt.exe",
    "\ud800",
    "",
    "  ",
    "long " * 2000,
    "{{data}}",
    "سلام\u200cها",
    "́",
    "\u3164",
    " the",
)


HOSTILE_READING = Reading(
    HOSTILE[0], bias=HOSTILE[1], why=HOSTILE[2], labels_from=HOSTILE[11], doubts=HOSTILE[:7],
    notes=HOSTILE, preceded_by=HOSTILE[12],
)  # fmt: skip


@dataclass
class Watched:
    """A page, with everything it complained of and asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def stumbling_blocks(page: Any) -> list[str]:
    """What axe, the accessibility checker, has against a page."""
    from axe_playwright_python.sync_playwright import Axe

    # Something that is still fading in has less contrast than it will have.
    page.evaluate("Promise.allSettled(document.getAnimations().map((one) => one.finished))")
    # It would fetch the styles once more, which a page on a disk is not allowed to do.
    options = {"resultTypes": ["violations"], "preload": not page.url.startswith("file:")}
    found = Axe().run(page, options=options).response["violations"]
    return [f"{item['id']}: {[node['html'][:80] for node in item['nodes']]}" for item in found]
