"""Words that checks share: counts, and the names of a few classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uncork.core.head import Head
from uncork.core.text import visible
from uncork.loading.hugging_face.hub_address import is_address

_LONGEST_LABEL = 40
_SHOWN = 3


def short_source(source: str) -> str:
    """What others call the source: the file's own name, or the whole id on the hub."""
    return source if is_address(source) else source.replace("\\", "/").rpartition("/")[2]


def count(number: int, one: str, many: str = "") -> str:
    """`1 class`, `2 classes`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def classes(number: int) -> str:
    return count(number, "class", "classes")


def name_of(head: Head, t: int) -> str:
    """A class for people: its number, and its label if it has one."""
    return str(t) if head.labels is None else f"{t} {visible(head.label(t), _LONGEST_LABEL)}"


def others_of(head: Head, group: Sequence[int] | np.ndarray, t: int) -> str:
    """The first few others of a group, and how many more there are; groups may be very large."""
    few = [int(i) for i in group[: _SHOWN + 1] if int(i) != t][:_SHOWN]
    rest = len(group) - 1 - len(few)
    named = ", ".join(name_of(head, i) for i in few)
    return named + (f" and {rest:,} more" if rest > 0 else "")


def some_of(head: Head, ids: Sequence[int], most: int = _SHOWN) -> str:
    """The first few classes, and how many more there are."""
    named = ", ".join(name_of(head, t) for t in ids[:most])
    rest = len(ids) - most
    return named + (f" and {rest:,} more" if rest > 0 else "")
