"""Asking the tables: the queries that `Store` runs, and what it makes of their rows."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Select, case, literal, select

from uncork.auditing.proofs.verdict import Verdict
from uncork.core.reading import Reading, reading_from
from uncork.store import schema

_IN_ONE_QUERY = 500  # values that one IN may hold on any database


@dataclass(frozen=True)
class StoredAudit:
    """One audit of the store under one of its names, without its classes.

    Heads that are equal, bit for bit, share their audit: `id` is the audit's, and `run` that of
    the name. Where several names share it, `also` holds the others.
    """

    id: int
    run: int
    fingerprint: str
    name: str
    group: str
    source: str
    classes: int
    features: int
    dtype: str
    has_bias: bool
    domain: str
    algorithm: str
    approximate: bool
    asked: int
    argmaxable: int
    unargmaxable: int
    tied: int
    undecided: int
    patience: int | None
    potentially: int | None
    proven: bool
    device: str
    seconds: Mapping[str, float]
    certificates: str | None
    uncork: str
    created: datetime.datetime
    metric: str = "inner"  # how items are compared: the proofs are about that and no other
    reading: Reading | None = None  # of audits of an earlier uncork, and of random heads: none
    also: tuple[str, ...] = ()


# Since when a name's verdicts are what they are: they may have been decided for another name.
SINCE = case(
    (schema.audits.c.created > schema.runs.c.created, schema.audits.c.created),
    else_=schema.runs.c.created,
)


def audit_query() -> Select[Any]:
    """Every run with its audit and head."""
    a, m, r = schema.audits.c, schema.models.c, schema.runs.c
    return (
        select(
            a.id, r.id.label("run"), m.fingerprint, r.name, r.group_name.label("group"), r.source,
            m.classes, m.features, m.dtype, m.has_bias, a.domain, a.algorithm, a.approximate,
            a.asked, a.argmaxable, a.unargmaxable, a.tied, a.undecided, a.patience, a.potentially,
            a.proven, a.device, a.seconds, r.certificates, a.uncork, SINCE.label("created"),
            m.metric, r.reading,
        )
        .join_from(schema.runs, schema.audits)
        .join(schema.models)
    )  # fmt: skip


def stored(connection: Connection, query: Select[Any]) -> list[StoredAudit]:
    """What an `audit_query` finds."""
    found = []
    for row in connection.execute(query):
        fields = dict(row._mapping)
        fields["created"] = in_utc(fields["created"])
        fields["reading"] = reading_from(fields["reading"])
        found.append(StoredAudit(**fields))
    return _with_other_names(connection, found)


def _with_other_names(connection: Connection, audits: list[StoredAudit]) -> list[StoredAudit]:
    r, ids = schema.runs.c, sorted({audit.id for audit in audits})
    names: dict[int, list[str]] = {}
    for start in range(0, len(ids), _IN_ONE_QUERY):
        query = select(r.audit_id, r.name).where(r.audit_id.in_(ids[start : start + _IN_ONE_QUERY]))
        for audit_id, name in connection.execute(query.order_by(r.id)):
            names.setdefault(audit_id, []).append(name)
    return [
        replace(audit, also=tuple(dict.fromkeys(n for n in names[audit.id] if n != audit.name)))
        if len(names[audit.id]) > 1
        else audit
        for audit in audits
    ]


def in_utc(time: datetime.datetime) -> datetime.datetime:
    """SQLite keeps no time zone."""
    return time if time.tzinfo is not None else time.replace(tzinfo=datetime.timezone.utc)


def matching(
    query: Select[Any],
    table: Any,
    *,
    name: str | None = None,
    group: str | None = None,
    fingerprint: str | None = None,
) -> Select[Any]:
    """Rows of `runs` or `failures` with that text in their name or source, of that group; for
    runs also: of those weights."""
    if name:
        within = f"%{escaped(name)}%"
        query = query.where(
            table.c.name.ilike(within, escape="\\") | table.c.source.ilike(within, escape="\\")
        )
    if group is not None:
        query = query.where(table.c.group_name == group)
    if fingerprint is not None:
        # As text that may hold anything: PostgreSQL refuses to compare with a NUL.
        query = query.where(schema.models.c.fingerprint == literal(fingerprint, schema.AnyText))
    return query


def filtered(
    query: Select[Any], audit_id: int, verdict: Verdict | None, label: str | None
) -> Select[Any]:
    query = query.where(schema.results.c.audit_id == audit_id)
    if verdict is not None:
        query = query.where(schema.results.c.verdict == int(verdict))
    if label is not None:
        query = query.where(schema.results.c.label.like(f"%{escaped(label)}%", escape="\\"))
    return query


def escaped(text: str) -> str:
    """Text whose % and _ mean themselves in LIKE."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "class": row["class_id"],
        "label": row["label"],
        "verdict": str(Verdict(row["verdict"])),
        "margin": row["margin"],
        "iterations": row["iterations"],
        "stolen_by": row["stolen_by"],
        "reason": row["reason"],
    }


def failure(row: Any) -> dict[str, Any]:
    fields = dict(row._mapping)
    resolved = fields["resolved"]
    return {
        "name": fields["name"],
        "group": fields["group_name"],
        "source": fields["source"],
        "options": json.loads(fields["options"]),
        "weights": fields["weights"],
        "error": fields["error"],
        "created": in_utc(fields["created"]),
        "resolved": None if resolved is None else in_utc(resolved),
    }
