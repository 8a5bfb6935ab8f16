"""What every part of the API shares: how it answers, and what pages are asked for by."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import JSONResponse

from uncork.core.text import without_infinities
from uncork.report.data import cut

LARGEST = 2**31 - 1  # what a database's integer holds
_MOST = 1000  # items of one page
LONGEST = 1000  # characters of a query

Limit = Annotated[int, Query(ge=1, le=_MOST, description="items of one page")]
Offset = Annotated[int, Query(ge=0, le=LARGEST, description="items to pass over")]
Model = Annotated[
    str | None, Query(max_length=LONGEST, description="text in the model's name or source")
]


class Json(JSONResponse):
    """JSON in ASCII, so that labels which UTF-8 cannot hold arrive too; no NaN, no infinity."""

    def render(self, content: Any) -> bytes:
        plain = without_infinities(content)
        return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode("ascii")


def cut_labels(value: Any) -> Any:
    """The same with every label cut as on pages."""
    if isinstance(value, dict):
        return {
            key: cut(item) if key == "label" and isinstance(item, str) else cut_labels(item)
            for key, item in value.items()
        }
    return [cut_labels(item) for item in value] if isinstance(value, list) else value


def next_offset(offset: int, page: int, total: int) -> int | None:
    """Where the next page begins; None after the last."""
    return offset + page if page and offset + page < total else None
