"""The classes of a stored audit as its page asks for them: in pages, odd rows, dots of figures."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing.proofs.verdict import Verdict
from uncork.loading.odd_rows import OddRows
from uncork.report.data import ODD_NAMES, cut
from uncork.report.neighbours import row_norms
from uncork.store import Store, StoredAudit
from uncork.web.figures import dots
from uncork.web.queries import class_page, classes_of, labels_of
from uncork.web.weights import Unavailable, WeightsCache

_FIRST = 8  # classes of a kind of odd row that are named


@dataclass(frozen=True)
class ClassesAsked:
    """Which classes of an audit, in which order, and which of them."""

    verdict: Verdict | None
    label: str | None
    search: str | None
    after: int
    order: str
    descending: bool
    limit: int
    offset: int


def classes_asked(
    store: Store, audit: StoredAudit, asked: ClassesAsked, odd: str | None, cache: WeightsCache
) -> tuple[int, list[dict[str, Any]]]:
    """How many classes fit, and one page of them; the store does the work, but for odd rows."""
    if odd is None:
        return class_page(store, audit.id, **dataclasses.asdict(asked))
    try:
        ids = set(_ids(cache.of(audit).odd, odd))
    except Unavailable:
        return 0, []
    if asked.search or asked.label or asked.verdict is not None or asked.order != "class":
        # Few rows are odd: those that fit are found among all of their number.
        whole = dataclasses.replace(asked, limit=audit.classes, offset=0)
        fit = [row for row in class_page(store, audit.id, **dataclasses.asdict(whole))[1]
               if row["class"] in ids]  # fmt: skip
        return len(fit), fit[asked.offset : asked.offset + asked.limit]
    order = sorted(t for t in ids if t > asked.after)
    order = order[::-1] if asked.descending else order
    if audit.asked < audit.classes:
        order = [row["class"] for row in classes_of(store, audit.id, order)]
    page = order[asked.offset : asked.offset + asked.limit]
    return len(order), classes_of(store, audit.id, page)


def named_others(store: Store, audit_id: int, page: list[dict[str, Any]]) -> dict[str, str]:
    """Labels, cut, of the classes that take the place of those on a page."""
    named = {int(i) for row in page for i, _ in row["stolen_by"] or []}
    known = labels_of(store, audit_id, sorted(named))
    return {str(i): cut(label) for i, (label, _) in known.items() if label is not None}


def described_odd(store: Store, audit: StoredAudit, cache: WeightsCache) -> list[dict[str, Any]]:
    """Each kind of odd row among the audit's classes, or `Unavailable`."""
    odd = cache.of(audit).odd
    kinds = []
    for kind, name in ODD_NAMES.items():
        known = labels_of(store, audit.id, sorted(_ids(odd, kind)))
        if known:
            lost = sum(verdict == "unargmaxable" for _, verdict in known.values())
            first = [
                (t, None if known[t][0] is None else cut(known[t][0]))
                for t in sorted(known)[:_FIRST]
            ]
            rows = getattr(odd, kind)
            groups = len(rows) if isinstance(rows[0], tuple) else 0
            kinds.append(
                {"kind": kind, "name": name, "count": len(known), "lost": lost, "groups": groups,
                 "first": first}
            )  # fmt: skip
    return kinds


def _ids(odd: OddRows, kind: str) -> list[int]:
    rows: tuple[Any, ...] = getattr(odd, kind)
    return [t for group in rows for t in (group if isinstance(group, tuple) else (group,))]


def figure_dots(
    store: Store, audit: StoredAudit, norms: bool, cache: WeightsCache
) -> dict[str, Any]:
    """The dots of margins over class numbers, or over the lengths of rows, or `Unavailable`."""
    columns = store.columns(audit.id)
    ids = columns["class_id"]
    across = row_norms(cache.of(audit).rows)[ids] if norms else ids.astype(np.float64)
    return dots(ids, columns["verdict"], columns["margin"], across)


def rank_dots(store: Store, audit: StoredAudit, cache: WeightsCache) -> dict[str, Any]:
    """The dots of best ranks over the lengths of rows: one where a class can be first, else the
    highest place that some input was proven to give it; or `Unavailable`."""
    columns, (asked, _, upper) = store.columns(audit.id), store.best_ranks(audit.id)
    if not len(asked):
        raise Unavailable("the best ranks of its classes were not asked for")
    ids, verdicts = columns["class_id"], columns["verdict"]
    first = np.isin(verdicts, (Verdict.ARGMAXABLE, Verdict.TIED))
    ranks = np.where(first, 1.0, np.nan)
    ranks[np.searchsorted(ids, asked)] = upper
    lengths = row_norms(cache.of(audit).rows)[ids]
    return dots(ids, verdicts, columns["margin"], lengths, ranks)
