"""What the pages ask of a store about label sets: audits by page, their sets, one set."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Text, cast, func, or_, select

from uncork.core.reading import json_keys, reading_from
from uncork.labels.result import SetVerdict
from uncork.store import Store, schema
from uncork.store.label_rows import split_names
from uncork.store.queries import escaped

_AUDITS, _SETS = schema.label_audits, schema.label_sets


def label_audit_page(
    store: Store, name: str | None, limit: int, offset: int
) -> tuple[int, list[dict[str, Any]]]:
    """How many label audits fit, and one page of them, the latest first."""
    query = _audit_query()
    if name:
        within = f"%{escaped(name)}%"
        columns = (_AUDITS.c.name, _AUDITS.c.source)
        query = query.where(or_(*(column.like(within, escape="\\") for column in columns)))
    counted = select(func.count()).select_from(query.subquery())
    page = query.order_by(_AUDITS.c.id.desc()).limit(limit).offset(offset)
    with store.database.reading() as connection:
        total = int(connection.execute(counted).scalar_one())
        return total, [_plain_audit(dict(row._mapping)) for row in connection.execute(page)]


def find_label_audit(store: Store, number: int) -> dict[str, Any] | None:
    """One label audit, or None."""
    with store.database.reading() as connection:
        row = connection.execute(_audit_query().where(_AUDITS.c.id == number)).first()
    return None if row is None else _plain_audit(dict(row._mapping))


def _audit_query() -> Any:
    models = schema.models.c
    return select(_AUDITS, models.fingerprint, models.classes, models.features).join(
        schema.models, models.id == _AUDITS.c.model_id
    )


def _plain_audit(row: dict[str, Any]) -> dict[str, Any]:
    row["reading"] = reading_from(row["reading"])
    row["labels"] = row.pop("classes")
    for unwanted in ("key", "model_id"):
        del row[unwanted]
    return row


def plain_label_audit(row: dict[str, Any]) -> dict[str, Any]:
    """A label audit as JSON has it."""
    keys = json_keys(row["reading"])
    shown = {key: value for key, value in row.items() if key != "reading"}
    shown["created"] = row["created"].isoformat()
    return {**shown, "doubts": keys["doubts"], "notes": keys["notes"]}


def set_page(
    store: Store,
    number: int,
    verdict: SetVerdict | None,
    search: str | None,
    limit: int,
    offset: int,
) -> tuple[int, list[dict[str, Any]]]:
    """How many sets of a label audit fit, and one page of them: in their order."""
    c = _SETS.c
    fits = select(_SETS).where(c.label_audit_id == number)
    if verdict is not None:
        fits = fits.where(c.verdict == int(verdict))
    if search is not None and search.strip():
        fits = fits.where(_sought(store, search.strip()))
    counted = select(func.count()).select_from(fits.subquery())
    page = fits.order_by(c.set_id).limit(limit).offset(offset)
    with store.database.reading() as connection:
        total = int(connection.execute(counted).scalar_one())
        return total, [_plain_set(dict(row._mapping)) for row in connection.execute(page)]


def one_set(store: Store, number: int, set_id: int) -> dict[str, Any] | None:
    """A set of a label audit, or None."""
    c = _SETS.c
    query = select(_SETS).where(c.label_audit_id == number, c.set_id == set_id)
    with store.database.reading() as connection:
        row = connection.execute(query).first()
    return None if row is None else _plain_set(dict(row._mapping))


def _sought(store: Store, text: str) -> Any:
    """Sets with a label whose name holds the text in any case, or with the label of that number."""
    c = _SETS.c
    within = f"%{escaped(text)}%"
    sqlite = store.database.url.get_backend_name() == "sqlite"  # whose LIKE takes any case
    found: Any = c.names.like(within, escape="\\")
    if not sqlite:
        found = c.names.ilike(within, escape="\\")
    if text.isascii() and text.isdigit():
        numbers, own = cast(c.labels, Text), str(int(text))
        forms = (f"[{own}]", f"[{own},%", f"%, {own},%", f"%, {own}]")
        found = or_(found, *(numbers.like(form) for form in forms))
    return found


def _plain_set(row: dict[str, Any]) -> dict[str, Any]:
    off = row["off"] or []
    names, off_names = split_names(row["names"], len(row["labels"]), len(off))
    return {
        "set": row["set_id"],
        "labels": row["labels"],
        "names": names,
        "off": row["off"],
        "off_names": off_names if row["off"] is not None else None,
        "verdict": str(SetVerdict(row["verdict"])),
        "margin": row["margin"],
        "count": row["count"],
        "reason": row["reason"],
    }
