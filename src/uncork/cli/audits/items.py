"""What commands say of vector indices: items under other metrics, and nodes no path leads to."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing import Audit
from uncork.auditing.own_rows import audit_items
from uncork.auditing.shared_ids import SharedIds, shared_ids
from uncork.cli.output import shown, watched
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.items import Items
from uncork.core.links import Links
from uncork.core.reading import words_of
from uncork.core.words import ITEMS
from uncork.domain import parse_domain
from uncork.loading.chosen_classes import chosen_classes
from uncork.loading.contents import Contents
from uncork.loading.source import links_of
from uncork.loading.vectors.items import FoundItems

_MOST = 10  # items named in the text; JSON has all


def refuse_for_items(items: Items, options: list[str]) -> None:
    """Raise for options that mean nothing where every item is first at its own vector."""
    if options:
        raise UncorkError(
            f"{', '.join(options)}: not for items compared by {items.metric_in_words}, each of "
            "which is first at its own vector: uncork retrieve --every 1 asks about each item in a "
            "domain and among the first k; --metric inner about inner products"
        )


def audit_found(
    found: FoundItems, domain: str | None, classes: str | None, quiet: bool, began: float
) -> Audit:
    """Audit items under cosine or Euclidean distance, with the time that loading took."""
    items = found.items
    loading = time.perf_counter() - began
    inputs = None if domain is None or domain.strip() == "auto" else parse_domain(domain)
    asked = None
    if classes is not None:
        # Only labels and numbers are looked at, which are the same whatever the metric.
        named = Head(items.vectors, labels=items.labels)
        asked = chosen_classes(classes, named, found.vocabulary)
    result = audit_items(items, inputs, asked, watched(quiet))
    result.seconds["load"] = loading
    result.seconds["total"] += loading
    return result


def ids_in_json(audit: Audit) -> dict[str, Any]:
    """The key of the JSON, where items of an index share their ids."""
    found = _shared(audit)
    return {} if found is None else {"ids": found.as_dict()}


def said_of_ids(audit: Audit) -> list[tuple[str, str]]:
    """What follows for ids that have several vectors: an id is found wherever one of them is."""
    found = _shared(audit)
    if found is None:
        return []
    names = ", ".join(shown(name) for name in found.never[:_MOST])
    more = ", …" if len(found.never) > _MOST else ""
    text = (
        f"{found.shared:,} of {found.count:,} have several vectors, and are found where any of "
        f"them is: {len(found.never):,} are never retrieved first by any"
    )
    text += f" ({names}{more})" if names else ""
    return [("ids", text + (f", {found.undecided:,} undecided" if found.undecided else ""))]


def _shared(audit: Audit) -> SharedIds | None:
    return shared_ids(audit) if words_of(audit.reading) is ITEMS else None


@dataclass(frozen=True)
class Walked:
    """The graph of an index, and the items that no path leads to from its entry point."""

    links: Links | None
    unreachable: np.ndarray

    @classmethod
    def of(cls, contents: Contents) -> Walked:
        links = links_of(contents)
        return cls(links, np.empty(0, np.int64) if links is None else links.unreachable())

    def as_dict(self, audit: Audit) -> dict[str, Any]:
        """The key of the JSON, where there is a graph."""
        if self.links is None:
            return {}
        items = [{"class": t, "label": audit.label(t)} for t in self.unreachable.tolist()]
        return {
            "graph": {
                "nodes": self.links.nodes,
                "levels": len(self.links.levels),
                "entry": self.links.entry,
                "unreachable": len(items),
                "items": items,
            }
        }

    def said(self, audit: Audit) -> list[tuple[str, str]]:
        """The same as a line: what it is about, and the text."""
        if self.links is None:
            return []
        lost = self.unreachable.tolist()
        if not lost:
            return [("graph", f"a path leads to each of the {self.links.nodes:,} nodes")]
        names = [
            f"{t} {shown(audit.label(t))}" if audit.labels is not None else str(t)
            for t in lost[:_MOST]
        ]
        more = ", …" if len(lost) > _MOST else ""
        text = (
            f"to {len(lost):,} of {self.links.nodes:,} nodes no path leads from the entry point, "
            f"so that no search ever visits them: {', '.join(names)}{more}"
        )
        return [("graph", text)]
