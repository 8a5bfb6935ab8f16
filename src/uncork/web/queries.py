"""What the pages ask of a store: audits by page and order, classes, two audits side by side."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Select, func, select

from uncork.auditing.proofs.verdict import Verdict
from uncork.domain import Domain
from uncork.store import Store, StoredAudit, schema
from uncork.store.keys import make_key
from uncork.store.queries import (
    SINCE,
    audit_query,
    escaped,
    filtered,
    matching,
    plain,
    stored,
)

ORDERS = {
    "id": schema.audits.c.id,
    "name": schema.runs.c.name,
    "group": schema.runs.c.group_name,
    "classes": schema.audits.c.asked,
    "features": schema.models.c.features,
    "unargmaxable": schema.audits.c.unargmaxable,
    # A float, and never a division by zero.
    "share": schema.audits.c.unargmaxable * 1.0 / func.nullif(schema.audits.c.asked, 0),
    "tied": schema.audits.c.tied,
    "undecided": schema.audits.c.undecided,
    "created": SINCE,
}
CLASS_ORDERS = {
    "class": schema.results.c.class_id,
    "label": schema.results.c.label,
    "verdict": schema.results.c.verdict,
    "margin": schema.results.c.margin,
}
_BATCH = 20_000
_SOME = 500  # classes asked for by number at once
_CODE_POINT = re.compile(r"[uU]\+([0-9a-fA-F]{2,6})")


def audit_page(
    store: Store,
    *,
    name: str | None,
    group: str | None,
    fingerprint: str | None,
    order: str,
    descending: bool,
    limit: int,
    offset: int,
) -> tuple[int, list[StoredAudit]]:
    """How many audits fit, each under each of its names, and one page of them."""
    query = matching(audit_query(), schema.runs, name=name, group=group, fingerprint=fingerprint)
    counted = select(func.count()).select_from(query.subquery())
    by = ORDERS[order]
    key = by.desc() if descending else by.asc()
    page = query.order_by(key, schema.audits.c.id, schema.runs.c.id).limit(limit).offset(offset)
    with store.database.reading() as connection:
        total = int(connection.execute(counted).scalar_one())
        return total, stored(connection, page)


def find_audit(store: Store, audit_id: int) -> StoredAudit | None:
    """One audit, or None."""
    return store.find_audit(audit_id)


def is_of_domain(store: Store, audit: StoredAudit, domain: Domain) -> bool:
    """Whether an audit was made with exactly that domain: it is part of the audit's key."""
    query = select(schema.audits.c.key).where(schema.audits.c.id == audit.id)
    with store.database.reading() as connection:
        key = connection.execute(query).scalar()
    asked = None
    if audit.asked < audit.classes:
        asked = store.columns(audit.id)["class_id"]
    made = make_key(audit.fingerprint, domain.spec(), audit.algorithm, audit.approximate, asked)
    return bool(key == made)


def groups(store: Store) -> list[str]:
    """The names of groups there are."""
    query = select(schema.runs.c.group_name).distinct().order_by(schema.runs.c.group_name)
    with store.database.reading() as connection:
        return [str(row[0]) for row in connection.execute(query) if row[0]]


def class_page(
    store: Store,
    audit_id: int,
    *,
    verdict: Verdict | None,
    label: str | None,
    search: str | None,
    after: int,
    order: str,
    descending: bool,
    limit: int,
    offset: int,
) -> tuple[int, list[dict[str, Any]]]:
    """How many classes of an audit fit, and one page of them in an order.

    First the numbers alone, then the rows of one page: sorting and passing over never carry a row.
    """
    c = schema.results.c
    fits = filtered(select(c.class_id), audit_id, verdict, label)
    if search is not None and search.strip():
        fits = fits.where(_sought(store, search.strip()))
    by = CLASS_ORDERS[order]
    keys: list[Any] = [by.desc() if descending else by.asc()]
    if by is not c.class_id:  # in the order of their numbers the table's own key has them
        keys = [by.is_(None), *keys, c.class_id]
    page = fits.where(c.class_id > after).order_by(*keys).limit(limit).offset(offset)
    # PostgreSQL looks at every label for one page already, so it counts on the way; SQLite stops
    # when the page is full.
    at_once = search is not None and after < 0 and not is_sqlite(store)
    if at_once:
        page = page.add_columns(func.count().over())
    with store.database.reading() as connection:
        rows = connection.execute(page).all()
        ids = [int(row[0]) for row in rows]
        if at_once and rows:
            total = int(rows[0][1])
        elif len(ids) < limit and not offset and after < 0:  # that page was all there is
            total = len(ids)
        else:
            counted = select(func.count()).select_from(fits.subquery())
            total = int(connection.execute(counted).scalar_one())
    return total, classes_of(store, audit_id, ids)


def classes_of(store: Store, audit_id: int, ids: list[int]) -> list[dict[str, Any]]:
    """These classes of an audit, in this order; those it does not have are left out."""
    c = schema.results.c
    known: dict[int, dict[str, Any]] = {}
    for start in range(0, len(ids), _SOME):
        some = ids[start : start + _SOME]
        query = select(schema.results).where(c.audit_id == audit_id, c.class_id.in_(some))
        with store.database.reading() as connection:
            rows = connection.execute(query)
            known.update((row.class_id, plain(dict(row._mapping))) for row in rows)
    return [known[t] for t in ids if t in known]


