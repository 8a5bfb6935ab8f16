"""Text for people: nothing in it can steer a terminal or break a line."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text from a file, with what would move the cursor or break the line written as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
