"""The formats that the result of a check is written in: one function each, in one table."""

from __future__ import annotations

from collections.abc import Callable

from uncork.check.formats import github, json, junit, markdown, sarif, text
from uncork.check.run import Checked

FORMATS: dict[str, Callable[[Checked], str]] = {
    "text": text.write,
    "json": json.write,
    "junit": junit.write,
    "sarif": sarif.write,
    "github": github.write,
    "markdown": markdown.write,
}