def is_sqlite(store: Store) -> bool:
    return store.database.url.get_backend_name() == "sqlite"


def _sought(store: Store, text: str) -> Any:
    """Labels that hold a text in any case, the class of that number, the code point U+…."""
    c = schema.results.c

    def holds(part: str) -> Any:
        within = f"%{escaped(part)}%"
        if is_sqlite(store):  # whose LIKE takes upper and lower case of ASCII as one
            return c.label.like(within, escape="\\")
        # The same and as quick: other collations lower every label in full.
        return c.label.collate("C").ilike(within, escape="\\")

    found = holds(text)
    if text.isascii() and text.isdigit() and int(text) < 2**31:
        found = found | (c.class_id == int(text))
    code = _CODE_POINT.fullmatch(text)
    if code is not None and int(code[1], 16) <= sys.maxunicode:
        found = found | holds(chr(int(code[1], 16)))
    return found


def one_class(store: Store, audit_id: int, class_id: int) -> dict[str, Any] | None:
    """A class of an audit, or None."""
    found = store.classes(audit_id, after=class_id - 1, limit=1)
    return found[0] if found and found[0]["class"] == class_id else None


def labels_of(store: Store, audit_id: int, classes: list[int]) -> dict[int, tuple[str, str]]:
    """Label and verdict of some classes, where the audit has them."""
    c = schema.results.c
    known: dict[int, tuple[str, str]] = {}
    for start in range(0, len(classes), _SOME):
        some = classes[start : start + _SOME]
        query = select(c.class_id, c.label, c.verdict).where(
            c.audit_id == audit_id, c.class_id.in_(some)
        )
        with store.database.reading() as connection:
            for row in connection.execute(query):
                known[row.class_id] = (row.label, str(Verdict(row.verdict)))
    return known


def class_with_label(store: Store, audit_id: int, label: str) -> dict[str, Any] | None:
    """The first class of an audit that has this label."""
    c = schema.results.c
    query = select(schema.results).where(c.audit_id == audit_id, c.label == label)
    with store.database.reading() as connection:
        row = connection.execute(query.order_by(c.class_id).limit(1)).first()
    return None if row is None else plain(dict(row._mapping))


def every_class(store: Store, audit_id: int) -> Iterator[Any]:
    """All classes of an audit in order, as rows: class_id, verdict, margin, label."""
    c = schema.results.c
    yield from _rows(store, audit_id, select(c.class_id, c.verdict, c.margin, c.label))


def unreached_classes(store: Store, audit_id: int) -> Iterator[Any]:
    """Classes that were not reached, as rows: class_id, stolen_by, reason."""
    c = schema.results.c
    query = select(c.class_id, c.stolen_by, c.reason)
    query = query.where(c.verdict.in_((int(Verdict.UNARGMAXABLE), int(Verdict.UNDECIDED))))
    yield from _rows(store, audit_id, query)


def _rows(store: Store, audit_id: int, query: Select[Any]) -> Iterator[Any]:
    c = schema.results.c
    query = query.where(c.audit_id == audit_id).order_by(c.class_id)
    with store.database.reading() as connection:
        yield from connection.execute(query.execution_options(yield_per=_BATCH))


def result_page(
    store: Store,
    *,
    model: str | None,
    verdict: Verdict | None,
    audit_after: int,
    class_after: int,
    limit: int,
) -> list[dict[str, Any]]:
    """Classes of all audits whose name holds a text, those after a place in (audit, class), each
    once: under the first such name."""
    r = schema.results.c
    first = matching(select(func.min(schema.runs.c.id)), schema.runs, name=model)
    first = first.group_by(schema.runs.c.audit_id)
    query: Select[Any] = (
        select(schema.results, schema.runs.c.name)
        .join_from(schema.results, schema.runs, schema.runs.c.audit_id == r.audit_id)
        .where(schema.runs.c.id.in_(first.correlate(None)))
    )
    if verdict is not None:
        query = query.where(r.verdict == int(verdict))
    past = (r.audit_id > audit_after) | ((r.audit_id == audit_after) & (r.class_id > class_after))
    query = query.where(past).order_by(r.audit_id, r.class_id).limit(limit)
    with store.database.reading() as connection:
        rows = [dict(row._mapping) for row in connection.execute(query)]
    return [{"audit": row["audit_id"], "name": row["name"], **plain(row)} for row in rows]


def lost_ids(
    store: Store, model: str | None, limit: int, offset: int
) -> list[tuple[StoredAudit, list[int]]]:
    """For each audit whose name holds a text, the unargmaxable classes."""
    found = []
    r = schema.results.c
    for audit in store.audits(name=model, limit=limit, offset=offset):
        query = select(r.class_id).where(
            r.audit_id == audit.id, r.verdict == int(Verdict.UNARGMAXABLE)
        )
        with store.database.reading() as connection:
            ids = [int(row[0]) for row in connection.execute(query.order_by(r.class_id))]
        found.append((audit, ids))
    return found


def same_name(store: Store, names: tuple[str, ...], limit: int) -> list[StoredAudit]:
    """Audits of these model names, oldest first: their checkpoints."""
    query = audit_query().where(schema.runs.c.name.in_(names))
    with store.database.reading() as connection:
        return stored(connection, query.order_by(SINCE, schema.runs.c.id).limit(limit))
