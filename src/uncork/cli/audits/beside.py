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
from uncork.core.text import printable
from uncork.reach.first_places import FirstPlaces
from uncork.reach.observed import never_among_first

_PLACES = (1, 10, 100)


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

    def as_dict(self) -> dict[str, Any]:
        """The key of the JSON, where there are queries."""
        if self.never is None:
            return {}
        never = {str(k): ids.tolist() for k, ids in self.never.items()}
        return {"queries": {"count": self.count, "never_among_first": never}}

    def print(self, out: Console, audit: Audit) -> None:
        if self.never is None:
            return
        lost = set(audit.unargmaxable.tolist())
        for k, ids in self.never.items():
            beside = ""
            if k == 1:
                beside = f", of which {len(lost & set(ids.tolist())):,} can be first at no input"
            place = "first" if k == 1 else f"among the first {k}"
            out.print(f"{len(ids):,} are {place} at none of the {self.count:,} queries{beside}")


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
