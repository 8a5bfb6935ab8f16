"""What an audit says beside its verdicts: what real queries never find, and the first k places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from uncork.auditing import Audit
from uncork.cli import options
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.items import Items
from uncork.core.reading import words_of
from uncork.core.text import printable
from uncork.reach.first_places import FirstPlaces
from uncork.reach.observed import never_among_first

_PLACES = (1, 10, 100)
_ROWS = 4096


@dataclass(frozen=True)
class RealQueries:
    """The query vectors that were given, and the classes that none of them finds."""

    count: int = 0
    never: dict[int, np.ndarray] | None = None  # by the number of places

    @classmethod
    def of(cls, given: options.Queries, head: Head) -> RealQueries:
        vectors = given.vectors(head.features)
        if vectors is None:
            return cls()
        places = [k for k in _PLACES if k < head.classes] or [1]
        return cls(len(vectors), never_among_first(head, vectors, places))

    @classmethod
    def of_items(cls, given: options.Queries, items: Items) -> RealQueries:
        """The same by cosine or Euclidean distance."""
        return cls() if len(items) < 2 else cls.of(given, _scored_in_floats(items))

    def as_dict(self) -> dict[str, Any]:
        """The key of the JSON, where there are queries."""
        if self.never is None:
            return {}
        never = {str(k): ids.tolist() for k, ids in self.never.items()}
        return {"queries": {"count": self.count, "never_among_first": never}}

    def said(self, audit: Audit) -> list[tuple[str, str]]:
        """The same as lines: what each is about, and the text."""
        if self.never is None:
            return []
        lines = []
        lost = set(audit.unargmaxable.tolist())
        for k, ids in self.never.items():
            beside = ""
            if k == 1:
                say = words_of(audit.reading).say
                count = len(lost & set(ids.tolist()))
                beside = say(f", of which {count:,} can be first at no input")
            place = "first" if k == 1 else f"among the first {k}"
            text = f"{len(ids):,} are {place} at none of the {self.count:,} queries{beside}"
            lines.append(("real queries", text))
        return lines


def _scored_in_floats(items: Items) -> Head:
    """A head whose scores have the order of the items' own, but for rounding: to count with, never
    to prove anything about."""
    if items.metric == "euclidean":  # −½‖w − x‖² without what is the same for all
        squares = [np.einsum("ij,ij->i", rows, rows) for _, rows in items.blocks(_ROWS)]
        return Head(items.vectors, -0.5 * np.concatenate(squares))
    unit = np.empty(items.vectors.shape, np.float64 if items.dtype == "float64" else np.float32)
    for start, rows in items.blocks(_ROWS):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        unit[start : start + len(rows)] = rows / np.where(lengths > 0, lengths, 1.0)
    return Head(unit)


def numbers_of(text: str | None) -> list[int]:
    """The numbers of `--top 1,10,100`."""
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    good = all(part.isascii() and part.isdigit() and 0 < len(part) < 10 for part in parts)
    if not good or any(int(part) < 1 for part in parts):
        raise UncorkError(f"--top {printable(text[:40])}: expected numbers, such as 1,10,100")
    return [int(part) for part in parts]


def print_places(out: Console, found: FirstPlaces) -> None:
    for k in found.places:
        place = "first" if k == 1 else f"among the first {k}"
        rest = f", {found.open(k):,} open" if found.open(k) else ""
        out.print(
            f"{place}: {len(found.never(k)):,} proven never, {found.ever(k):,} proven to be for "
            f"some input{rest}"
        )
    for note in found.notes:
        out.print(note, soft_wrap=True)
