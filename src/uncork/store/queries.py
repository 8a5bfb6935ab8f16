"""Asking the tables: the queries that `Store` runs, and what it makes of their rows."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, select

from uncork.audit.verdict import Verdict
from uncork.reading import Reading, reading_from
from uncork.store import schema


@dataclass(frozen=True)
class StoredAudit:
    """One audit of the store, without its classes."""

    id: int
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
    reading: Reading | None = None  # of audits of an earlier uncork, and of random heads: none


def audit_query() -> Select[Any]:
    a, m = schema.audits.c, schema.models.c
    return select(
        a.id, m.fingerprint, a.name, a.group_name.label("group"), a.source, m.classes, m.features,
        m.dtype, m.has_bias, a.domain, a.algorithm, a.approximate, a.asked, a.argmaxable,
        a.unargmaxable, a.tied, a.undecided, a.patience, a.potentially, a.proven, a.device,
        a.seconds, a.certificates, a.uncork, a.created, a.reading,
    ).join_from(schema.audits, schema.models)  # fmt: skip


def stored(row: Any) -> StoredAudit:
    fields = dict(row._mapping)
    if fields["created"].tzinfo is None:  # SQLite keeps no time zone
        fields["created"] = fields["created"].replace(tzinfo=datetime.timezone.utc)
    fields["reading"] = reading_from(fields["reading"])
    return StoredAudit(**fields)


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
