"""Text for people, in which nothing can steer a terminal or break a line; numbers for JSON."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any

# Letters and marks that are drawn as nothing. `isprintable` knows controls, formats and spaces.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\uffa0\U00016fe4\U0001d159]"
)
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")  # they change what precedes them
_SPACES = re.compile("^ +| +$")


def printable(text: str) -> str:
    """Text from a file, with what would move the cursor or break the line written as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def visible(label: str, most: int) -> str:
    """The label in at most so many characters, with nothing in it that hides, steers or overflows.

    Spaces at its ends are ␣, a combining mark that leads gets a circle to stand on, and what would
    not show is written as its code: \\u3164.
    """
    if not label:
        return "(empty)"
    text = label[: most + 1]  # an end that is cut off shows anyway
    text = _SPACES.sub(lambda match: "␣" * len(match[0]), text)
    if _SELECTORS.match(text):
        text = f"{_code(text[0])}{text[1:]}"
    elif unicodedata.category(text[0])[0] == "M" and not _INVISIBLE.match(text):
        text = f"◌{text}"
    text = printable(_INVISIBLE.sub(lambda match: _code(match[0]), text))
    return text if len(text) <= most else text[: most - 1] + "…"


def _code(character: str) -> str:
    return ascii(character)[1:-1]


def number(value: float) -> str:
    """A number as pages write it: a true minus sign, thousands separated."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e15:
        text = f"{int(value):,}"
    else:
        text = f"{value:g}"
    return text.replace("-", "−")


def without_infinities(value: Any) -> Any:
    """What is to be written as JSON, which has no infinity and no NaN: null in their place."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(item) for item in value]
    return value
