"""Reading pictures back: every text of an SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path


def words(path: Path) -> str:
    """Every text of an SVG."""
    return "\n".join(
        "".join(element.itertext())
        for element in ElementTree.parse(path).iter()
        if element.tag.endswith("}text")
    )
