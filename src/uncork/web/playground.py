"""The playground as one file: script and style inside, so that it opens from disk and by mail."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from importlib.resources import files
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.text import visible

MOST_CLASSES = 10  # as many as the page has colours for
_LARGEST = 1e6  # what the page's own fields take
_LONGEST_LABEL = 16

_STYLE = re.compile(r'<link rel="stylesheet" href="((?:static|assets)/[\w-]+\.css)">')
_SCRIPT = re.compile(r'<script src="(static/[\w-]+\.js)"></script>')


def standalone(head: Head | None = None) -> str:
    """The playground as HTML that needs nothing else, opened on `head` where one is given.

    A content-security policy names its scripts and its style by their digests: nothing else runs,
    and nothing is fetched.
    """
    folder = files("uncork.web")
    page = folder.joinpath("playground.html").read_text(encoding="utf-8")
    digests: dict[str, list[str]] = {"script": [], "style": []}

    def inside(tag: str) -> Any:
        def replaced(match: re.Match[str]) -> str:
            package = "uncork.report" if match.group(1).startswith("assets") else "uncork.web"
            text = files(package).joinpath(match.group(1)).read_text(encoding="utf-8")
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            digests[tag].append(f"'sha256-{digest}'")
            return f"<{tag}>{text}</{tag}>"

        return replaced

    page = _STYLE.sub(inside("style"), page)
    page = _SCRIPT.sub(inside("script"), page)
    policy = (
        f"default-src 'none'; img-src data:; script-src {' '.join(digests['script'])}; "
        f"style-src {' '.join(digests['style'])}"
    )
    page = page.replace(
        '<meta charset="utf-8">',
        '<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">',
        1,
    )
    if head is not None:
        data = f'<script type="application/json" id="head">{_as_json(head)}</script>'
        page = page.replace("</main>", f"</main>\n{data}", 1)
    return page


def _as_json(head: Head) -> str:
    """What the page opens on; safe inside a script element, whatever the labels are."""
    if head.features != 2:
        raise UncorkError(f"the playground shows heads of 2 features, not of {head.features}")
    if head.classes > MOST_CLASSES:
        raise UncorkError(
            f"the playground shows up to {MOST_CLASSES} classes, not {head.classes:,}"
        )
    rows = np.column_stack([head.rows(0, head.classes), head.offsets])
    if np.abs(rows).max() > _LARGEST:
        raise UncorkError(
            f"the largest weight is {np.abs(rows).max():g}: the playground takes up to {_LARGEST:g}"
        )
    labels = head.labels
    names = None if labels is None else [visible(label, _LONGEST_LABEL) for label in labels]
    described = {
        "rows": rows.tolist(), "names": names, "bias": head.bias is not None, "box": _box(head),
    }  # fmt: skip
    text = json.dumps(described, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _box(head: Head) -> float | None:
    """The half-width of the box that inputs are in; None for the whole plane."""
    outline = head.domain.outline(head.features)
    if outline.is_box:
        lower, upper = outline.lower, outline.upper
        half = float(upper[0])
        if 0 < half <= _LARGEST and (upper == half).all() and (lower == -half).all():
            return half
        if np.isinf(lower).all() and math.isinf(half) and np.isinf(upper).all():
            return None
    raise UncorkError(
        f"the playground knows boxes box:R and the unbounded domain, not {head.domain}"
    )
